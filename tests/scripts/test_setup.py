# SPDX-License-Identifier: Apache-2.0
"""What setup.py installs is what is imported; what it leaves out is asked for."""

import ast
import json
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

from tests.helpers.runs import ROOT, TINY, pretrain, run_script

# Imported where it is installed, with a word to the user where it is not:
# transformers and torch read an export of Hugging Face's format a second time.
OPTIONAL = {"onnx", "onnxruntime", "rapidfuzz", "torch", "transformers"}
OPTIONAL |= {"apache_beam", "backports", "fsspec", "py3langid", "pyarrow", "rensa"}
# The package of several that share a folder.
SHARED = {"backports": ["backports.zstd"]}
# Of extras, with what comes with them: not there after `pip install -e .`.
EXTRAS = (
    *("onnx", "onnxruntime", "rapidfuzz", "tensorboard", "torch", "transformers"),
    *("tf_keras", "starlette", "s3fs", "moto", "boto3"),
)


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


def test_what_the_program_imports_is_installed_by_default(declared):
    packages = imported("electra_tf", ".") - {"setuptools"}
    assert {"keras_hub", "sklearn", "absl"} <= packages
    assert undeclared(packages, declared["install_requires"]) == OPTIONAL


def test_what_the_tests_import_comes_with_their_extra(declared):
    packages = imported("tests", "benchmarks", "examples", "experiments")
    packages -= {path.stem for path in ROOT.glob("*.py")} | {"setuptools"}
    # benchmarks/install_compilers.sh has an environment of its own.
    packages -= {"jax", "jaxlib", "flatbuffers"}
    wanted = declared["install_requires"] + declared["extras_require"]["test"]
    wanted += declared["extras_require"]["ray"]  # 300 MB for one example
    assert undeclared(packages | OPTIONAL, wanted) == set()


def test_the_wheel_is_whole(tmp_path):
    """Built as pip builds it: all rooms, py.typed, the range of Python."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "electra_tf", source / "electra_tf", ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "."]
    build += ["--no-build-isolation", "--no-index", f"--wheel-dir={tmp_path}"]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info" not in name}
        (about,) = (n for n in content.namelist() if n.endswith("/METADATA"))
        text = content.read(about).decode()
    there = (p for p in (ROOT / "electra_tf").rglob("*") if p.is_file())
    expected = {p.relative_to(ROOT).as_posix() for p in there if p.suffix != ".pyc"}
    assert names == expected and "electra_tf/py.typed" in names
    assert re.search("^Requires-Python: (<3.14,>=3.11|>=3.11,<3.14)$", text, re.M)


def test_the_workflow_tests_what_is_promised(declared):
    yaml = pytest.importorskip("yaml")
    path = ROOT / ".github" / "workflows" / "test.yml"
    jobs = yaml.safe_load(path.read_text())["jobs"]
    (tests,) = (s["run"] for s in jobs["test"]["steps"] if "run" in s)
    assert tests == "./test.sh --thorough"
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
    for job in jobs.values():
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if "run" in step:
                assert os.access(ROOT / step["run"].split()[0], os.X_OK)


@pytest.fixture
def default_only(tmp_path) -> dict[str, str]:
    """Environment of a process in which the packages of the extras are not there."""
    folder = tmp_path / "absent"
    folder.mkdir()
    for name in EXTRAS:
        text = f"raise ModuleNotFoundError('{name} is absent', name='{name}')\n"
        (folder / f"{name}.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def test_a_run_without_extras_has_curves(tiny_data, default_only):
    """Event files, too: they are written without the package tensorboard."""
    hparams = TINY | {"num_train_steps": 2}
    done = pretrain(tiny_data, "no_extras", hparams, env=default_only)
    assert done.returncode == 0, done.stderr
    run = tiny_data / "models" / "no_extras"
    (events,) = (run / "tensorboard").iterdir()
    assert b"discriminator/loss" in events.read_bytes()
    assert (run / "loss_curves.png").stat().st_size > 1000


def test_word_errors_ask_for_their_extra(default_only, tmp_path):
    row = {"id": "a", "hypotheses": [{"text": "b", "score": 0}], "reference": "b"}
    lists = tmp_path / "n.jsonl"
    lists.write_text(json.dumps(row))
    flags = ("rerank", f"--model={tmp_path}", f"--nbest={lists}", "--tune")
    done = run_script("run_inference.py", *flags, env=default_only)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2, done.stderr
    assert done.stderr.startswith("error: word errors are counted by the package")
    assert 'pip install -e ".[rerank]"' in done.stderr


def test_extras_that_are_named_exist(declared):
    """In the pages, the messages and the scripts: `.[extra]`, as in a checkout."""
    named = set()
    for pattern in ("*.py", "*.md", "*.sh", "docs/**/*.md", "electra_tf/**/*.py"):
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r"(?: |\"|\'|`)\.\[(\w+)\]", text))
    assert {"rerank", "tensorboard", "test"} <= named
    assert named <= set(declared["extras_require"])
