"""Makes the model folders in files/ and the logits that transformers gives for them.

Not a test, and not run by them: it needs torch and transformers, which nothing else
here does. Last run with torch 2.14.1 (CPU) and transformers 5.24.0:

    pip install torch transformers safetensors
    python tests/models/make_golden.py

Weights and tokens are drawn by NumPy from fixed seeds. Each folder also holds
expected.npz: token_BT, int32, and logits_BTV, float32, of the stored weights computed
in float32. Three Llamas come with their weights; models of every family, in
files/families, without (tiny_families.py draws them).
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (  # pyright: ignore[reportMissingImports]
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

sys.path.append(str(pathlib.Path(__file__).parent.parent))
import tiny_families  # noqa: E402

FILES = pathlib.Path(__file__).parent / "files"
B, T, V = 4, 12, 64

COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "attention_bias": False,
    "mlp_bias": False,
}
# Name -> (config.json without COMMON, stored dtype, number of files).
MODELS = {
    # Head not tied; a head_dim that follows from the width; as transformers 4 wrote.
    "untied": (
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "tie_word_embeddings": False,
        },
        torch.float32,
        1,
    ),
    # Tied, no grouped heads, and Llama 3's rotary scaling: with 64 original positions
    # the 8 wavelengths (6.3, 32, 167, ... tokens) fall into all three of its ranges.
    "scaled": (
        {
            "num_attention_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
        1,
    ),
    # Heads that are wider than width / num_heads, rope keys as transformers 5 writes
    # them, and two files with an index.
    "wide_heads": (
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 3000.0},
            "tie_word_embeddings": False,
        },
        torch.float16,
        2,
    ),
}


def random_weights(model, dtype, rng):
    """Weights large enough that attention is far from uniform, and norms from one."""
    weights = {}
    for name, old in model.state_dict().items():
        draw = torch.from_numpy(rng.normal(size=tuple(old.shape)).astype(np.float32))
        if old.ndim == 1:
            value = 1.0 + 0.3 * draw
        elif name == "model.embed_tokens.weight":
            value = 0.5 * draw
        else:
            value = 1.5 * draw / old.shape[1] ** 0.5
        weights[name] = value.to(dtype)
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


def save_weights(weights, folder, num_files):
    """One model.safetensors, or `num_files` files and their index."""
    if num_files == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, where = list(weights), {}
    for i in range(num_files):
        file = f"model-{i + 1:05}-of-{num_files:05}.safetensors"
        part = names[i::num_files]
        where |= {name: file for name in part}
        save_file(
            {name: weights[name] for name in part},
            folder / file,
            metadata={"format": "pt"},
        )
    size = sum(w.numel() * w.element_size() for w in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    text = json.dumps(index, indent=1) + "\n"
    (folder / "model.safetensors.index.json").write_text(text)


def make(name, seed):
    config, dtype, num_files = MODELS[name]
    config = {**COMMON, **config}
    folder = FILES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    rng = np.random.default_rng(seed)
    empty = LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
    weights = random_weights(empty, dtype, rng)
    if config["tie_word_embeddings"]:
        del weights["lm_head.weight"]
    save_weights(weights, folder, num_files)
    # Read back as a user would, so that a weight that transformers does not find shows.
    model, report = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=1
    )
    assert not any(report.values()), report
    token_BT = rng.integers(0, V, size=(B, T))
    with torch.no_grad():
        logits_BTV = model(torch.from_numpy(token_BT)).logits
    print(name, f"logits of std {logits_BTV.std():.2f}")
    np.savez_compressed(
        folder / "expected.npz",
        token_BT=token_BT.astype(np.int32),
        logits_BTV=logits_BTV.numpy().astype(np.float32),
    )


# Sizes of which no two are alike, a head_dim that is not width / heads, an odd
# vocabulary, and a base that makes all 7 wavelengths matter within 24 positions.
SIZES = {
    "vocab_size": 37,
    "hidden_size": 20,
    "intermediate_size": 33,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "max_position_embeddings": 64,
    "rms_norm_eps": 0.01,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
# Name -> (model_type, arguments of its config class beside SIZES).
FAMILY_MODELS = {
    "llama": ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}}),
    "llama_linear": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 2.5,
                "rope_theta": 50.0,
            },
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": (
        "smollm3",
        {
            "num_hidden_layers": 3,
            "no_rope_layer_interval": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 70.0},
        },
    ),
    "smollm3_windows": (
        "smollm3",
        {
            "num_hidden_layers": 3,
            "no_rope_layers": [1, 0, 0],
            "use_sliding_window": True,
            "sliding_window": 5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 70.0},
        },
    ),
    "mistral": (
        "mistral",
        {
            "sliding_window": 5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 90.0},
        },
    ),
    "mistral_full": (
        "mistral",
        {
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 90.0},
        },
    ),
    # head_dim follows from the width, as in all that were published.
    "qwen2": (
        "qwen2",
        {
            "hidden_size": 24,
            "head_dim": ...,
            "rope_parameters": {"rope_type": "default", "rope_theta": 80.0},
            "tie_word_embeddings": True,
        },
    ),
    "qwen2_windows": (
        "qwen2",
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
            "rope_parameters": {**YARN, "rope_theta": 80.0},
        },
    ),
    "qwen3": (
        "qwen3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 60.0}},
    ),
    "qwen3_yarn": (
        "qwen3",
        {
            # Both ends of the ramp lie within its 7 channels.
            "rope_parameters": {
                **YARN,
                "original_max_position_embeddings": 40,
                "rope_theta": 300.0,
                "attention_factor": 1.3,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "truncate": False,
            },
        },
    ),
    "olmo2": (
        "olmo2",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 60.0}},
    ),
    # Three of four layers have windows; yarn in the fourth only.
    "olmo3": (
        "olmo3",
        {
            "num_hidden_layers": 5,
            "sliding_window": 6,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
                "full_attention": {**YARN, "rope_theta": 200.0},
            },
        },
    ),
    # Caps that are low enough to bend most scores and logits.
    "gemma2": (
        "gemma2",
        {
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "query_pre_attn_scalar": 9,
            "attn_logit_softcapping": 2.5,
            "final_logit_softcapping": 6.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 60.0},
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 9,
            "final_logit_softcapping": 7.0,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
                "full_attention": {
                    "rope_type": "linear",
                    "factor": 4.0,
                    "rope_theta": 400.0,
                },
            },
        },
    ),
    "gemma3_untied": (
        "gemma3_text",
        {
            "num_hidden_layers": 3,
            "sliding_window": 7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 25,
            "tie_word_embeddings": False,
        },
    ),
}


def make_family_model(name, seed):
    model_type, changes = FAMILY_MODELS[name]
    config = {k: v for k, v in {**SIZES, **changes}.items() if v is not ...}
    config = AutoConfig.for_model(model_type, **config)
    folder = tiny_families.FILES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        # As transformers writes it, so that every name and shape is its own.
        AutoModelForCausalLM.from_config(config).save_pretrained(scratch)
        with safe_open(f"{scratch}/model.safetensors", "np") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}
        shutil.copy(f"{scratch}/config.json", folder)
    (folder / "tensors.json").write_text(json.dumps(shapes, indent=0) + "\n")
    rng = np.random.default_rng(seed)
    token_BT = rng.integers(3, SIZES["vocab_size"], size=(2, 24))
    with tempfile.TemporaryDirectory() as scratch:
        tiny_families.write(name, pathlib.Path(scratch))
        model, report = AutoModelForCausalLM.from_pretrained(
            scratch,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    assert not any(report.values()), report
    with torch.no_grad():
        logits_BTV = model(torch.from_numpy(token_BT)).logits.numpy()
        exact_BTV = model.double()(torch.from_numpy(token_BT)).logits.numpy()
    error = np.abs(logits_BTV - exact_BTV).max()
    print(f"{name:16} logits of std {logits_BTV.std():.2f}, {error:.1e} from float64")
    np.savez_compressed(
        folder / "expected.npz",
        token_BT=token_BT.astype(np.int32),
        logits_BTV=logits_BTV.astype(np.float32),
    )


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for seed, name in enumerate(MODELS):
        if name in wanted or not wanted:
            make(name, seed)
    for seed, name in enumerate(FAMILY_MODELS):
        if name in wanted or not wanted:
            make_family_model(name, seed)
