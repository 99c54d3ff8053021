# SPDX-License-Identifier: Apache-2.0
"""Consistency of docs and sources; linters check the rest (./test.sh)."""

import ast
import dataclasses
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import electra_tf
import electra_tf.commands
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import ModelConfig
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.config.run import read_config

ROOT = Path(__file__).resolve().parents[1]
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.splitlines()
TEXTS = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in TRACKED
    if name.endswith((".py", ".md")) and (ROOT / name).is_file()
}
PAGES = sorted(name for name in TEXTS if name.endswith(".md"))
CONFIGS = {
    "run_pretraining.py": PretrainingConfig,
    "run_finetuning.py": FinetuningConfig,
}


def test_every_source_names_the_license():
    for name, text in TEXTS.items():
        if name.endswith(".py"):
            assert "# SPDX-License-Identifier: Apache-2.0" in text[:80], name


def test_no_function_is_converted_by_autograph():
    """It takes a second for each, and nothing here needs it."""
    for name, text in TEXTS.items():
        if not (name.startswith("electra_tf") and name.endswith(".py")):
            continue
        assert "@tf.function\n" not in text, name
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "tf.function":
                assert "autograph" in {k.arg for k in call.keywords}, name


def test_the_page_of_hparams_is_current():
    command = [sys.executable, "docs/make_hparams.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    update = "run: python3 docs/make_hparams.py > docs/hparams.md"
    assert TEXTS["docs/hparams.md"] == done.stdout, update
    for cls in (PretrainingConfig, FinetuningConfig, ModelConfig):
        for field in dataclasses.fields(cls):
            assert f"- `{field.name}` (" in done.stdout


def test_the_tables_of_metrics_are_current():
    command = [sys.executable, "docs/make_metrics.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for table in done.stdout.split("\n\n"):
        update = "copy the tables of: python3 docs/make_metrics.py"
        assert f"\n\n{table.strip()}\n" in TEXTS["docs/metrics.md"], update


def test_the_page_of_the_api_is_current_and_complete():
    command = [sys.executable, "docs/make_python_api.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    update = "run: python3 docs/make_python_api.py > docs/python_api.md"
    assert TEXTS["docs/python_api.md"] == done.stdout, update
    shown = set(re.findall(r"^### (\w+)$", done.stdout, re.MULTILINE))
    assert shown >= {*electra_tf.__all__}


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", TEXTS[page])
    targets += re.findall(r'(?:src|srcset)="([^"]+)"', TEXTS[page])
    for target in targets:
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), target


# Below these a page names files of this repository, if no other folder stands before.
PATH = re.compile(
    r"(?<![\w/.-])((?:electra_tf|tests|benchmarks|configs|docs|examples|experiments)/"
    r"[\w./-]*\w)"
)
DOTTED = re.compile(r"(?<![\w/.-])electra_tf(?:\.\w+)+")


@pytest.mark.parametrize("page", PAGES)
def test_files_and_names_in_a_page_exist(page):
    for path in PATH.findall(TEXTS[page]):
        assert (ROOT / path).exists(), path
    for name in DOTTED.findall(TEXTS[page]):
        pkgutil.resolve_name(name)


# A script and its arguments up to the end of the line; what is quoted may go on.
COMMAND = re.compile(
    r"(?:python3? |`)([a-z_/]+\.py)((?:'[^']*'|\"[^\"]*\"|\\\n|[^'\"`\n])*)"
)
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
DEFINED = re.compile(r"(?:DEFINE_\w+|define_\w+|add_argument)\(\s*\"(?:--)?([\w-]+)\"")
COMMANDS = {
    " ".join(found[0].split()): (found[1], found[2].replace("\\\n", " "))
    for page in PAGES
    for found in COMMAND.finditer(TEXTS[page])
    if "--" in found[2]
}


def flags_of(script: str) -> set[str]:
    """A script's flags, by its source, that of cli and of what it imports beside it."""
    folder = os.path.dirname(script)
    modules = re.findall(r"^(?:from|import) (\w+)", TEXTS[script], re.MULTILINE)
    paths = [script, "electra_tf/commands/shared_flags.py"]
    paths += [os.path.join(folder, f"{name}.py") for name in modules]
    names = re.findall(r"^    run\(\"([\w-]+)\"", TEXTS[script], re.MULTILINE)
    commands = [electra_tf.commands.COMMANDS[name].partition(":")[0] for name in names]
    paths += [f"electra_tf/{name.replace('.', '/')}.py" for name in commands]
    texts = [TEXTS.get(path, "") for path in paths]
    return {name.replace("-", "_") for text in texts for name in DEFINED.findall(text)}


def value_of(arguments: str, flag: str) -> str | None:
    """The quoted or bare value of a flag, as "'$DATA_DIR'/a" is; None without one."""
    found = re.search(rf"--{flag}[ =]\s*((?:'[^']*'|[^\s'])+)", arguments)
    return found and found[1].replace("'", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_command_is_valid(command, monkeypatch, tmp_path):
    script, arguments = COMMANDS[command]
    assert script in TEXTS
    for flag in re.findall(r"(?<=\s)--([a-z][\w-]*)", QUOTED.sub("", arguments)):
        name = flag.replace("-", "_")
        bare = name.removeprefix("no_")
        names = {name, name.removeprefix("no"), bare, f"do_{bare}"}
        assert names & flags_of(script), flag
    text = value_of(arguments, "hparams") or "{}"
    if script in CONFIGS and text.startswith("{"):
        monkeypatch.chdir(ROOT)
        config = value_of(arguments, "config")
        # What the pages leave open.
        hparams = json.loads(text.replace("[TASK]", '["rte"]').replace("EPOCHS", "3"))
        place = str(tmp_path), "M"
        CONFIGS[script].from_hparams(*place, hparams, read_config(config))


def test_documented_commands_are_found():
    assert len(COMMANDS) > 60
    assert "dry_run" in flags_of("run_pretraining.py")
    assert "seeds" in flags_of("experiments/run.py")
