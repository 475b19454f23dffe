#!/usr/bin/env bash
# Makes .venv, installs rl_jax, and trains the built-in example on the CPU: a small new
# model learns arithmetic, first from demonstrations, then by reinforcement learning.
# Arguments are passed on: launch/quickstart.sh --config.seed=1
# WORKDIR is where everything is written (default runs/quickstart); running the same
# command again resumes what was stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/python.sh
install ""
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
exec .venv/bin/python -m rl_jax.train --config=configs/quickstart.py \
    --workdir="${WORKDIR:-runs/quickstart}" "$@"
