#!/usr/bin/env bash
# One TPU VM: a single host with all its chips, such as v5litepod-8. For first runs.
#
#   launch/tpu_vm.sh create NAME --zone=ZONE --type=v5litepod-8
#   launch/tpu_vm.sh run NAME --zone=ZONE -- --config=configs/X.py --workdir=runs/x
#   launch/tpu_vm.sh log NAME --zone=ZONE       what it prints; Ctrl-C leaves it running
#   launch/tpu_vm.sh stop NAME --zone=ZONE      saves and ends; the same run goes on
#   launch/tpu_vm.sh delete NAME --zone=ZONE    ends the bill, and loses its disk
#
# `run` copies this checkout to ~/rl_jax of the machine, installs it there, and trains
# in the background: it does not need your connection. Paths behind -- are the
# machine's, below ~/rl_jax.
#
# --dry-run prints what it would run. --project=P: another than gcloud's default.
# --version=V: the TPU software, known for usual types. --setup='COMMAND': run on the
# machine first, such as a mount. Other --FLAG=VALUE of `create` go to gcloud, as do
# --spot, --preemptible, --reserved and --internal-ips.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/tpu.sh
parse "create run log stop delete" "$@"
act ""
