"""Names that a config may choose among, spelt out for type checkers and the help page.

The tables of the other modules say what they mean. Nothing here imports jax, so that a
config can be read without it; a test holds the two together.
"""

from typing import Literal

Preset = Literal[
    "grpo",
    "dr_grpo",
    "dapo",
    "cispo",
    "scalerl",
    "gspo",
    "gspo_token",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "reinforce",
    "deepseek_v32",
    "olmo3",
    "glm5",
    "glm5_agentic",
    "mai_thinking",
    "kimi_k15",
    "kimi_k25",
    "kimi_k2",
    "sapo",
]
Centre = Literal["group_mean", "leave_one_out", "batch_mean", "none"]
Scale = Literal[
    "group_std",
    "group_sample_std",
    "batch_std",
    "batch_sample_std",
    "varying_std",
    "none",
]
# Centre and scale under one name, as configs had them before the two were told apart.
Advantage = Literal["group_std", "group_mean", "batch_std"]
Whiten = Literal["none", "token_std", "token_sample_std"]
Surrogate = Literal[
    "clip",
    "none",
    "cispo",
    "capped",
    "dropped",
    "kimi_k15",
    "kimi_k25",
    "kimi_k2",
    "sapo",
]
Ratio = Literal["token", "sequence", "sequence_token", "sequence_sum"]
Kl = Literal["k1", "k2", "k3", "k1_unbiased", "k3_unbiased"]
Correction = Literal[
    "truncate",
    "mask",
    "keep",
    "sequence_truncate",
    "sequence_mask",
    "geometric_keep",
    "geometric_mask",
]
Aggregate = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_sum_const",
    "prompt_mean",
    "seq_mean_token_sum",
]
Compat = Literal["trl", "verl"]
Denominator = Literal["old", "sampler"]
KlPlace = Literal["loss", "reward", "return"]
Overlong = Literal["dapo", "openrlhf", "verl"]
PreferencePreset = Literal[
    "dpo", "cdpo", "dpo_norm", "llama3", "ipo", "ipo_mean", "hinge"
]
PreferenceKind = Literal["sigmoid", "ipo", "hinge"]
PreferenceAverage = Literal["sum", "mean"]
