"""Learning tokens that somebody else wrote: the loop of pretraining and fine-tuning.

A step takes rows of packed pieces in the order of the stream, adds up the gradients of
its micro-batches and updates once. Its loss is sum(w * nll) / sum(w) over all tokens of
the step that count, where w is the weight of the row that a token is of. What a step
does depends on the weights, the seed and the position in the data alone, so that a
resumed run repeats it to the bit.
"""

import dataclasses
import functools
import operator
import time
from collections.abc import Callable, Iterable

import jax
import numpy as np

from rl_jax import config as configs
from rl_jax.data.packing import Packed, fill
from rl_jax.data.pipeline import Reader
from rl_jax.data.sources import Mixture
from rl_jax.learner import make_learner, to_device
from rl_jax.mesh import put
from rl_jax.models.params import Params
from rl_jax.stages import held_out, inputs, reporting, run_state
from rl_jax.stages.context import Context
from rl_jax.stages.evaluation import exam_prompts, measured_once
from rl_jax.stages.inputs import Conversation, Prompt
from rl_jax.stages.scoring import records


def train(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Params],
    learnt: Mixture[Conversation],
) -> Params:
    """Trains to `stage.steps`, from the newest checkpoint or from `base()`."""
    exam = _exam(context, stage, learnt)
    learnt = inputs.numbered(learnt)
    weight_N = np.array([item.weight for item in learnt], np.float32)
    every_weight_N = put(weight_N, context.mesh)
    pieces = inputs.stream(learnt, context.run.seed).map(operator.attrgetter("piece"))

    tx, lr_schedule = run_state.optimiser_of(stage, context.model)
    learner = make_learner(context.model, tx, lr_schedule)
    with (
        run_state.open_stage(context, stage, base, tx) as session,
        Reader(pieces, session.position.get("next_row", 0)) as reader,
    ):
        state, position = session.state, session.position
        for step in range(session.start, stage.steps + 1):
            session.begin(step, state, position)
            if session.evaluation_due(step):
                asked = step or not stage.steps or _begins_with_replies(stage)
                replies = exam.prompts if asked else []
                metrics, samples = _evaluate(
                    context, stage, state.params, exam, replies
                )
                if metrics:
                    session.write(step, metrics, samples)
            if step == stage.steps:
                if not step:  # nothing to train, but a later stage begins from here
                    session.save(step, state, position)
                break
            began = time.monotonic()
            packed, taken = fill(
                reader.ahead(), stage.batch.rows_per_step, stage.batch.row_tokens
            )
            reader.take(taken)
            counted = _weight_of(packed, weight_N)
            share_N = _shares(every_weight_N, counted)
            grads = learner.zero_gradient(state.params)
            parts = []
            rows_a_pass = stage.batch.micro_rows
            for i in range(0, stage.batch.rows_per_step, rows_a_pass):
                batch = to_device(packed.rows(i, i + rows_a_pass), context.mesh)
                grads, metrics = learner.supervised_gradient(
                    state.params, grads, batch, share_N, counted
                )
                parts.append(metrics)
            state, metrics = learner.apply_gradient(state, grads)
            seen = int((packed.segment_BT > 0).sum())
            position = {
                "next_row": reader.position,
                "tokens": position.get("tokens", 0) + seen,
            }
            known = {
                "train/num_tokens": position["tokens"],
                "train/epoch": position["next_row"] / len(learnt),
            }
            finish = functools.partial(
                *(reporting.finished_step, parts, metrics, known, _named),
                tokens=seen,
                began=began,
            )
            # Fetched only when the next step has been dispatched.
            session.write_later(step + 1, finish)
            session.save(step + 1, state, position)
        return state.params


def _begins_with_replies(stage: configs.StageConfig) -> bool:
    """Whether replies are measured before the stage has learnt anything.

    Mostly only the loss tells something then; but a gate may ask how far they came.
    """
    gate = stage.gate
    compares = gate.rise is not None or gate.fall is not None
    return compares and gate.metric != "eval/loss"


def _weight_of(packed: Packed, weight_N: np.ndarray) -> float:
    """The weights of all tokens of a step that count, added up."""
    return float(weight_N[packed.sample_BT].sum(where=packed.mask_BT, dtype=float))


@jax.jit
def _shares(weight_N: jax.Array, counted: float) -> jax.Array:
    """What a token of each item adds to the loss of a step: its share of the mean."""
    return weight_N / counted


def _named(merged: dict[str, float]) -> dict[str, float]:
    return {"train/loss": merged["cross_entropy"]}


@dataclasses.dataclass(frozen=True)
class Exam:
    """What a stage is measured by: prompts to answer, and tokens that are held out."""

    prompts: list[Prompt]
    unseen: held_out.HeldOut
    loss: held_out.Program


def _exam(
    context: Context, stage: configs.StageConfig, learnt: Mixture[Conversation]
) -> Exam:
    """Reads and checks it at the start, and not hours later when it is first needed."""
    trained_on = [item.row for item in learnt]
    prompts, unseen = exam_prompts(context, stage), []
    inputs.assert_held_out(prompts, trained_on)
    if stage.eval.every and stage.data.held_out:
        unseen = list(inputs.held_out(stage, context.tokenizer))
        inputs.assert_held_out(unseen, trained_on, "pieces of data.held_out")
    packed = held_out.packed(
        (item.piece for item in unseen),
        row_tokens=stage.batch.row_tokens,
        rows=stage.batch.micro_rows,
    )
    return Exam(prompts, packed, held_out.make_program(context.model))


def _evaluate(
    context: Context,
    stage: configs.StageConfig,
    params: Params,
    exam: Exam,
    prompts: list[Prompt],
) -> tuple[dict[str, float], Iterable[dict]]:
    """Metrics, and the replies as rows for the samples file."""
    began, metrics, replies = time.monotonic(), {}, []
    if exam.unseen.batches:
        metrics["eval/loss"] = held_out.mean_loss(
            exam.loss,
            params,
            exam.unseen,
            context.mesh,
            check_stop=context.stop.check,
        )
    if prompts:
        found, replies = measured_once(context, stage, params, prompts)
        metrics |= found
    if metrics:
        metrics["time/eval"] = time.monotonic() - began
    return metrics, records(replies)
