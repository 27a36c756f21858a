#!/bin/sh
# Sets up .venv once, then runs what is asked in it:
#   ./setup.sh                    set up only
#   ./setup.sh test [ARGS]        lint, types and the quick tests; ARGS go to pytest
#   ./setup.sh test-slow [ARGS]   the other tests that need no GPU
#   ./setup.sh test-every [ARGS]  both without lint and types, in one run of pytest
#   ./setup.sh lint               lint and types alone
#   ./setup.sh test-gpu [ARGS]    the tests that need an NVIDIA GPU: on all cores, then those that time it
#   ./setup.sh COMMAND [ARGS]     any command, such as: ./setup.sh ucc doctor
# Variables:
#   PYTHON        interpreter to start from, 3.10 or newer; by default the first python3 that is.
#                 If it already has torch, the environment uses that one.
#   VENV          folder of the environment; by default .venv
#   JOBS          processes that run tests; by default 2
#   TORCH_INDEX   where pip gets torch, such as PyTorch's index of CPU builds
set -eu
root=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
venv=${VENV:-$root/.venv}

die() {
    echo "setup: $1" >&2
    exit 3
}

find_python() {
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    die "no Python 3.10 or newer found${PYTHON:+ at $PYTHON}; install one, or set PYTHON to it"
}

has_nvcc() {
    [ -n "${UCUTLASS_CUDA_HOME:-}${CUDA_HOME:-}${CUDA_PATH:-}" ] || command -v nvcc >/dev/null 2>&1
}

toolkit_folder() {
    # The place where NVIDIA's installers put a toolkit, which they leave off PATH.
    ! has_nvcc && [ -x /usr/local/cuda/bin/nvcc ]
}

install() {
    python=$(find_python)
    echo "setup: filling $venv, which takes minutes" >&2
    shared=
    # Of an interpreter that is an environment itself, the new one would see nothing.
    if "$python" -c 'import sys, torch; sys.exit(sys.prefix != sys.base_prefix)' 2>/dev/null; then
        shared=--system-site-packages
    fi
    "$venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear $shared "$venv" ||
        die "$python cannot make an environment; on Debian and Ubuntu: apt-get install python3-venv"
    extras=dev
    has_nvcc || toolkit_folder || extras=dev,cuda
    set -- --quiet --disable-pip-version-check --editable "$root[$extras]"
    [ -n "$shared" ] || set -- "$@" --constraint "$root/constraints.txt"
    if [ -n "${TORCH_INDEX:-}" ] && [ -z "$shared" ]; then
        "$venv/bin/python" -m pip install --quiet --index-url "$TORCH_INDEX" --constraint "$root/constraints.txt" torch
    fi
    "$venv/bin/python" -m pip install "$@" || die "pip could not install ucutlass; its words are above"
    for tables in ucutlass.grammar.tables ucutlass.emit.keep_templates; do
        "$venv/bin/python" -m "$tables" || die "$tables could not be written; Python's words are above"
    done
    command -v g++ >/dev/null 2>&1 ||
        echo "setup: no g++ here, which nvcc needs; on Debian and Ubuntu: apt-get install g++" >&2
    cat "$root/pyproject.toml" "$root/constraints.txt" >"$venv/installed"
}

if ! cat "$root/pyproject.toml" "$root/constraints.txt" | cmp -s - "$venv/installed"; then
    install
fi
PATH=$venv/bin:$PATH
export PATH
if toolkit_folder; then
    export CUDA_HOME=/usr/local/cuda
fi
check_style() {
    ruff check .
    ruff format --check .
}

run_tests() {
    marked=$1
    shift
    python -m pytest -n "${JOBS:-2}" --dist worksteal -m "$marked" "$@"
}

check_types_beside_tests() {
    # mypy takes one core for half a minute, which would leave the others idle.
    types=$(mktemp)
    mypy >"$types" 2>&1 &
    mypy=$!
    status=0
    run_tests "$@" || status=$?
    wait "$mypy" || status=1
    cat "$types"
    rm -f "$types"
    return "$status"
}

case ${1:-} in
'') echo "setup: ready; activate it with: . $venv/bin/activate" ;;
test)
    shift
    cd "$root"
    check_style
    check_types_beside_tests "not gpu and not nvcc and not slow" "$@"
    ;;
test-slow)
    shift
    cd "$root"
    run_tests "not gpu and (nvcc or slow)" "$@"
    ;;
test-every)
    shift
    cd "$root"
    run_tests "not gpu" "$@"
    ;;
lint)
    cd "$root"
    check_style
    mypy
    ;;
test-gpu)
    shift
    cd "$root"
    export UCUTLASS_BUILD_PATH="${UCUTLASS_BUILD_PATH:-auto}"
    # Every worker builds: one compiler a core for each of them would starve the tests of the others.
    export UCUTLASS_BUILD_JOBS="${UCUTLASS_BUILD_JOBS:-2}"
    # Threads of OpenMP spin while they wait for each other: on shared cores a reference takes 30 times as long.
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    status=0
    python -m pytest -n "${JOBS:-auto}" --dist worksteal -m "gpu and not alone" "$@" || status=$?
    python -m pytest -m "gpu and alone" "$@" || status=$?
    exit "$status"
    ;;
*) exec "$@" ;;
esac
