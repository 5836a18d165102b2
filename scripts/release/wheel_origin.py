#!/usr/bin/env python3
"""Takes out of a wheel what maturin's list of crates (CycloneDX) says of where and when it was built.

Its serial number, which is random, goes; its time is SOURCE_DATE_EPOCH; ROOT, where the sources are, becomes
/windrow. Fails if ROOT or one of FOLDER is still named by any file of the wheel.
"""

import argparse
import base64
import hashlib
import json
import os
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Dict


def without_origin(sbom: bytes, root: str) -> bytes:
    document = json.loads(sbom.replace(f"file://{root}".encode(), b"file:///windrow"))
    document.pop("serialNumber", None)
    when = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    document["metadata"]["timestamp"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(document, indent=2).encode()


def record(text: str, changed: Dict[str, bytes]) -> str:
    """RECORD with the hashes and sizes of the files that changed."""
    lines = []
    for line in text.splitlines():
        name = line.split(",")[0]
        if name in changed:
            digest = base64.urlsafe_b64encode(hashlib.sha256(changed[name]).digest()).rstrip(b"=").decode()
            line = f"{name},sha256={digest},{len(changed[name])}"
        lines.append(line + "\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", metavar="WHEEL", type=Path)
    parser.add_argument("root", metavar="ROOT")
    parser.add_argument("folders", metavar="FOLDER", nargs="*")
    options = parser.parse_args()
    wheel, root, folders = options.wheel, options.root, [options.root, *options.folders]
    with zipfile.ZipFile(wheel) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist()]
    changed = {
        info.filename: without_origin(data, root)
        for info, data in files
        if info.filename.endswith(".cyclonedx.json")
    }
    assert changed, f"{wheel.name} has no list of its crates"
    with zipfile.ZipFile(wheel, "w") as archive:
        for info, data in files:
            if info.filename.endswith(".dist-info/RECORD"):
                data = record(data.decode(), changed).encode()
            data = changed.get(info.filename, data)
            told = [folder for folder in folders if folder.encode() in data]
            assert not told, f"{info.filename} of {wheel.name} names {told}"
            archive.writestr(info, data)


if __name__ == "__main__":
    main()
