"""Rewards for programs: the tests of a row decide, in a sandbox."""

from rl_jax.rewards.code.reward import code, gold_fault, limit_secs, warm_up

__all__ = ["code", "gold_fault", "limit_secs", "warm_up"]
