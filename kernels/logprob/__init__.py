"""Log-probability and entropy of target tokens, from hidden states and the head."""

from .plain import token_logprob

__all__ = ["token_logprob"]
