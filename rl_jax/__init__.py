"""rl_jax: post-training of language models with reinforcement learning, on JAX."""

import pathlib

__version__ = "0.1.0"

# `rl_jax.kernels` lives in the top-level folder kernels/. An installed package has
# it beside these files; a plain checkout finds it one folder up.
_root = pathlib.Path(__file__).resolve().parent.parent
if not (_root / "rl_jax" / "kernels").exists() and (_root / "kernels").is_dir():
    __path__.append(str(_root))
