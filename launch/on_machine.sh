#!/usr/bin/env bash
# Runs on a machine with accelerators; the tpu_*.sh scripts call it there.
#
#   launch/on_machine.sh start ARGUMENTS   trains in the background and shows the log
#   launch/on_machine.sh train ARGUMENTS   trains in the foreground; after a crash again,
#                                          RESTARTS times (default 0)
#   launch/on_machine.sh log               shows the log of `start`
#   launch/on_machine.sh stop              ends the training; it saves first
#   launch/on_machine.sh idle              succeeds if nothing is being trained
#
# ARGUMENTS are those of rl_jax.train. EXTRA is what pip installs besides (default
# [tpu]). Exit codes are those of rl_jax.train: 0 done, 2 the configuration is wrong,
# 3 a stage missed its gate, 143 stopped and saved, 1 a crash.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/python.sh
STATE=runs/on_machine
LOG=$STATE/log.txt
mkdir -p "$STATE"

# Two processes on one TPU: the second would wait, or take the CPU.
busy() {
    echo "error: $(hostname) is training already; launch/on_machine.sh stop ends that." >&2
    exit 2
}

idle() {
    flock --nonblock "$STATE/lock" true || busy
}

# TPU VMs come with Python 3.10; uv fetches a newer one beside it.
find_newer_python() {
    if [ -x .venv/bin/python ] || (find_python) >/dev/null 2>&1; then return; fi
    echo "no Python 3.11 or newer on $(hostname): fetching 3.12 with uv"
    python3 -m pip install --quiet --user uv
    python3 -m uv python install 3.12
    PYTHON=$(python3 -m uv python find 3.12)
    export PYTHON
}

train() {
    local child='' code tries=0 stopping=''
    trap 'stopping=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM INT
    exec 9>>"$STATE/lock"
    flock --nonblock 9 || busy
    echo $$ >"$STATE/pid"
    find_newer_python
    install "${EXTRA-[tpu]}"
    while :; do
        if [ -n "$stopping" ]; then exit 143; fi # while it installed or paused
        .venv/bin/python -u -m rl_jax.train "$@" &
        child=$!
        code=0
        wait "$child" || code=$?
        # A signal ends `wait`, not the training, which saves now.
        while kill -0 "$child" 2>/dev/null; do
            code=0
            wait "$child" || code=$?
        done
        case $code in 0 | 2 | 3 | 130 | 143) exit "$code" ;; esac
        tries=$((tries + 1))
        if [ "$tries" -gt "${RESTARTS:-0}" ]; then exit "$code"; fi
        echo "exit code $code: the same command again in 10 s ($tries of $RESTARTS)"
        sleep "${PAUSE:-10}"
    done
}

follow() {
    tail -n +1 -F --sleep-interval=0.3 --pid="$1" "$LOG"
}

action=${1:-}
[ $# -eq 0 ] || shift
case $action in
    idle) idle ;;
    train) train "$@" ;;
    start)
        idle
        : >"$LOG"
        setsid nohup "launch/on_machine.sh" train "$@" >>"$LOG" 2>&1 </dev/null &
        follow $!
        wait $!
        ;;
    log) follow "$(cat "$STATE/pid")" ;;
    stop)
        kill -TERM "$(cat "$STATE/pid")"
        echo "waiting for $(hostname) to save and end"
        flock --timeout 600 "$STATE/lock" true
        ;;
    *)
        echo "error: '$action' is none of: start train log stop idle" >&2
        exit 2
        ;;
esac
