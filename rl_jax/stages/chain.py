"""Runs the stages of a config in order, each from the weights and data it names.

A finished stage is not run again: its work folder has a result.json that says so. What
it must reach, its gate, is looked at each time; the first that is missed ends the run.
"""

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from rl_jax import config as configs
from rl_jax import dag, manifest, metrics, processes
from rl_jax.data.tokenizer import describe_stops
from rl_jax.errors import ConfigError
from rl_jax.kinds import KINDS as PROPERTIES
from rl_jax.mesh import is_lead
from rl_jax.models.params import Params, num_params
from rl_jax.stages import context as contexts
from rl_jax.stages import (
    curate,
    distill,
    dpo,
    exporting,
    merge,
    pretrain,
    results,
    reward_model,
    rl,
    select,
    sft,
    summary_plot,
    weights,
)
from rl_jax.stages.context import Context, StopFlag
from rl_jax.stages.exporting import EXPORT as EXPORT
from rl_jax.stages.results import Result
from rl_jax.stages.run_state import CHECKPOINTS

KINDS = {
    "pretrain": pretrain.run,
    "sft": sft.run,
    "reward_model": reward_model.run,
    "dpo": dpo.run,
    "rl": rl.run,
    "distill": distill.run,
    "select": select.run,
    "curate": curate.run,
    "merge": merge.run,
}


