import json
import logging
import math

import pytest

from rl_jax.errors import ConfigError
from rl_jax.models.families import FAMILIES, FULL, SLIDING
from rl_jax.models.huggingface_rope import read_rope, write_rope
from rl_jax.models.spec import RopeScaling

LLAMA3 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def fault(key, found, supported):
    return ConfigError(f"{key}={json.dumps(found)}, not {supported}")


def rope_of(name="llama", **keys):
    """What `read_rope` makes of a config.json of a family with these keys."""
    config = dict.fromkeys(FAMILIES[name].reads)
    return read_rope({**config, **keys}, FAMILIES[name], fault)


def both(theta, scaling):
    return {FULL: (theta, scaling), SLIDING: (theta, scaling)}


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "type": "llama3"}},
        {
            "rope_theta": 5e5,
            "rope_scaling": {**LLAMA3, "rope_type": None, "type": "llama3"},
        },
        {"rope_parameters": {**LLAMA3, "rope_theta": 500_000}},
        {"rope_theta": 5e5, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    ],
)
def test_llama3_scaling_reads_the_same_from_every_spelling(keys):
    scaling = RopeScaling(
        "llama3", 32.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0
    )
    assert rope_of(**keys) == both(500_000.0, scaling)


def test_default_rope_parameters_carry_the_base():
    found = rope_of(rope_parameters={"rope_type": "default", "rope_theta": 3000.0})
    assert found == both(3000.0, None)


def test_linear_scaling_has_a_factor_and_no_more():
    found = rope_of(rope_scaling={"type": "linear", "factor": 2})
    assert found == both(10_000.0, RopeScaling("linear", 2.0))


@pytest.mark.parametrize(
    ("keys", "want"),
    [
        ({}, {"attention_factor": 0.1 * math.log(4.0) + 1.0}),
        ({"factor": 0.5}, {"factor": 0.5, "attention_factor": 1.0}),
        ({"attention_factor": 1.5}, {"attention_factor": 1.5}),
        (
            {"beta_fast": 16, "beta_slow": 2, "truncate": False},
            {
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
                "attention_factor": 0.1 * math.log(4.0) + 1.0,
            },
        ),
    ],
)
def test_yarn_keys_that_are_absent_mean_what_the_paper_says(keys, want):
    found = rope_of("qwen2", rope_scaling={**YARN, **keys})
    scaling = RopeScaling(
        **{"kind": "yarn", "factor": 4.0, "original_max_positions": 32768, **want}
    )
    assert found == both(10_000.0, scaling)


def test_the_length_of_pre_training_is_by_default_that_of_the_model():
    short = {key: YARN[key] for key in ("rope_type", "factor")}
    found = rope_of(rope_scaling=short, max_position_embeddings=4096)
    _, scaling = found[FULL]
    assert scaling and scaling.original_max_positions == 4096


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_absent_keys_mean_what_the_family_means_by_them(name):
    want = {
        "smollm3": both(2e6, None),
        "olmo3": both(5e5, None),
        "gemma3_text": {FULL: (1e6, None), SLIDING: (1e4, None)},
    }
    assert rope_of(name) == want.get(name, both(1e4, None))


OLMO3 = {"rope_theta": 5e5, "rope_scaling": YARN}


def test_only_layers_without_a_window_are_scaled_in_olmo3_and_gemma3(caplog):
    found = rope_of("olmo3", **OLMO3)
    _, scaling = found[FULL]
    assert scaling and scaling.kind == "yarn"
    assert found[SLIDING] == (5e5, None)
    new = {FULL: {**YARN, "rope_theta": 5e5}, SLIDING: {"rope_theta": 5e5}}
    assert rope_of("olmo3", rope_parameters=new) == found
    assert rope_of("olmo3", **OLMO3, rope_parameters=new) == found
    linear = {"rope_type": "linear", "factor": 8.0}
    found = rope_of(
        "gemma3_text", rope_theta=9e5, rope_local_base_freq=9e3, rope_scaling=linear
    )
    assert found == {FULL: (9e5, RopeScaling("linear", 8.0)), SLIDING: (9e3, None)}
    assert not caplog.records


