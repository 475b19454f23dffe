"""A dense decoder: over packed rows, and one token at a time.

Both read the same parameter tree. Training scans the stacked layers; decoding unrolls
them, with one cache array a layer: scanning over a stacked cache copies it.

Legend: B rows, T positions, D width, H/K query and key/value heads, C channels of a
head, F feed-forward width, V vocabulary, W decode slots, S cache positions.
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rl_jax.kernels.attention import (  # pyright: ignore[reportMissingImports]
    cache_attention,
    packed_attention,
)
from rl_jax.kernels.logprob import (  # pyright: ignore[reportMissingImports]
    token_logprob,
)
from rl_jax.mesh import BATCH_AXES, TENSOR_AXIS, spec
from rl_jax.models.params import Layers, Leaf, Params, layout
from rl_jax.models.rotary import Reach, reach, reaches, rotate, windows
from rl_jax.models.spec import ModelSpec


@flax.struct.dataclass
class Cache:
    """Keys and values of every slot, one array a layer: [W, K, S, C] each."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]


def rms_norm(
    x: jax.Array, scale: jax.Array, model: ModelSpec, *, num_axes: int = 1
) -> jax.Array:
    """x over its root mean square on the last axes, in float32, times the scale."""
    axes = tuple(range(-num_axes, 0))
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(x32 * x32, axis=axes, keepdims=True) + model.norm_eps)
    scale = scale.astype(jnp.float32) + model.norm_offset
    return (x32 * scale).astype(x.dtype)


def gather_layer(layer: Layers, model: ModelSpec) -> Layers:
    """One layer's weights in compute dtype, whole along their model width.

    The stored width is divided over `fsdp`; this is the all-gather, and its transpose
    divides the gradient again.
    """
    return jax.tree.map(
        lambda leaf, w: _gather(w, leaf.axes[1:], model.compute_dtype),
        layout(model).layers,
        layer,
        is_leaf=lambda x: isinstance(x, Leaf),
    )


def gather_head(params: Params, model: ModelSpec) -> jax.Array:
    """The output head [V, D] in its compute dtype, whole along D."""
    head_VD = params.embed_VD if params.head_VD is None else params.head_VD
    return _gather(head_VD, ("vocab", "embed"), model.head_dtype)


def gather_embedding(params: Params, model: ModelSpec) -> Params:
    """Params whose embedding is in compute dtype and whole along D, for many `embed`s.

    A tied head is then whole as well, and rounded: take `gather_head` first.
    """
    table_VD = _gather(params.embed_VD, ("vocab", "embed"), model.compute_dtype)
    return dataclasses.replace(params, embed_VD=table_VD)


def _gather(w, axes, dtype):
    whole = ("width" if a == "embed" else a for a in axes)
    return jax.reshard(w.astype(dtype), spec(*whole))


def embed(params: Params, token: jax.Array, model: ModelSpec) -> jax.Array:
    """Embeddings of ids [batch, ...], each shard looking up its part of V."""
    table_VD = _gather(params.embed_VD, ("vocab", "embed"), model.compute_dtype)
    rest = ("time",) * (token.ndim - 1)

    def lookup(table_VD, token):
        V = table_VD.shape[0]
        local = token - jax.lax.axis_index(TENSOR_AXIS) * V
        inside = (local >= 0) & (local < V)
        x = table_VD[jnp.where(inside, local, 0)]
        return jax.lax.psum(jnp.where(inside[..., None], x, 0), TENSOR_AXIS)

    x = jax.shard_map(
        lookup,
        in_specs=(spec("vocab", "width"), spec("batch", *rest)),
        out_specs=spec("batch", *rest, "width"),
    )(table_VD, token)
    if model.embed_scale == 1.0:
        return x
    # Rounded to the dtype first, as Gemma's own code does.
    return x * jnp.asarray(model.embed_scale, x.dtype)


def _qkv(layer: Layers, x, position, reach: Reach, model: ModelSpec):
    """Rotated queries and keys, and values, of [batch, ..., D] inputs."""
    h = rms_norm(x, layer.attn_norm_LD, model) if model.pre_norm else x
    q = jnp.einsum("...D,DHC->...HC", h, layer.w_q_LDHC)
    k = jnp.einsum("...D,DKC->...KC", h, layer.w_k_LDKC)
    v = jnp.einsum("...D,DKC->...KC", h, layer.w_v_LDKC)
    if model.qkv_bias:
        q, k, v = q + layer.b_q_LHC, k + layer.b_k_LKC, v + layer.b_v_LKC
    if model.qk_norm == "head":
        q = rms_norm(q, layer.q_norm_LC, model)
        k = rms_norm(k, layer.k_norm_LC, model)
    elif model.qk_norm == "whole":
        q = rms_norm(q, layer.q_norm_LHC, model, num_axes=2)
        k = rms_norm(k, layer.k_norm_LKC, model, num_axes=2)
    return rotate(q, position, reach), rotate(k, position, reach), v


