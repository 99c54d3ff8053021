# SPDX-License-Identifier: Apache-2.0
"""venv.sh: which Python it takes, and what it says where none will do.

The interpreters are scripts that answer what venv.sh asks them; nothing is installed.
"""

import shutil
import subprocess
import sys

import pytest

from tests.helpers.runs import ROOT

# Answers --version, -c CODE (by its own version and modules), -m venv, -m pip and
# -m ensurepip; what it was told to do is appended to $LOG.
FAKE = r"""#!{python} -IS
import os, pathlib, re, shutil, sys
VERSION, HAS_ENSUREPIP = {version!r}, {ensurepip!r}
arguments = sys.argv[1:]
pip = pathlib.Path(sys.argv[0]).with_name("has_pip")
if arguments == ["--version"]:
    print("Python", ".".join(map(str, VERSION)))
elif arguments[0] == "-c":
    if "ensurepip" in arguments[1] and not HAS_ENSUREPIP:
        sys.exit("No module named ensurepip")
    sys.version_info = VERSION
    exec(re.sub("venv, ensurepip", "os", arguments[1]))
elif arguments[:2] == ["-m", "pip"] and not pip.exists():
    sys.exit("No module named pip")
elif arguments != ["-m", "pip", "--version"]:
    with open(os.environ["LOG"], "a") as log:
        print(".".join(map(str, VERSION[:2])), *arguments, file=log)
    if os.environ.get("FAIL") in arguments:
        sys.exit(1)
    if arguments[:2] == ["-m", "venv"]:
        folder = pathlib.Path(arguments[2], "bin")
        folder.mkdir(parents=True)
        shutil.copy(sys.argv[0], folder / "python")
        (folder / "has_pip").touch()
    elif arguments[1] == "ensurepip":
        pip.touch()
"""
INSTALL = "-m pip install --quiet --disable-pip-version-check -e ."


class Machine:
    """A directory with a setup.py, and a PATH with the fake interpreters only."""

    def __init__(self, folder):
        self.folder, self.bin = folder / "checkout", folder / "bin"
        self.folder.mkdir()
        self.bin.mkdir()
        (self.folder / "setup.py").write_text("# anything\n")
        for tool in ("bash", "cat", "cksum"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.log = folder / "log"

    def add(self, name, *version, ensurepip=True):
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = FAKE.format(python=sys.executable, version=version, ensurepip=ensurepip)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def use_venv(self, extras="", **environment):
        """Runs use_venv; returns (exit code, stderr, what interpreters were told)."""
        self.log.write_text("")
        done = subprocess.run(
            [
                str(self.bin / "bash"),
                "-c",
                f'set -euo pipefail; source "{ROOT}/venv.sh"'
                f'; use_venv "{extras}"; echo "first on PATH: ${{PATH%%:*}}"',
            ],
            cwd=self.folder,
            env={"PATH": str(self.bin), "LOG": str(self.log)} | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if not done.returncode:
            venv = self.folder / environment.get("VENV", ".venv")
            assert f"first on PATH: {venv / 'bin'}\n" in done.stdout
        return done.returncode, done.stderr, self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3": (3, 12, 1)}, "3.12"),
        ({"python3": (3, 12, 1), "python3.13": (3, 13, 0)}, "3.12"),
        ({"python3": (3, 14, 0), "python3.13": (3, 13, 0)}, "3.13"),
        ({"python3": (3, 14, 0), "python3.11": (3, 11, 9)}, "3.11"),
        ({"python3": (3, 9, 18), "python3.12": (3, 12, 1)}, "3.12"),
        ({"python3.11": (3, 11, 0)}, "3.11"),
    ],
)
def test_takes_a_python_that_tensorflow_has_wheels_for(machine, pythons, taken):
    for name, version in pythons.items():
        machine.add(name, *version)
    code, error, told = machine.use_venv("[test]")
    assert code == 0 and error == ""
    assert told == [f"{taken} -m venv .venv", f"{taken} {INSTALL}[test]"]


def test_one_without_ensurepip_is_passed_over(machine):
    """As Debian's python3 is without python3-venv, and a pyenv shim without version."""
    machine.add("python3", 3, 11, 2, ensurepip=False)
    shim = machine.bin / "python3.13"
    shim.write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    shim.chmod(0o755)
    machine.add("python3.12", 3, 12, 1)
    assert machine.use_venv()[2][0] == "3.12 -m venv .venv"


@pytest.mark.parametrize(
    ("version", "found"),
    [((3, 14, 0), "Python 3.14.0"), ((3, 10, 1), "Python 3.10.1"), (None, "not there")],
)
def test_says_what_to_install(machine, version, found):
    if version:
        machine.add("python3", *version)
    code, error, told = machine.use_venv()
    assert code == 1 and told == [] and not (machine.folder / ".venv").exists()
    lines = error.splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        "error: Python 3.11, 3.12 or 3.13 with venv and pip is needed; "
        f"python3 is {found}."
    )
    for system in ("Debian, Ubuntu", "Fedora", "macOS", "uv venv --python 3.12 .venv"):
        assert system in error


def test_python_chooses(machine):
    machine.add("python3", 3, 12, 1)
    mine = machine.add("my own/python", 3, 13, 2)
    old = machine.add("old", 3, 10, 1)
    code, error, told = machine.use_venv(PYTHON=str(old))
    assert code == 1 and f"{old} is Python 3.10.1." in error and told == []
    code, _, told = machine.use_venv(PYTHON=str(mine), VENV="elsewhere")
    assert code == 0 and told[0] == "3.13 -m venv elsewhere"


def test_installs_again_only_when_setup_py_changes(machine):
    machine.add("python3", 3, 12, 1)
    assert len(machine.use_venv()[2]) == 2
    assert machine.use_venv()[2] == []
    assert machine.use_venv("[test]")[2] == [f"3.12 {INSTALL}[test]"]
    (machine.folder / "setup.py").write_text("# more\n")
    assert machine.use_venv()[2] == [f"3.12 {INSTALL}"]


def test_an_environment_that_uv_made(machine):
    """It has no pip, and there may be no other Python."""
    own = machine.add("../checkout/.venv/bin/python", 3, 12, 1)
    code, error, told = machine.use_venv()
    assert code == 0, error
    assert told == ["3.12 -m ensurepip", f"3.12 {INSTALL}"]
    assert own.with_name("has_pip").exists()


def test_an_environment_of_another_python_is_left_alone(machine):
    machine.add("python3", 3, 12, 1)
    machine.add("../checkout/.venv/bin/python", 3, 14, 0)
    code, error, told = machine.use_venv()
    assert code == 1 and told == []
    assert error.startswith("error: .venv has Python 3.14.0, not 3.11, 3.12 or 3.13.\n")
    assert "Remove it" in error


def test_an_installation_that_fails_is_tried_again(machine):
    machine.add("python3", 3, 12, 1)
    assert machine.use_venv(FAIL="install")[0] == 1
    assert machine.use_venv()[2] == [f"3.12 {INSTALL}"]
