"""A model from one form to the other: Hugging Face folder, checkpoint.

python -m rl_jax.convert --model=runs/gsm8k --out=DIR
python -m rl_jax.convert --model=SmolLM2-135M-Instruct --out=DIR
"""

import argparse
import dataclasses
import json
import pathlib
import resource
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl_jax import command_line
from rl_jax.errors import ConfigError
from rl_jax.whole_folder import check_free, written_whole

if TYPE_CHECKING:
    from rl_jax.load import Found
    from rl_jax.models.params import Params
    from rl_jax.models.spec import ModelSpec

ORIGIN = "origin.json"  # in a checkpoint: what it was made of
FORMS = ("huggingface", "checkpoint")
DTYPES = ("float32", "bfloat16", "float16")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.convert",
        description="Writes a trained or a downloaded model in the other form, with "
        "its tokenizer: a Hugging Face folder, or a checkpoint, which evaluate, "
        "generate and --config.init read.",
    )
    add = parser.add_argument
    add("--model", required=True, help="work folder, stage, or Hugging Face folder")
    add("--out", required=True, help="folder to write; must not exist, or be empty")
    add("--to", choices=FORMS, help="form to write (default: the other one)")
    add(
        "--dtype",
        choices=DTYPES,
        help="type of the weights (default: that of the Hugging Face folder that the "
        "model comes from, else that of the checkpoint)",
    )
    add("--step", type=int, help="which checkpoint (default: the newest)")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Converts, and prints what was written; returns the exit code."""
    args = arguments(argv)
    check_free(args.out)
    # Imported late: wrong arguments are told in less time than jax takes.
    import jax
    import jax.numpy as jnp

    # Nothing is computed, and a run may hold the machine's accelerators.
    jax.config.update("jax_platforms", "cpu")
    from rl_jax.data import tokenizer
    from rl_jax.data.piece_json import transformers_files
    from rl_jax.load import find, read_params
    from rl_jax.mesh import make_mesh
    from rl_jax.models import export
    from rl_jax.models.params import num_params

    found = find(args.model, args.step)
    other = "huggingface" if found.checkpoints else "checkpoint"
    to = args.to or other
    types = stored_types(found)
    dtype = found.model.param_dtype
    if found.checkpoints is None and types:
        dtype = jnp.result_type(*(jnp.dtype(x) for x in set(types.values()))).name
    if to == "checkpoint":
        if args.dtype == "float16":
            raise ConfigError(
                "--dtype=float16 with --to=checkpoint: no model is trained in it.\n"
                "Expected float32 or bfloat16."
            )
        tokenizer.load(found.files)  # it is of no use without
        dtype = args.dtype or ("float32" if dtype == "float16" else dtype)
    model = dataclasses.replace(found.model, param_dtype=dtype)
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    params = read_params(found, model, mesh)
    if to == "checkpoint":
        origin = {"model": found.name, "stored": types}
        files = save_checkpoint(params, model, args.out, found.files, origin)
    else:
        done = export.save_folder(
            params,
            found.model,
            args.out,
            found.files,
            dtype=args.dtype or types or "",
            more=transformers_files(found.files),
        )
        files, dtype = done.files, done.dtype
    print(f"read        {found.name}")
    print(f"wrote       {args.out} ({to})")
    for name, size in files.items():
        print(f"            {name}, {size:,} bytes")
    print(f"parameters  {num_params(model):,} in {dtype}")
    print(f"memory      {_peak_bytes() / 1e9:.2f} GB at the peak")
    return 0


def stored_types(found: "Found") -> dict[str, str] | None:
    """Stored name -> type, in the Hugging Face folder that a model comes from.

    None for a run's: its weights go back in the type that config.json names.
    """
    from rl_jax.models.export import tensor_names
    from rl_jax.models.weight_files import NAMES, open_tensors, read_json

    if found.checkpoints is not None:
        origin = found.files.parent / ORIGIN
        return read_json(origin)["stored"] if origin.is_file() else None
    ours = {theirs: name for name, theirs in NAMES.items()}
    stored = open_tensors(found.files)
    # What is missing, or of another type, is told when the weights are read.
    return {
        name: ours[stored[name].dtype]
        for name in tensor_names(found.model)
        if name in stored and stored[name].dtype in ours
    }


def save_checkpoint(
    params: "Params",
    model: "ModelSpec",
    out: str,
    source: pathlib.Path,
    origin: dict[str, Any],
) -> dict[str, int]:
    """Writes the form of a work folder, without a run; returns its files' bytes."""
    from rl_jax.checkpoint import Checkpointer
    from rl_jax.models.export import copy_side_files
    from rl_jax.stages.context import TOKENIZER_FOLDER, write_model_file
    from rl_jax.stages.run_state import CHECKPOINTS

    with written_whole(out) as folder:
        write_model_file(model, folder)
        (folder / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n")
        (folder / TOKENIZER_FOLDER).mkdir()
        copy_side_files(source, folder / TOKENIZER_FOLDER)
        with Checkpointer(folder / CHECKPOINTS, keep=1) as checkpointer:
            checkpointer.save(0, {"params": params}, {})
        parts: dict[str, int] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                # Of a checkpoint only the whole: its files are not for people.
                part = "/".join(path.relative_to(folder).parts[:2])
                parts[part] = parts.get(part, 0) + path.stat().st_size
    return parts


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
