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


def flaw(path: epath.Path, *, step: int | None = None, checksums: bool = True) -> str:
    """Why the step folder `path` cannot be trusted; "" if it verifies.

    Args:
        path: a step folder.
        step: whose it should be; None: the folder's name says it.
        checksums: False compares sizes only, without reading the files.
    """
    return next(iter(flaws(path, step=step, checksums=checksums)), "")


def flaws(
    path: epath.Path, *, step: int | None = None, checksums: bool = True
) -> list[str]:
    """Everything that is wrong with a step folder, as `flaw`; it never raises OSError.

    What cannot be read counts as wrong, with the reason that the system gives.
    """
    try:
        body, reason = _body(path, path.name if step is None else str(step))
    except OSError as error:
        return [f"it cannot be read ({_reason(error)})"]
    if reason:
        return [reason]
    files = body["files"]

    def file_flaw(name: str) -> str:
        size, crc = files[name]
        try:
            if not (path / name).is_file():
                return f"{name} is missing"
            found = (path / name).stat().length
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
            if checksums and _file_crc(path / name) != crc:
                return f"{name} was changed (its checksum differs)"
        except OSError as error:
            return f"{name} cannot be read ({_reason(error)})"
        return ""

    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        return [reason for reason in pool.map(file_flaw, files) if reason]


def _body(path: epath.Path, step: str) -> tuple[dict[str, Any], str]:
    """What the manifest says, and why that cannot be trusted."""
    if not path.is_dir():
        return {}, "no such folder"
    if not (path / NAME).exists():
        if not any(path.iterdir()):
            return {}, "an empty folder"
        return {}, "it has no manifest, so its save did not finish"
    try:
        manifest = json.loads((path / NAME).read_text())
        body = manifest["body"]
        if manifest["crc32"] != _text_crc(body):
            return {}, "its manifest was changed"
        if str(body["step"]) != step:
            return {}, f"its manifest is that of step {body['step']}"
        if any(_leads_out(name) for name in body["files"]):
            return {}, "its manifest names a file outside of its folder"
    except (ValueError, KeyError, TypeError):
        return {}, "its manifest is not readable"
    return body, ""


def _leads_out(name: str) -> bool:
    parts = name.split("/")
    return ".." in parts or "" in parts or "\\" in name


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


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


def is_of_another_step(path: epath.Path) -> bool:
    """Whether a step folder has a manifest that names another step than the folder."""
    try:
        return str(json.loads((path / NAME).read_text())["body"]["step"]) != path.name
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_leaves(path: epath.Path) -> dict[str, list]:
    """{leaf name: [dtype, shape]} of a step folder that verifies."""
    return json.loads((path / NAME).read_text())["body"]["leaves"]


def read_files(path: epath.Path) -> dict[str, list[int]]:
    """{file name: [size, crc32]} of a step folder that verifies, itself left out."""
    return json.loads((path / NAME).read_text())["body"]["files"]


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
