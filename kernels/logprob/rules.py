"""What every implementation asks of its arguments, each rule with its message.

Legend: N tokens, D model width, V vocabulary of this shard.
"""

import jax
import jax.numpy as jnp

from ..platform import KernelError
from .head import Head, Logits


def check_model(
    op: str, hidden_ND: jax.Array, head: Head, logits: Logits, whose: str = ""
) -> int:
    """V of hidden states and a head that fit each other.

    Raises:
        KernelError: naming the rule, if they do not.
    """

    def refuse(rule, found):
        raise KernelError(f"{op}: {whose}{rule}, got {found}")

    weight, bias_V = head
    if logits.layout not in ("VD", "DV"):
        refuse('layout must be "VD" or "DV"', repr(logits.layout))
    if not logits.temperature > 0:
        refuse("temperature must be above 0", logits.temperature)
    if not logits.softcap >= 0:
        refuse("softcap must be 0 (none) or more", logits.softcap)
    if hidden_ND.ndim != 2 or not hidden_ND.size:
        refuse("hidden states must be [N, D] with N, D >= 1", hidden_ND.shape)
    if weight.ndim != 2 or not weight.size:
        refuse(f"weight must be [{', '.join(logits.layout)}]", weight.shape)
    V, D = weight.shape[logits.vocab_dim], hidden_ND.shape[1]
    if weight.shape[logits.width_dim] != D:
        axes = ", ".join(logits.layout)
        refuse(
            f"weight must be [{axes}] with the hidden states' width D = {D}",
            weight.shape,
        )
    if bias_V is not None and bias_V.shape != (V,):
        refuse(f"bias must be [V] with the weight's V = {V}", bias_V.shape)
    for name, x in (("hidden states", hidden_ND), ("weight", weight)):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            refuse(f"{name} must be float32 or bfloat16", x.dtype)
    return V


def check_tokens(op: str, N: int, **arrays: jax.Array | None) -> None:
    """Raises KernelError if an array that is not None is not [N] (or [N, ...])."""
    for name, x in arrays.items():
        if x is None:
            continue
        if x.shape[:1] != (N,):
            raise KernelError(
                f"{op}: {name} must have the hidden states' N = {N}, got {x.shape}"
            )
        if name == "target_N" and not jnp.issubdtype(x.dtype, jnp.integer):
            raise KernelError(f"{op}: target_N must be integers, got {x.dtype}")
