# SPDX-License-Identifier: Apache-2.0
"""What setup.py installs is what is imported."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata

import pytest
import setuptools

from tests.helpers.runs import ROOT, write_tiny_data

# Imported where it is installed; otherwise an error names the extra.
OPTIONAL = {"onnx", "onnxruntime", "tf2onnx", "torch", "transformers"}
OPTIONAL |= {"apache_beam", "backports", "fsspec", "kagglehub", "pyarrow"}
OPTIONAL |= {"keras_hub", "tensorflow_datasets", "compression"}  # of Python 3.14
# The package of several that share a folder.
SHARED = {"backports": ["backports.zstd"]}


@pytest.fixture(scope="module")
def declared():
    """The arguments of setup()."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", found.update)
        patch.chdir(ROOT)
        runpy.run_path("setup.py")
    return found


def normalized(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(*folders: str) -> set[str]:
    """Packages that files of the project import and that are not its own."""
    own = {"electra_tf", "tests", "benchmarks"}
    found = set()
    for folder in folders:
        paths = sorted((ROOT / folder).glob("*.py" if folder == "." else "**/*.py"))
        if folder != "electra_tf":  # whose modules are imported by their full name
            own |= {path.stem for path in paths}
        for node in (n for p in paths for n in ast.walk(ast.parse(p.read_text()))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.partition(".")[0])
    return found - own - set(sys.stdlib_module_names)


def undeclared(packages: set[str], requirements: list[str]) -> set[str]:
    providers = metadata.packages_distributions() | SHARED
    names = set(map(normalized, requirements))
    found = {p: set(map(normalized, providers.get(p, [p]))) for p in packages}
    return {p for p in packages if not names & found[p]}


def test_imports_of_the_program_are_installed_by_default(declared):
    packages = imported("electra_tf", ".") - {"setuptools"}
    assert {"keras_hub", "sklearn", "absl"} <= packages
    assert undeclared(packages, declared["install_requires"]) <= OPTIONAL


@pytest.mark.thorough
def test_the_wheel_has_all_files_of_the_package(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("electra_tf", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "."]
    build += ["--no-build-isolation", "--no-index", f"--wheel-dir={tmp_path}"]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info" not in name}
    there = (p for p in (source / "electra_tf").rglob("*") if p.is_file())
    expected = {p.relative_to(source).as_posix() for p in there}
    configs = {f"electra_tf/configs/{p.name}" for p in (ROOT / "configs").iterdir()}
    assert names == expected | configs
    assert "electra_tf/py.typed" in names
    check_command(wheel, tmp_path / "installed")


def check_command(wheel, folder):
    """`electra-tf` runs without a checkout, and finds the recipes."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--no-index", f"--target={folder}", str(wheel)]
    subprocess.run(install, check=True)
    write_tiny_data(folder / "data")

    def run(*args):
        return subprocess.run(
            [sys.executable, str(folder / "bin" / "electra-tf"), *args],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )

    done = run("flops")
    assert done.returncode == 0 and "electra_small.json" in done.stdout, done.stderr
    hparams = '--hparams={"vocab_size": 60, "max_seq_length": 32}'
    flags = ["--data-dir=data", "--model-name=m", hparams, "--dry-run"]
    done = run("pretrain", "--config=electra_small_plus_plus", *flags)
    assert done.returncode == 0 and "4000000" in done.stdout, done.stderr
    done = run("pretrian")
    assert done.returncode == 1 and "unknown command 'pretrian'" in done.stderr
