"""The engine: samples that the trainer agrees with, whatever the scheduling.

Legend: B rows, T positions, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.data.packing import Piece, pack
from rl_jax.learner import make_learner, to_device
from rl_jax.mesh import make_mesh, sharding
from rl_jax.models import decoder
from rl_jax.models.params import map_layout
from rl_jax.models.spec import ModelSpec
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.programs import EngineSpec
from rl_jax.rollout.sample import EVAL_STREAM, TRAIN_STREAM, Request

V, STOP_IDS = 19, (4, 11)
MAX_PROMPT, MAX_NEW = 5, 9

MODEL = ModelSpec(
    num_layers=2,
    width=12,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    ffn_width=20,
    vocab_size=V,
)
SPEC = EngineSpec(
    num_slots=4,
    max_prompt_tokens=MAX_PROMPT,
    max_new_tokens=MAX_NEW,
    prefill_rows=2,
    decode_steps=4,
    stop_ids=STOP_IDS,
)


@pytest.fixture(scope="module", autouse=True)
def mesh():
    mesh = make_mesh(devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        yield mesh


def random_params(mesh, seed):
    rng = np.random.default_rng(seed)

    def one(leaf):
        x = rng.normal(size=leaf.shape) * (leaf.fan_in or 9) ** -0.5
        x = jnp.asarray(x + (leaf.fan_in == 0), jnp.float32)
        return jax.device_put(x, sharding(mesh, *leaf.axes))

    return map_layout(one, MODEL)


@pytest.fixture(scope="module")
def params(mesh):
    return random_params(mesh, seed=0)


@pytest.fixture(scope="module")
def other_params(mesh):
    return random_params(mesh, seed=1)


@pytest.fixture(scope="module")
def engine(mesh):
    return Engine(MODEL, SPEC, mesh, seed=0)


@pytest.fixture(scope="module")
def other_engine(mesh):
    """Other sizes of everything that must not matter."""
    spec = EngineSpec(
        num_slots=7,
        max_prompt_tokens=MAX_PROMPT + 2,
        max_new_tokens=MAX_NEW + 1,
        prefill_rows=3,
        decode_steps=3,
        stop_ids=STOP_IDS,
    )
    return Engine(MODEL, spec, mesh, seed=0)


def run(engine, params, requests, version=0):
    """Submits everything, polls to the end: samples by (request, index)."""
    for request in requests:
        engine.submit(request)
    samples = []
    while engine.busy:
        samples.extend(engine.poll(params, version))
    by_id = {(s.request, s.index): s for s in samples}
    assert len(by_id) == len(samples)
    return by_id


def prompt(n, seed):
    return tuple(np.random.default_rng(seed).integers(0, V, n).tolist())


# Ragged in every way, and three times as many samples as slots.
REQUESTS = [
    Request(id=3, prompt=prompt(5, 0), num_samples=3, max_new_tokens=MAX_NEW),
    Request(id=0, prompt=prompt(1, 1), num_samples=2, max_new_tokens=5),
    Request(id=8, prompt=prompt(4, 2), num_samples=1, max_new_tokens=1),
    Request(id=5, prompt=prompt(2, 3), num_samples=4, max_new_tokens=MAX_NEW),
    Request(id=1, prompt=prompt(3, 4), num_samples=3, max_new_tokens=8),
]


@pytest.fixture(scope="module")
def samples(engine, params):
    return run(engine, params, REQUESTS)


def assert_same(got, want):
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.sampler_logp, want.sampler_logp, rtol=0, atol=1e-5)
    assert got.stop_reason == want.stop_reason


def test_every_sample_comes_back_once_and_whole(samples):
    wanted = {(r.id, i) for r in REQUESTS for i in range(r.num_samples)}
    assert set(samples) == wanted
    by_id = {r.id: r for r in REQUESTS}
    for sample in samples.values():
        request, n = by_id[sample.request], len(by_id[sample.request].prompt)
        length = len(sample.tokens)
        assert tuple(sample.tokens[:n]) == request.prompt
        assert n < length <= n + request.max_new_tokens
        np.testing.assert_array_equal(sample.policy_mask, np.arange(length) >= n)
        assert (sample.sampler_logp[:n] == 0).all()
        assert (sample.sampler_logp[n:] < 0).all()
        np.testing.assert_array_equal(sample.version, [-1] * n + [0] * (length - n))
        arrays = (sample.tokens, sample.sampler_logp, sample.version)
        assert [x.dtype for x in arrays] == [np.int32, np.float32, np.int32]
        np.testing.assert_array_equal(sample.completion, sample.tokens[n:])


def test_a_stop_token_ends_a_sample_and_is_part_of_it(samples):
    reasons = {s.stop_reason for s in samples.values()}
    assert reasons == {"stop", "length"}  # else the seeds show too little
    for sample in samples.values():
        drawn = sample.completion.tolist()
        assert not set(drawn[:-1]) & set(STOP_IDS)
        assert (drawn[-1] in STOP_IDS) == (sample.stop_reason == "stop")
        assert sample.truncated == (sample.stop_reason == "length")
        assert sample.policy_mask[-1] and sample.sampler_logp[-1] < 0


def test_max_new_tokens_is_honoured(samples):
    by_id = {r.id: r for r in REQUESTS}
    for sample in samples.values():
        limit = by_id[sample.request].max_new_tokens
        if sample.stop_reason == "length":
            assert len(sample.completion) == limit
        else:
            assert len(sample.completion) <= limit


@functools.cache
def learner(temperature):
    return make_learner(MODEL, None, None, temperature=temperature)  # type: ignore


def rescored(params, mesh, samples, temperature):
    """Each sample's log-probabilities as the trainer computes them."""
    order = list(samples.values())
    pieces = [
        Piece(s.tokens, s.policy_mask, s.sampler_logp, sample=n)
        for n, s in enumerate(order)
    ]
    packed = pack(pieces, MAX_PROMPT + 2 * MAX_NEW, 8)
    logp_BT = np.asarray(learner(temperature).score(params, to_device(packed, mesh)))
    return [
        (
            logp_BT[(packed.sample_BT == n) & packed.mask_BT],
            s.sampler_logp[s.policy_mask],
        )
        for n, s in enumerate(order)
    ]


