#!/usr/bin/env bash
# A TPU slice of several hosts: the same command on every worker (--worker=all).
#
#   launch/tpu_pod.sh create NAME --zone=ZONE --type=v5litepod-16
#   launch/tpu_pod.sh run NAME --zone=ZONE --num_processes=4 \
#       --setup='sudo mkdir -p /mnt/share && sudo mount -t nfs IP:/SHARE /mnt/share' \
#       -- --config=configs/X.py --workdir=/mnt/share/x
#   launch/tpu_pod.sh log NAME --zone=ZONE      what all print; Ctrl-C leaves them running
#   launch/tpu_pod.sh stop NAME --zone=ZONE     saves and ends; the same run goes on
#   launch/tpu_pod.sh delete NAME --zone=ZONE   ends the bill
#
# --num_processes: the number of workers, one process each; fewer are an error. The
# work folder must be one that all of them share, as must the model and the data.
# The workers find each other by themselves; a run that lacks some says which.
#
# --dry-run prints what it would run. --project=P: another than gcloud's default.
# --version=V: the TPU software, known for usual types. --setup='COMMAND': run on each
# worker first. Other --FLAG=VALUE of `create` go to gcloud, as do --spot,
# --preemptible, --reserved and --internal-ips.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/tpu.sh
parse "create run log stop delete" "$@"
if [ "$ACTION" = run ]; then needs_num_processes; fi
act --worker=all
