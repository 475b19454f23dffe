#!/usr/bin/env bash
# What a machine of launch/tpu_spot.sh runs whenever it boots: fetches the code and
# trains until the run is over. The machine may go at any time; the same script on one
# made anew goes on from the newest checkpoint in the work folder, which outlives it.
#
# Arguments are those of rl_jax.train. Settings, which tpu_spot.sh writes in front:
#   CODE     archive of the checkout, gs://... or a file
#   DONE     where the exit code is written once the run is over, gs://... or a file
#   SETUP    a command to run first, as root, such as a mount; may be empty
#   FOLDER   where the code goes (default /opt/rl_jax), LOG (default /var/log/rl_jax.log)
#   RESTARTS, EXTRA: see on_machine.sh
set -euo pipefail
: "${CODE:?}" "${DONE:?}"
export HOME="${HOME:-/root}" # which a boot script may lack
export RESTARTS="${RESTARTS:-10}"
FOLDER=${FOLDER:-/opt/rl_jax}
exec > >(tee -a "${LOG:-/var/log/rl_jax.log}") 2>&1
echo "$(date) $(hostname) starts"

# shellcheck disable=SC2329 # by way of patiently
copy() {
    case "$1 $2" in
        *gs://*) gcloud storage cp "$1" "$2" ;;
        *) cp "$1" "$2" ;;
    esac
}

# Just after the boot the network may not be there yet.
patiently() {
    local tries
    for tries in 1 2 3 4 5; do
        if "$@"; then return; fi
        echo "try $tries of 5 failed: $*"
        sleep "${PAUSE:-10}"
    done
    return 1
}

mkdir -p "$FOLDER"
cd "$FOLDER"
patiently copy "$DONE" exit_code
if [ "$(cat exit_code)" != running ]; then
    echo "the run is over, with exit code $(cat exit_code)"
    exit 0
fi
if [ -n "${SETUP:-}" ]; then eval "$SETUP"; fi
patiently copy "$CODE" code.tar.gz
# On a machine that was only rebooted, files of an older checkout go; .venv stays.
mkdir -p code
find code -mindepth 1 -maxdepth 1 ! -name .venv ! -name runs -exec rm -rf {} +
tar -xzf code.tar.gz -C code
code=0
code/launch/on_machine.sh train "$@" || code=$?
echo "$(date) $(hostname) ends with exit code $code"
case $code in
    130 | 143) ;; # stopped: the machine is about to go, and the run is not over
    *)
        echo "$code" >exit_code
        patiently copy exit_code "$DONE"
        ;;
esac
exit "$code"
