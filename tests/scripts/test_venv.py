# SPDX-License-Identifier: Apache-2.0
"""venv.sh: which Python it takes, and when it installs.

The interpreters are scripts that answer what venv.sh asks them; nothing is installed.
"""

import shutil
import subprocess
import sys

import pytest

from tests.helpers.runs import ROOT

pytestmark = pytest.mark.thorough

# Answers --version, -c CODE (by its own version and modules), -m venv and -m pip; its
# other commands are appended to $LOG.
FAKE = r"""#!{python} -IS
import os, pathlib, re, shutil, sys
VERSION, HAS_ENSUREPIP = {version!r}, {ensurepip!r}
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("Python", ".".join(map(str, VERSION)))
elif arguments[0] == "-c":
    if "ensurepip" in arguments[1] and not HAS_ENSUREPIP:
        sys.exit("No module named ensurepip")
    sys.version_info = VERSION
    exec(re.sub("venv, ensurepip", "os", arguments[1]))
elif arguments != ["-m", "pip", "--version"]:
    with open(os.environ["LOG"], "a") as log:
        print(".".join(map(str, VERSION[:2])), *arguments, file=log)
    if os.environ.get("FAIL") in arguments:
        sys.exit(1)
    if arguments[:2] == ["-m", "venv"]:
        folder = pathlib.Path(arguments[2], "bin")
        folder.mkdir(parents=True)
        shutil.copy(sys.argv[0], folder / "python")
"""
INSTALL = "-m pip install --quiet --disable-pip-version-check -e ."


@pytest.fixture
def use_venv(tmp_path):
    """A function of extras and interpreters -> (exit code, stderr, commands)."""
    checkout, path, log = (tmp_path / name for name in ("checkout", "bin", "log"))
    checkout.mkdir()
    path.mkdir()
    (checkout / "setup.py").write_text("# anything\n")
    for tool in ("bash", "cat", "cksum"):
        (path / tool).symlink_to(shutil.which(tool))

    def run(extras="", variables=None, **pythons):
        for name, version in pythons.items():
            fake = {"version": version[:3], "ensurepip": len(version) == 3}
            interpreter = path / name.replace("_", ".")
            interpreter.write_text(FAKE.format(python=sys.executable, **fake))
            interpreter.chmod(0o755)
        log.write_text("")
        done = subprocess.run(
            [
                *(path / "bash", "-c"),
                f'set -euo pipefail; source "{ROOT}/venv.sh"; use_venv "{extras}"',
            ],
            cwd=checkout,
            env={"PATH": str(path), "LOG": str(log)} | (variables or {}),
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stderr, log.read_text().splitlines()

    run.checkout, run.path = checkout, path
    return run


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3": (3, 12, 1), "python3_13": (3, 13, 0)}, "3.12"),
        ({"python3": (3, 14, 0), "python3_13": (3, 13, 0)}, "3.13"),
        ({"python3": (3, 9, 18), "python3_11": (3, 11, 9)}, "3.11"),
        # As Debian's python3 is without python3-venv.
        ({"python3": (3, 11, 2, "no ensurepip"), "python3_12": (3, 12, 1)}, "3.12"),
    ],
)
def test_takes_a_python_that_tensorflow_has_wheels_for(use_venv, pythons, taken):
    code, error, commands = use_venv("[test]", **pythons)
    assert code == 0 and error == ""
    assert commands == [f"{taken} -m venv .venv", f"{taken} {INSTALL}[test]"]


def test_names_what_to_install_if_no_python_fits(use_venv):
    code, error, commands = use_venv(python3=(3, 14, 0))
    assert code == 1 and commands == [] and not (use_venv.checkout / ".venv").exists()
    assert "python3 is Python 3.14.0" in error and "apt install" in error


def test_installs_again_only_when_setup_py_changes_or_it_failed(use_venv):
    assert use_venv("", {"FAIL": "install"}, python3=(3, 12, 1))[0] == 1
    assert use_venv()[2] == [f"3.12 {INSTALL}"]
    assert use_venv()[2] == []
    assert use_venv("[test]")[2] == [f"3.12 {INSTALL}[test]"]
    (use_venv.checkout / "setup.py").write_text("# more\n")
    assert use_venv()[2] == [f"3.12 {INSTALL}"]
