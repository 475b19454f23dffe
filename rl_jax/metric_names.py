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
    "train/reverse_kl": Metric(
        "nats", "KL(student || teacher) per token; on-policy: estimated at drawn tokens"
    ),
    "train/forward_kl": Metric("nats", "KL(teacher || student) per token"),
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
    # Pairs of replies (dpo). Both log-probabilities may fall while the margin grows,
    # the chosen reply's too: the loss sees their difference only. Where they fall far,
    # raise preference.beta, or preference.nll_coef.
    "train/accuracy_pairs": Metric("fraction", "pairs whose chosen reply ranks higher"),
    "train/score_margin": Metric(
        "score", "reward models: score of the better reply less that of the worse"
    ),
    "train/accuracy_labels": Metric(
        "fraction", "reward models: replies on the side of 0 that their label is on"
    ),
    "train/reward_margin": Metric("reward", "mean reward of chosen less rejected"),
    "train/rewards/chosen": Metric(
        "reward", "beta times the log-ratio of chosen replies to the reference"
    ),
    "train/rewards/rejected": Metric("reward", "the same of rejected replies"),
    "train/logps/chosen": Metric("nats", "mean log-probability of a chosen reply"),
    "train/logps/rejected": Metric("nats", "the same of a rejected reply"),
    "train/nll": Metric("nats", "mean over pairs of a chosen reply's loss per token"),
    # Reward functions that judge but do not train.
    "reward/hidden/<function>": Metric("reward", "mean of one hidden function"),
    "health/reward_gap": Metric(
        "reward", "mean of what is trained on less that of the hidden functions"
    ),
    "health/reward_gap_alarm": Metric(
        "flag", "1 while that gap has grown by more than reward.hidden_gap"
    ),
    # Which prompts are asked.
    "data/retired": Metric("count", "prompts that are solved, and not asked"),
    "data/asked_share": Metric("fraction", "prompts that were ever asked"),
    "data/pass_rate": Metric(
        "fraction", "right replies to a prompt since it entered, mean over the prompts"
    ),
    # How far the run is.
    "train/num_tokens": Metric("tokens", "trained on, or drawn in RL, since step 0"),
    "train/epoch": Metric("epochs", "passes over the training rows since step 0"),
    # Held-out prompts.
    "eval/accuracy": Metric("fraction", "right answers at the training temperature"),
    "eval/accuracy_greedy": Metric("fraction", "right answers at temperature 0"),
    "eval/loss": Metric("nats", "mean negative log-likelihood per token"),
    "eval/accuracy_pairs": Metric(
        "fraction", "held-out pairs whose chosen reply ranks higher"
    ),
    "eval/score_margin": Metric("score", "as in train/, held-out rankings"),
    "eval/accuracy_labels": Metric("fraction", "as in train/, held-out labels"),
    "eval/reward_margin": Metric(
        "reward", "mean reward of chosen less rejected, held-out pairs"
    ),
    "eval/logps/chosen": Metric("nats", "as in train/, held-out pairs"),
    "eval/logps/rejected": Metric("nats", "as in train/, held-out pairs"),
    "eval/kl": Metric(
        "nats", "exact KL(student || teacher) per token, at the student's own replies"
    ),
    "eval/mean_length": Metric("tokens", "mean length of a completion"),
    "eval/num_prompts": Metric("count", "prompts evaluated"),
    # What a select or curate stage, which trains nothing, wrote and left out.
    "select/prompts": Metric("count", "prompts asked"),
    "select/samples": Metric("count", "replies drawn"),
    "select/no_score": Metric("count", "replies that nobody could judge"),
    "select/pass_rate": Metric("fraction", "correct among the replies judged"),
    "select/pass_at_k": Metric("fraction", "prompts with a correct reply"),
    "select/rows": Metric("count", "rows written of what was drawn"),
    "select/prompts_kept": Metric("count", "prompts with a row"),
    "select/kept_replies": Metric("count", "replies in those rows"),
    "select/mean_score": Metric("reward", "mean score of the replies judged"),
    "select/mean_score_kept": Metric(
        "reward", "mean score of the replies kept; of pairs, the better ones"
    ),
    "select/mean_length": Metric("tokens", "mean length of the replies drawn"),
    "select/mean_length_kept": Metric("tokens", "mean length of those kept, likewise"),
    "select/mean_margin": Metric("reward", "mean of better less worse over pairs"),
    "select/held_out": Metric("count", "of those rows, kept apart for others"),
    "select/also": Metric("count", "rows appended from other sources"),
    "curate/read": Metric("count", "rows read"),
    "curate/kept": Metric("count", "rows written"),
    "curate/removed": Metric("count", "rows left out"),
    "curate/contaminated": Metric("count", "rows left out that hold a held-out prompt"),
    "curate/duplicates": Metric("count", "rows left out as exact or near duplicates"),
    "curate/pass_rate": Metric("fraction", "mean pass rate of the rows kept"),
    # Speed and memory.
    "perf/tokens_per_sec_generate": Metric("tokens/s", "tokens drawn, all devices"),
    "perf/tokens_per_sec_train": Metric("tokens/s", "tokens updated on, all devices"),
    "perf/rows_filled": Metric(
        "fraction", "positions of packed rows that hold a token (dpo)"
    ),
    "perf/num_devices": Metric("count", "devices of the run, all processes"),
    "perf/memory_bytes": Metric("bytes", "host memory of process 0 (resident set)"),
    "perf/device_memory_bytes": Metric(
        "bytes", "peak use of the fullest device of process 0"
    ),
    "perf/compiles": Metric(
        "count", "programs compiled, or read from the compilation cache, so far"
    ),
    "perf/compile_secs": Metric("s", "spent on those programs so far"),
    "perf/handover_bytes": Metric(
        "bytes", "weights received by devices for the sampler's mesh, in a step"
    ),
    # Where the seconds of a step go.
    "time/step": Metric("s", "a whole step, without evaluation and checkpoint"),
    "time/rollout": Metric("s", "drawing samples"),
    "time/handover": Metric("s", "of it, laying out weights on the sampler's mesh"),
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
