"""Small random models of each family, whose logits transformers has given.

models/make_golden.py made models/files/families: a folder a model, with config.json as
transformers 5 writes it, tensors.json (name of each stored tensor -> its shape) and
expected.npz (token_BT, int32; logits_BTV, float32). The weights are not stored, but
drawn anew from their names.
"""

import json
import pathlib
import zlib

import numpy as np
from safetensors.numpy import save_file

FILES = pathlib.Path(__file__).parent / "models" / "files" / "families"
NAMES = tuple(sorted(path.name for path in FILES.iterdir()))


def stored_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Float32 values that a mistake shows in: norms are far from 1 and 0, biases from
    0, and attention from uniform."""
    # Not default_rng, whose draws another NumPy may change.
    draw = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if "norm" in name:
        value = 0.8 + 0.3 * draw
    elif len(shape) == 1 or "embed" in name:
        value = 0.5 * draw
    else:
        value = 1.5 * draw / shape[1] ** 0.5
    return value.astype(np.float32)


def config_of(name: str) -> dict:
    """config.json of a model, parsed."""
    return json.loads((FILES / name / "config.json").read_text())


def expected(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(token_BT, logits_BTV) of a model."""
    found = np.load(FILES / name / "expected.npz")
    return found["token_BT"], found["logits_BTV"]


def write(name: str, folder: pathlib.Path, **changes) -> pathlib.Path:
    """The model's folder, with its weights, and keys of config.json changed."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(name) | changes
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    shapes = json.loads((FILES / name / "tensors.json").read_text())
    tensors = {key: stored_weight(key, tuple(shape)) for key, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
