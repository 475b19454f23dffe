"""Which files a checkpoint consists of, and whether they are still what was written.

The manifest of a step folder lists its leaves, files, sizes and checksums. It is
written last, so a folder that has none was never finished. crc32 is against accidents
(a full disk, a torn copy, a flipped byte), not against an attacker.
"""

import concurrent.futures
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

from etils import epath

NAME = "manifest.json"
_CHUNK_BYTES = 16 * 2**20  # read size while summing: large enough for a bucket
_READERS = 8  # files summed at once; crc32 and file reads release the GIL


def flaw(path: epath.Path, *, checksums: bool = True) -> str:
    """Why the step folder `path` cannot be trusted; "" if it verifies.

    Args:
        path: a step folder.
        checksums: False compares sizes only, without reading the files.
    """
    if not path.is_dir():
        return "no such folder"
    if not (path / NAME).exists():
        if not any(path.iterdir()):
            return "an empty folder"
        return "it has no manifest, so its save did not finish"
    try:
        manifest = json.loads((path / NAME).read_text())
        body = manifest["body"]
        if manifest["crc32"] != _text_crc(body):
            return "its manifest was changed"
        if str(body["step"]) != path.name:
            return f"its manifest is that of step {body['step']}"
        files = body["files"]
    except (ValueError, KeyError, TypeError):
        return "its manifest is not readable"

    def file_flaw(name: str) -> str:
        size, crc = files[name]
        if not (path / name).is_file():
            return f"{name} is missing"
        found = (path / name).stat().length
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
        if checksums and _file_crc(path / name) != crc:
            return f"{name} was changed (its checksum differs)"
        return ""

    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        return next((reason for reason in pool.map(file_flaw, files) if reason), "")


def write(path: epath.Path, step: int, leaves: dict[str, list]) -> None:
    """Sums the committed files of `path` and puts the manifest there, atomically."""
    names = sorted(name for name in _files(path) if not name.startswith(NAME))
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        sums = list(pool.map(lambda name: _file_crc(path / name), names))
    files = {
        name: [(path / name).stat().length, crc]
        for name, crc in zip(names, sums, strict=True)
    }
    body = {"step": step, "leaves": leaves, "files": files}
    text = json.dumps({"crc32": _text_crc(body), "body": body}, indent=1)
    if "://" in os.fspath(path):
        (path / NAME).write_text(text)  # one object, written whole or not at all
        return
    temporary = path / f"{NAME}.tmp"
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path / NAME)
    folder = os.open(path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def read_leaves(path: epath.Path) -> dict[str, list]:
    """{leaf name: [dtype, shape]} of a step folder that verifies."""
    return json.loads((path / NAME).read_text())["body"]["leaves"]


def _files(path: epath.Path, prefix: str = "") -> Iterator[str]:
    for child in path.iterdir():
        if child.is_dir():
            yield from _files(child, f"{prefix}{child.name}/")
        else:
            yield f"{prefix}{child.name}"


def _file_crc(path: epath.Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def _text_crc(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
