"""The compiled programs of a reward model, to train it and to ask it.

A step is `gradient` for each micro-batch of `data.reply_rows`, which adds to the sum of
gradients, then `apply_gradient` of `rl_jax.learner` once. A prompt's weight is fixed
before the step is split, and its replies are never divided, so that any split gives the
same gradient. Rows are divided over devices; what is known of a reply is whole on each.

Legend: B rows of a micro-batch, T positions, P prompts that it can hold, K replies to a
prompt at the most, I and J the two of a pair (both of K).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import flax.struct
import jax
import numpy as np
from jax.sharding import Mesh

from rl_jax.data.rankings import Judged
from rl_jax.data.reply_rows import ReplyRows
from rl_jax.learner import Metrics, gradient_program
from rl_jax.mesh import put, spec
from rl_jax.models import reward_head
from rl_jax.models.reward_head import RewardParams
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.reward_model import Ranking, pointwise_loss, ranking_loss

Form = Literal["ranking", "pointwise"]


@flax.struct.dataclass
class Rows:
    """Packed rows on the device; see `data.reply_rows.ReplyRows`."""

    token_BT: jax.Array
    position_BT: jax.Array
    segment_BT: jax.Array


@flax.struct.dataclass
class Said:
    """Where the replies of a micro-batch end, and what was said of them.

    Attributes:
        row_PK, column_PK: int32, of each reply's last token.
        valid_PK: bool, there is such a reply.
        rank_PK, margin_PIJ: see `objectives.reward_model.Ranking`.
        label_P: float32, of a prompt's first reply; not read where replies are ranked.
        weight_P: float32, 1 / prompts of the optimiser step; 0 where there is none.
    """

    row_PK: jax.Array
    column_PK: jax.Array
    valid_PK: jax.Array
    rank_PK: jax.Array
    margin_PIJ: jax.Array
    label_P: jax.Array
    weight_P: jax.Array


class RewardLearner(NamedTuple):
    """Compiled programs; the last two give metrics that add up over micro-batches.

    score(params, rows) -> score_BT, whole on every device
    measure(params, rows, said) -> metrics: "loss", "accuracy", and of rankings
        "score_margin"
    gradient(params, grads, rows, said) -> (grads, metrics)
    """

    score: Callable[..., jax.Array]
    measure: Callable[..., Metrics]
    gradient: Callable[..., tuple[RewardParams, Metrics]]


@functools.lru_cache(maxsize=8)
def make_reward_learner(model: ModelSpec, *, form: Form = "ranking") -> RewardLearner:
    """Compiles the programs when first called, once for stages that are alike."""

    def score(params, rows):
        return reward_head.scores(
            params, rows.token_BT, rows.position_BT, rows.segment_BT, model
        )

    def loss_fn(params, rows, said):
        score_BT = score(params, rows)
        score_PK = reward_head.at_last(score_BT, said.row_PK, said.column_PK)
        return judged_loss(score_PK, said, form=form)

    return RewardLearner(
        score=jax.jit(lambda params, rows: jax.reshard(score(params, rows), spec())),
        measure=jax.jit(lambda params, rows, said: loss_fn(params, rows, said)[1]),
        gradient=gradient_program(loss_fn),
    )


def judged_loss(
    score_PK: jax.Array, said: Said, *, form: Form
) -> tuple[jax.Array, Metrics]:
    """The loss of scores, and its metrics with the loss itself as "loss"."""
    if form == "ranking":
        ranking = Ranking(said.rank_PK, said.valid_PK, said.margin_PIJ)
        loss, found = ranking_loss(score_PK, ranking, said.weight_P)
    else:
        loss, found = pointwise_loss(score_PK[:, 0], said.label_P, said.weight_P)
    names = ("accuracy", "score_margin")
    kept = {name: found[name] for name in names if name in found}
    return loss, kept | {"loss": jax.lax.stop_gradient(loss)}


def said_of(
    rows: ReplyRows,
    judged: Sequence[Judged],
    weight: float,
    num_prompts: int,
    num_replies: int,
) -> Said:
    """What the loss needs to know of a micro-batch, in arrays of fixed shape.

    Args:
        judged: of all groups that were packed.
        weight: of each prompt.
        num_prompts, num_replies: P and K.
    """
    P, K = num_prompts, num_replies
    arrays = {
        "row_PK": np.zeros((P, K), np.int32),
        "column_PK": np.zeros((P, K), np.int32),
        "valid_PK": np.zeros((P, K), bool),
        "rank_PK": np.zeros((P, K), np.int32),
        "margin_PIJ": np.zeros((P, K, K), np.float32),
        "label_P": np.zeros(P, np.float32),
        "weight_P": np.zeros(P, np.float32),
    }
    for p, (group, ends) in enumerate(zip(rows.groups, rows.last, strict=True)):
        said, k = judged[group], len(ends)
        arrays["row_PK"][p, :k], arrays["column_PK"][p, :k] = np.array(ends).T
        arrays["valid_PK"][p, :k] = True
        if said.rank:
            arrays["rank_PK"][p, :k] = said.rank
        if said.margin:
            arrays["margin_PIJ"][p, :k, :k] = said.margin
        arrays["label_P"][p] = said.label or 0.0
        arrays["weight_P"][p] = weight
    return Said(**arrays)


def to_device(rows: ReplyRows, mesh: Mesh) -> Rows:
    """Rows onto the mesh."""
    arrays = (rows.token_BT, rows.position_BT, rows.segment_BT)
    return Rows(*(put(x, mesh, "batch", "time") for x in arrays))
