#!/bin/sh
# Tests and figures on a machine with a GPU; docs/how-to/gpu-figures.md describes the requirements
# and the results.
#
#   benchmarks/gpu.sh --pack [FOLDER]   where there is a network: bring along what may be missing
#   benchmarks/gpu.sh [PART...]         on the machine with the GPU, from the same FOLDER
#   benchmarks/gpu.sh --rehearse        without a GPU: main memory, and a driver that is made up;
#                                       with PYTHON=tests/system/cuda/run the fake GPU (`make rehearse-gpu`)
#   benchmarks/gpu.sh --help
#
# $PYTHON is the Python that has PyTorch (python3 unless told); $OUT gets a copy of the results.
set -eu
cd "$(dirname "$0")/.."
python=$(command -v "${PYTHON:-python3}") || {
  echo "gpu.sh: there is no ${PYTHON:-python3}: set PYTHON to the Python that has PyTorch" >&2
  exit 2
}
PYTHONPATH="$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m gpu.run "$@"
