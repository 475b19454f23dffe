"""Supervised fine-tuning: packed conversations, loss on the assistant's turns."""

import functools
import operator
import time
from collections.abc import Callable

import jax
import numpy as np

from rl_jax import config as configs
from rl_jax.data.packing import fill
from rl_jax.data.pipeline import Reader
from rl_jax.learner import make_learner, merge_metrics, to_device
from rl_jax.models.params import Params
from rl_jax.stages import inputs, run_state
from rl_jax.stages.context import Context
from rl_jax.stages.evaluation import evaluate
from rl_jax.stages.scoring import check_rows, make_engine, make_pool


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> Params:
    """Trains to `stage.steps`, from the newest checkpoint or from `base()`."""
    seed, text = context.run.seed, context.tokenizer
    talks = inputs.conversations(stage, text, seed)
    held_out = inputs.eval_prompts(stage, text) if stage.eval.every else []
    inputs.assert_held_out(held_out, [talk.row for talk in talks])
    if held_out:
        # Now, and not at the first evaluation, which may be hours away.
        with make_pool(stage) as pool:
            check_rows(pool, stage, held_out)
    pieces = inputs.stream(talks, seed).map(operator.attrgetter("piece"))

    tx, lr_schedule = run_state.optimiser_of(stage, context.model)
    learner = make_learner(context.model, tx, lr_schedule)
    with (
        run_state.open_stage(context, stage, base, tx) as session,
        # Where a batch ends depends on the lengths of all its rows, so every process
        # reads all of them and packs the same batch.
        Reader(
            pieces,
            session.position.get("next_row", 0),
            process_index=0,
            process_count=1,
        ) as reader,
    ):
        state, position = session.state, session.position
        for step in range(session.start, stage.steps + 1):
            session.begin(step, state, position)
            if (step or not stage.steps) and session.evaluation_due(step):
                metrics = _evaluate(context, stage, state.params, held_out)
                session.write(step, metrics)
            if step == stage.steps:
                if not step:  # nothing to train, but a later stage begins from here
                    session.save(step, state, position)
                break
            began = time.monotonic()
            packed, taken = fill(
                reader.ahead(), stage.batch.rows_per_step, stage.batch.row_tokens
            )
            reader.take(taken)
            counted = int(packed.mask_BT.sum())
            # One weight for every token of the step: the mean over all of them.
            weight_N = np.full(1, 1.0 / max(counted, 1), np.float32)
            grads = learner.zero_gradient(state.params)
            parts = []
            rows_a_pass = stage.batch.micro_rows
            for i in range(0, stage.batch.rows_per_step, rows_a_pass):
                batch = to_device(packed.rows(i, i + rows_a_pass), context.mesh)
                grads, metrics = learner.supervised_gradient(
                    state.params, grads, batch, weight_N, counted
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
                "train/epoch": position["next_row"] / len(talks),
            }
            finish = functools.partial(_finish, parts, metrics, known, seen, began)
            # Fetched only when the next step has been dispatched.
            session.write_later(step + 1, finish)
            session.save(step + 1, state, position)
        return state.params


def _finish(parts, metrics, known, seen, began) -> dict[str, float]:
    merged, fetched = merge_metrics(parts), jax.device_get(metrics)
    secs = time.monotonic() - began
    return known | {
        "train/loss": merged["cross_entropy"],
        "train/grad_norm": float(fetched["grad_norm"]),
        "train/learning_rate": float(fetched["learning_rate"]),
        "perf/tokens_per_sec_train": seen / secs,
        "time/step": secs,
    }


def _evaluate(context, stage, params, held_out) -> dict[str, float]:
    """Accuracy; engine and reward workers live only as long as this."""
    text = context.tokenizer
    engine = make_engine(stage, context.model, text, context.mesh, context.run.seed)
    with make_pool(stage) as pool:
        return evaluate(engine, pool, text, params, held_out, stage, context.stop)