class GateMissed(Exception):  # noqa: N818 (no error of the program: the stage failed)
    """A stage did not reach what its gate asks for."""

    code = 3


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which stages to run: --only, --from; all of them without."""

    only: str = ""
    start: str = ""


def run(
    config: configs.Run,
    workdir: pathlib.Path,
    stop: StopFlag,
    started: Callable[[], None] = lambda: None,
    choice: Choice = Choice(),
) -> None:
    """Runs every stage chosen to its end, looks at its gate, exports the last policy.

    Args:
        started: called by the process that writes files, once `workdir` is there.

    Raises:
        GateMissed: by the first stage that does not reach what it must.
    """
    chosen = dag.to_run(config, choice.only, choice.start)
    context = contexts.build(config, workdir, stop)
    if is_lead():
        started()
    for line in (*_banner(context), *(f"note: {note}" for note in config.notes)):
        processes.say(line)
    # All at once: what is wrong with a stage is told before the first one trains.
    _check_chosen(context, chosen)
    bases = {stage.name: _base(context, stage) for stage in config.stages}
    exports = exporting.wanted(context)
    last, params = _last_policy(context), None
    with jax.set_mesh(context.mesh):
        for stage in config.stages:
            if stage.name not in chosen:
                continue
            if not _is_finished(context, stage):
                params = _run_stage(context, stage, bases[stage.name])
            _check_gate(context, stage)
            if stage is not last:
                params = None
        if is_lead():
            _close(context)
        if exports and last is not None and _is_made(context, last):
            read = weights.policy(context, last.name, "init")
            exporting.write(context, last, read if params is None else lambda: params)


def _banner(context: Context) -> list[str]:
    """Where the run takes place, and what it trains: a line each."""
    one, count = jax.local_devices()[0], jax.device_count()
    kind = "" if one.device_kind == one.platform else f" ({one.device_kind})"
    limit = (one.memory_stats() or {}).get("bytes_limit")
    memory = f" of {limit / 2**30:.1f} GiB each" if limit else ""
    hosts = jax.process_count()
    where = "" if hosts == 1 else f" in {hosts} processes"
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"{count} {jax.default_backend()} devices{kind}{memory}{where}; "
        f"{host:.1f} GiB of host memory",
        f"mesh {dict(context.mesh.shape)}; {num_params(context.model):,} parameters; "
        f"stop tokens {describe_stops(context.tokenizer)}",
    ]


def _base(context: Context, stage: configs.StageConfig) -> Callable[[], Params]:
    return weights.policy(context, stage.init, f"{stage.prefix}init", salt=stage.name)


def _check_chosen(context: Context, chosen: list[str]) -> None:
    """Raises ConfigError if a stage needs one that is neither to be run nor done."""
    stages = {stage.name: stage for stage in context.run.stages}
    for name in chosen:
        for need in dag.needs(context.run, stages[name]):
            folder = context.folder(stages[need.name])
            if need.name not in chosen and not results.read(folder).finished:
                raise ConfigError(
                    f"config.{need.key} names {need.name!r}, which is not finished in "
                    f"{folder} and is not to be run.\nWrite `--from={need.name}`, or "
                    "leave --only and --from out."
                )


def _is_finished(context: Context, stage: configs.StageConfig) -> bool:
    """Whether a stage is done; says so, and whether it was made from what is gone."""
    folder = context.folder(stage)
    result = results.read(folder)
    done = result.finished and result.steps == stage.steps
    done = done and _is_there(folder, stage)
    if not _as_lead_sees(f"{stage.name} is finished", done):
        return False
    processes.say(f"{stage.name}: finished before, in {folder}")
    if is_lead():
        for name, made in _made(context, stage).items():
            if result.needs.get(name) != made:
                processes.say(
                    f"note: {stage.name} was made from an earlier {name}; delete "
                    f"{folder} to make it anew"
                )
    return True


def _is_there(folder: pathlib.Path, stage: configs.StageConfig) -> bool:
    """Whether what a finished stage made is there; who takes it reads its bytes."""
    if PROPERTIES[stage.kind].makes == "data":
        return False  # such a stage sees for itself, as fast, what there is to do
    step = epath.Path(folder / CHECKPOINTS / str(stage.steps))
    return not manifest.flaw(step, checksums=False)


def _is_made(context: Context, stage: configs.StageConfig) -> bool:
    done = results.read(context.folder(stage)).finished
    return _as_lead_sees(f"{stage.name} is to be exported", done)


def _made(context: Context, stage: configs.StageConfig) -> dict[str, float]:
    """When each stage that this one needs was made."""
    stages = {one.name: one for one in context.run.stages}
    needed = {need.name for need in dag.needs(context.run, stage)}
    found = {name: results.read(context.folder(stages[name])) for name in needed}
    return {name: result.made for name, result in sorted(found.items())}


def _run_stage(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> Params | None:
    """Runs a stage to its end and writes its result, also of what was begun."""
    folder, began = context.folder(stage), time.monotonic()
    before = results.read(folder)
    if is_lead():
        folder.mkdir(parents=True, exist_ok=True)
    finished = False
    try:
        params = KINDS[stage.kind](context, _placed(context, stage), base)
        finished = True
        return params
    finally:
        if is_lead():
            result = Result(
                finished,
                stage.steps,
                before.seconds + time.monotonic() - began,
                time.time(),
                _made(context, stage),
            )
            results.write(folder, result)


def _placed(context: Context, stage: configs.StageConfig) -> configs.StageConfig:
    """The stage with the files of others in place of their names."""
    made = [s for s in context.run.stages if PROPERTIES[s.kind].makes == "data"]
    files = {one.name: str(context.folder(one) / weights.DATA) for one in made}
    held_out = {
        one.name: str(context.folder(one) / weights.HELD_OUT)
        for one in made
        if one.select.held_out
    }
    return dag.with_paths(stage, files, held_out)


def _as_lead_sees(what: str, value: Any) -> Any:
    """What process 0 found: others may read a file before it is written to its end."""
    return processes.gather(what, value, secs=600)[0]


def _check_gate(context: Context, stage: configs.StageConfig) -> None:
    """Says whether a stage's gate is passed; raises GateMissed if it is not."""
    gate, folder = stage.gate, context.folder(stage)
    if not gate.metric:
        return
    found = results.first_and_last(folder, gate.metric)
    found = _as_lead_sees(f"gate of {stage.name}", found)
    if found is None:
        there = ", ".join(results.names(folder)) or "none"
        raise GateMissed(
            f"the gate of {stage.name} asks for {gate.metric}, which the stage has not "
            f"written.\nThere is: {there}."
        )
    wanted, missed = results.wanted(gate), results.verdict(gate, *found)
    if missed:
        if is_lead():
            print(results.table(_lines(context)), flush=True)
        raise GateMissed(
            f"{stage.name} missed its gate, {gate.metric} {wanted}: {missed}.\n"
            "What follows is not run. Change the stage and delete "
            f"{folder} to run it anew, or go on all the same with --from."
        )
    if is_lead():
        print(
            f"{stage.name}: gate passed, {gate.metric} {found[0]:.4g} -> "
            f"{found[1]:.4g} ({wanted})",
            flush=True,
        )


def _last_policy(context: Context) -> configs.StageConfig | None:
    """The last stage that makes a policy: what the run is for."""
    run = context.run
    made = [stage for stage in run.stages if dag.makes(run, stage) == "policy"]
    return made[-1] if made else None


def _lines(context: Context) -> list[results.Line]:
    """What each stage brought."""
    return [results.line(s, context.folder(s)) for s in context.run.stages]


def _close(context: Context) -> None:
    """Sums up what each stage brought, draws the curves, says where everything is."""
    folders = [(stage.name, context.folder(stage)) for stage in context.run.stages]
    if len(folders) > 1:
        lines = _lines(context)
        text = results.table(lines)
        (context.workdir / "summary.txt").write_text(text + "\n")
        print(text)
        print(
            f"summary:     {summary_plot.plot(lines, context.workdir / 'summary.png')}"
        )
    plot = metrics.plot_chain(folders, context.workdir / "curves.png")
    print(f"curves:      {plot}")
    for name, folder in folders:
        print(f"{name + ':':<12} {folder} (metrics.jsonl, samples/, checkpoints/)")
