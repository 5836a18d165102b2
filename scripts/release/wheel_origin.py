#!/usr/bin/env python3
"""Takes out of a wheel what maturin's list of crates (CycloneDX) says of where and when it was built.

Its serial number, which is random, goes; its time is SOURCE_DATE_EPOCH; ROOT, where the sources are, becomes
/windrow. Fails if ROOT or one of FOLDER is still named by any file of the wheel. Files of --license join the licences.
"""

import argparse
import base64
import copy
import hashlib
import json
import os
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Dict, Iterable


def without_origin(sbom: bytes, root: str) -> bytes:
    document = json.loads(sbom.replace(f"file://{root}".encode(), b"file:///windrow"))
    document.pop("serialNumber", None)
    when = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    document["metadata"]["timestamp"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(document, indent=2).encode()


def with_licenses(metadata: bytes, names: Iterable[str]) -> bytes:
    """METADATA that names these files before its first licence."""
    lines = b"".join(b"\nLicense-File: " + name.encode() for name in names)
    assert b"\nLicense-File: " in metadata, "METADATA names no licence"
    return metadata.replace(b"\nLicense-File: ", lines + b"\nLicense-File: ", 1)


def record(text: str, changed: Dict[str, bytes]) -> str:
    """RECORD with the hashes and sizes of the files that changed or are new."""
    lines = {line.split(",")[0]: line for line in text.splitlines()}
    for name, data in changed.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines[name] = f"{name},sha256={digest},{len(data)}"
    return "".join(line + "\n" for line in lines.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", metavar="WHEEL", type=Path)
    parser.add_argument("root", metavar="ROOT")
    parser.add_argument("folders", metavar="FOLDER", nargs="*")
    parser.add_argument("--license", metavar="FILE", type=Path, action="append", default=[])
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
    (metadata,) = [info for info, _ in files if info.filename.endswith(".dist-info/METADATA")]
    licenses = {file.name: file.read_bytes() for file in options.license}
    new = []
    for name, data in licenses.items():
        info = copy.copy(metadata)
        info.filename = metadata.filename.replace("/METADATA", f"/licenses/{name}")
        new.append((info, data))
    changed[metadata.filename] = with_licenses(dict(files)[metadata], licenses)
    changed.update((info.filename, data) for info, data in new)
    # RECORD stays the last file.
    files[-1:-1] = new
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
