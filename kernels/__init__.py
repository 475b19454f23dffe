"""One folder an op; imported as `rl_jax.kernels`. Nothing here imports rl_jax."""
