"""Causal attention over packed rows, and of one new token over a cache.

Sizes are local inside `jax.shard_map`: rows and heads are divided, nothing is summed
across devices. The forms of an op have one signature; which of them runs is decided by
the platform that a program is lowered for (`kernels.platform`).

Legend: B rows, T positions, H = K * R query heads, K key/value heads, C channels of a
head, W decode slots, M pages of a cache, S positions of a page, J pages of a slot.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ..platform import choose, forms
from .plain import cache_attention
from .scoring import Scoring

__all__ = ["cache_attention", "packed_attention", "paged_attention"]


def packed_attention(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    window: jax.Array | int | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    windows: tuple[int, ...] | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """Causal attention within each segment of packed rows.

    The backward pass makes scores again, whatever the form: `jax.checkpoint` around
    the call saves nothing.

    Args:
        q_BTHC, k_BTKC, v_BTKC: queries, keys, values; H a multiple of K, and the
            queries that share a key adjoin. On TPUs rows are padded to a multiple
            of 128 positions.
        segment_BT: int32 id of the sample at each position, whose positions adjoin; 0
            is padding. What stands in padding reaches no sample; what comes out there
            is finite and of no use.
        window: newest positions seen, the query's own among them; None: all. An int,
            or an int32 scalar where it is data (one of a scan's layers).
        scale: times the scores, usually C ** -0.5.
        softcap: scores become softcap * tanh(score / softcap); 0: left as they are.
        windows: every value that a window can take that is data. TPUs need it, since
            their masks are compiled in: one of them is picked at run time.
        implementation: see `kernels.platform.choose`.

    Returns:
        out_BTHC in the dtype of `q_BTHC`; scores and softmax are float32.

    Raises:
        KernelError: when a program is lowered for a platform whose kernel cannot take
            these arguments; the message names the rule.
    """
    H, K = q_BTHC.shape[2], k_BTKC.shape[2]
    if H % K:
        raise ValueError(f"{H} query heads are no multiple of {K} key/value heads")
    static = window is None or isinstance(window, (int, np.integer))
    scoring = Scoring(
        scale=scale,
        softcap=softcap,
        window=int(window) if static and window is not None else None,
        windows=windows,
    )
    arrays = map(jnp.asarray, (q_BTHC, k_BTKC, v_BTKC, segment_BT))
    return _packed(scoring, implementation, *arrays, None if static else window)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _packed(scoring, implementation, *arrays):
    found = forms(__name__, "forward", scoring=scoring, residuals=False)
    return choose(*arrays, implementation=implementation, **found)


def _packed_forward(scoring, implementation, *arrays):
    found = forms(__name__, "forward", scoring=scoring, residuals=True)
    out_BTHC, lse_BHT = choose(*arrays, implementation=implementation, **found)
    return out_BTHC, (*arrays, out_BTHC, lse_BHT)


def _packed_backward(scoring, implementation, kept, d_out_BTHC):
    found = forms(__name__, "backward", scoring=scoring)
    grads = choose(*kept, d_out_BTHC, implementation=implementation, **found)
    return (*grads, None, None)


_packed.defvjp(_packed_forward, _packed_backward)


def paged_attention(
    q_WHC: jax.Array,
    k_pages_KMSC: jax.Array,
    v_pages_KMSC: jax.Array,
    page_WJ: jax.Array,
    length_W: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    implementation: str | None = None,
) -> jax.Array:
    """Attention of one new token a slot over the slot's pages of a shared cache.

    Pages past a slot's length, or before its window, are neither read nor counted on
    to hold anything. Not differentiable.

    Args:
        q_WHC: queries.
        k_pages_KMSC, v_pages_KMSC: the cache, M pages of S positions; the new token is
            already written. They may have more channels than the queries, finite ones
            that count for nothing: the kernel for TPUs takes multiples of 128.
        page_WJ: int32 pages of each slot in order; entries past its length may be
            anything from 0 to M - 1.
        length_W: int32 positions of each slot, the new token's among them; 0: the slot
            is empty, and its result is 0.
        scale, window, softcap, implementation: as in `packed_attention`.

    Returns:
        out_WHC in the dtype of `q_WHC`; scores and softmax are float32.
    """
    (_, H, C), K = q_WHC.shape, k_pages_KMSC.shape[0]
    if H % K:
        raise ValueError(f"{H} query heads are no multiple of {K} key/value heads")
    wider = k_pages_KMSC.shape[3] - C
    q_WHC = jnp.pad(q_WHC, ((0, 0), (0, 0), (0, wider)))
    out_WHC = choose(
        *map(jnp.asarray, (q_WHC, k_pages_KMSC, v_pages_KMSC, page_WJ, length_W)),
        implementation=implementation,
        **forms(
            __name__,
            "paged",
            tpu="tpu_paged",
            gpu="gpu_paged",
            scoring=Scoring(scale, softcap, window),
        ),
    )
    return out_WHC[..., :C]
