"""How fast are the parts of rl_jax on this machine, and what should they reach?

python -m rl_jax.bench rewards              maths against the bare library, the sandbox
python -m rl_jax.bench kernels              against bare matmuls and the naive forms
python -m rl_jax.bench checkpoint           what a save costs in time and memory
python -m rl_jax.bench rewards --rounds=5   steadier figures on a busy machine

Each figure is the median over rounds; within a round everything to be compared is
measured right after one another.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from rl_jax import command_line, host_memory
from rl_jax.bench_figures import table
from rl_jax.errors import ConfigError


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.bench",
        description="Measures parts of rl_jax and prints a table with what they should "
        "reach.",
    )
    add = parser.add_argument
    add("what", choices=("rewards", "kernels", "checkpoint"), help="what to measure")
    add("--rounds", type=int, default=3, help="how often (default: 3)")
    add(
        "--answers", type=int, default=240, help="of rewards, in a round (default: 240)"
    )
    add("--programs", type=int, default=20, help="of rewards, in a round (default: 20)")
    add("--megabytes", type=int, default=64, help="of the checkpoint (default: 64)")
    add("--folder", default="", help="where to save it (default: a temporary one)")
    add("--json", metavar="FILE", help="also write the figures there")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit code, 0 whatever the figures are."""
    args = arguments(argv)
    for name in ("rounds", "answers", "programs", "megabytes"):
        if getattr(args, name) < 1:
            raise ConfigError(
                f"--{name} is {getattr(args, name)}.\nExpected 1 or more."
            )
    print(f"cores        {len(os.sched_getaffinity(0))}, load {os.getloadavg()[0]:.1f}")
    # Imported when they are asked for: rewards are to be measured without jax.
    host_memory.limit_arenas()  # as a training run does
    if args.what == "kernels":
        import jax

        from rl_jax import bench_gpu, bench_kernels

        figures = bench_kernels.figures(args.rounds)
        if jax.default_backend() == "gpu":  # against the plain form, at large shapes
            figures += bench_gpu.figures(args.rounds)
    elif args.what == "checkpoint":
        from rl_jax import bench_checkpoint

        figures = bench_checkpoint.figures(args.rounds, args.megabytes, args.folder)
    else:
        from rl_jax import bench_rewards

        figures = bench_rewards.figures(args.rounds, args.answers, args.programs)
    print(table(figures))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([figure._asdict() for figure in figures], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
