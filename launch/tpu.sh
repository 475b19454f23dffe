# shellcheck shell=bash disable=SC2034 # RESTARTS is for tpu_spot.sh
# Sourced by the tpu_*.sh scripts: their options, how a command is shown or run, and
# what goes to the machines. Works with the bash 3.2 of macOS too.

DRY_RUN='' ACTION='' NAME='' ZONE='' TYPE='' VERSION='' PROJECT='' BUCKET='' SETUP=''
NUM_PROCESSES='' RESTARTS=10
CREATE=() # flags for gcloud's create that are none of ours
TRAIN=()  # what follows --: the command line of rl_jax.train

# The comment at the top of a script is its help.
usage() {
    sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$0"
}

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 2
}

# parse ACTIONS ARGUMENTS...
parse() {
    local actions=$1 word
    shift
    while [ $# -gt 0 ]; do
        word=$1
        shift
        case $word in
            --) TRAIN=("$@") && break ;;
            --dry-run) DRY_RUN=1 ;;
            --help | -h) usage && exit 0 ;;
            --zone=*) ZONE=${word#*=} ;;
            --type=*) TYPE=${word#*=} ;;
            --version=*) VERSION=${word#*=} ;;
            --project=*) PROJECT=${word#*=} ;;
            --bucket=*) BUCKET=${word#*=} && BUCKET=${BUCKET%/} ;;
            --setup=*) SETUP=${word#*=} ;;
            --restarts=*) RESTARTS=${word#*=} ;;
            --num_processes=*) NUM_PROCESSES=${word#*=} ;;
            --config=* | --workdir=* | --config.*)
                fail "$word belongs to rl_jax.train: write it behind -- ."
                ;;
            --*=* | --spot | --preemptible | --reserved | --internal-ips) CREATE+=("$word") ;;
            -*) fail "$word is no option here; --help shows what is. Values follow =, as in --zone=us-west4-a." ;;
            *)
                if [ -z "$ACTION" ]; then
                    ACTION=$word
                elif [ -z "$NAME" ]; then
                    NAME=$word
                else
                    fail "$word: one name is enough ($NAME); rl_jax.train's words go behind -- ."
                fi
                ;;
        esac
    done
    case " $actions " in
        *" ${ACTION:-none} "*) ;;
        *) fail "the first word is '$ACTION', expected one of: $actions. --help tells more." ;;
    esac
    case $ACTION in
        create | watch) ;;
        *) [ ${#CREATE[@]} -eq 0 ] || fail "${CREATE[0]} is no option of $ACTION; --help shows what is." ;;
    esac
    [ -n "$NAME" ] || fail "a name for the TPU is missing: ${0##*/} $ACTION NAME --zone=ZONE"
    [ -n "$ZONE" ] || fail "--zone=ZONE is missing, such as --zone=us-west4-a."
}

# The software version that a type of TPU wants, from Google's page "TPU software
# versions". The Cloud TPU API, which these scripts use, does not have TPU7x.
needs_type() {
    [ -n "$TYPE" ] || fail "--type=TYPE is missing, such as --type=v5litepod-8."
    [ -z "$VERSION" ] || return 0
    case $TYPE in
        v2-* | v3-* | v4-*) VERSION=tpu-ubuntu2204-base ;;
        v5litepod-*) VERSION=v2-alpha-tpuv5-lite ;;
        v5p-*) VERSION=v2-alpha-tpuv5 ;;
        v6e-*) VERSION=v2-alpha-tpuv6e ;;
        *) fail "no software version is known for --type=$TYPE." "Say which: --version=VERSION." ;;
    esac
}

# Checks what follows --, and puts in front what these machines call for.
needs_training() {
    local word config='' workdir=''
    for word in ${TRAIN[@]+"${TRAIN[@]}"}; do
        case $word in
            --config=*) config=$word ;;
            --workdir=*://*) fail "$word: rl_jax writes to folders." "Mount the bucket or a share with --setup=..., and give the folder." ;;
            --workdir=*) workdir=$word ;;
        esac
    done
    [ -n "$config" ] && [ -n "$workdir" ] ||
        fail "what to train is missing; end with: -- --config=FILE --workdir=FOLDER"
    TRAIN=(--config.runtime.platform=tpu "${TRAIN[@]}")
    if [ -n "$NUM_PROCESSES" ]; then
        TRAIN=("--config.runtime.num_processes=$NUM_PROCESSES" "${TRAIN[@]}")
    fi
}

needs_num_processes() {
    [ -n "$NUM_PROCESSES" ] || fail \
        "--num_processes=N is missing: how many workers (hosts) the TPU has, so that a run on fewer is noticed." \
        "Once it is there, this counts them: gcloud compute tpus tpu-vm describe $NAME --zone=$ZONE --format='value(networkEndpoints.len())'"
}

# Words as they are typed in a shell.
quoted() {
    local word text=''
    for word; do
        case $word in
            '' | *[!A-Za-z0-9_./:=@%+,-]*)
                word="'$(printf '%s' "$word" | sed "s/'/'\\\\''/g")'"
                ;;
        esac
        text+="${text:+ }$word"
    done
    printf '%s\n' "$text"
}

# Runs a command, or with --dry-run prints it.
run() {
    if [ -n "$DRY_RUN" ]; then quoted "$@"; else "$@"; fi
}

# tpu GROUP VERB ARGUMENTS...: gcloud with zone and project.
tpu() {
    run gcloud compute tpus "$@" "--zone=$ZONE" ${PROJECT:+"--project=$PROJECT"}
}

# The checkout as one file, without .git, .venv, caches and runs/. The last holds it.
pack() {
    run mkdir -p "runs/launch/$NAME"
    run tar -czf "runs/launch/$NAME/code.tar.gz" '--exclude=./.*' --exclude=./runs \
        --exclude=__pycache__ --exclude=./build '--exclude=*.egg-info' .
}

# For ssh to machines that are there already; $1: which workers, such as --worker=all.
on_machines() {
    local worker=$1
    shift
    tpu tpu-vm ssh "$NAME" ${worker:+"$worker"} "--command=$*"
}

# What tpu_vm.sh and tpu_pod.sh do; $1 as above.
act() {
    local worker=$1
    if [ -n "$DRY_RUN" ]; then quoted cd "$PWD"; fi
    case $ACTION in
        create)
            needs_type
            tpu tpu-vm create "$NAME" "--accelerator-type=$TYPE" "--version=$VERSION" \
                ${CREATE[@]+"${CREATE[@]}"}
            ;;
        run)
            needs_training
            pack
            tpu tpu-vm scp "runs/launch/$NAME/code.tar.gz" "$NAME:rl_jax.tar.gz" \
                ${worker:+"$worker"}
            # ~/rl_jax becomes the checkout; .venv and runs/ stay.
            on_machines "$worker" "mkdir -p rl_jax && cd rl_jax &&" \
                "{ [ ! -e launch/on_machine.sh ] || launch/on_machine.sh idle; } &&" \
                "find . -mindepth 1 -maxdepth 1 ! -name .venv ! -name runs -exec rm -rf {} + &&" \
                "tar -xzf ../rl_jax.tar.gz &&" \
                "${SETUP:+{ $SETUP; \} &&} launch/on_machine.sh start $(quoted "${TRAIN[@]}")"
            ;;
        log | stop) on_machines "$worker" "cd rl_jax && launch/on_machine.sh $ACTION" ;;
        delete) tpu tpu-vm delete "$NAME" ;;
    esac
}
