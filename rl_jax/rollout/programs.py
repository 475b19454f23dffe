"""The engine's two compiled programs: admit prompts to slots, and decode.

Shapes are static: `prefill_rows` prompts of at most `max_prompt_tokens`, a fixed
number of slots, `decode_steps` tokens a dispatch.

Legend: W slots, P prompts of an admission, T prompt positions, S cache positions,
N decode steps of a dispatch.
"""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.mesh import spec
from rl_jax.models import decoder
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec
from rl_jax.rollout.sampling import draw


@dataclasses.dataclass(frozen=True)
class EngineSpec:
    """Sizes and choices of an engine, all static."""

    num_slots: int
    max_prompt_tokens: int
    max_new_tokens: int
    prefill_rows: int
    decode_steps: int
    stop_ids: tuple[int, ...]
    top_k: int = 0
    top_p: float = 1.0

    @property
    def cache_length(self) -> int:
        return self.max_prompt_tokens + self.max_new_tokens


@flax.struct.dataclass
class Slots:
    """State of every slot on the device.

    Attributes:
        token_W: int32 newest token, not yet in the cache.
        position_W: int32 its index.
        active_W: bool, still drawing.
        left_W: int32 tokens it may still draw.
        drawn_W: int32 tokens drawn so far: the position that a draw depends on.
        temperature_W: float32.
        key_W2: uint32 key data of (seed, stream, request, sample).
    """

    token_W: jax.Array
    position_W: jax.Array
    active_W: jax.Array
    left_W: jax.Array
    drawn_W: jax.Array
    temperature_W: jax.Array
    key_W2: jax.Array


@flax.struct.dataclass
class Drawn:
    """What a dispatch drew: whole on every device, so that any process can read it.

    Attributes:
        token_WN, logp_WN: int32 and float32, what each step drew. A slot drew as many
            tokens as its `drawn_W` grew by; what stands after them is meaningless.
        drawn_W, active_W: as in `Slots`, after the last step.
    """

    token_WN: jax.Array
    logp_WN: jax.Array
    drawn_W: jax.Array
    active_W: jax.Array


def slot_shapes(engine: EngineSpec) -> Any:
    """`Slots` of shapes and dtypes in place of arrays."""
    W = engine.num_slots

    def array(dtype: Any, *rest: int) -> Any:
        return jax.ShapeDtypeStruct((W, *rest), dtype)

    return Slots(
        token_W=array(jnp.int32),
        position_W=array(jnp.int32),
        active_W=array(jnp.bool_),
        left_W=array(jnp.int32),
        drawn_W=array(jnp.int32),
        temperature_W=array(jnp.float32),
        key_W2=array(jnp.uint32, 2),
    )


def slot_spec(x: jax.ShapeDtypeStruct | jax.Array | np.ndarray) -> jax.P:
    """Partition spec of one array of `Slots`."""
    return spec("batch", *("time",) * (x.ndim - 1))


def slot_keys(seed: int, id_W3: jax.Array) -> jax.Array:
    """Key data [W, 2] of (seed, stream, request, sample) for each row of `id_W3`."""

    def one(id_3):
        key = jax.random.key(seed)
        for i in range(3):
            key = jax.random.fold_in(key, id_3[i])
        return jax.random.key_data(key)

    return jax.vmap(one)(id_W3)


