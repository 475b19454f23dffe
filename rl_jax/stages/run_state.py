"""A stage's life around its loop: begin or resume, write, save, stop in good order."""

import contextlib
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import optax

from rl_jax import config as configs
from rl_jax import learner, placement, processes
from rl_jax.checkpoint import Checkpointer
from rl_jax.learner import State
from rl_jax.mesh import is_lead
from rl_jax.metrics import CompileCounter, Writer, memory_bytes
from rl_jax.models.params import Params, abstract_params
from rl_jax.models.spec import ModelSpec
from rl_jax.optimiser import Optimiser, optimiser
from rl_jax.stages.context import Context, Preempted

CHECKPOINTS = "checkpoints"
_SECS_BETWEEN_LINES = 1.0


def optimiser_of(
    stage: configs.StageConfig, model: ModelSpec, decayed: Any = None
) -> tuple[Optimiser, optax.Schedule]:
    """The optimiser of a stage; its steps are counted in optimiser steps.

    Args:
        decayed: as `optimiser.optimiser`, for weights that are not a policy's.
    """
    optim, each = stage.optim, stage.batch.updates_per_step
    return optimiser(
        model,
        lr=optim.lr,
        schedule=optim.schedule,
        warmup_steps=optim.warmup_steps * each,
        total_steps=stage.steps * each,
        final_lr_fraction=optim.final_lr_fraction,
        weight_decay=optim.weight_decay,
        b1=optim.b1,
        b2=optim.b2,
        eps=optim.eps,
        clip_norm=optim.clip_norm,
        decayed=decayed,
        host=optim.host,
    )


class Session:
    """Where a stage stands on disk.

    Attributes:
        state, start, position: what to begin from: the state after `start` steps, and
            the data position as a few integers. What is larger, and costs time to
            write down, may be given as a function that does so if it is saved.
    """

    def __init__(
        self,
        context: Context,
        stage: configs.StageConfig,
        checkpointer: Checkpointer,
        writer: Writer,
        begin: tuple[int, Any, dict[str, Any]],
    ):
        self.start, self.state, self.position = begin
        self._context, self._stage = context, stage
        self._checkpointer, self._writer = checkpointer, writer
        self._compiles = CompileCounter()
        self._now = begin
        self._saved = self.start if self.start else -1
        self._shown = -math.inf
        self._pending: tuple[int, Callable[[], dict[str, float]]] | None = None
        self._evaluated = _evaluated_steps(context.folder(stage) / "metrics.jsonl")

    def log(self, text: str) -> None:
        """Prints lines, and writes them to log.txt."""
        self._writer.log(text)

    def begin(self, step: int, state: Any, position: dict[str, Any]) -> None:
        """The state after `step` steps stands: what a stop from here on saves."""
        self._now = (step, state, position)
        processes.beat(step)
        # Here, where all processes hold the same state, so that all save the same step.
        self._context.stop.check_together(processes.patience())

    def evaluation_due(self, step: int) -> bool:
        """True if `step` is one to evaluate at and its result is not written yet."""
        every = self._stage.eval.every
        if not every or step in self._evaluated:
            return False
        return step % every == 0 or step == self._stage.steps

    def write(
        self, step: int, metrics: dict[str, float], samples: Iterable[dict] = ()
    ) -> None:
        """Writes a step's metrics, and its samples when it is time for some.

        Those of an evaluation always are, unless log.samples_every is 0.

        Args:
            samples: rows for the samples file, taken if they are written.
        """
        self.flush()
        is_evaluation = any(name.startswith("eval/") for name in metrics)
        if is_evaluation:
            self._evaluated.add(step)
        metrics = metrics | self._process_metrics()
        self._writer.write(step, metrics)
        self._show(step, metrics)
        every = self._stage.log.samples_every
        due = every and (is_evaluation or step == 1 or step % every == 0)
        if due and is_lead() and (rows := list(samples)):
            self._writer.samples(step, rows, show=self._stage.log.num_samples)

    def _show(self, step: int, metrics: dict[str, float]) -> None:
        """Prints the progress line, but not many a second."""
        now = time.monotonic()
        worth_it = step in (1, self._stage.steps) or step in self._evaluated
        if worth_it or now - self._shown >= _SECS_BETWEEN_LINES:
            self._writer.line(step, metrics)
            self._shown = now

    def write_later(self, step: int, finish: Callable[[], dict[str, float]]) -> None:
        """Writes the step before, and keeps this one until the device is done."""
        self.flush()
        self._pending = (step, finish)

    def flush(self) -> None:
        """Writes what `write_later` kept."""
        if self._pending:
            step, finish = self._pending
            self._pending = None
            self.write(step, finish())

    def _process_metrics(self) -> dict[str, float]:
        return {
            "perf/num_devices": jax.device_count(),
            "perf/memory_bytes": memory_bytes(),
            "perf/compiles": self._compiles.count,
            "perf/compile_secs": self._compiles.secs,
        }

    def save(self, step: int, state: Any, position: dict[str, Any]) -> None:
        """Starts saving a checkpoint, if it is time for one."""
        every = self._stage.checkpoint.every
        if step == self._stage.steps or (every and step % every == 0):
            self._save(step, state, position)

    def _save(self, step: int, state: Any, position: dict[str, Any]) -> None:
        # A checkpoint promises that everything up to its step is written.
        self.flush()
        position = {k: v() if callable(v) else v for k, v in position.items()}
        self._checkpointer.save(step, state, position)
        self._saved = step

    def save_now(self) -> None:
        """Saves what `begin` was given last, and waits until it is verified."""
        step, state, position = self._now
        if step > self._saved:
            self._save(step, state, position)
        self._checkpointer.wait()

    def close(self) -> None:
        """Stops counting compilations."""
        self._compiles.close()


