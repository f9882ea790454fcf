#!/usr/bin/env bash
# try.sh WHEEL [PYTHON]: installs a wheel as a user does, in a new virtual environment where there is no compiler, no
# Node.js and no checkout, and runs the first cell that shares. It fails if that takes over a minute, without the time
# for PyTorch, which users install themselves. Only the processes of this script see the compilers as hidden.
set -euo pipefail
most=60
hidden=(cc c++ gcc g++ clang clang++ as ld make cmake ninja node npm npx yarn jlpm)

hide() {
  local tool program
  for tool in "${hidden[@]}"; do
    for program in $(type -ap "$tool"); do mount --bind /dev/null "$(readlink -f "$program")"; done
    [[ ! -x $(type -P "$tool") ]] || { echo "$tool is still there"; exit 1; }
  done
  mount -t tmpfs tmpfs "$1"
}

install() {
  there/bin/python -m pip --disable-pip-version-check --quiet --quiet install "$@"
}

# Runs a command, prints its time, and adds it to the total.
total=0
counted() {
  local begin=$SECONDS
  "${@:2}"
  echo "$1: $((SECONDS - begin)) s"
  total=$((total + SECONDS - begin))
}

if [[ ${1:-} != --in ]]; then
  here=$(cd "$(dirname "$0")" && pwd)
  checkout=$(cd "$here/../.." && pwd)
  place=$(mktemp -d)
  trap 'rm -rf "$place"' EXIT
  cp "$1" "$here/first_cell.ipynb" "$here/try.sh" "$checkout/requirements-dev.txt" "$place"
  as_root=()
  [[ $(id -u) = 0 ]] || as_root=(--map-root-user)
  unshare --mount "${as_root[@]}" bash "$place/try.sh" --in "$place" "$checkout" "${2:-python3}"
  exit
fi

export PATH=/usr/local/bin:/usr/bin:/bin XDG_RUNTIME_DIR=$2
unset PYTHONPATH VIRTUAL_ENV
cd "$2"
hide "$3"
counted "a new virtual environment" "$4" -m venv there
install --constraint requirements-dev.txt torch
counted "the wheel and JupyterLab, downloaded" install --no-cache-dir ./*.whl jupyterlab
counted "the first cell that shares" there/bin/jupyter execute first_cell.ipynb
there/bin/jupyter gpushare broker --stop
echo "from a new virtual environment to the first shared cell: $total s, at most $most"
((total <= most))
