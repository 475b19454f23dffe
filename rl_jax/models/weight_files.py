"""Tensors of a model folder's safetensors files, by name: read and written one by one.

Knows nothing of models: which tensors there should be is the caller's matter.
"""

import dataclasses
import json
import math
import os
import pathlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from rl_jax.errors import ConfigError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # of one file, as huggingface_hub divides a model

# What safetensors calls the types that weights have.
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_BLOCK_BYTES = 32 * 2**20  # read or written at once


@dataclasses.dataclass(frozen=True)
class OneFile:
    """A safetensors file that is open only while something is read from it.

    Pages of a mapped file count as memory of the process as long as it is open: a
    file kept open while a model is read from it would count as a second copy of the
    model. Opening one takes 0.4 ms (272 tensors).
    """

    path: pathlib.Path

    def get_slice(self, name: str) -> Any:
        """As of safetensors.safe_open."""
        # "np" gives BF16 as ml_dtypes.bfloat16, once JAX is imported (tested with
        # safetensors 0.5 to 0.8).
        return safe_open(self.path, framework="np").get_slice(name)


@dataclasses.dataclass(frozen=True)
class Stored:
    """One tensor of a file; nothing of it is read yet."""

    path: pathlib.Path
    handle: OneFile
    shape: list[int]
    dtype: str  # a value of NAMES, or another type of safetensors


def open_tensors(folder: pathlib.Path) -> dict[str, Stored]:
    """Every tensor of the folder by name.

    Reads model.safetensors, else the files of model.safetensors.index.json.

    Raises:
        ConfigError: if there is neither, a file is damaged, or index and files differ.
    """
    if (folder / SINGLE).is_file():
        listed, files = {}, [SINGLE]
    elif (folder / INDEX).is_file():
        listed = read_json(folder / INDEX).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            raise ConfigError(f"{folder / INDEX} has no names in its weight_map.")
        files = sorted(set(listed.values()))
    else:
        raise _no_weights(folder)
    tensors: dict[str, Stored] = {}
    for path in (folder / name for name in files):
        if not path.is_file():
            raise ConfigError(
                f"{path} does not exist, though {INDEX} names it.\n"
                "Download the whole folder again."
            )
        try:
            opened = safe_open(path, framework="np")
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"{path} ({path.stat().st_size} bytes) is not a whole safetensors "
                f"file: {error}.\nDownload it again; a Git LFS pointer needs "
                "`git lfs pull`."
            ) from error
        handle = OneFile(path)
        for name in opened.keys():
            part = opened.get_slice(name)
            if listed and listed.get(name) != path.name:
                raise ConfigError(
                    f"{path} holds {name} {part.get_shape()}, which {INDEX} places in "
                    f"{listed.get(name)}.\nThe files are of different checkpoints; "
                    "download the whole folder again."
                )
            tensors[name] = Stored(path, handle, part.get_shape(), part.get_dtype())
    for name in sorted(listed.keys() - tensors.keys())[:1]:
        raise ConfigError(
            f"{folder / listed[name]} does not hold {name}, though {INDEX} says so.\n"
            "Download the whole folder again."
        )
    return tensors


def _no_weights(folder: pathlib.Path) -> ConfigError:
    pickled = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix in (".bin", ".pt", ".pth", ".ckpt")
    )
    if pickled:
        return ConfigError(
            f"{folder} has pickled weights ({pickled[0]}) and no {SINGLE}; a pickle "
            "can run any code and is not read.\nConvert it with transformers: "
            f"AutoModelForCausalLM.from_pretrained({str(folder)!r})."
            "save_pretrained(NEW_FOLDER)"
        )
    return ConfigError(
        f"{folder} has neither {SINGLE} nor {INDEX}.\nTo get a whole model folder: "
        "`hf download ORG/NAME --local-dir DIR`"
    )


def model_folder(folder: str | os.PathLike) -> pathlib.Path:
    """The folder as a path, with ~ resolved; ConfigError if it does not exist."""
    path = pathlib.Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(
            f"{path} is not a folder; expected a local Hugging Face model folder.\n"
            "To get one: `hf download ORG/NAME --local-dir DIR`"
        )
    return path


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """The object in a JSON file; ConfigError if it cannot be read as one."""
    try:
        value = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, expected an object.")
    return value


@dataclasses.dataclass(frozen=True)
class Outline:
    """A tensor that is to be written."""

    dtype: np.dtype  # one of NAMES
    shape: Sequence[int]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def divide(outlines: Mapping[str, Outline], shard_bytes: int) -> dict[str, list[str]]:
    """File -> names of its tensors, as transformers divides a model.

    A file takes tensors in order until the next one would exceed `shard_bytes`; a
    tensor larger than that has a file of its own. One file is model.safetensors.
    """
    parts: list[list[str]] = [[]]
    room = shard_bytes
    for name, outline in outlines.items():
        if parts[-1] and outline.num_bytes > room:
            parts.append([])
            room = shard_bytes
        parts[-1].append(name)
        room -= outline.num_bytes
    if len(parts) == 1:
        return {SINGLE: parts[0]}
    stem, total = SINGLE.removesuffix(".safetensors"), len(parts)
    return {
        f"{stem}-{i:05}-of-{total:05}.safetensors": part
        for i, part in enumerate(parts, 1)
    }


