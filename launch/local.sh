#!/usr/bin/env bash
# Several processes on this machine's CPU, as if each were a host: to try out a job of
# many before paying for it.
#
#   launch/local.sh 2 -- --config=configs/X.py --workdir=runs/x
#   launch/local.sh 2 --devices=4 -- ...     each process with 4 virtual devices
#
# Each line of output begins with the number of its process. Ctrl-C stops all: they
# save, and the same command goes on. --port=N: where they meet (default 8476).
# --dry-run prints what it would run. The exit code is that of the first process whose
# code is not 0.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/python.sh

count='' devices='' port=8476 dry_run=''
fail() {
    printf 'error: %s\n' "$@" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
        --) break ;;
        --dry-run) dry_run=1 ;;
        --help | -h) sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$0" && exit 0 ;;
        --devices=*) devices=${1#*=} ;;
        --port=*) port=${1#*=} ;;
        [1-9] | [1-9][0-9]) count=$1 ;;
        *) fail "$1 is no option here; --help shows what is. rl_jax.train's words go behind -- ." ;;
    esac
    shift
done
[ -n "$count" ] || fail "how many processes? Write e.g. launch/local.sh 2 -- --config=... --workdir=..."
[ $# -gt 1 ] || fail "what to train is missing; end with: -- --config=FILE --workdir=FOLDER"
shift

# The words of env for process $1.
environment() {
    echo "JAX_PLATFORMS=cpu"
    echo "JAX_COORDINATOR_ADDRESS=127.0.0.1:$port"
    echo "JAX_NUM_PROCESSES=$count"
    echo "JAX_PROCESS_ID=$1"
    if [ -n "$devices" ]; then
        echo "XLA_FLAGS=--xla_force_host_platform_device_count=$devices"
    fi
}

if [ -n "$dry_run" ]; then
    printf 'cd %q\n' "$PWD"
    for ((i = 0; i < count; i++)); do
        printf '%s ' env
        environment "$i" | tr '\n' ' '
        printf '%s ' .venv/bin/python -u -m rl_jax.train
        printf '%q ' "$@"
        echo "> >(sed -u 's/^/[$i] /') 2>&1 &"
    done
    echo wait
    exit 0
fi

install ""
pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM
for ((i = 0; i < count; i++)); do
    # shellcheck disable=SC2046 # one word a line, none with spaces
    env $(environment "$i") .venv/bin/python -u -m rl_jax.train "$@" \
        > >(sed -u "s/^/[$i] /") 2>&1 &
    pids+=($!)
done
result=0
for pid in "${pids[@]}"; do
    code=0
    wait "$pid" || code=$?
    while kill -0 "$pid" 2>/dev/null; do # a signal ended `wait`; it saves now
        code=0
        wait "$pid" || code=$?
    done
    [ "$result" -ne 0 ] || result=$code
done
sleep 0.2 # for the last lines
exit "$result"