def test_drawn_logprobs_are_those_the_trainer_computes(params, mesh, samples):
    for trainer, sampler in rescored(params, mesh, samples, 1.0):
        assert len(trainer) == len(sampler) > 0
        np.testing.assert_allclose(trainer, sampler, rtol=0, atol=1e-5)


def test_so_they_are_at_another_temperature(engine, params, mesh):
    request = Request(
        id=2,
        prompt=prompt(4, 5),
        num_samples=4,
        max_new_tokens=MAX_NEW,
        temperature=0.7,
    )
    samples = run(engine, params, [request])
    for trainer, sampler in rescored(params, mesh, samples, 0.7):
        np.testing.assert_allclose(trainer, sampler, rtol=0, atol=1e-5)


def test_other_slots_steps_company_and_order_change_no_sample(
    other_engine, params, samples
):
    company = [
        Request(id=20 + i, prompt=prompt(2, 6 + i), num_samples=i, max_new_tokens=3 + i)
        for i in (1, 2, 3)
    ]
    requests = [company[0], *REQUESTS[::-1], *company[1:]]
    again = run(other_engine, params, requests)
    for key, sample in samples.items():
        assert_same(again[key], sample)


def test_a_sample_alone_is_the_sample_in_company(engine, params, samples):
    for request in (REQUESTS[1], REQUESTS[4]):
        for key, sample in run(engine, params, [request]).items():
            assert_same(sample, samples[key])


def test_fewer_samples_of_a_request_are_the_first_ones(engine, params, samples):
    request = REQUESTS[3]
    fewer = Request(request.id, request.prompt, 2, request.max_new_tokens)
    for key, sample in run(engine, params, [fewer]).items():
        assert_same(sample, samples[key])


def test_a_smaller_budget_only_cuts_a_sample_short(engine, params, samples):
    request = REQUESTS[0]
    short = Request(request.id, request.prompt, request.num_samples, 4)
    found = run(engine, params, [short])
    for key, sample in found.items():
        n = len(sample.tokens)
        np.testing.assert_array_equal(sample.tokens, samples[key].tokens[:n])
    assert any(len(samples[k].tokens) > len(s.tokens) for k, s in found.items())


def test_indices_requests_streams_and_seeds_draw_differently(engine, mesh, params):
    def drawn(engine, id=0, stream=TRAIN_STREAM):
        request = Request(id, prompt(3, 9), 4, MAX_NEW, stream=stream)
        found = run(engine, params, [request])
        return tuple(tuple(found[id, i].tokens.tolist()) for i in range(4))

    # Two samples may both stop at once; four and four do not agree by chance.
    several = [
        drawn(engine),
        drawn(engine, id=1),
        drawn(engine, stream=EVAL_STREAM),
        drawn(Engine(MODEL, SPEC, mesh, seed=1)),
    ]
    assert len(set(several)) == len(several)
    assert len(set(several[0])) == 4


@functools.cache
def _whole_row():
    return jax.jit(
        lambda params, token, position, segment: jnp.argmax(
            decoder.hidden_states(params, token, position, segment, MODEL)
            @ decoder.gather_head(params, MODEL).T,
            axis=-1,
        )
    )