def _close(layer: Layers, x, attended, model: ModelSpec):
    """Output projection and feed-forward block, both added to x [batch, ..., D]."""
    out = spec("batch", *("time",) * (x.ndim - 2), "width")
    h = jnp.einsum("...HC,HCD->...D", attended, layer.w_o_LHCD, out_sharding=out)
    x += rms_norm(h, layer.attn_post_norm_LD, model) if model.post_norm else h
    h = rms_norm(x, layer.mlp_norm_LD, model) if model.pre_norm else x
    gate = jnp.einsum("...D,DF->...F", h, layer.w_gate_LDF)
    up = jnp.einsum("...D,DF->...F", h, layer.w_up_LDF)
    h = checkpoint_name(_ACTIVATIONS[model.activation](gate) * up, "mlp_hidden")
    h = jnp.einsum("...F,FD->...D", h, layer.w_down_LFD, out_sharding=out)
    return x + (rms_norm(h, layer.mlp_post_norm_LD, model) if model.post_norm else h)


_ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


def _packed_layer(model, reach, position_BT, segment_BT, x_BTD, layer):
    """One layer over packed rows; also the keys and values, for a prefill."""
    layer = gather_layer(layer, model)
    q_BTHC, k_BTKC, v_BTKC = _qkv(layer, x_BTD, position_BT, reach, model)
    heads = spec("batch", "time", "heads", "head_dim")
    attend = functools.partial(
        packed_attention, windows=windows(model), **_score_options(model)
    )
    attended_BTHC = jax.shard_map(
        attend,
        in_specs=(heads, heads, heads, spec("batch", "time"), spec()),
        out_specs=heads,
        # jax's kernel for TPUs does not say what it varies over. Nothing is summed
        # here, forward or backward: the heads and rows are divided over every axis.
        check_vma=False,
    )(q_BTHC, k_BTKC, v_BTKC, segment_BT, reach.window)
    return _close(layer, x_BTD, attended_BTHC, model), (k_BTKC, v_BTKC)


def _score_options(model: ModelSpec) -> dict[str, float]:
    scale = model.query_scale or model.head_dim**-0.5
    return {"scale": scale, "softcap": model.attn_softcap}


def _through_layers(params, model, position_BT, segment_BT, x_BTD, keep):
    """All layers over packed rows; `keep(k, v)` of each layer, stacked on L."""
    same, differing = reaches(model)

    def body(x_BTD, scanned):
        layer, own = scanned
        merged = (s if o is None else o for s, o in zip(same, own, strict=True))
        x_BTD, (k, v) = _packed_layer(
            model, Reach(*merged), position_BT, segment_BT, x_BTD, layer
        )
        return x_BTD, keep(k, v)

    if model.remat == "layer":
        body = jax.checkpoint(body, prevent_cse=False)
    return jax.lax.scan(body, x_BTD, (params.layers, differing))


def hidden_states(
    params: Params,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    model: ModelSpec,
) -> jax.Array:
    """Final hidden states of packed rows, [B, T, D], normed, before the head.

    Args:
        token_BT: int32 ids.
        position_BT: int32 position of each token in its own sample.
        segment_BT: int32, equal within a sample; 0 is padding.
    """
    x_BTD = embed(params, token_BT, model)
    x_BTD, _ = _through_layers(
        params, model, position_BT, segment_BT, x_BTD, lambda k, v: None
    )
    return rms_norm(x_BTD, params.norm_D, model)


def target_logprobs(
    params: Params,
    hidden_BTD: jax.Array,
    target_BT: jax.Array,
    mask_BT: jax.Array,
    model: ModelSpec,
    *,
    temperature: float,
) -> tuple[jax.Array, jax.Array]:
    """(logp_BT, entropy_BT) of the targets, float32; logits are never held.

    Where the mask is 0 nothing is computed, and both are 0.
    """
    head_VD = gather_head(params, model)
    rows = spec("batch", "time")

    def local(hidden_BTD, head_VD, target_BT, mask_BT):
        B, T, D = hidden_BTD.shape
        found = token_logprob(
            hidden_BTD.reshape(B * T, D),
            head_VD,
            target_BT.reshape(B * T),
            mask_N=mask_BT.reshape(B * T),
            temperature=temperature,
            softcap=model.final_softcap,
            vocab_axis=TENSOR_AXIS,
            varying=(*BATCH_AXES, TENSOR_AXIS),
        )
        return found.logp_N.reshape(B, T), found.entropy_N.reshape(B, T)

    return jax.shard_map(
        local,
        in_specs=(spec("batch", "time", "width"), spec("vocab", "width"), rows, rows),
        out_specs=(rows, rows),
    )(hidden_BTD.astype(model.head_dtype), head_VD, target_BT, mask_BT)


