"""How per-token losses become one number: as one weight per token.

Here N counts samples (completions), not tokens.

Weights are made once per optimiser step, from the samples of the whole global batch.
A loss then multiplies and sums, so any split of the batch into micro-batches or
devices adds up to the same value and gradient. A mean inside a micro-batch would not.
Under an explicit mesh, pass these short arrays replicated.
"""

import jax
import jax.numpy as jnp

MODES = (
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_sum_const",
    "prompt_mean",
)


def token_weights(
    tokens_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    *,
    mode: str,
    num_groups: int,
    constant: float,
) -> jax.Array:
    """The weight of each token of sample n; the loss is the weighted sum.

        "token_mean"           1 / tokens of all valid samples
        "seq_mean_token_mean"  1 / (number of valid samples * tokens[n])
        "seq_mean_token_sum"   1 / number of valid samples
        "seq_sum_const"        1 / (number of valid samples * constant)
        "prompt_mean"          1 / (number of groups * tokens of n's group)

    A group counts if it has a valid sample. A valid sample without tokens counts as a
    sample (it is a weight of zero, not a removal); an invalid one counts nowhere.

    Args:
        tokens_N: integer, trained tokens of each sample (mask 1), any value where
            invalid.
        group_N: integer group id in [0, num_groups); not read where invalid.
        valid_N: bool, or 1 where the sample takes part in this optimiser step.
        mode: one of the names above.
        num_groups: a static bound on the ids; may exceed the number of groups.
        constant: tokens; the fixed length of "seq_sum_const" (the generation
            budget), not read in other modes.

    Returns:
        weight_N, float32 (float64 if the counts are): 0 for samples that are invalid
        or have no tokens, and finite even if there is no other kind.

    Raises:
        ValueError: if `mode` is unknown, or needs a positive `constant` and has none.

    Source: DAPO, arXiv:2503.14476 ("token_mean"); GRPO, arXiv:2402.03300
    ("seq_mean_token_mean"); Dr. GRPO, arXiv:2503.20783 ("seq_sum_const"); ScaleRL,
    arXiv:2510.13786 ("prompt_mean").
    """
    if mode not in MODES:
        raise ValueError(f"unknown aggregation {mode!r}: expected one of {MODES}")
    if mode == "seq_sum_const" and not constant > 0:
        raise ValueError(f"seq_sum_const needs a positive constant, got {constant}")
    valid_N = valid_N != 0
    tokens_N = jnp.where(valid_N, tokens_N, 0)
    group_N = jnp.where(valid_N, group_N, 0)
    dtype = jnp.promote_types(tokens_N.dtype, jnp.float32)
    # Counts are added as integers and become floats only afterwards: float32 stops
    # counting at 2^24, and a product of two counts may pass 2^31.
    num_samples = jnp.sum(valid_N).astype(dtype)
    if mode == "token_mean":
        denominator_N = jnp.sum(tokens_N).astype(dtype)
    elif mode == "seq_mean_token_mean":
        denominator_N = num_samples * tokens_N.astype(dtype)
    elif mode == "seq_mean_token_sum":
        denominator_N = num_samples
    elif mode == "seq_sum_const":
        denominator_N = num_samples * constant
    else:
        group_tokens = jax.ops.segment_sum(tokens_N, group_N, num_groups)
        group_size = jax.ops.segment_sum(valid_N.astype(int), group_N, num_groups)
        num_prompts = jnp.sum(group_size > 0).astype(dtype)
        denominator_N = num_prompts * group_tokens[group_N].astype(dtype)
    counts_N = tokens_N > 0
    return jnp.where(counts_N, 1.0 / jnp.where(counts_N, denominator_N, 1.0), 0.0)