def slow_greedy(params, mesh, prompt, num_tokens):
    """The likeliest token after the whole row, one forward pass a token."""
    T, tokens = MAX_PROMPT + MAX_NEW, list(prompt)
    while len(tokens) < len(prompt) + num_tokens and (
        len(tokens) == len(prompt) or tokens[-1] not in STOP_IDS
    ):
        token_BT = np.zeros((1, T), np.int32)
        token_BT[0, : len(tokens)] = tokens
        position_BT = np.arange(T, dtype=np.int32)[None]
        segment_BT = (position_BT < len(tokens)).astype(np.int32)
        arrays = [
            jax.device_put(x, sharding(mesh, "batch", "time"))
            for x in (token_BT, position_BT, segment_BT)
        ]
        best_BT = np.asarray(_whole_row()(params, *arrays))
        tokens.append(int(best_BT[0, len(tokens) - 1]))
    return tokens


def test_temperature_zero_takes_the_likeliest_token_each_time(engine, mesh, params):
    requests = [
        Request(i, prompt(n, 20 + i), 1, MAX_NEW, temperature=0.0)
        for i, n in enumerate((1, 3, 5))
    ]
    found = run(engine, params, requests)
    for request in requests:
        sample = found[request.id, 0]
        want = slow_greedy(params, mesh, request.prompt, MAX_NEW)
        assert sample.tokens.tolist() == want
    for trainer, sampler in rescored(params, mesh, found, 1.0):
        np.testing.assert_allclose(trainer, sampler, rtol=0, atol=1e-5)


def test_top_k_of_one_is_greedy_at_any_temperature(mesh, engine, params):
    spec = EngineSpec(4, MAX_PROMPT, MAX_NEW, 2, 4, STOP_IDS, top_k=1)
    hot, greedy = (Request(7, prompt(4, 8), 2, MAX_NEW, t) for t in (1.5, 0.0))
    want = run(engine, params, [greedy])
    for key, sample in run(Engine(MODEL, spec, mesh, seed=3), params, [hot]).items():
        np.testing.assert_array_equal(sample.tokens, want[key].tokens)


def long_greedy_request(params, mesh):
    """A request whose greedy answer is as long as it may be."""
    for seed in range(40, 80):
        request = Request(6, prompt(3, seed), 1, MAX_NEW, temperature=0.0)
        if len(slow_greedy(params, mesh, request.prompt, MAX_NEW)) == 3 + MAX_NEW:
            return request
    raise AssertionError("every greedy answer stops early")


def test_new_weights_take_effect_and_their_version_stands_at_each_token(
    engine, mesh, params, other_params
):
    request = long_greedy_request(params, mesh)
    engine.submit(request)
    assert engine.poll(params, 7) == []
    samples = []
    while engine.busy:
        samples.extend(engine.poll(other_params, 8))
    (sample,) = samples
    old = slow_greedy(params, mesh, request.prompt, MAX_NEW)
    n = 3 + SPEC.decode_steps
    assert sample.tokens[:n].tolist() == old[:n]
    drawn = len(sample.tokens) - n
    assert sample.version.tolist() == [-1] * 3 + [7] * SPEC.decode_steps + [8] * drawn
    # A request that begins afterwards feels nothing of the older weights.
    ((_, fresh),) = run(engine, other_params, [request], version=8).items()
    new = slow_greedy(other_params, mesh, request.prompt, MAX_NEW)
    assert fresh.tokens.tolist() == new != old


def test_two_programs_are_compiled_once(engine, params, other_params):
    run(engine, params, REQUESTS)
    run(engine, other_params, REQUESTS[::-1])
    assert engine._admit._cache_size() == 1
    assert engine._decode._cache_size() == 1


def test_tokens_drawn_counts_every_token_of_every_sample(engine, params, samples):
    before = engine.tokens_drawn
    run(engine, params, REQUESTS)
    drawn = sum(len(s.completion) for s in samples.values())
    assert engine.tokens_drawn - before == drawn


def test_an_idle_engine_does_nothing(engine, params):
    assert not engine.busy
    assert engine.poll(params, 0) == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(9, prompt(6, 0), 1, 3), "request 9: a prompt of 6 tokens.* 1 to 5"),
        (Request(9, (), 1, 3), "request 9: a prompt of 0 tokens"),
        (
            Request(9, (1,), 1, MAX_NEW + 1),
            "max_new_tokens=10; the engine draws 1 to 9",
        ),
        (Request(9, (1,), 1, 0), "max_new_tokens=0"),
        (Request(9, (1,), 5, 3), "5 samples do not fit 4 slots.*config.rollout.slots"),
        (Request(9, (1,), 0, 3), "0 samples"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_and_not_queued(
    engine, request_, message
):
    with pytest.raises(ValueError, match=message):
        engine.submit(request_)
    assert not engine.busy
