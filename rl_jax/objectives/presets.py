"""The named policy losses: points in the space that policy_spec.py spans.

`PRESETS` holds the methods with the defaults of their papers, `COMPAT` the losses of
other trainers with theirs, so that a user who comes from one finds the same numbers.
Adding a method is adding a row (and its function to surrogate.py, if it needs one).
Values that a paper does not give are marked as ours.
"""

import dataclasses

from rl_jax.objectives.policy_spec import PolicyLoss

PRESETS: dict[str, PolicyLoss] = {
    # arXiv:2402.03300, equation 3, and DeepSeek-R1, arXiv:2501.12948, section 2.2.1,
    # which has a k3 term of 0.001; ours is 0 so that no reference is loaded unasked.
    "grpo": PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate="clip",
        clip_low=0.2,
        clip_high=0.2,
        aggregate="seq_mean_token_mean",
    ),
    # arXiv:2503.20783: neither the spread nor the length of a sample divides.
    "dr_grpo": PolicyLoss(
        centre="group_mean",
        scale="none",
        surrogate="clip",
        clip_low=0.2,
        clip_high=0.2,
        aggregate="seq_sum_const",
    ),
    # arXiv:2503.14476, section 3: a wider upper bound, a token mean, no KL.
    "dapo": PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate="clip",
        clip_low=0.2,
        clip_high=0.28,
        aggregate="token_mean",
        dynamic_sampling=True,
        overlong_buffer=0.2,
    ),
    # MiniMax-M1, arXiv:2506.13585, section 3.1: no lower bound; the upper one is not
    # published. 5 in all is the middle of what ScaleRL, arXiv:2510.13786, found equal.
    "cispo": PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate="cispo",
        clip_low=1.0,
        clip_high=4.0,
        aggregate="token_mean",
    ),
    # arXiv:2510.13786, section 4: one ratio, to what the generator reported, under an
    # absolute cap; the spread is that of all groups that teach something.
    "scalerl": PolicyLoss(
        centre="group_mean",
        scale="varying_std",
        surrogate="capped",
        denominator="sampler",
        ratio_cap=5.0,
        aggregate="prompt_mean",
    ),
    # arXiv:2507.18071, equations 5 to 7 and section 5.1.
    "gspo": PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate="clip",
        ratio="sequence",
        clip_low=3e-4,
        clip_high=4e-4,
        aggregate="seq_mean_token_mean",
    ),
    # The same, equations 13 to 14: equal to gspo unless advantages differ by token.
    "gspo_token": PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate="clip",
        ratio="sequence_token",
        clip_low=3e-4,
        clip_high=4e-4,
        aggregate="seq_mean_token_mean",
    ),
    # arXiv:2402.14740, section 3: REINFORCE on whole samples against the mean of the
    # others. The paper has a KL in the reward; ours is 0 as in grpo.
    "rloo": PolicyLoss(
        centre="leave_one_out",
        scale="none",
        surrogate="none",
        aggregate="seq_mean_token_sum",
        kl="k1",
        kl_place="reward",
    ),
    # arXiv:2501.03262: no groups. Returns of tokens, minus the KL that is still to
    # come, whitened over all tokens. The coefficient of that KL is ours: 0, as in grpo.
    "reinforce_plus_plus": PolicyLoss(
        centre="none",
        scale="none",
        whiten="token_std",
        surrogate="clip",
        clip_low=0.2,
        clip_high=0.2,
        aggregate="token_mean",
        kl="k1",
        kl_place="return",
    ),
    # The same, for several samples a prompt: KL as a k2 loss.
    "reinforce_plus_plus_baseline": PolicyLoss(
        centre="group_mean",
        scale="none",
        whiten="token_std",
        surrogate="clip",
        clip_low=0.2,
        clip_high=0.2,
        aggregate="token_mean",
        kl="k2",
    ),
    # Importance-weighted policy gradient without a bound, as in Tinker's
    # importance_sampling loss.
    "reinforce": PolicyLoss(
        centre="group_mean",
        scale="none",
        surrogate="none",
        denominator="sampler",
        aggregate="token_mean",
    ),
    # arXiv:2512.02556, section 3.1. Ours: the coefficient of the KL (the paper: weak or
    # none for maths) and the delta of the mask.
    "deepseek_v32": PolicyLoss(
        centre="group_mean",
        scale="none",
        surrogate="clip",
        denominator="sampler",
        clip_low=0.2,
        clip_high=0.2,
        aggregate="seq_mean_token_mean",
        kl="k3_unbiased",
        off_policy_delta=0.5,
    ),
    # Olmo 3's published scripts: DAPO's bounds moved a little, no spread, TIS of 2.
    "olmo3": PolicyLoss(
        centre="group_mean",
        scale="none",
        surrogate="clip",
        clip_low=0.2,
        clip_high=0.272,
        aggregate="token_mean",
        sampler_cap=2.0,
        dynamic_sampling=True,
    ),
    # GLM-5's report, reasoning RL: GRPO with IcePop's mask of 1/2 to 2.
    "glm5": PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate="clip",
        clip_low=0.2,
        clip_high=0.28,
        aggregate="seq_mean_token_mean",
        correction="mask",
        sampler_low=0.5,
        sampler_cap=2.0,
    ),
    # The same report, asynchronous RL of agents, from the sampler's numbers alone.
    # Bounds and aggregation are ours.
    "glm5_agentic": PolicyLoss(
        centre="group_mean",
        scale="none",
        surrogate="dropped",
        denominator="sampler",
        clip_low=0.2,
        clip_high=0.28,
        aggregate="token_mean",
    ),
    # MAI-Thinking-1, as others describe it: the ratio is held to an outer interval
    # first; 1.25 is the reciprocal of 0.8. All four numbers are ours.
    "mai_thinking": PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate="clip",
        denominator="sampler",
        clip_low=0.2,
        clip_high=0.25,
        ratio_floor=0.1,
        ratio_cap=10.0,
        aggregate="token_mean",
    ),
    # arXiv:2501.12599, section 2.3.2. tau is ours.
    "kimi_k15": PolicyLoss(
        centre="group_mean",
        scale="none",
        surrogate="kimi_k15",
        tau=0.5,
        aggregate="seq_mean_token_sum",
    ),
    # Kimi K2.5's report, section 4. The bounds and tau are ours.
    "kimi_k25": PolicyLoss(
        centre="group_mean",
        scale="none",
        surrogate="kimi_k25",
        clip_low=0.2,
        clip_high=0.28,
        tau=0.01,
        aggregate="token_mean",
    ),
    # arXiv:2507.20534, section 3.2.3. tau is ours.
    "kimi_k2": PolicyLoss(
        centre="group_mean",
        scale="none",
        surrogate="kimi_k2",
        tau=0.5,
        aggregate="seq_mean_token_sum",
    ),
    # arXiv:2511.20347, with its temperatures.
    "sapo": PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate="sapo",
        tau=1.0,
        tau_negative=1.05,
        aggregate="seq_mean_token_mean",
    ),
}