def prefill(
    params: Params, token_PT: jax.Array, length_P: jax.Array, model: ModelSpec
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Keys and values of whole prompts, a list over layers of [P, K, T, C] arrays.

    Args:
        token_PT: int32 prompts, padded on the right.
        length_P: int32 tokens of each; what lies beyond is never attended to.
    """
    T = token_PT.shape[1]
    position_PT = jnp.broadcast_to(
        jnp.arange(T), token_PT.shape, out_sharding=spec("batch", "time")
    )
    segment_PT = (position_PT < length_P[:, None]).astype(jnp.int32)
    x_PTD = embed(params, token_PT, model)
    _, (k_LPKTC, v_LPKTC) = _through_layers(
        params,
        model,
        position_PT,
        segment_PT,
        x_PTD,
        lambda k, v: (k.swapaxes(1, 2), v.swapaxes(1, 2)),
    )
    layers = range(model.num_layers)
    return [k_LPKTC[i] for i in layers], [v_LPKTC[i] for i in layers]


def unrolled(params: Params, model: ModelSpec) -> tuple[Layers, ...]:
    """Every layer's gathered weights, to be read many times by `decode_step`."""
    return tuple(
        gather_layer(jax.tree.map(lambda w: w[i], params.layers), model)  # noqa: B023
        for i in range(model.num_layers)
    )


def decode_step(
    params: Params,
    layers: tuple[Layers, ...],
    head_VD: jax.Array,
    cache: Cache,
    token_W: jax.Array,
    position_W: jax.Array,
    model: ModelSpec,
) -> tuple[jax.Array, Cache]:
    """Float32 logits of the token that follows `token_W`, and the cache with it.

    Args:
        params: best after `gather_embedding`, else every step gathers the table.
        layers, head_VD: `unrolled(params)` and `gather_head(params)`, made once a
            dispatch.
        cache: positions before `position_W` hold the sample so far.
        token_W, position_W: int32 newest token of each slot and its index.

    Returns:
        (logits_WV, divided over the vocabulary's axis; the next cache)
    """
    x_WD = embed(params, token_W, model)
    new_k, new_v = [], []
    for i, layer in enumerate(layers):
        own = reach(model, i)
        q_WHC, k_WKC, v_WKC = _qkv(layer, x_WD, position_W, own, model)
        attend = functools.partial(
            cache_attention, window=own.window, **_score_options(model)
        )
        attended_WHC, k_WKSC, v_WKSC = _attend_to_cache(
            attend, q_WHC, k_WKC, v_WKC, cache.k[i], cache.v[i], position_W
        )
        new_k.append(k_WKSC)
        new_v.append(v_WKSC)
        x_WD = _close(layer, x_WD, attended_WHC, model)
    h_WD = rms_norm(x_WD, params.norm_D, model).astype(model.head_dtype)
    logits_WV = jnp.einsum(
        "WD,VD->WV",
        h_WD,
        head_VD,
        preferred_element_type=jnp.float32,
        precision="highest" if model.float32_head else None,
    )
    if model.final_softcap:
        logits_WV = model.final_softcap * jnp.tanh(logits_WV / model.final_softcap)
    return logits_WV, Cache(tuple(new_k), tuple(new_v))


def _attend_to_cache(attend, q_WHC, k_WKC, v_WKC, k_WKSC, v_WKSC, position_W):
    """Writes the new keys and values, then attends; local to each shard."""

    def local(q_WHC, k_WKC, v_WKC, k_WKSC, v_WKSC, position_W):
        rows_W = jnp.arange(q_WHC.shape[0])
        k_WKSC = k_WKSC.at[rows_W, :, position_W].set(k_WKC)
        v_WKSC = v_WKSC.at[rows_W, :, position_W].set(v_WKC)
        return attend(q_WHC, k_WKSC, v_WKSC, position_W), k_WKSC, v_WKSC

    new, old = spec("batch", "heads", "head_dim"), cache_spec()
    return jax.shard_map(
        local,
        in_specs=(new, new, new, old, old, spec("batch")),
        out_specs=(new, old, old),
    )(q_WHC, k_WKC, v_WKC, k_WKSC, v_WKSC, position_W)


def cache_spec() -> jax.P:
    """Partition spec of one layer's keys or values, [W, K, S, C]."""
    return spec("batch", "kv_heads", "time", "head_dim")


def empty_cache(
    model: ModelSpec, num_slots: int, length: int, make: Callable[..., jax.Array]
) -> Cache:
    """Zero cache; `make(shape, dtype, spec)` says how an array comes into being."""
    shape = (num_slots, model.num_kv_heads, length, model.head_dim)
    array = functools.partial(make, shape, model.compute_dtype, cache_spec())
    layers = range(model.num_layers)
    return Cache(tuple(array() for _ in layers), tuple(array() for _ in layers))
