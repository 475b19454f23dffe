"""The decoder: a slow twin, packing, padding, and decoding that equals training.

Legend: B rows, T positions, D width, H/K query and key/value heads, C channels of a
head, V vocabulary, P prompts, W decode slots, S cache positions.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.mesh import make_mesh, sharding, spec
from rl_jax.models import decoder
from rl_jax.models.decoder import Cache
from rl_jax.models.params import map_layout
from rl_jax.models.rotary import reach, rope_frequencies, rotate
from rl_jax.models.spec import Attention, ModelSpec, RopeScaling

V, T = 17, 9

MODEL = ModelSpec(
    num_layers=2,
    width=12,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    ffn_width=20,
    vocab_size=V,
    attention=(Attention(rope_theta=100.0),),
    tie_embeddings=False,
)
LLAMA3 = RopeScaling(
    "llama3", 4.0, original_max_positions=16, low_freq_factor=1.0, high_freq_factor=3.0
)
LINEAR = RopeScaling("linear", 3.0)
YARN = RopeScaling(
    "yarn",
    4.0,
    original_max_positions=16,
    beta_fast=2.0,
    beta_slow=0.3,
    attention_factor=1.2,
)
# Of each choice that some family makes, in company that no family has.
KINDS = {
    "llama": MODEL,
    "scaled": dataclasses.replace(
        MODEL, num_kv_heads=4, attention=(Attention(0, 100.0, LLAMA3),)
    ),
    "like qwen and smollm3": dataclasses.replace(
        MODEL,
        num_layers=3,
        qkv_bias=True,
        qk_norm="head",
        norm_eps=0.1,
        attention=(Attention(rope_theta=100.0), Attention(rope_theta=0.0)),
    ),
    "like olmo": dataclasses.replace(
        MODEL,
        pre_norm=False,
        post_norm=True,
        qk_norm="whole",
        attention=(Attention(3, 100.0), Attention(0, 100.0, YARN)),
    ),
    "like gemma": dataclasses.replace(
        MODEL,
        tie_embeddings=True,
        activation="gelu_tanh",
        post_norm=True,
        norm_offset=1.0,
        embed_scale=3.5,
        query_scale=0.6,
        attn_softcap=1.5,
        final_softcap=2.5,
        attention=(Attention(2, 10.0), Attention(0, 100.0, LINEAR)),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def mesh():
    mesh = make_mesh(devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        yield mesh


def random_params(model, mesh, seed=0):
    """Weights large enough to matter, norms away from one."""
    rng = np.random.default_rng(seed)

    def one(leaf):
        x = rng.normal(size=leaf.shape) * (leaf.fan_in or 9) ** -0.5
        x = jnp.asarray(x + (leaf.fan_in == 0), model.param_dtype)
        return jax.device_put(x, sharding(mesh, *leaf.axes))

    return map_layout(one, model)


@pytest.fixture(scope="module")
def params(mesh):
    return random_params(MODEL, mesh)


# The slow twin.


def slow_frequencies(head_dim, own):
    """Radians a position for each pair of channels, one rule after the other."""
    out = []
    for i in range(head_dim // 2):
        if own.rope_theta == 0:
            out.append(0.0)
            continue
        f = own.rope_theta ** (-2 * i / head_dim)
        s, wavelength = own.rope_scaling, 2 * math.pi / f
        if s is None:
            pass
        elif s.kind == "linear":
            f = f / s.factor
        elif s.kind == "llama3":
            longest_kept = s.original_max_positions / s.high_freq_factor
            shortest_stretched = s.original_max_positions / s.low_freq_factor
            if wavelength > shortest_stretched:
                f = f / s.factor
            elif wavelength > longest_kept:
                smooth = s.original_max_positions / wavelength - s.low_freq_factor
                smooth /= s.high_freq_factor - s.low_freq_factor
                f = (1 - smooth) * f / s.factor + smooth * f
        elif s.kind == "yarn":
            # YaRN turns a number of turns into a channel, and ramps over channels.
            low, high = (
                head_dim
                * math.log(s.original_max_positions / (turns * 2 * math.pi))
                / (2 * math.log(own.rope_theta))
                for turns in (s.beta_fast, s.beta_slow)
            )
            low, high = max(math.floor(low), 0), min(math.ceil(high), head_dim - 1)
            smooth = 1 - min(max((i - low) / (high - low), 0), 1)
            f = (1 - smooth) * f / s.factor + smooth * f
        out.append(f)
    return out


def slow_rotate(x_C, position, model, own):
    half, out_C = len(x_C) // 2, np.zeros(len(x_C))
    if own.rope_theta == 0:
        return x_C
    amplitude = own.rope_scaling.attention_factor if own.rope_scaling else 1.0
    for i, f in enumerate(slow_frequencies(model.head_dim, own)):
        turn = complex(math.cos(position * f), math.sin(position * f))
        turned = complex(x_C[i], x_C[half + i]) * turn * amplitude
        out_C[i], out_C[half + i] = turned.real, turned.imag
    return out_C


def slow_norm(x, scale, model):
    """Over all axes of x."""
    root = math.sqrt((x**2).mean() + model.norm_eps)
    return x / root * (scale + model.norm_offset)


def slow_heads(h_D, w_DHC, b_HC, norm_C, norm_HC, model):
    """Queries, keys or values of one position, [H, C]."""
    out_HC = np.einsum("D,DHC->HC", h_D, w_DHC)
    out_HC = out_HC + (0 if b_HC is None else b_HC)
    if norm_C is not None:
        return np.array([slow_norm(x_C, norm_C, model) for x_C in out_HC])
    return out_HC if norm_HC is None else slow_norm(out_HC, norm_HC, model)


def slow_cap(x, cap):
    return cap * np.tanh(x / cap) if cap else x


def slow_act(x, name):
    if name == "silu":
        return x / (1 + np.exp(-x))
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def slow_logits(params, tokens, model):
    """Logits [T, V] of one document, float64, one position and head at a time."""
    params = jax.tree.map(lambda w: np.asarray(w, np.float64), params)
    x_TD = [params.embed_VD[token] * model.embed_scale for token in tokens]
    query_scale = model.query_scale or 1 / math.sqrt(model.head_dim)
    for i in range(model.num_layers):
        layer = jax.tree.map(lambda w: w[i], params.layers)  # noqa: B023
        own = model.attention[i % len(model.attention)]
        keys, values = [], []
        for t, x_D in enumerate(x_TD):
            h_D = slow_norm(x_D, layer.attn_norm_LD, model) if model.pre_norm else x_D
            query_HC = slow_heads(
                h_D,
                layer.w_q_LDHC,
                layer.b_q_LHC,
                layer.q_norm_LC,
                layer.q_norm_LHC,
                model,
            )
            key_KC = slow_heads(
                h_D,
                layer.w_k_LDKC,
                layer.b_k_LKC,
                layer.k_norm_LC,
                layer.k_norm_LKC,
                model,
            )
            keys.append([slow_rotate(key_C, t, model, own) for key_C in key_KC])
            values.append(
                slow_heads(h_D, layer.w_v_LDKC, layer.b_v_LKC, None, None, model)
            )
            first = max(0, t - own.window + 1) if own.window else 0
            added_D = np.zeros(model.width)
            for head in range(model.num_heads):
                k = head * model.num_kv_heads // model.num_heads
                query_C = slow_rotate(query_HC[head], t, model, own) * query_scale
                score = [query_C @ keys[s][k] for s in range(first, t + 1)]
                weight = np.exp(slow_cap(np.array(score), model.attn_softcap))
                weight /= weight.sum()
                mixed_C = sum(w * values[first + s][k] for s, w in enumerate(weight))
                added_D += mixed_C @ layer.w_o_LHCD[head]
            if model.post_norm:
                added_D = slow_norm(added_D, layer.attn_post_norm_LD, model)
            x_D = x_D + added_D
            h_D = slow_norm(x_D, layer.mlp_norm_LD, model) if model.pre_norm else x_D
            gate = slow_act(h_D @ layer.w_gate_LDF, model.activation)
            added_D = (gate * (h_D @ layer.w_up_LDF)) @ layer.w_down_LFD
            if model.post_norm:
                added_D = slow_norm(added_D, layer.mlp_post_norm_LD, model)
            x_TD[t] = x_D + added_D
    head_VD = params.embed_VD if params.head_VD is None else params.head_VD
    x_TV = [head_VD @ slow_norm(x_D, params.norm_D, model) for x_D in x_TD]
    return slow_cap(np.array(x_TV), model.final_softcap)


def slow_logprobs(logits_TV, target_T, temperature):
    """Log-probabilities of the targets and entropies."""
    z_TV = logits_TV / temperature
    lse_T1 = np.log(np.exp(z_TV - z_TV.max()).sum(axis=1, keepdims=True)) + z_TV.max()
    logp_TV = z_TV - lse_T1
    picked_T = logp_TV[np.arange(len(target_T)), target_T]
    return picked_T, -(np.exp(logp_TV) * logp_TV).sum(axis=1)


# The decoder over packed rows.


def _logprobs(params, rows, model, temperature):
    hidden_BTD = decoder.hidden_states(
        params, rows["token"], rows["position"], rows["segment"], model
    )
    logp_BT, entropy_BT = decoder.target_logprobs(
        params,
        hidden_BTD,
        rows["target"],
        rows["segment"] > 0,
        model,
        temperature=temperature,
    )
    head_VD = decoder.gather_head(params, model)
    logits_BTV = hidden_BTD.astype(head_VD.dtype) @ head_VD.T
    if model.final_softcap:
        logits_BTV = model.final_softcap * jnp.tanh(logits_BTV / model.final_softcap)
    return logp_BT, entropy_BT, logits_BTV


def _gradient(params, rows, model):
    def loss(params):
        logp_BT, entropy_BT, _ = _logprobs(params, rows, model, 1.0)
        real_BT = rows["segment"] > 0
        return jnp.where(real_BT, logp_BT + 0.3 * entropy_BT, 0.0).sum(), logp_BT

    return jax.grad(loss, has_aux=True)(params)


_compiled_logprobs = jax.jit(_logprobs, static_argnames=("model", "temperature"))
_compiled_gradient = jax.jit(_gradient, static_argnames="model")


def logprobs(params, rows, *, model=MODEL, temperature=1.0):
    """(logp_BT, entropy_BT, logits_BTV) of packed rows, in NumPy."""
    return jax.device_get(_compiled_logprobs(params, rows, model, temperature))


def gradient(params, rows, *, model=MODEL):
    """Gradient of a sum over all positions that are not padding, in NumPy."""
    return jax.device_get(_compiled_gradient(params, rows, model)[0])


def lay_out(documents, num_rows=3, length=T, padding=0):
    """Rows from [(row, tokens), ...], each after what its row holds already.

    A document of n tokens takes n - 1 positions. Padding is filled with `padding`.
    """
    rows = {
        name: np.full((num_rows, length), padding, np.int32)
        for name in ("token", "target", "position")
    }
    rows["segment"] = np.zeros((num_rows, length), np.int32)
    used = [0] * num_rows
    for row, tokens in documents:
        n, start = len(tokens) - 1, used[row]
        at = (row, slice(start, start + n))
        rows["token"][at], rows["target"][at] = tokens[:-1], tokens[1:]
        rows["position"][at] = np.arange(n)
        rows["segment"][at] = rows["segment"][row].max() + 1
        used[row] += n
    return put(rows)


def put(rows):
    """Arrays whose first axis is the batch, as the decoder wants them."""
    return jax.tree.map(
        lambda x: jax.device_put(x, spec("batch", *["time"] * (x.ndim - 1))), rows
    )


def documents(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, V, n).astype(np.int32) for n in lengths]


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_matches_the_slow_version(mesh, kind):
    model, temperature = KINDS[kind], 0.7
    params = random_params(model, mesh, seed=1)
    (tokens,) = documents(T + 1)
    logp_BT, entropy_BT, logits_BTV = logprobs(
        params, lay_out([(1, tokens)]), model=model, temperature=temperature
    )
    want_TV = slow_logits(params, tokens[:-1], model)
    np.testing.assert_allclose(logits_BTV[1], want_TV, rtol=0, atol=3e-5)
    logp_T, entropy_T = slow_logprobs(want_TV, tokens[1:], temperature)
    np.testing.assert_allclose(logp_BT[1], logp_T, rtol=0, atol=3e-5)
    np.testing.assert_allclose(entropy_BT[1], entropy_T, rtol=0, atol=3e-5)
    assert logp_BT.dtype == entropy_BT.dtype == jnp.float32


@pytest.mark.parametrize("kind", ["like olmo", "like gemma"])
def test_windows_and_layers_of_two_kinds_pack_like_any_other(mesh, kind):
    model = KINDS[kind]
    params = random_params(model, mesh, seed=2)
    a, b, c = documents(5, 4, 3)
    packed = gradient(params, lay_out([(0, a), (0, b), (0, c)]), model=model)
    alone = gradient(params, lay_out([(0, a), (1, b), (2, c)]), model=model)
    assert_near(packed, alone, atol=2e-5)


def test_only_what_a_model_uses_is_compiled(mesh):
    rows = lay_out([(0, a) for a in documents(5)])

    def text(model):
        params = random_params(model, mesh)
        hidden = functools.partial(decoder.hidden_states, model=model)
        arguments = (params, rows["token"], rows["position"], rows["segment"])
        return str(jax.make_jaxpr(hidden)(*arguments))

    plain, gemma, olmo = (text(KINDS[k]) for k in ("llama", "like gemma", "like olmo"))
    assert plain.count("tanh") == 0 and gemma.count("tanh") > 0
    assert plain.count("rsqrt") == 2 + 1  # two norms a layer, one at the end
    assert gemma.count("rsqrt") == 4 + 1
    assert olmo.count("rsqrt") == 2 + 2 + 1
    # One causal mask: no comparison for a window that no layer has.
    assert plain.count(" lt ") < gemma.count(" lt ")


def test_packed_equals_unpacked(params):
    a, b, c = documents(5, 4, 3)
    packed_BT = logprobs(params, lay_out([(0, a), (0, b), (0, c)]))[0]
    alone_BT = logprobs(params, lay_out([(0, a), (1, b), (2, c)]))[0]
    for row, start, n in ((0, 0, 4), (1, 4, 3), (2, 7, 2)):
        np.testing.assert_allclose(
            packed_BT[0, start : start + n], alone_BT[row, :n], rtol=0, atol=1e-5
        )


def test_packed_gradients_equal_unpacked_ones(params):
    a, b, c = documents(5, 4, 3)
    packed = gradient(params, lay_out([(0, a), (0, b), (0, c)]))
    alone = gradient(params, lay_out([(0, a), (1, b), (2, c)]))
    assert_near(packed, alone, atol=1e-5)


def test_what_padding_holds_changes_nothing(params):
    a, b = documents(5, 3)
    clean, dirty = (lay_out([(0, a), (1, b)], padding=x) for x in (0, 13))
    real_BT = np.asarray(clean["segment"]) > 0
    for got, want in zip(
        logprobs(params, dirty)[:2], logprobs(params, clean)[:2], strict=True
    ):
        np.testing.assert_array_equal(got[real_BT], want[real_BT])
    assert_near(gradient(params, dirty), gradient(params, clean), atol=0)


def test_the_amount_of_padding_changes_nothing(params):
    placed = [(0, a) for a in documents(5, 3)]
    short, long = lay_out(placed), lay_out(placed, num_rows=4, length=T + 4)
    np.testing.assert_allclose(
        logprobs(params, long)[0][0, :6],
        logprobs(params, short)[0][0, :6],
        rtol=0,
        atol=1e-5,
    )
    assert_near(gradient(params, long), gradient(params, short), atol=1e-5)


def test_a_document_does_not_feel_its_neighbours(params):
    a, b, c, other = documents(4, 3, 4, 3)
    before_BT = logprobs(params, lay_out([(0, a), (0, b), (0, c)]))[0]
    after_BT = logprobs(params, lay_out([(0, a), (0, other), (0, c)]))[0]
    np.testing.assert_array_equal(before_BT[0, :3], after_BT[0, :3])
    np.testing.assert_array_equal(before_BT[0, 5:8], after_BT[0, 5:8])
    assert not np.array_equal(before_BT[0, 3:5], after_BT[0, 3:5])


def test_a_later_token_does_not_change_an_earlier_prediction(params):
    (a,) = documents(8)
    b = a.copy()
    b[5] = (b[5] + 1) % V
    before_BT, after_BT = (logprobs(params, lay_out([(0, x)]))[0] for x in (a, b))
    np.testing.assert_array_equal(before_BT[0, :4], after_BT[0, :4])
    assert (before_BT[0, 4:7] != after_BT[0, 4:7]).all()


def test_rematerialised_gradients_are_the_same(params):
    rows = lay_out([(0, a) for a in documents(5, 4)])
    remat = dataclasses.replace(MODEL, remat="layer")
    got = gradient(params, rows, model=remat)
    assert_near(got, gradient(params, rows), atol=1e-5)


def test_bfloat16_is_near_float32(params):
    model = dataclasses.replace(MODEL, dtype="bfloat16")
    rows = lay_out([(0, a) for a in documents(5, 4)])
    (low, low_BT), (exact, exact_BT) = (
        jax.device_get(_compiled_gradient(params, rows, m)) for m in (model, MODEL)
    )
    assert low_BT.dtype == np.float32
    # bfloat16 has 8 bits: 4e-3 a rounding, and a few of them in a row.
    np.testing.assert_allclose(low_BT[0, :7], exact_BT[0, :7], rtol=0, atol=0.1)
    assert np.abs(low_BT - exact_BT)[0, :7].mean() < 0.03

    def check(low, exact):
        assert low.dtype == np.float32  # that of the stored weights
        assert np.linalg.norm(low - exact) < 0.05 * np.linalg.norm(exact)

    jax.tree.map(check, low, exact)


# Rotary embedding.


@pytest.mark.parametrize("scaling", [None, LLAMA3, LINEAR, YARN])
def test_rope_frequencies_match_the_slow_version(scaling):
    own = Attention(rope_theta=50.0, rope_scaling=scaling)
    want = slow_frequencies(16, own)
    np.testing.assert_allclose(rope_frequencies(16, own), want, rtol=0, atol=1e-6)


def test_llama3_scaling_keeps_short_wavelengths_and_stretches_long_ones():
    scaling = RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)
    plain, scaled = (
        np.array(rope_frequencies(64, Attention(0, 500_000.0, s)), np.float64)
        for s in (None, scaling)
    )
    ratio = plain / scaled
    wavelength = 2 * np.pi / plain
    np.testing.assert_allclose(ratio[wavelength < 8192 / 4], 1.0, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ratio[wavelength > 8192], 8.0, rtol=0, atol=1e-5)
    assert (np.diff(ratio) > -1e-5).all()


def test_rotation_keeps_norms_and_depends_on_distance_alone():
    rng = np.random.default_rng(0)
    q_C, k_C = rng.normal(size=(2, MODEL.head_dim)).astype(np.float32)
    position = np.array([0, 1, 5, 300], np.int32)
    compiled = jax.jit(functools.partial(rotate, reach=reach(MODEL, 0)))

    def turned(x_C, position):
        x = np.broadcast_to(x_C, (len(position), 1, len(x_C)))
        return np.asarray(compiled(x, position))[:, 0]

    q = turned(q_C, position)
    norms = np.linalg.norm(q, axis=1)
    np.testing.assert_allclose(norms, np.linalg.norm(q_C), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(q[0], q_C)
    near, far = (q * turned(k_C, position + distance) for distance in (3, 4))
    # Angles of 300 radians are known to 2e-5 in float32.
    np.testing.assert_allclose(near.sum(1), near.sum(1)[0], rtol=0, atol=2e-4)
    assert abs(near.sum(1)[0] - far.sum(1)[0]) > 1e-2


# Prefill and decoding.


prefill = jax.jit(decoder.prefill, static_argnames="model")


@functools.partial(jax.jit, static_argnames="model")
def step(params, cache, token_W, position_W, model):
    return decoder.decode_step(
        params,
        decoder.unrolled(params, model),
        decoder.gather_head(params, model),
        cache,
        token_W,
        position_W,
        model,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_and_decoding_give_the_logits_of_the_whole_row(mesh, kind):
    model = KINDS[kind]
    params = random_params(model, mesh, seed=4)
    W, prompt_tokens = 3, 5
    rows = documents(T, T, T, seed=3)
    lengths_W = np.array([5, 1, 3], np.int32)
    placed = lay_out([(w, [*r, 0]) for w, r in enumerate(rows)])
    want = logprobs(params, placed, model=model, temperature=0.7)[2]

    prompt_WT = np.full((W, prompt_tokens), 11, np.int32)  # padding is not seen
    for w, n in enumerate(lengths_W):
        prompt_WT[w, :n] = rows[w][:n]
    k, v = prefill(params, *put((prompt_WT, lengths_W)), model=model)
    shape = (W, model.num_kv_heads, T, model.head_dim)

    def place(new):
        # What an older sample left in the cache is not seen either.
        out = []
        for layer in new:
            x_WKSC = np.full(shape, 9.0, np.float32)
            x_WKSC[:, :, :prompt_tokens] = layer
            out.append(jax.device_put(x_WKSC, decoder.cache_spec()))
        return tuple(out)

    cache = Cache(place(k), place(v))
    # The last prompt token goes through the decoder again.
    position_W = lengths_W - 1
    while (position_W < T).all():
        token_W = np.array([rows[w][p] for w, p in enumerate(position_W)], np.int32)
        newest = put((token_W, position_W))
        logits_WV, cache = step(params, cache, *newest, model=model)
        logits_WV = jax.device_get(logits_WV)
        assert logits_WV.dtype == np.float32
        for w, p in enumerate(position_W):
            np.testing.assert_allclose(logits_WV[w], want[w, p], rtol=0, atol=2e-5)
        position_W = position_W + 1


def test_an_empty_cache_has_an_array_a_layer():
    made = []

    def make(shape, dtype, partition):
        made.append((shape, dtype, partition))
        return jnp.zeros(shape, dtype)

    model = dataclasses.replace(MODEL, dtype="bfloat16")
    cache = decoder.empty_cache(model, 3, T, make)
    assert len(cache.k) == len(cache.v) == MODEL.num_layers
    assert set(made) == {((3, 2, T, 6), jnp.dtype("bfloat16"), decoder.cache_spec())}
    assert len(made) == 2 * MODEL.num_layers


def assert_near(got, want, *, atol):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), got, want
    )