def test_a_base_that_transformers_5_would_not_give_to_all_layers_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        assert rope_of("olmo3", rope_theta=1e4) == both(1e4, None)
    assert "transformers 5 takes 500000.0 for those" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_theta", -1.0),
        ("rope_theta", "1e4"),
        ("rope_scaling.rope_type", {"rope_type": "dynamic", "factor": 4.0}),
        ("rope_scaling.rope_type", {"rope_type": "longrope", "factor": 4.0}),
        ("rope_scaling.rope_type", {**LLAMA3, "type": "linear"}),
        ("rope_scaling.rope_type", {"rope_type": ["llama3"]}),
        ("rope_scaling.factor", {**LLAMA3, "factor": None}),
        ("rope_scaling.factor", {"type": "linear"}),
        ("rope_scaling.factor", {"rope_type": "default", "factor": 2.0}),
        ("rope_scaling.beta_fast", {**LLAMA3, "beta_fast": 32}),
        ("rope_scaling.high_freq_factor", {**LLAMA3, "low_freq_factor": 4.0}),
        ("rope_scaling.rope_theta", {**LLAMA3, "rope_theta": 5.0}),
        ("rope_scaling.mscale", {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
        ("rope_scaling.truncate", {**YARN, "truncate": 1}),
        ("rope_scaling.beta_fast", {**YARN, "beta_slow": 32}),
        ("rope_scaling.attention_factor", {**YARN, "attention_factor": -1.0}),
        (
            "rope_scaling.original_max_position_embeddings",
            {"rope_type": "yarn", "factor": 4.0},
        ),
        ("rope_scaling.mrope_section", {"type": "default", "mrope_section": [1, 2]}),
        ("rope_scaling", "llama3"),
        (
            "rope_parameters.partial_rotary_factor",
            {"rope_type": "default", "partial_rotary_factor": 0.25},
        ),
        ("rope_parameters.full_attention", {"full_attention": LLAMA3}),
    ],
)
def test_what_the_decoder_cannot_do_is_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=f"^{key}="):
        rope_of(**{"rope_theta": 1e4, key.partition(".")[0]: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # As transformers 5.0 wrote it; the first key that is no kind of layer.
        ("rope_parameters.factor", {**YARN, "rope_theta": 5e5}),
        (
            "rope_parameters.full_attention.truncate",
            {FULL: {**YARN, "truncate": False}},
        ),
        ("rope_parameters.full_attention.rope_theta", {FULL: {"rope_theta": 1.0}}),
        ("rope_parameters.sliding_attention.rope_theta", {SLIDING: {"rope_theta": 1}}),
        ("rope_parameters.sliding_attention.rope_type", {SLIDING: {"type": "dynamic"}}),
    ],
)
def test_rope_by_kind_of_layer_is_refused_by_name_too(key, value):
    with pytest.raises(ConfigError, match=f"^{key}="):
        rope_of("olmo3", rope_theta=5e5, rope_parameters=value)


def test_two_rope_objects_that_differ_are_refused():
    with pytest.raises(ConfigError, match="rope_parameters"):
        rope_of(rope_scaling=LLAMA3, rope_parameters={**LLAMA3, "factor": 8.0})


SCALINGS = [
    None,
    RopeScaling("linear", 3.0),
    RopeScaling("llama3", 8.0, 64, low_freq_factor=2.0, high_freq_factor=5.0),
    RopeScaling("yarn", 8.0, 64, attention_factor=1.5, beta_fast=9.0, beta_slow=2.0),
]


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("scaling", SCALINGS)
def test_written_keys_read_back_as_the_same(name, scaling):
    by_kind = FAMILIES[name].sliding_theta is not None
    ropes = [both(1234.5, scaling)]
    if by_kind:
        ropes = [
            {FULL: (1234.5, scaling), SLIDING: (1234.5, None)},
            {FULL: (1234.5, scaling), SLIDING: (77.0, None)},
        ]
    for rope in ropes:
        written = json.loads(json.dumps(write_rope(rope, FAMILIES[name])))
        assert rope_of(name, **written) == rope


def test_ends_of_the_ramp_that_are_no_whole_channels_are_written():
    scaling = RopeScaling("yarn", 8.0, 64, attention_factor=1.5, truncate=False)
    rope = both(1234.5, scaling)
    assert rope_of("qwen3", **write_rope(rope, FAMILIES["qwen3"])) == rope
