#!/usr/bin/env bash
# Sets up .venv and runs the checks and the tests; arguments go to pytest.
#
#   ./test.sh                       the checks and tests for every change
#   ./test.sh --thorough            all that CI runs
#   ./test.sh -m slow               tests of many minutes: 100 kills, 200 random models
#   ./test.sh tests/pretrain/test_masking.py
#   ./test.sh --accelerators        the tests that compile for TPUs and GPUs; installs the
#                                   compilers into .venv-accelerators (3 GB, Python 3.11)
#   ./test.sh --next                the tests on the newest TensorFlow, candidates too, and
#                                   newest Keras, NumPy, protobuf and torch: .venv-next
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

source ./venv.sh
if [[ "${1:-}" == --next ]]; then
  use_newest .venv-next
  exec python -m pytest -q --numprocesses=2 --dist=worksteal "${@:2}"
fi
use_venv "[test]"
ruff check .
ruff format --check .
lint-imports --no-cache --no-logo
ty check --quiet
if [[ "${1:-}" == --accelerators ]]; then
  ./benchmarks/install_compilers.sh .venv-accelerators
  set -- -m accelerators "${@:2}"
fi
if [[ "${1:-}" == --thorough ]]; then
  set -- -m "not slow" "${@:2}"
fi
exec python -m pytest -q --numprocesses=2 --dist=worksteal "$@"
