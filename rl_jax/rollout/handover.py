"""Weights on the way from the trainer's mesh to the sampler's, of the same devices.

A trainer wants weights divided over many devices, a sampler wants them whole or divided
over heads, as it would gather them anew for each token.
"""

import math

import jax
from jax.sharding import Mesh

from rl_jax.models.params import Params, abstract_params
from rl_jax.models.spec import ModelSpec


def lies_on(params: Params, mesh: Mesh) -> bool:
    """Whether the weights are laid out on this mesh."""
    return jax.tree.leaves(params)[0].sharding.mesh == mesh


def laid_out(params: Params, model: ModelSpec, mesh: Mesh) -> Params:
    """A copy of the weights as the table of `rl_jax.mesh` has them on this mesh.

    From device to device, never through the host; of several processes all call it.
    """
    like = abstract_params(model, mesh)
    return jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), params, like)


def received_bytes(before: Params, after: Params) -> int:
    """Bytes of `after` that its devices, all of them, did not hold in `before`."""
    return sum(jax.tree.leaves(jax.tree.map(_missing, before, after)))


def _missing(x: jax.Array, y: jax.Array) -> int:
    had = x.sharding.devices_indices_map(x.shape)
    missing = 0
    for device, wanted in y.sharding.devices_indices_map(y.shape).items():
        places = [range(n)[at] for n, at in zip(y.shape, wanted, strict=True)]
        held = [range(n)[at] for n, at in zip(y.shape, had[device], strict=True)]
        both = [_shared(a, b) for a, b in zip(places, held, strict=True)]
        missing += math.prod(map(len, places)) - math.prod(both)
    return missing * y.dtype.itemsize


def _shared(a: range, b: range) -> int:
    return max(min(a.stop, b.stop) - max(a.start, b.start), 0)
