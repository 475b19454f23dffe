#!/usr/bin/env bash
# Makes .venv, installs rl_jax with what the tests need, and runs them.
#   launch/test.sh                  the quick set
#   launch/test.sh --slow           everything: all seeds, soak, permuted rewards
#   launch/test.sh tests/objectives any arguments of pytest
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/python.sh
install "[test]"
exec .venv/bin/python -m pytest "$@"
