"""Rewards: text in, a score with a verdict out, each computed in a worker process."""

from rl_jax.rewards.pool import RewardPool
from rl_jax.rewards.score import Score, Verdict

__all__ = ["RewardPool", "Score", "Verdict"]
