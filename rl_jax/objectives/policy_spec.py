"""The choices that make a policy loss, as data. The named ones are in presets.py."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """A policy loss. Hashable, so it can be a static argument of a compiled program.

    Fields that shape the rollouts rather than the loss are here too, because they
    belong to the method: the advantage, `dynamic_sampling` and `overlong_buffer`.
    """

    # What a sample is worth: advantage.py, returns.py.
    centre: str  # what is taken from a reward, e.g. "group_mean", "leave_one_out"
    scale: str  # what it is then divided by, e.g. "group_std", "none"
    # How it moves the policy: surrogate.py.
    surrogate: str  # e.g. "clip" (PPO), "cispo" (clipped weight, no gradient in it)
    # How tokens become one number: aggregate.py.
    aggregate: str
    eps: float = 1e-6  # added to the spread that `scale` divides by
    whiten: str = "none"  # "token_std": mean 0, spread 1 over all tokens of a step
    denominator: str = "old"  # the ratio is policy over "old" (trainer) or "sampler"
    ratio: str = "token"  # of a "token", or of a whole "sequence": surrogate.py
    clip_low: float = 0.2  # the ratio is bounded to [1 - clip_low, 1 + clip_high];
    clip_high: float = 0.2  # clip_low >= 1 means no lower bound
    ratio_floor: float = 0.0  # before all else the ratio is held to these, without a
    ratio_cap: float = 0.0  # gradient beyond; a cap of 0: no cap
    tau: float = 0.0  # what a paper calls tau, where its surrogate has one
    tau_negative: float = 0.0  # the same where the advantage is not positive: SAPO
    # The reference: kl.py.
    kl: str = "k3"  # estimator of KL(policy || reference)
    kl_coef: float = 0.0  # 0: the reference is not needed
    kl_place: str = "loss"  # "loss"; "reward" of a sample; "return" of a token
    # The sampler, where it is not quite the trainer's old policy: correction.py.
    correction: str = "truncate"  # the weight made of exp(old - sampler)
    sampler_low: float = 0.0  # its lower and upper bounds;
    sampler_cap: float = 0.0  # a cap of 0: no weight
    off_policy_delta: float = 0.0  # negative samples that drifted by more: left out
    entropy_coef: float = 0.0  # positive rewards entropy
    dynamic_sampling: bool = False  # replace prompts whose samples all score the same
    overlong_buffer: float = 0.0  # fraction of max_new_tokens, see shaping.py; 0: off