def index_text(
    files: Mapping[str, Sequence[str]], outlines: Mapping[str, Outline]
) -> str:
    """model.safetensors.index.json of several files, as transformers writes it."""
    sizes = {
        "total_parameters": sum(math.prod(o.shape) for o in outlines.values()),
        "total_size": sum(outline.num_bytes for outline in outlines.values()),
    }
    where = {name: file for file, names in files.items() for name in names}
    index = {"metadata": sizes, "weight_map": where}
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def stored_order(outlines: Mapping[str, Outline]) -> list[str]:
    """The names as safetensors orders them in a file: by type as in NAMES, then A to Z.

    Wider types first keep every tensor aligned.
    """
    kinds = list(NAMES)
    return sorted(outlines, key=lambda n: (kinds.index(outlines[n].dtype.name), n))


def write_tensors(
    path: pathlib.Path,
    outlines: Mapping[str, Outline],
    tensors: Iterable[Iterable[np.ndarray]],
) -> dict[str, int]:
    """Writes one safetensors file, a block at a time, and flushes it to the disk.

    Written here and not by the library, which wants all tensors of the file in memory,
    makes files for their owner only whatever the umask, and (0.8) writes the bytes
    under an array that is not contiguous as they lie, under the array's shape.

    Args:
        outlines: the tensors, in the order of `stored_order`.
        tensors: for each of them its values as contiguous arrays, in order; taken one
            by one.

    Returns:
        Name -> crc32 of the tensor's bytes, for `read_back`.
    """
    # Some versions of transformers refuse a file whose metadata names no format.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, outline in outlines.items():
        header[name] = {
            "dtype": NAMES[outline.dtype.name],
            "shape": list(outline.shape),
            "data_offsets": [at, at + outline.num_bytes],
        }
        at += outline.num_bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        sums = {
            name: _write_blocks(file, outlines[name], blocks)
            for name, blocks in zip(outlines, tensors, strict=True)
        }
        file.flush()
        os.fsync(file.fileno())
    return sums


def _write_blocks(
    file: BinaryIO, outline: Outline, blocks: Iterable[np.ndarray]
) -> int:
    crc, written = 0, 0
    for block in blocks:
        assert block.dtype == outline.dtype and block.flags.c_contiguous
        data = block.reshape(-1).view(np.uint8).data
        crc = zlib.crc32(data, crc)
        written += file.write(data)
    assert written == outline.num_bytes, (written, outline)
    return crc


def rows_of_blocks(shape: Sequence[int], itemsize: int) -> Iterable[slice]:
    """Ranges of a tensor's first axis, each of at most 32 MiB (or one row)."""
    row_bytes = itemsize * math.prod(shape[1:])
    step = max(1, _BLOCK_BYTES // max(row_bytes, 1))
    return (slice(i, min(i + step, shape[0])) for i in range(0, shape[0], step))


def read_back(
    path: pathlib.Path, outlines: Mapping[str, Outline], sums: Mapping[str, int]
) -> None:
    """Reads a file with the library and compares every tensor with what was meant.

    Raises:
        OSError: if a tensor is missing, surplus, or not what was written.
    """
    try:
        names = set(safe_open(path, framework="np").keys())
        wrong = sorted(names ^ outlines.keys())
        for name in [] if wrong else outlines:
            if not _is_as_written(OneFile(path), name, outlines[name], sums[name]):
                wrong.append(name)
    except SafetensorError as error:
        raise OSError(f"{path} was written and cannot be read: {error}.") from error
    if wrong:
        more = f" and {len(wrong) - 1} other tensors" if wrong[1:] else ""
        raise OSError(
            f"{path}: {wrong[0]}{more} read back from the disk differ from what was "
            "written.\nThe disk or the file system lost data; write to another one."
        )


def _is_as_written(file: OneFile, name: str, outline: Outline, crc: int) -> bool:
    part = file.get_slice(name)
    if part.get_shape() != list(outline.shape):
        return False
    if part.get_dtype() != NAMES[outline.dtype.name]:
        return False
    found = 0
    for rows in rows_of_blocks(outline.shape, outline.dtype.itemsize):
        # Opened anew for each, so that only its pages count as ours.
        block = np.ascontiguousarray(file.get_slice(name)[rows])
        found = zlib.crc32(block.reshape(-1).view(np.uint8).data, found)
    return found == crc