def admit(
    params: Params,
    cache: decoder.Cache,
    slots: Slots,
    incoming: Slots,
    id_W3: jax.Array,
    source_W: jax.Array,
    prompt_PT: jax.Array,
    length_P: jax.Array,
    *,
    model: ModelSpec,
    seed: int,
) -> tuple[decoder.Cache, Slots]:
    """Prefills prompts once and hands each one's cache to all of its slots.

    Args:
        incoming: the new state of the slots that are filled; its keys are ignored.
        id_W3: uint32 (stream, request, sample) of each filled slot.
        source_W: int32 row of `prompt_PT` that fills the slot, -1 leaves it alone.
        prompt_PT, length_P: prompts padded on the right, and their lengths.
    """
    new_k, new_v = decoder.prefill(params, prompt_PT, length_P, model)

    def place(old_WKSC, new_PKTC, source_W):
        T = new_PKTC.shape[2]
        chosen_WKTC = new_PKTC[jnp.maximum(source_W, 0)]
        keep = (source_W < 0)[:, None, None, None]
        merged_WKTC = jnp.where(keep, old_WKSC[:, :, :T], chosen_WKTC)
        return old_WKSC.at[:, :, :T].set(merged_WKTC)

    # Every shard of slots needs any prompt: prompts are gathered, heads stay divided.
    everywhere = spec("whole", "kv_heads", "time", "head_dim")
    placed = jax.shard_map(
        place,
        in_specs=(decoder.cache_spec(), everywhere, spec("batch")),
        out_specs=decoder.cache_spec(),
    )

    def merge(old, new):
        return tuple(
            placed(o, jax.reshard(n, everywhere), source_W)
            for o, n in zip(old, new, strict=True)
        )

    rows = spec("batch", "time")
    key_W2 = jax.shard_map(
        functools.partial(slot_keys, seed), in_specs=rows, out_specs=rows
    )(id_W3)
    incoming = dataclasses.replace(incoming, key_W2=key_W2)
    filled_W = source_W >= 0
    slots = jax.tree.map(
        lambda old, new: jnp.where(
            filled_W.reshape(-1, *(1,) * (old.ndim - 1)), new, old
        ),
        slots,
        incoming,
    )
    return decoder.Cache(merge(cache.k, new_k), merge(cache.v, new_v)), slots


def decode(
    params: Params,
    cache: decoder.Cache,
    slots: Slots,
    *,
    model: ModelSpec,
    engine: EngineSpec,
) -> tuple[decoder.Cache, Slots, Drawn]:
    """Draws up to `decode_steps` tokens in every active slot."""
    layers = decoder.unrolled(params, model)
    head_VD = decoder.gather_head(params, model)
    params = decoder.gather_embedding(params, model)
    rows = spec("batch", "time")
    shape = (engine.num_slots, engine.decode_steps)
    stop_ids = jnp.asarray(engine.stop_ids, jnp.int32)

    def pick(logits_WV, slots):
        fold = jax.vmap(
            lambda data, i: jax.random.key_data(
                jax.random.fold_in(jax.random.wrap_key_data(data), i)
            )
        )
        token_W, logp_W = draw(
            logits_WV,
            fold(slots.key_W2, slots.drawn_W),
            slots.temperature_W,
            top_k=engine.top_k,
            top_p=engine.top_p,
        )
        left_W = slots.left_W - 1
        stopped_W = (token_W[:, None] == stop_ids[None]).any(axis=1) | (left_W <= 0)
        moved = dataclasses.replace(
            slots,
            token_W=token_W,
            position_W=slots.position_W + 1,
            active_W=~stopped_W,
            left_W=left_W,
            drawn_W=slots.drawn_W + 1,
        )
        slots = jax.tree.map(
            lambda new, old: jnp.where(
                slots.active_W.reshape(-1, *(1,) * (old.ndim - 1)), new, old
            ),
            moved,
            slots,
        )
        return slots, token_W, logp_W

    slot_specs = jax.tree.map(slot_spec, slots)
    pick = jax.shard_map(
        pick,
        in_specs=(spec("batch", "whole"), slot_specs),
        out_specs=(slot_specs, spec("batch"), spec("batch")),
    )

    def unfinished(carry):
        step, _, slots, _, _ = carry
        return (step < engine.decode_steps) & jax.reshard(
            slots.active_W, spec("whole")
        ).any()

    def one(carry):
        step, cache, slots, token_WN, logp_WN = carry
        logits_WV, cache = decoder.decode_step(
            params, layers, head_VD, cache, slots.token_W, slots.position_W, model
        )
        logits_WV = jax.reshard(logits_WV, spec("batch", "whole"))
        slots, token_W, logp_W = pick(logits_WV, slots)
        now = jnp.arange(engine.decode_steps) == step
        token_WN = jnp.where(now, token_W[:, None], token_WN)
        logp_WN = jnp.where(now, logp_W[:, None], logp_WN)
        return step + 1, cache, slots, token_WN, logp_WN

    init = (
        jnp.int32(0),
        cache,
        slots,
        jnp.zeros(shape, jnp.int32, out_sharding=rows),
        jnp.zeros(shape, jnp.float32, out_sharding=rows),
    )
    _, cache, slots, token_WN, logp_WN = jax.lax.while_loop(unfinished, one, init)
    drawn = Drawn(token_WN, logp_WN, slots.drawn_W, slots.active_W)
    drawn = jax.tree.map(lambda x: jax.reshard(x, spec(*("whole",) * x.ndim)), drawn)
    return cache, slots, drawn