@contextlib.contextmanager
def open_stage(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Any],
    tx: Optimiser,
    abstract: Any = None,
    *,
    reference: bool = False,
) -> Iterator[Session]:
    """Begins or resumes a stage; saves on the way out when the run is preempted.

    Args:
        base: gives the weights that a stage begins with, as `abstract` describes them.
        abstract: `jax.ShapeDtypeStruct`s of the weights; None: those of a policy.
        reference: a reference that changes is saved with the state: the session's is a
            `learner.Referenced`, which begins with a second copy of the weights.
    """
    folder = context.folder(stage)
    if is_lead():
        folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(
        folder, stage=stage.name, total_steps=stage.steps, enabled=is_lead()
    )
    checkpointer = Checkpointer(
        folder / CHECKPOINTS, keep=stage.checkpoint.keep, log=writer.log
    )
    like: Any = abstract_state(context, tx, abstract, host=stage.optim.host)
    if reference:
        like = learner.with_reference(like, reference_like(stage, like.params))
    found = checkpointer.restore(like)
    if found is None:
        state: Any = learner.init_state(base(), tx)
        if reference:
            state = learner.with_reference(state, placed_reference(stage, base()))
        begin = (0, state, {})
        writer.resume(-1)
    else:
        begin = (found[0], found[1], found[2])
        writer.resume(found[0])
        writer.log(f"{stage.name}: resuming from step {found[0]}")
    session = Session(context, stage, checkpointer, writer, begin)
    try:
        yield session
        session.flush()
        checkpointer.wait()
    except Preempted as stop:
        session.save_now()
        writer.log(f"{stage.name}: {stop}; saved, the same command resumes")
        raise
    finally:
        session.close()
        checkpointer.close()
        writer.close()


def placed_reference(stage: configs.StageConfig, params: Params) -> Params:
    """A reference where it stays while it is not used."""
    return placement.to_host(params) if stage.objective.reference_host else params


def reference_like(stage: configs.StageConfig, abstract: Params) -> Params:
    """Shapes, dtypes and shardings of what `placed_reference` gives."""
    return placement.on_host(abstract) if stage.objective.reference_host else abstract


def abstract_state(
    context: Context, tx: Optimiser, abstract: Any = None, *, host: bool = False
) -> State:
    """Shapes, dtypes and shardings of a state, without making one.

    Args:
        abstract: as `open_stage`.
        host: the optimiser's arrays are in the hosts' memory, as `tx` has them.
    """
    params = abstract or abstract_params(context.model, context.mesh)

    def like(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        partition = x.sharding.spec if x.sharding is not None else jax.P()
        sharding = jax.sharding.NamedSharding(context.mesh, partition)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    opt_state = jax.tree.map(like, jax.eval_shape(tx.init, params))
    opt_state = placement.on_host(opt_state) if host else opt_state
    step = like(jax.ShapeDtypeStruct((), "int32"))
    return State(step, params, opt_state)  # pyright: ignore[reportArgumentType]


def _evaluated_steps(path: pathlib.Path) -> set[int]:
    """Steps whose evaluation stands in metrics.jsonl already."""
    if not path.is_file():
        return set()
    lines = (json.loads(line) for line in path.read_text().splitlines() if line)
    return {line["step"] for line in lines if any(k.startswith("eval/") for k in line)}
