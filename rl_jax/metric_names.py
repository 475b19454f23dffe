"""Every metric that a run writes: its name, unit and meaning.

Under `train/` the names are those of TRL where it has one, so that dashboards carry
over. A part in <angle brackets> stands for a name that only the run knows.
"""

import difflib
import re
from typing import NamedTuple


class Metric(NamedTuple):
    """What a number in metrics.jsonl is."""

    unit: str
    meaning: str


METRICS: dict[str, Metric] = {
    # What the policy is rewarded for, over the samples of the step.
    "train/reward": Metric("reward", "mean reward of the samples that have one"),
    "train/reward_std": Metric("reward", "standard deviation of those rewards"),
    "train/frac_reward_zero_std": Metric(
        "fraction", "groups whose rewards all agree, so that they teach nothing"
    ),
    "train/accuracy": Metric("fraction", "samples with the verdict correct"),
    "train/groups_all_right": Metric("fraction", "groups with no wrong sample"),
    "train/groups_all_wrong": Metric("fraction", "groups with no right sample"),
    "train/rewards/<function>/mean": Metric(
        "reward", "mean of one reward function, before its weight"
    ),
    "train/refills": Metric("count", "times more prompts were asked for this step"),
    "train/groups_dropped": Metric("count", "groups left out by dynamic sampling"),
    # What the policy wrote.
    "train/completions/mean_length": Metric("tokens", "mean length of a completion"),
    "train/completions/max_length": Metric("tokens", "longest completion"),
    "train/completions/min_length": Metric("tokens", "shortest completion"),
    "train/completions/clipped_ratio": Metric(
        "fraction", "completions cut off at the token limit"
    ),
    "train/entropy": Metric("nats", "mean entropy of the policy at sampled tokens"),
    # The update.
    "train/loss": Metric("loss", "the loss; nats per token in supervised stages"),
    "train/kl": Metric("nats", "estimated KL(policy || reference) per token"),
    "train/grad_norm": Metric("norm", "global gradient norm before clipping"),
    "train/learning_rate": Metric(
        "rate", "learning rate, mean over the updates of the step"
    ),
    "train/clip_ratio/low_mean": Metric("fraction", "tokens beyond the lower bound"),
    "train/clip_ratio/high_mean": Metric("fraction", "tokens beyond the upper bound"),
    "train/clip_ratio/region_mean": Metric("fraction", "tokens beyond either bound"),
    "train/importance_ratio/mean": Metric("ratio", "mean of policy / old policy"),
    "train/importance_ratio/min": Metric("ratio", "smallest of those ratios"),
    "train/importance_ratio/max": Metric("ratio", "largest of those ratios"),
    "train/sampler_weight_mean": Metric(
        "ratio", "mean weight that corrects for the sampler; 1 when it is off"
    ),
    "train/sampler_masked_fraction": Metric(
        "fraction", "tokens that the correction for the sampler leaves out"
    ),
    # How far the run is.
    "train/num_tokens": Metric("tokens", "trained on, or drawn in RL, since step 0"),
    "train/epoch": Metric("epochs", "passes over the training rows since step 0"),
    # Held-out prompts.
    "eval/accuracy": Metric("fraction", "right answers at the training temperature"),
    "eval/accuracy_greedy": Metric("fraction", "right answers at temperature 0"),
    "eval/loss": Metric("nats", "mean negative log-likelihood per token"),
    "eval/mean_length": Metric("tokens", "mean length of a completion"),
    "eval/num_prompts": Metric("count", "prompts evaluated"),
    # Speed and memory.
    "perf/tokens_per_sec_generate": Metric("tokens/s", "tokens drawn, all devices"),
    "perf/tokens_per_sec_train": Metric("tokens/s", "tokens updated on, all devices"),
    "perf/memory_bytes": Metric("bytes", "host memory of process 0 (resident set)"),
    "perf/device_memory_bytes": Metric(
        "bytes", "peak use of the fullest device of process 0"
    ),
    "perf/compiles": Metric(
        "count", "programs compiled, or read from the compilation cache, so far"
    ),
    "perf/compile_secs": Metric("s", "spent on those programs so far"),
    # Where the seconds of a step go.
    "time/step": Metric("s", "a whole step, without evaluation and checkpoint"),
    "time/rollout": Metric("s", "drawing samples"),
    "time/reward_wait": Metric("s", "waiting for scores after the last sample"),
    "time/update": Metric("s", "gradients and optimiser"),
    "time/eval": Metric("s", "one evaluation"),
    "time/checkpoint": Metric("s", "the loop stood still to save"),
    "time/data_wait": Metric("s", "waiting for rows"),
    # Whether the numbers above can be trusted.
    "health/logp_gap_mean": Metric("nats", "mean |trainer - sampler| log-probability"),
    "health/logp_gap_max": Metric("nats", "largest of those gaps"),
    "health/sampler_kl": Metric("nats", "estimated KL(sampler || trainer) per token"),
    "health/verdict/<verdict>": Metric("count", "samples with this verdict"),
    "health/reward_none": Metric("count", "samples without a reward, masked out"),
    "health/reward_timeouts": Metric("count", "grades killed at their time limit"),
    "health/staleness_mean": Metric(
        "updates", "mean age of the weights that drew a token"
    ),
}


def metric(name: str) -> Metric:
    """Unit and meaning of a metric.

    Raises:
        ValueError: for a name that is not in `METRICS` and fits no pattern there.
    """
    if name in METRICS:
        return METRICS[name]
    for pattern, found in METRICS.items():
        if "<" in pattern and re.fullmatch(_regex(pattern), name):
            return found
    close = difflib.get_close_matches(name, METRICS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"unknown metric {name!r}: add it to METRICS in metric_names.py.{hint}"
    )


def _regex(pattern: str) -> str:
    parts = re.split("<[a-z]+>", pattern)
    return ".+".join(re.escape(part) for part in parts)