# TRL divides by the sample standard deviation (ddof 1) plus 1e-4, and leaves samples
# out whose product of exp(old - sampler) passes 3.
_TRL_GRPO = PolicyLoss(
    centre="group_mean",
    scale="group_sample_std",
    eps=1e-4,
    surrogate="clip",
    clip_low=0.2,
    clip_high=0.2,
    aggregate="seq_mean_token_mean",
    correction="sequence_mask",
    sampler_cap=3.0,
)
# verl divides by the sample standard deviation plus 1e-6, and always has the dual clip.
_VERL_GRPO = PolicyLoss(
    centre="group_mean",
    scale="group_sample_std",
    surrogate="clip",
    clip_low=0.2,
    clip_high=0.2,
    ratio_cap=3.0,
    aggregate="token_mean",
)

COMPAT: dict[str, dict[str, PolicyLoss]] = {
    # GRPOTrainer of July 2026 by loss_type, with the values its documentation gives
    # for each paper; RLOOTrainer.
    "trl": {
        "grpo": _TRL_GRPO,
        "dapo": dataclasses.replace(_TRL_GRPO, clip_high=0.28, aggregate="token_mean"),
        "dr_grpo": dataclasses.replace(
            _TRL_GRPO, scale="none", aggregate="seq_sum_const"
        ),
        # epsilon_high is an absolute cap here. Its default of 0.2 caps every weight at
        # 0.2; 5 is what TRL recommends.
        "cispo": dataclasses.replace(
            _TRL_GRPO, surrogate="capped", ratio_cap=5.0, aggregate="token_mean"
        ),
        "gspo": dataclasses.replace(
            _TRL_GRPO, ratio="sequence", clip_low=3e-4, clip_high=4e-4
        ),
        # The ratio of whole samples, not of tokens, and no length in it.
        "rloo": dataclasses.replace(
            _TRL_GRPO,
            centre="leave_one_out",
            scale="none",
            ratio="sequence_sum",
            kl="k1",
            kl_place="reward",
            kl_coef=0.05,
        ),
        "sapo": dataclasses.replace(
            _TRL_GRPO, surrogate="sapo", tau=1.0, tau_negative=1.05
        ),
    },
    # core_algos.py of August 2026 with the defaults of its configuration. (Its GSPO
    # goes without the dual clip.)
    "verl": {
        "grpo": _VERL_GRPO,
        "dapo": dataclasses.replace(
            _VERL_GRPO, clip_high=0.28, dynamic_sampling=True, overlong_buffer=0.2
        ),
        "dr_grpo": dataclasses.replace(
            _VERL_GRPO, scale="none", aggregate="seq_sum_const"
        ),
        "cispo": dataclasses.replace(_VERL_GRPO, surrogate="cispo", ratio_cap=0.0),
        "gspo": dataclasses.replace(
            _VERL_GRPO,
            ratio="sequence_token",
            clip_low=3e-4,
            clip_high=4e-4,
            ratio_cap=0.0,
            aggregate="seq_mean_token_mean",
        ),
        "rloo": dataclasses.replace(_VERL_GRPO, centre="leave_one_out", scale="none"),
        "reinforce_plus_plus": dataclasses.replace(
            _VERL_GRPO,
            centre="none",
            scale="none",
            whiten="token_sample_std",
            kl="k1",
            kl_place="return",
        ),
        "reinforce_plus_plus_baseline": dataclasses.replace(
            _VERL_GRPO, scale="none", whiten="token_sample_std"
        ),
        "sapo": dataclasses.replace(
            _VERL_GRPO,
            surrogate="sapo",
            tau=1.0,
            tau_negative=1.05,
            ratio_cap=0.0,
            aggregate="seq_mean_token_mean",
        ),
    },
}
