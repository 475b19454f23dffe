"""Makes the model folders in files/ and the logits that transformers gives for them.

Not a test, and not run by them: it needs torch and transformers, which nothing else
here does. Last run with torch 2.14.1 (CPU) and transformers 5.24.0:

    pip install torch transformers safetensors
    python tests/models/make_golden.py

Weights and tokens are drawn by NumPy from fixed seeds. Each folder also holds
expected.npz: token_BT, int32, and logits_BTV, float32, of the stored weights computed
in float32.
"""

import json
import pathlib
import shutil

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from safetensors.torch import save_file
from transformers import (  # pyright: ignore[reportMissingImports]
    LlamaConfig,
    LlamaForCausalLM,
)

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


if __name__ == "__main__":
    for seed, name in enumerate(MODELS):
        make(name, seed)
