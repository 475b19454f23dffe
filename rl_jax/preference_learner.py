"""The compiled programs of a stage that learns from pairs of replies.

A step is `preference_gradient` for each micro-batch of `data.pair_packing`, which adds
to the sum of gradients, then `apply_gradient` of `rl_jax.learner` once. A pair's weight
is fixed before the step is split, so that any split gives the same gradient. Rows are
divided over devices; what is known of a pair is whole on each.

Legend: B rows of a micro-batch, T positions, N pairs that it can hold, 2 the chosen
and the rejected reply. S = 2 N samples.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.learner import Batch, Metrics, batch_logprobs, gradient_program
from rl_jax.mesh import BATCH_AXES, spec
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.preference import PreferenceLoss, preference_loss
from rl_jax.objectives.segments import sample_totals


@flax.struct.dataclass
class PairArrays:
    """What is known of the pairs of a micro-batch before the policy is asked.

    Attributes:
        ref_logp_N2: float32 log-probability of each reply under the reference, summed
            over the tokens that count, nats.
        tokens_N2: float32, how many tokens those are.
        weight_N: float32, of each pair; 0 where there is none.
        special_N: float32, how many tokens of the chosen reply count in its likelihood
            alone, as they are special ones.
    """

    ref_logp_N2: jax.Array | np.ndarray
    tokens_N2: jax.Array | np.ndarray
    weight_N: jax.Array | np.ndarray
    special_N: jax.Array | np.ndarray


class PreferenceLearner(NamedTuple):
    """Compiled programs.

    score_totals(params, batch) -> logp_N3, see `totals`
    preference_gradient(params, grads, batch, pairs) -> (grads, metrics)
    measure(logp_N3, pairs) -> metrics: the same of totals that are known, of any N
    """

    score_totals: Callable[..., jax.Array]
    preference_gradient: Callable[..., tuple[Params, Metrics]]
    measure: Callable[..., Metrics]


@functools.lru_cache(maxsize=8)
def make_preference_learner(
    model: ModelSpec,
    *,
    loss: PreferenceLoss,
    num_pairs: int,
    special_ids: tuple[int, ...] = (),
) -> PreferenceLearner:
    """Compiles the programs when they are first called, once for stages that are alike.

    Args:
        num_pairs: N, `pair_packing.num_places`.
        special_ids: tokens that are not compared.
    """

    def score_totals(params, batch):
        logp_BT, _ = batch_logprobs(params, batch, model=model, temperature=1.0)
        return totals(logp_BT, batch, num_pairs=num_pairs, special_ids=special_ids)

    def of_pairs(params, batch, pairs):
        return pair_loss(score_totals(params, batch), pairs, loss=loss)

    return PreferenceLearner(
        score_totals=jax.jit(score_totals),
        preference_gradient=gradient_program(of_pairs),
        measure=jax.jit(lambda logp_N3, pairs: pair_loss(logp_N3, pairs, loss=loss)[1]),
    )


def totals(
    logp_BT: jax.Array,
    batch: Batch,
    *,
    num_pairs: int,
    special_ids: tuple[int, ...] = (),
) -> jax.Array:
    """logp_N3: sums over tokens that count, whole on every device.

    Of the chosen reply, of the rejected one, and of the chosen one's special tokens,
    which are not in the first.
    """

    def local(logp_BT, mask_BT, target_BT, sample_BT):
        total = functools.partial(sample_totals, num_samples=2 * num_pairs)
        ids = jnp.asarray(special_ids, target_BT.dtype)
        special_BT = (target_BT[..., None] == ids).any(-1)
        compared_S = total(logp_BT, mask_BT & ~special_BT, sample_BT)
        special_S = total(logp_BT, mask_BT & special_BT, sample_BT)
        parts = compared_S.reshape(num_pairs, 2), special_S[::2, None]
        return jax.lax.psum(jnp.concatenate(parts, 1), BATCH_AXES)

    rows = spec("batch", "time")
    summed = jax.shard_map(local, in_specs=rows, out_specs=jax.P())
    return summed(logp_BT, batch.mask_BT, batch.target_BT, batch.sample_BT)


def pair_loss(
    logp_N3: jax.Array, pairs: PairArrays, *, loss: PreferenceLoss
) -> tuple[jax.Array, Metrics]:
    """The loss, and `preference_loss`'s metrics with the loss itself as "loss"."""
    ref_logp_N2, tokens_N2 = map(jnp.asarray, (pairs.ref_logp_N2, pairs.tokens_N2))
    value, metrics = preference_loss(
        *(logp_N3[:, 0], logp_N3[:, 1]),
        *(ref_logp_N2[:, 0], ref_logp_N2[:, 1]),
        *(tokens_N2[:, 0], tokens_N2[:, 1]),
        jnp.asarray(pairs.weight_N),
        *(logp_N3[:, 2], jnp.asarray(pairs.special_N)),
        spec=loss,
    )
    return value, metrics | {"loss": jax.lax.stop_gradient(value)}
