"""Trains the stages of a config.

    python -m rl_jax.train --config=configs/quickstart.py --workdir=DIR \
        [--config.KEY=VALUE ...] [--only=STAGE | --from=STAGE]

With --inspect_data it shows some rows as tokens, and ends; --workdir is not needed.

Exit codes: 0 done, 2 the configuration is wrong, 3 a stage missed its gate (for both a
retry will not help), 143 (130 for Ctrl-C) stopped by a signal and saved (the same
command resumes), 1 a crash.
"""

import dataclasses
import json
import pathlib
import sys
import zlib
from collections.abc import Sequence

from ml_collections import config_dict

from rl_jax import command_line, dag, host_memory, processes
from rl_jax import config as configs
from rl_jax.rewards import registry, routing


def main(argv: Sequence[str]) -> int:
    """Runs a command line (without the program's name); returns the exit code."""
    command = command_line.parse(argv)
    if command.inspect_data:
        return inspect_data(command.config, command.workdir)
    return train(
        command.config,
        command.workdir,
        command.overrides,
        only=command.only,
        start=command.start,
    )


def train(
    config: config_dict.ConfigDict,
    workdir: str | pathlib.Path,
    overrides: Sequence[str] = (),
    *,
    only: str = "",
    start: str = "",
) -> int:
    """Trains `config` in `workdir`, or goes on where it stopped.

    Args:
        config: from `rl_jax.config.stage` or `chain`.
        overrides: keys to be marked as set by hand in what is printed.
        only, start: names of stages, for --only and --from.

    Returns:
        The exit code: 0, 3, or 128 + the signal that stopped it.

    Raises:
        ConfigError: before anything is compiled or written.
    """
    run = configs.resolve(config)
    dag.to_run(run, only, start)
    print(command_line.describe(config, overrides), flush=True)
    host_memory.limit_arenas()  # saving would make the process grow
    # Imported late: a wrong configuration is told in less time than jax takes.
    from rl_jax.policy_config import policy_loss_spec
    from rl_jax.preference_config import preference_loss_spec
    from rl_jax.stages import chain, reading
    from rl_jax.stages.context import Preempted, StopFlag

    for stage in run.stages:
        if stage.kind == "rl":  # now, and not when the stages before it are trained
            policy_loss_spec(stage)
        if stage.kind == "dpo":
            preference_loss_spec(stage)
    reading.check_data(run)
    check_sandbox(run)
    workdir = pathlib.Path(workdir).absolute()
    with (
        processes.start(run.runtime, {"config": _sum_of(run)}),
        processes.watchdog(run.runtime.step_minutes),
    ):
        # After the start: until then a signal ends the process at once.
        stop = StopFlag()
        stop.install()
        try:
            chain.run(
                run,
                workdir,
                stop,
                started=lambda: _record(config, workdir),
                choice=chain.Choice(only, start),
            )
        except Preempted as stopped:
            return stopped.code
        except chain.GateMissed as missed:
            print(f"error: {missed}", file=sys.stderr, flush=True)
            return missed.code
    return 0


def _sum_of(run: configs.Run) -> str:
    """A sum of what must be the same in all processes of a run."""
    shared = dataclasses.replace(run, runtime=configs.Runtime())
    return f"{zlib.crc32(repr(shared).encode()):08x}"


def check_sandbox(run: configs.Run) -> None:
    """Tests the sandbox for programs, if one of the rewards runs any."""
    levels = {}
    for stage in run.stages:
        routes = routing.parse(stage.reward.routes)
        functions = routing.functions_of(routes) if routes else stage.reward.functions
        if "code" in functions:
            options = registry.parse_options(stage.reward.options)
            levels[registry.option_of(options, "code", "isolation")] = None
    for level in levels:
        from rl_jax.rewards.code.isolation import tested

        print(tested(level), flush=True)


def inspect_data(
    config: config_dict.ConfigDict, workdir: str | pathlib.Path = ""
) -> int:
    """Prints rows of every stage with their tokens and masks; writes nothing.

    Args:
        config: from `rl_jax.config.stage` or `chain`.
        workdir: of a run begun already, if any: a new model's tokenizer is there.

    Returns:
        The exit code, 0.

    Raises:
        ConfigError: for a wrong config or faulty data.
    """
    run = configs.resolve(config)
    from rl_jax.stages import inspection

    inspection.show(run, pathlib.Path(workdir) if workdir else None)
    return 0


def _record(config: config_dict.ConfigDict, workdir: pathlib.Path) -> None:
    """Saves the config; says so if the workdir was begun with another."""
    path = workdir / "config.json"
    text = command_line.to_json(config)
    if path.is_file():
        before, now = _flat(json.loads(path.read_text())), _flat(json.loads(text))
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                print(
                    f"note: config.{key} was {before.get(key)!r} when this workdir was "
                    f"begun, now {now.get(key)!r}",
                    flush=True,
                )
    path.write_text(text + "\n")


def _flat(tree: dict, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
