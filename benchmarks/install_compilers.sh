#!/usr/bin/env bash
# Makes an environment with JAX, the compilers of TPUs and GPUs, and tensorflow-tpu.
#
#   benchmarks/install_compilers.sh .venv-accelerators
#
# No accelerator and no driver is needed. Exactly these versions, because
# benchmarks/aot_program.py uses private parts of JAX. PYTHON is 3.11, 3.12 or 3.13.
set -euo pipefail
venv="$1"
wanted="$(cksum < "${BASH_SOURCE[0]}")"
[[ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]] || exit 0
echo "Installing the compilers into $venv (a few minutes, about 3 GB on disk) ..."
[[ -x "$venv/bin/python" ]] || "${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" tensorflow-tpu==2.20.0 keras==3.15.1 google-crc32c \
  jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1
# The CUDA plugin without what only a GPU needs.
"${pip[@]}" --no-deps jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2 \
  nvidia-nvvm==13.0.88 nvidia-cuda-nvcc==13.0.88
echo "$wanted" > "$venv/installed"
