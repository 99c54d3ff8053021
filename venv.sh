# Sourced by quickstart.sh and test.sh: makes .venv and installs the project into it.
#
#   use_venv EXTRAS      EXTRAS as pip takes them, "" or "[test]"
#   use_newest FOLDER    the newest releases, whatever setup.py allows
#
# PYTHON chooses the interpreter of a new environment, VENV another place. Without PYTHON
# it is python3, or where that is too old or too new, python3.13, 3.12 or 3.11. Nothing is
# installed again as long as setup.py stays the same.

use_venv() {
  local extras="$1" venv="${VENV:-.venv}" python wanted
  if [[ -x "$venv/bin/python" ]]; then
    if ! _supported "$venv/bin/python"; then
      echo "error: $venv has $(_version "$venv/bin/python"), not 3.11, 3.12 or 3.13." >&2
      echo "Remove it, or set VENV to another place." >&2
      return 1
    fi
  else
    python="$(_find_python "$venv")" || return 1
  fi
  local installed="$venv/installed$extras"
  wanted="$(cksum < setup.py)"
  if [[ "$(cat "$installed" 2>/dev/null)" != "$wanted" ]]; then
    echo "Installing into $venv (a few minutes, about 3 GB on disk) ..."
    [[ -x "$venv/bin/python" ]] || "$python" -m venv "$venv" || return 1
    # uv makes environments without pip.
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 \
      || "$venv/bin/python" -m ensurepip >/dev/null || return 1
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
      -e ".$extras" || return 1
    echo "$wanted" > "$installed"
  fi
  PATH="$(cd "$venv/bin" && pwd):$PATH"
  export PATH
}

# Installs the newest of all that the tests import, and TensorFlow's newest candidate.
# What does not go with those is left out, and its tests are skipped.
use_newest() {
  local python pip
  [[ -x "$1/bin/python" ]] || { python="$(_find_python "$1")" && "$python" -m venv "$1"; } \
    || return 1
  PATH="$(cd "$1/bin" && pwd):$PATH"
  export PATH
  pip="python -m pip install --quiet --disable-pip-version-check --upgrade"
  $pip --pre tensorflow packaging || return 1
  $pip --no-deps -e . || return 1
  python - "$1" <<'PYTHON' || return 1
import pathlib, sys
from importlib import metadata
from packaging.requirements import Requirement

kept = f"tensorflow=={metadata.version('tensorflow')}"
late = "tensorflow-text", "keras-hub", "apache-beam"
found = [Requirement(text) for text in metadata.requires("electra-tf")]
names = {r.name for r in found if not r.marker or r.marker.evaluate({"extra": "test"})}
folder = pathlib.Path(sys.argv[1])
(folder / "constraints.txt").write_text(kept)
(folder / "wanted.txt").write_text("\n".join(sorted(names.difference(late))))
PYTHON
  $pip -c "$1/constraints.txt" -r "$1/wanted.txt" || return 1
  python -m pip list --format=freeze \
    | grep -E "^(tensorflow|keras|numpy|protobuf|torch)==" | tee "$1/constraints.txt"
  for packages in "tensorflow-text>=2.21 keras-hub>=0.32" "apache-beam>=2.77"; do
    # shellcheck disable=SC2086 - several packages
    $pip -c "$1/constraints.txt" $packages 2>/dev/null || echo "left out: $packages"
  done
  # A candidate asks for nightly builds of Keras, which lie in the same folder.
  python -m pip uninstall --quiet --yes keras-nightly 2>/dev/null
  $pip --no-deps --force-reinstall "$(grep ^keras= "$1/constraints.txt")"
}

_supported() {  # Is it a Python that TensorFlow has wheels for, with these modules?
  "$1" -c "import sys${2:+, $2}; sys.exit(not (3, 11) <= sys.version_info < (3, 14))" \
    2>/dev/null
}

_version() {
  "$1" --version 2>/dev/null || echo "not there"
}

_find_python() {  # Prints the first that can make an environment, or says what to do.
  local python candidates=(python3 python3.13 python3.12 python3.11)
  [[ -z "${PYTHON:-}" ]] || candidates=("$PYTHON")
  for python in "${candidates[@]}"; do
    # Debian has ensurepip in a package of its own.
    if _supported "$python" "venv, ensurepip"; then
      echo "$python"
      return
    fi
  done
  cat >&2 <<TEXT
error: Python 3.11, 3.12 or 3.13 with venv and pip is needed; ${candidates[0]} is $(_version "${candidates[0]}").
Install it: apt install python3-venv or python3.13-venv (Debian, Ubuntu), dnf install python3.13 (Fedora),
brew install python@3.13 (macOS); or, without root, uv venv --python 3.12 $1, and run this again.
TEXT
  return 1
}
