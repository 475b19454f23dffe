"""How far each layer attends and how it tells positions apart: windows and rotation.

Legend: L layers, C channels of a head.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.models.spec import Attention, ModelSpec

_ALL = 2**30  # a window that no row is long enough to notice stands for none


class Reach(NamedTuple):
    """How one layer attends, in numbers.

    Attributes:
        frequency: float32 [C / 2], radians a position of each pair of channels; zeros
            where nothing is rotated.
        amplitude: times the rotated queries and keys.
        window: newest positions seen, the token's own among them; None: all.
    """

    frequency: Any
    amplitude: Any
    window: Any


def reach(model: ModelSpec, layer: int) -> Reach:
    """How layer number `layer`, from 0, attends."""
    own = model.layer_attention(layer)
    scaling = own.rope_scaling
    return Reach(
        rope_frequencies(model.head_dim, own),
        1.0 if scaling is None else scaling.attention_factor,
        own.window or None,
    )


def reaches(model: ModelSpec) -> tuple[Reach, Reach]:
    """(what is the same in all layers, what is not, stacked on L); None in the other.

    Only what differs is scanned: a model of equal layers compiles no window and no
    amplitude that it does not have.
    """
    of_layers = [reach(model, i) for i in range(model.num_layers)]
    same, stacked = [], []
    for values in zip(*of_layers, strict=True):
        differs = any(not np.array_equal(values[0], value) for value in values)
        same.append(None if differs else values[0])
        filled = [_ALL if value is None else value for value in values]
        stacked.append(jnp.asarray(np.stack(filled)) if differs else None)
    return Reach(*same), Reach(*stacked)


def windows(model: ModelSpec) -> tuple[int, ...] | None:
    """The windows that a scan over layers picks from; None where all have the same."""
    layers = range(model.num_layers)
    found = {model.layer_attention(i).window or _ALL for i in layers}
    return tuple(sorted(found)) if len(found) > 1 else None


def rope_frequencies(head_dim: int, attention: Attention) -> np.ndarray:
    """Radians a position for each pair of channels, float32 [C / 2].

    Source: RoFormer (arXiv:2104.09864) section 3.4.2; the stretches of long wavelengths
    are those of `RopeScaling`.
    """
    theta, s = np.float32(attention.rope_theta), attention.rope_scaling
    part = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    if not theta:
        return np.zeros_like(part)
    frequency = 1 / theta**part
    if s is None:
        return frequency
    if s.kind == "linear":
        return frequency / np.float32(s.factor)
    if s.kind == "llama3":
        turns = s.original_max_positions * frequency / (2 * np.pi)
        span = s.high_freq_factor - s.low_freq_factor
        keep = (turns - s.low_freq_factor) / span
    else:  # yarn

        def channel(turns: float) -> float:
            """The pair, as a number with a fraction, that turns so often in all."""
            wavelengths = s.original_max_positions / (turns * 2 * math.pi)
            return head_dim * math.log(wavelengths) / (2 * math.log(theta))

        low, high = channel(s.beta_fast), channel(s.beta_slow)
        if s.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        high += 0.001 * (low == high)
        keep = 1 - (np.arange(head_dim // 2) - low) / (high - low)
    keep = np.clip(keep, 0.0, 1.0).astype(np.float32)
    return frequency * (keep + (1 - keep) / np.float32(s.factor))


def rotate(x: jax.Array, position: jax.Array, reach: Reach) -> jax.Array:
    """Rotary embedding, halves layout of Hugging Face.

    Args:
        x: [..., heads, C]; position: the leading axes of x, int32.
    """
    if isinstance(reach.frequency, np.ndarray) and not reach.frequency.any():
        return x
    angle = position[..., None, None].astype(jnp.float32) * reach.frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    if isinstance(reach.amplitude, jax.Array) or reach.amplitude != 1.0:
        cos, sin = cos * reach.amplitude, sin * reach.amplitude
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
