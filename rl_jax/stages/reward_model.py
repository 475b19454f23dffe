"""A reward model: learns which of several replies to one prompt is better.

When it has learnt, the scores of replies that it was trained on are measured and put
into reward_model.json, so that others can recognise the model and know its scale.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rl_jax import config as configs
from rl_jax import processes, reward_marker
from rl_jax.data.pipeline import Reader
from rl_jax.data.reply_rows import pack_groups
from rl_jax.learner import make_learner, merge_metrics
from rl_jax.mesh import is_lead
from rl_jax.models import reward_head
from rl_jax.models.params import Params
from rl_jax.models.reward_head import RewardParams
from rl_jax.reward_learner import (
    RewardLearner,
    make_reward_learner,
    said_of,
    to_device,
)
from rl_jax.reward_marker import Marker
from rl_jax.stages import inputs, judge, rankings, reporting, run_state
from rl_jax.stages.context import Context
from rl_jax.stages.rankings import Candidates

# Replies whose scores are measured at the end: the error of their mean is then 1.6 %
# of their spread.
_MEASURED = 4096
_DISK_SECS = 600.0  # for the first process to write it down


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> RewardParams:
    """Trains to `stage.steps`, from the newest checkpoint or from `base()`."""
    model, mesh, text = context.model, context.mesh, context.tokenizer
    judged = rankings.candidates(stage, text, "train")
    known, held_out = [judged], []
    if stage.eval.every:
        known.append(rankings.candidates(stage, text, "held_out"))
        held_out = list(known[1])
    num_replies = rankings.most_replies(*known)
    stream: Any = inputs.stream(judged, context.run.seed)

    decayed = reward_head.decayed(model)
    tx, lr_schedule = run_state.optimiser_of(stage, model, decayed)
    shared = make_learner(model, tx, lr_schedule)
    learner = make_reward_learner(model, form=stage.ranking.form)
    batches = functools.partial(_batches, stage, context, num_replies)
    with (
        run_state.open_stage(
            context,
            stage,
            lambda: reward_head.from_policy(base(), model),
            tx,
            reward_head.abstract_params(model, mesh),
        ) as session,
        Reader(stream, session.position.get("next_row", 0)) as reader,
    ):
        state: Any = session.state
        position = session.position
        for step in range(session.start, stage.steps + 1):
            session.begin(step, state, position)
            if session.evaluation_due(step):
                found = _evaluate(learner, state, batches(held_out), stage)
                session.write(step, found | {"eval/num_prompts": len(held_out)})
            if step == stage.steps:
                if not step:  # nothing to train, but a later stage begins from here
                    session.save(step, state, position)
                break
            began = time.monotonic()
            items = [item for _, item in reader.take(stage.ranking.prompts_per_step)]
            grads, parts = shared.zero_gradient(state.params), []
            for rows, said in batches(items):
                grads, metrics = learner.gradient(state.params, grads, rows, said)
                parts.append(metrics)
            state, metrics = shared.apply_gradient(state, grads)
            seen = sum(len(ids) for item in items for ids in item.ids)
            position = {
                "next_row": reader.position,
                "tokens": position.get("tokens", 0) + seen,
            }
            so_far = {
                "train/num_tokens": position["tokens"],
                "train/epoch": position["next_row"] / len(judged),
            }
            finish = functools.partial(
                *(reporting.finished_step, parts, metrics, so_far),
                functools.partial(_named, split="train", stage=stage),
                tokens=seen,
                began=began,
            )
            # Fetched only when the next step has been dispatched.
            session.write_later(step + 1, finish)
            session.save(step + 1, state, position)
        once = (stream[i] for i in range(len(judged)))
        _mark(context, stage, learner, state.params, once)
        return state.params


def _batches(stage, context, num_replies, items: Sequence[Candidates]):
    """Micro-batches on the device, and what was said of the replies in them.

    A prompt weighs 1 / prompts, so that the sum over all is the mean over prompts.
    """
    batch, most = stage.batch, stage.ranking.prompts_per_step
    groups, judged = [x.ids for x in items], [x.judged for x in items]
    packed = pack_groups(groups, batch.micro_rows, batch.row_tokens, most)
    for rows in packed:
        said = said_of(rows, judged, 1.0 / len(items), most, num_replies)
        yield to_device(rows, context.mesh), said


def _named(merged: dict[str, float], split: str, stage) -> dict[str, float]:
    """Metrics of `RewardLearner` under the names of metric_names.py."""
    if stage.ranking.form == "pointwise":
        names = {"loss": "loss", "accuracy": "accuracy_labels"}
    else:
        names = {
            "loss": "loss",
            "accuracy": "accuracy_pairs",
            "score_margin": "score_margin",
        }
    return {f"{split}/{name}": merged[key] for key, name in names.items()}


def _evaluate(learner: RewardLearner, state, batches, stage) -> dict[str, float]:
    """The loss on what is held out, as in training."""
    began = time.monotonic()
    parts = [learner.measure(state.params, rows, said) for rows, said in batches]
    found = _named(merge_metrics(parts), "eval", stage)
    return found | {"time/eval": time.monotonic() - began}


def _mark(
    context: Context,
    stage: configs.StageConfig,
    learner: RewardLearner,
    params: RewardParams,
    judged: Iterable[Candidates],
) -> None:
    """Measures the scores of some replies of the training set and writes the marker."""
    replies = itertools.chain.from_iterable(item.ids for item in judged)
    some = [*itertools.islice(replies, _MEASURED)]
    scores = judge.raw_scores(
        learner, params, some, context.mesh, stage.batch.row_tokens
    )
    mean, std = float(np.mean(scores)), float(np.std(scores))
    if is_lead():
        marker = Marker(stage.ranking.form, mean, std, len(scores))
        reward_marker.write(context.folder(stage), marker)
    processes.say(
        f"{stage.name}: {len(scores):,} replies of data.train score {mean:.4g} on "
        f"average, with a standard deviation of {std:.4g}"
    )
    # A later stage of another process may look for it at once.
    processes.wait(f"{stage.name} is marked", _DISK_SECS)
