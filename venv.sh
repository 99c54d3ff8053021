# Sourced by quickstart.sh and test.sh: makes .venv and installs the project into it.
#
#   use_venv EXTRAS    EXTRAS as pip takes them, "" or "[test]"
#
# PYTHON chooses the interpreter, VENV another place. Nothing is installed again as long
# as setup.py stays the same.

use_venv() {
  local extras="$1" python="${PYTHON:-python3}" venv="${VENV:-.venv}"
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "error: Python 3.11 or newer is needed, $python is" \
      "$("$python" --version 2>&1). Set PYTHON to one that is." >&2
    return 1
  fi
  local wanted installed="$venv/installed$extras"
  wanted="$(cksum < setup.py)"
  if [[ "$(cat "$installed" 2>/dev/null)" != "$wanted" ]]; then
    echo "Installing into $venv (a few minutes, about 3 GB on disk) ..."
    [[ -x "$venv/bin/python" ]] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
      -e ".$extras"
    echo "$wanted" > "$installed"
  fi
  PATH="$(cd "$venv/bin" && pwd):$PATH"
  export PATH
}
