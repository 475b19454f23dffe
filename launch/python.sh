# Sourced by the scripts beside it: makes .venv, with a Python of 3.11 or newer, and
# installs this checkout into it with the extras given as $1, such as "[test]".
# PYTHON names an interpreter to use instead of the first one found.

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "error: no Python 3.11 or newer among: ${PYTHON:-python3 python3.13 python3.12 python3.11 python}." >&2
    echo "Install one, or name it: PYTHON=/path/to/python3.12 $0" >&2
    exit 2
}

install() {
    local wanted stamp=.venv/rl_jax_installed
    if [ ! -x .venv/bin/python ]; then
        local python
        python=$(find_python)
        echo "making .venv with $("$python" --version)"
        "$python" -m venv .venv || {
            echo "error: $python cannot make a virtual environment (on Debian: apt install python3-venv)." >&2
            exit 2
        }
    fi
    wanted="$1 $(cat pyproject.toml)"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "installing rl_jax$1 into .venv (a few minutes the first time)"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".$1"
        printf '%s' "$wanted" >"$stamp"
    fi
}
