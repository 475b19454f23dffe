"""Runs programs that nobody has read, in processes kept as far away as can be."""

from rl_jax.rewards.sandbox.limits import (
    LEVELS,
    REPLY_FD,
    REQUEST_FD,
    Limits,
    Outcome,
    SandboxError,
    SessionEnded,
)
from rl_jax.rewards.sandbox.sandbox import Sandbox
from rl_jax.rewards.sandbox.self_test import Finding, Report, self_test
from rl_jax.rewards.sandbox.session import Session

__all__ = [
    "LEVELS",
    "REPLY_FD",
    "REQUEST_FD",
    "Finding",
    "Limits",
    "Outcome",
    "Report",
    "Sandbox",
    "SandboxError",
    "Session",
    "SessionEnded",
    "self_test",
]
