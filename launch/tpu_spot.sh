#!/usr/bin/env bash
# Spot TPUs by queued resources: cheap machines that wait in a queue, may be taken away
# at any time, and are then asked for anew. Each runs launch/startup.sh when it boots:
# the same command, which goes on from the newest checkpoint.
#
#   launch/tpu_spot.sh watch NAME --zone=ZONE --type=v5litepod-16 --num_processes=4 \
#       --bucket=gs://BUCKET/rl_jax \
#       --setup='mkdir -p /mnt/share && mount -t nfs IP:/SHARE /mnt/share' \
#       -- --config=configs/X.py --workdir=/mnt/share/x
#   launch/tpu_spot.sh create ...               the same, but asks once and returns
#   launch/tpu_spot.sh log NAME --zone=ZONE     what the first worker prints
#   launch/tpu_spot.sh delete NAME --zone=ZONE  ends the bill
#
# `watch` asks for the machines if they are not there, asks again whenever they are
# lost, and deletes them when the run is over; its exit code is the run's. It may be
# stopped and started again. The work folder must outlive the machines: a share that
# --setup mounts. --bucket holds the code and, at the end, the exit code.
#
# --dry-run prints what it would run. --num_processes: workers, one process each.
# --restarts=N: after crashes, on the same machine (default 10). --project=P and
# --version=V as for tpu_vm.sh. Other --FLAG=VALUE go to gcloud's create.
# WATCH_SECS: between two looks (default 60).
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/tpu.sh

# The script that the machines run: settings, then launch/startup.sh.
startup_script() {
    echo '#!/usr/bin/env bash'
    quoted export "CODE=$BUCKET/$NAME/code.tar.gz" "DONE=$BUCKET/$NAME/exit_code" \
        "RESTARTS=$RESTARTS" "SETUP=$SETUP"
    quoted set -- "${TRAIN[@]}"
    sed 1d launch/startup.sh
}

# write FILE: from standard input.
write() {
    if [ -z "$DRY_RUN" ]; then
        cat >"$1"
    else
        printf "cat >%s <<'END OF FILE'\n" "$(quoted "$1")"
        cat
        echo 'END OF FILE'
    fi
}

prepare() {
    pack
    startup_script | write "runs/launch/$NAME/startup.sh"
    echo running | write "runs/launch/$NAME/exit_code"
    run gcloud storage cp "runs/launch/$NAME/code.tar.gz" "$BUCKET/$NAME/code.tar.gz"
    run gcloud storage cp "runs/launch/$NAME/exit_code" "$BUCKET/$NAME/exit_code"
}

request() {
    tpu queued-resources create "$NAME" "--node-id=$NAME" "--accelerator-type=$TYPE" \
        "--runtime-version=$VERSION" --spot \
        "--metadata-from-file=startup-script=runs/launch/$NAME/startup.sh" \
        ${CREATE[@]+"${CREATE[@]}"}
}

withdraw() {
    tpu queued-resources delete "$NAME" --force --quiet
}

state() {
    tpu queued-resources describe "$NAME" '--format=value(state.state)'
}

node_state() {
    tpu tpu-vm describe "$NAME" '--format=value(state)'
}

exit_code() {
    run gcloud storage cat "$BUCKET/$NAME/exit_code"
}

# Sets NOW to the state of the request; ABSENT if there is none, UNKNOWN if gcloud
# fails otherwise.
look() {
    local answer
    if answer=$(state 2>&1); then
        NOW=$answer
    else
        case $answer in
            *NOT_FOUND*) NOW=ABSENT ;;
            *) NOW=UNKNOWN && echo "$answer" >&2 ;;
        esac
    fi
    if [ "$NOW" = ACTIVE ]; then
        case $(node_state 2>/dev/null || true) in
            PREEMPTED | TERMINATED) NOW=PREEMPTED ;;
        esac
    fi
}

leave_if_over() {
    local code
    code=$(exit_code 2>/dev/null) || return 0
    case $code in
        *[!0-9]* | '') ;;
        *)
            echo "the run is over, with exit code $code: deleting the machines"
            withdraw
            exit "$code"
            ;;
    esac
}

watch() {
    local before=''
    look
    case $NOW in
        UNKNOWN) exit 1 ;;
        ABSENT) prepare && request ;;
    esac
    while :; do
        leave_if_over
        look
        [ "$NOW" = "$before" ] || echo "$(date '+%F %T') $NAME: $NOW"
        before=$NOW
        case $NOW in
            SUSPENDED | PREEMPTED | ABSENT)
                [ "$NOW" = ABSENT ] || withdraw || true
                request || echo "asking again in ${WATCH_SECS:-60} s"
                ;;
            FAILED)
                echo "error: the request failed, as another like it would:" >&2
                tpu queued-resources describe "$NAME" >&2
                exit 1
                ;;
        esac
        sleep "${WATCH_SECS:-60}"
    done
}

show_watch() {
    echo '# If there is no such queued resource:'
    prepare
    request
    echo "# Then, every ${WATCH_SECS:-60} s:"
    exit_code
    state
    node_state
    echo '# When the state is SUSPENDED, or that of the node PREEMPTED or TERMINATED:'
    withdraw
    request
    echo '# When the exit code is no longer "running":'
    withdraw
}

parse "create watch log delete" "$@"
if [ -n "$DRY_RUN" ]; then quoted cd "$PWD"; fi
case $ACTION in
    create | watch)
        needs_type
        needs_num_processes
        needs_training
        case $BUCKET in
            gs://?*) ;;
            *) fail "--bucket=gs://BUCKET/FOLDER is missing: where the machines fetch the code." ;;
        esac
        ;;
esac
case $ACTION in
    create)
        prepare
        request
        ;;
    watch) if [ -n "$DRY_RUN" ]; then show_watch; else watch; fi ;;
    log) tpu tpu-vm ssh "$NAME" "--command=tail -n 100 -F /var/log/rl_jax.log" ;;
    delete) tpu queued-resources delete "$NAME" --force ;;
esac
