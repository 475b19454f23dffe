"""Causal attention over packed rows, and over a cache while decoding."""

from .plain import cache_attention, packed_attention

__all__ = ["cache_attention", "packed_attention"]
