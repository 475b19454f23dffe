"""Answers a prompt with a checkpoint or a Hugging Face folder.

python -m rl_jax.generate --model=DIR --prompt="What is 17 times 3?"
"""

import argparse
import sys
from collections.abc import Sequence

from rl_jax import command_line
from rl_jax.errors import ConfigError


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.generate", description="Answers a prompt."
    )
    add = parser.add_argument
    add("--model", required=True, help="work folder, stage, or Hugging Face folder")
    add("--prompt", required=True, help="what the user says; - reads standard input")
    add("--system", default="", help="system message")
    add("--num_samples", type=int, default=1)
    add("--temperature", type=float, default=0.0, help="0 takes the likeliest token")
    add("--top_p", type=float, default=1.0)
    add("--top_k", type=int, default=0)
    add("--max_new_tokens", type=int, default=256)
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Prints the answers; returns the exit code."""
    args = arguments(argv)
    if args.num_samples < 1 or args.max_new_tokens < 1 or args.temperature < 0:
        raise ConfigError(
            f"--num_samples={args.num_samples} --max_new_tokens={args.max_new_tokens} "
            f"--temperature={args.temperature:g}.\n"
            "Expected at least 1, at least 1, and at least 0."
        )
    if args.top_k < 0 or not 0 < args.top_p <= 1:
        raise ConfigError(
            f"--top_k={args.top_k} --top_p={args.top_p:g}.\n"
            "Expected at least 0 (all tokens), and more than 0 but at most 1 (all)."
        )
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    # Imported late: wrong arguments are told in less time than jax takes.
    import jax

    from rl_jax.data import chat
    from rl_jax.load import load
    from rl_jax.mesh import make_mesh
    from rl_jax.rollout.engine import Engine
    from rl_jax.rollout.programs import EngineSpec
    from rl_jax.rollout.sample import GENERATE_STREAM, Request
    from rl_jax.stages.scoring import completion_text

    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        loaded = load(args.model, mesh)
        messages = [{"role": "user", "content": prompt}]
        if args.system:
            messages.insert(0, {"role": "system", "content": args.system})
        ids = tuple(chat.prompt_ids(loaded.tokenizer, messages))
        spec = EngineSpec(
            num_slots=args.num_samples,
            max_prompt_tokens=len(ids),
            max_new_tokens=args.max_new_tokens,
            prefill_rows=1,
            decode_steps=16,
            stop_ids=loaded.tokenizer.stop_ids,
            top_k=args.top_k,
            top_p=args.top_p,
        )
        engine = Engine(loaded.model, spec, mesh, seed=args.seed)
        engine.submit(
            Request(
                0,
                ids,
                args.num_samples,
                args.max_new_tokens,
                args.temperature,
                GENERATE_STREAM,
            )
        )
        samples = []
        while engine.busy:
            samples += engine.poll(loaded.params, version=0)
    samples.sort(key=lambda sample: sample.index)
    for sample in samples:
        if args.num_samples > 1:
            print(f"--- {sample.index + 1}")
        print(completion_text(sample, loaded.tokenizer))
        if sample.truncated:
            note = f"[cut after {args.max_new_tokens} tokens: --max_new_tokens=N]"
            print(note, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
