"""What differs between decoders, as data."""

import dataclasses

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretch of the rotary wavelengths (rope_type "llama3").

    Source: the Llama 3.1 release, `rope_scaling` of its config.json.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """Sizes and choices of one dense decoder of the Llama kind."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    vocab_size: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    dtype: str = "float32"  # of activations and matmuls
    param_dtype: str = "float32"  # of stored weights
    float32_head: bool = True  # the head's matmul in float32, whatever dtype
    remat: str = "none"  # "layer": recompute each layer in the backward pass

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)

    @property
    def head_dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.float32) if self.float32_head else self.compute_dtype
