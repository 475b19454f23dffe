"""Losses of reward models: which of several replies to one prompt is better.

Legend: P prompts, K replies to each, I and J the two of a pair (both of K), N replies.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Llama 2, arXiv:2307.09288, appendix A.3.3: what the chosen reply should be ahead by
# when it was rated significantly better, better, slightly better, or negligibly so.
MARGINS: dict[str, tuple[float, float, float, float]] = {
    "small": (1.0, 2 / 3, 1 / 3, 0.0),
    "large": (3.0, 2.0, 1.0, 0.0),
}


class Ranking(NamedTuple):
    """What people said of K replies to each of P prompts.

    Attributes:
        rank_PK: integers; the lower, the better. Of replies with one rank neither is
            better, and nothing is learnt from the pair.
        valid_PK: bool, or 1 where there is a reply.
        margin_PKK: by how much the score of reply [p, i] should be ahead of that of the
            worse reply [p, j]; None: 0.
    """

    rank_PK: jax.Array
    valid_PK: jax.Array
    margin_PKK: jax.Array | None = None


def ranking_loss(
    score_PK: jax.Array, ranking: Ranking, weight_P: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Bradley-Terry: the better reply of each pair should have the higher score.

        pair(i, j) = -log sigmoid(score[i] - score[j] - margin[i, j])   i better than j
        loss = sum over prompts of weight * (mean over the prompt's pairs)

    The C(K, 2) pairs of a prompt count as one: they are not independent, and many
    replies to one prompt would outweigh the others. K = 2 is the usual pair.

    Args:
        score_PK: the reward model's score of each reply: its head at the reply's last
            token (end-of-sequence). Computed in float32 if narrower. Not read where
            the ranking is not valid.
        weight_P: 1 / prompts of the optimiser step for their mean; 0 for padding.

    Returns:
        The loss, a scalar of at least float32, and metrics that add up over
        micro-batches: "ranking_loss", "accuracy" (pairs in the right order, a tie is
        half) and "score_margin" (score of the better less that of the worse), each
        weighted as the loss is. A prompt without a pair counts as 0 in all of them.

    Source: InstructGPT, arXiv:2203.02155, equation 1; the margin, Llama 2,
    arXiv:2307.09288, section 3.2.2.
    """
    score_PK = score_PK.astype(jnp.promote_types(score_PK.dtype, jnp.float32))
    valid_PK = (ranking.valid_PK != 0) & (weight_P != 0)[:, None]
    score_PK = jnp.where(valid_PK, score_PK, 0.0)
    both_PIJ = valid_PK[:, :, None] & valid_PK[:, None, :]
    better_PIJ = ranking.rank_PK[:, :, None] < ranking.rank_PK[:, None, :]
    pair_PIJ = both_PIJ & better_PIJ
    ahead_PIJ = score_PK[:, :, None] - score_PK[:, None, :]
    wanted_PIJ = jnp.zeros_like(ahead_PIJ)
    if ranking.margin_PKK is not None:
        wanted_PIJ = jnp.where(pair_PIJ, ranking.margin_PKK, 0.0)

    num_P = jnp.maximum(jnp.sum(pair_PIJ, (1, 2)), 1)

    def mean(x_PIJ: jax.Array) -> jax.Array:
        mean_P = jnp.sum(jnp.where(pair_PIJ, x_PIJ, 0.0), (1, 2)) / num_P
        return jnp.sum(weight_P * mean_P)

    loss = mean(-jax.nn.log_sigmoid(ahead_PIJ - wanted_PIJ))
    metrics = {
        "ranking_loss": loss,
        "accuracy": mean(0.5 * (1 + jnp.sign(ahead_PIJ))),
        "score_margin": mean(ahead_PIJ),
    }
    return loss, jax.lax.stop_gradient(metrics)


def pair_ranking(num_pairs: int) -> Ranking:
    """The ranking of pairs, the chosen reply first."""
    rank_PK = jnp.broadcast_to(jnp.arange(2), (num_pairs, 2))
    return Ranking(rank_PK, jnp.ones((num_pairs, 2), bool))


def pointwise_loss(
    score_N: jax.Array, label_N: jax.Array, weight_N: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Cross-entropy of yes and no, for replies judged alone.

        loss = -sum(weight * (label * log sigmoid(score)
                              + (1 - label) * log sigmoid(-score)))

    Args:
        label_N: 1 for yes, 0 for no, or a probability.
        weight_N: as `ranking_loss`, a reply.

    Returns:
        The loss and "pointwise_loss" and "accuracy", as `ranking_loss`.

    Source: DeepSeek-R1, arXiv:2501.12948, the safety reward model.
    """
    score_N = score_N.astype(jnp.promote_types(score_N.dtype, jnp.float32))
    score_N = jnp.where(weight_N != 0, score_N, 0.0)
    label_N = jnp.where(weight_N != 0, label_N, 0.0)
    yes_N, no_N = jax.nn.log_sigmoid(score_N), jax.nn.log_sigmoid(-score_N)
    loss = -jnp.sum(weight_N * (label_N * yes_N + (1 - label_N) * no_N))
    right_N = (score_N > 0) == (label_N > 0.5)
    metrics = {"pointwise_loss": loss, "accuracy": jnp.sum(weight_N * right_N)}
    return loss, jax.lax.stop_gradient(metrics)
