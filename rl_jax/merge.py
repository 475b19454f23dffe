"""Averages the weights of models of one architecture.

python -m rl_jax.merge runs/a runs/b --out=DIR
python -m rl_jax.merge long short --weights=0.7,0.3 --out=DIR
python -m rl_jax.merge runs/a/rl@100 runs/a/rl@200 runs/a/rl@300 --ema=0.9 --out=DIR

A MODEL is a work folder, a stage in one, or a Hugging Face folder; @STEP chooses a
checkpoint. Config, tokenizer and types are those of the first. Hugging Face folders
are read and written tensor by tensor; of checkpoints one is held at a time, beside the
sum in float32.
"""

import argparse
import dataclasses
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_jax import command_line
from rl_jax.errors import ConfigError
from rl_jax.whole_folder import check_free, written_whole

if TYPE_CHECKING:
    import numpy as np

    from rl_jax.load import Found
    from rl_jax.models.weight_files import Outline, Stored

FORMS = ("huggingface", "checkpoint")
# Fields of a ModelSpec that say how it computes, not what it is.
_CHOICES = ("dtype", "param_dtype", "float32_head", "remat")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.merge",
        description="Averages the weights of models of one architecture.",
    )
    add = parser.add_argument
    add(
        "models",
        nargs="+",
        metavar="MODEL",
        help="work folder, stage, or Hugging Face folder; @STEP chooses a checkpoint",
    )
    add("--out", required=True, help="folder to write; must not exist, or be empty")
    add("--weights", help="one a model, with commas, in parts (default: all the same)")
    add(
        "--ema",
        type=float,
        metavar="DECAY",
        help="an exponential moving average of the models, oldest first",
    )
    add("--to", choices=FORMS, help="form to write (default: that of the first model)")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Merges, and prints what was written; returns the exit code."""
    args = arguments(argv)
    if len(args.models) < 2:
        raise ConfigError(
            f"merge has one model, {args.models[0]}.\nExpected two or more."
        )
    check_free(args.out)
    # Imported late: wrong arguments are told in less time than jax takes.
    import jax

    # Little is computed, and a run may hold the machine's accelerators.
    jax.config.update("jax_platforms", "cpu")
    from rl_jax.load import find

    weights = _weights(args)
    founds = [find(*_path_and_step(word)) for word in args.models]
    for found in founds[1:]:
        check_same_model(founds[0], found)
    check_same_tokens(founds)
    first_form = "huggingface" if founds[0].checkpoints is None else "checkpoint"
    to = args.to or first_form
    if to == "huggingface" and all(found.checkpoints is None for found in founds):
        files = merge_folders(founds, weights, args.out)
    else:
        files = merge_params(founds, weights, args.out, to)
    for found, weight in zip(founds, weights, strict=True):
        print(f"read        {weight:.4f} x {found.name}")
    print(f"wrote       {args.out} ({to})")
    for name, size in files.items():
        print(f"            {name}, {size:,} bytes")
    return 0


def _weights(args: argparse.Namespace) -> tuple[float, ...]:
    """What each model weighs; their sum is 1."""
    from rl_jax.models.merging import ema_weights, normalised

    num = len(args.models)
    if args.weights and args.ema is not None:
        raise ConfigError("--weights and --ema are both given.\nExpected one of them.")
    if args.ema is not None:
        if not 0 < args.ema < 1:
            raise ConfigError(
                f"--ema={args.ema:g}.\nExpected a decay between 0 and 1, e.g. --ema=0.9"
            )
        return ema_weights(num, args.ema)
    if not args.weights:
        return normalised([1.0] * num)
    try:
        given = [float(word) for word in args.weights.split(",")]
        if len(given) != num:
            raise ValueError
        return normalised(given)
    except ValueError:
        example = ",".join(["2", *["1"] * (num - 1)])
        raise ConfigError(
            f"--weights={args.weights} for {num} models.\nExpected a number for each, "
            f"none below 0 and not all 0, e.g. --weights={example}"
        ) from None


def _path_and_step(word: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+)@(\d+)", word)
    if match and not pathlib.Path(word).expanduser().exists():
        return match[1], int(match[2])
    return word, None


def check_same_model(first: "Found", other: "Found") -> None:
    """Raises ConfigError unless two models have the same sizes and choices."""

    def described(found: "Found") -> dict[str, Any]:
        spec = found.model
        fields = dataclasses.asdict(spec)
        # Written by layer: one pattern may be spelled at several lengths.
        layers = [spec.layer_attention(i) for i in range(spec.num_layers)]
        return {**fields, "attention": layers, **dict.fromkeys(_CHOICES)}

    ours, theirs = described(first), described(other)
    for name, value in ours.items():
        if theirs[name] != value:
            raise ConfigError(
                f"{other.name} is another architecture than {first.name}:\n"
                f"{name} is {str(theirs[name])[:200]}, not {str(value)[:200]}.\n"
                "Weights can be averaged only place by place."
            )


def check_same_tokens(founds: Sequence["Found"]) -> None:
    """Raises ConfigError unless an id is the same token in all models.

    A folder without a tokenizer is taken to have that of the others.
    """
    from rl_jax.data import token_tables, tokenizer

    names = ("tokenizer.json", "tokenizer.model")
    have = [f for f in founds if any((f.files / name).is_file() for name in names)]
    token_tables.check_same([(f.name, tokenizer.load(f.files)) for f in have])


def merge_folders(
    founds: Sequence["Found"], weights: Sequence[float], out: str
) -> dict[str, int]:
    """Hugging Face folders to one, a block of a tensor of each at a time.

    Returns:
        name -> bytes of the files written.
    """
    import jax.numpy as jnp

    from rl_jax.models import export, huggingface, weight_files
    from rl_jax.models.weight_files import NAMES, Outline

    model = founds[0].model
    tensors = [weight_files.open_tensors(found.files) for found in founds]
    for stored in tensors:
        huggingface.check_tensors(huggingface.weights(model), stored, model)
    types = {theirs: name for name, theirs in NAMES.items()}
    outlines = {}
    for name in export.tensor_names(model):
        like = tensors[0][name]
        outlines[name] = Outline(jnp.dtype(types[like.dtype]), like.shape)
    files = weight_files.divide(outlines, weight_files.SHARD_BYTES)
    with written_whole(out) as folder:
        for file, names in files.items():
            part = {name: outlines[name] for name in names}
            part = {name: part[name] for name in weight_files.stored_order(part)}
            blocks = (_blocks(n, part[n], tensors, weights) for n in part)
            sums = weight_files.write_tensors(folder / file, part, blocks)
            weight_files.read_back(folder / file, part, sums)
        if len(files) > 1:
            text = weight_files.index_text(files, outlines)
            (folder / weight_files.INDEX).write_text(text)
        export.copy_side_files(founds[0].files, folder)
        return {p.name: p.stat().st_size for p in sorted(folder.iterdir())}


def _blocks(
    name: str,
    outline: "Outline",
    tensors: Sequence[Mapping[str, "Stored"]],
    weights: Sequence[float],
) -> Iterator["np.ndarray"]:
    """The merged tensor in contiguous blocks of rows."""
    import numpy as np

    from rl_jax.models.merging import weighted_sum
    from rl_jax.models.weight_files import rows_of_blocks

    for rows in rows_of_blocks(outline.shape, 4):  # float32, whatever is stored
        total = None
        for stored, weight in zip(tensors, weights, strict=True):
            value = stored[name].handle.get_slice(name)[rows].astype(np.float32)
            if total is None:
                total = weighted_sum([value], [weight])
            else:
                total = weighted_sum([total, value], [1.0, weight])
        assert total is not None
        with np.errstate(over="ignore"):
            block = np.ascontiguousarray(total.astype(outline.dtype))
        if np.isfinite(total).all() and not np.isfinite(block).all():
            raise ConfigError(
                f"The average of {name} has a value beyond the range of "
                f"{outline.dtype.name}, the first model's type.\nName a model first "
                "whose weights are stored as bfloat16 or float32."
            )
        yield block


def merge_params(
    founds: Sequence["Found"], weights: Sequence[float], out: str, to: str
) -> dict[str, int]:
    """Models of any form to one, the sum and one model in memory.

    Returns:
        name -> bytes of the files written.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from rl_jax import convert
    from rl_jax.data import tokenizer
    from rl_jax.data.piece_json import transformers_files
    from rl_jax.load import read_params
    from rl_jax.mesh import make_mesh
    from rl_jax.models import export
    from rl_jax.models.merging import merge

    first = founds[0]
    types = convert.stored_types(first)
    dtype = first.model.param_dtype
    if first.checkpoints is None and types:
        dtype = jnp.result_type(*(jnp.dtype(x) for x in set(types.values()))).name
    if to == "checkpoint":
        tokenizer.load(first.files)  # it is of no use without
        dtype = "float32" if dtype == "float16" else dtype
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    model = dataclasses.replace(first.model, param_dtype="float32")
    total = None
    for found, weight in zip(founds, weights, strict=True):
        params = read_params(found, model, mesh)
        # On the host: XLA on CPUs takes numbers below the normal range for zero.
        params = jax.tree.map(np.asarray, params)
        if total is None:
            total = merge([params], [weight])
        else:
            total = merge([total, params], [1.0, weight])
        del params  # before the next is read
    assert total is not None
    model = dataclasses.replace(first.model, param_dtype=dtype)
    if to == "huggingface":
        return export.save_folder(
            jax.tree.map(jnp.asarray, total),
            first.model,
            out,
            first.files,
            dtype=types or "",
            more=transformers_files(first.files),
        ).files
    total = jax.tree.map(lambda x: jnp.asarray(x.astype(jnp.dtype(dtype))), total)
    parts = [[weight, f.name] for f, weight in zip(founds, weights, strict=True)]
    origin = {"model": parts, "stored": types}
    model = dataclasses.replace(first.model, param_dtype=dtype)
    return convert.save_checkpoint(total, model, out, first.files, origin)


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
