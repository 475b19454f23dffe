"""Learning from preferences: DPO and kin, on pairs of replies to one prompt.

A step takes `preference.pairs_per_step` pairs, packs them into as many micro-batches as
they need, both replies of a pair in the same one, and moves the policy once, by the
mean of the loss over all pairs of the step. What the reference thinks of every pair is
worked out before the first step (stages/reference.py).

Legend: N pairs that a micro-batch can hold, 2 the chosen and the rejected reply.
"""

import functools
import time
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np

from rl_jax import config as configs
from rl_jax.data.pair_packing import num_places, pack_pairs
from rl_jax.data.pipeline import Reader
from rl_jax.learner import make_learner, to_device
from rl_jax.models.params import Params
from rl_jax.preference_config import preference_loss_spec
from rl_jax.preference_learner import (
    PairArrays,
    PreferenceLearner,
    make_preference_learner,
)
from rl_jax.stages import inputs, reporting, run_state
from rl_jax.stages.context import Context
from rl_jax.stages.evaluation import exam_prompts, measured_once
from rl_jax.stages.pairs import (
    Pair,
    held_out_pairs,
    note_shared,
    special_ids,
    train_pairs,
)
from rl_jax.stages.reference import reference_logps, reply_totals
from rl_jax.stages.scoring import records

# Metric of the loss -> its name in metrics.jsonl, after train/ or eval/.
_TRAIN_NAMES = {
    "loss": "loss",
    "accuracy": "accuracy_pairs",
    "reward_margin": "reward_margin",
    "reward_chosen": "rewards/chosen",
    "reward_rejected": "rewards/rejected",
    "logp_chosen": "logps/chosen",
    "logp_rejected": "logps/rejected",
    "nll": "nll",
}
_EVAL_NAMES = {
    name: _TRAIN_NAMES[name]
    for name in ("loss", "accuracy", "reward_margin", "logp_chosen", "logp_rejected")
}


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> Params:
    """Trains to `stage.steps`, from the newest checkpoint or from `base()`."""
    loss, text = preference_loss_spec(stage), context.tokenizer
    pairs = train_pairs(stage, text)
    held_out = held_out_pairs(stage, text) if stage.eval.every else []
    note_shared(held_out, list(pairs))
    prompts = exam_prompts(context, stage)

    num_rows, row_tokens = stage.batch.micro_rows, stage.batch.row_tokens
    N = num_places(num_rows, row_tokens)
    learner = make_preference_learner(
        context.model, loss=loss, num_pairs=N, special_ids=special_ids(stage, text)
    )
    # Before the optimiser's state is there: its weights need the room only until then.
    ref_logp, held_out_ref_logp = reference_logps(
        context, stage, base, learner.score_totals, [list(pairs), held_out]
    )
    tx, lr_schedule = run_state.optimiser_of(stage, context.model)
    updater = make_learner(context.model, tx, lr_schedule)
    with (
        run_state.open_stage(context, stage, base, tx) as session,
        Reader(
            inputs.stream(pairs, context.run.seed), session.position.get("next_row", 0)
        ) as reader,
    ):
        state, position = session.state, session.position
        for step in range(session.start, stage.steps + 1):
            session.begin(step, state, position)
            if session.evaluation_due(step):
                metrics, samples = _evaluate(
                    *(context, stage, learner, state.params),
                    *(held_out, held_out_ref_logp, prompts),
                )
                session.write(step, metrics, samples)
            if step == stage.steps:
                if not step:  # nothing to train, but a later stage begins from here
                    session.save(step, state, position)
                break
            began = time.monotonic()
            taken = [p for _, p in reader.take(stage.preference.pairs_per_step)]
            grads = updater.zero_gradient(state.params)
            parts, seen, positions = [], 0, 0
            for rows in pack_pairs([p.pieces for p in taken], num_rows, row_tokens):
                here = [taken[i] for i in rows.index]
                # One weight for every pair of the step: the mean over all of them.
                arrays = pair_arrays(here, ref_logp, 1 / len(taken), num_pairs=N)
                batch = to_device(rows.packed, context.mesh)
                grads, metrics = learner.preference_gradient(
                    state.params, grads, batch, arrays
                )
                parts.append(metrics)
                seen += int((rows.packed.segment_BT > 0).sum())
                positions += rows.packed.segment_BT.size
            state, metrics = updater.apply_gradient(state, grads)
            position = {
                "next_row": reader.position,
                "tokens": position.get("tokens", 0) + seen,
            }
            known = {
                "train/num_tokens": position["tokens"],
                "train/epoch": position["next_row"] / len(pairs),
                "perf/rows_filled": seen / positions,
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


def pair_arrays(
    pairs: Sequence[Pair], ref_logp: np.ndarray, weight: float, *, num_pairs: int
) -> PairArrays:
    """The arrays of a micro-batch's pairs; places without one have weight 0.

    Args:
        ref_logp: logp_N3 by `Pair.index`.
        weight: of each pair in the loss.
        num_pairs: N.
    """
    n = len(pairs)
    ref_logp_N2 = np.zeros((num_pairs, 2), np.float32)
    tokens_N2 = np.ones((num_pairs, 2), np.float32)
    weight_N, special_N = np.zeros((2, num_pairs), np.float32)
    ref_logp_N2[:n] = ref_logp[[pair.index for pair in pairs], :2]
    tokens_N2[:n] = [pair.num_tokens for pair in pairs]
    weight_N[:n] = weight
    special_N[:n] = [pair.num_special[0] for pair in pairs]
    return PairArrays(ref_logp_N2, tokens_N2, weight_N, special_N)


def _named(merged: dict[str, float]) -> dict[str, float]:
    return {f"train/{name}": merged[key] for key, name in _TRAIN_NAMES.items()}


def _evaluate(
    context: Context,
    stage: configs.StageConfig,
    learner: PreferenceLearner,
    params: Params,
    held_out: Sequence[Pair],
    ref_logp: np.ndarray,
    prompts: Sequence[inputs.Prompt],
) -> tuple[dict[str, float], Iterable[dict]]:
    """The loss on held-out pairs, accuracy; and replies as rows of the samples file."""
    began, metrics, replies = time.monotonic(), {}, []
    if held_out:
        n = len(held_out)
        logp = reply_totals(context, stage, learner.score_totals, params, held_out)
        arrays = pair_arrays(held_out, ref_logp, 1 / n, num_pairs=n)
        found = jax.device_get(learner.measure(logp, arrays))
        metrics |= {f"eval/{name}": float(found[k]) for k, name in _EVAL_NAMES.items()}
    if prompts:
        more, replies = measured_once(context, stage, params, prompts)
        metrics |= more
    return metrics | {"time/eval": time.monotonic() - began}, records(replies)
