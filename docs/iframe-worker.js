// Search from file://, where browsers start no Worker: the script of the worker runs in a hidden frame instead, and messages go
// to and fro as events. The theme's own stand-in for this would be fetched from a server; it asks for the name IFrameWorker.
"use strict";
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      // Written by hand, its document is not replaced by an empty one later, as Firefox does.
      inside.document.open();
      inside.document.write("<body>");
      inside.document.close();
      const load = (path) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = new URL(path, document.baseURI);
          script.onload = resolve;
          script.onerror = () => reject(new Error(`${path} does not load`));
          inside.document.body.appendChild(script);
        });
      const tell = (target, data) => target.dispatchEvent(new MessageEvent("message", { data }));
      inside.postMessage = (data) => setTimeout(() => tell(this, data));
      inside.importScripts = (...paths) => paths.reduce((before, path) => before.then(() => load(path)), Promise.resolve());
      const loaded = load(url);
      this.postMessage = (data) => loaded.then(() => tell(inside, data));
      this.terminate = () => frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
