# SPDX-License-Identifier: Apache-2.0
"""Commands in the pages are those of today: scripts, flags and hparams exist."""

import json
import os
import re

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.config.pretraining import PretrainingConfig
from tests.test_style import ROOT, pages, source

# A script and its arguments up to the end of the line; what is quoted may go on.
COMMAND = re.compile(
    r"(?:python3? |`)([a-z_/]+\.py)((?:'[^']*'|\"[^\"]*\"|\\\n|[^'\"`\n])*)"
)
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
DEFINED = re.compile(r"(?:DEFINE_\w+|define_p\w+|add_argument)\(\s*\"(?:--)?([\w-]+)\"")
CONFIGS = {
    "run_pretraining.py": PretrainingConfig,
    "run_finetuning.py": FinetuningConfig,
}
COMMANDS = {
    " ".join(found[0].split()): (found[1], found[2].replace("\\\n", " "))
    for page in sorted(pages())
    for found in COMMAND.finditer(source(page))
    if "--" in found[2]
}


def flags_of(script):
    """A script's flags, by its source, that of cli and of what it imports beside it."""
    folder = os.path.dirname(script)
    beside = re.findall(r"^(?:from|import) (\w+)", source(script), re.MULTILINE)
    beside = [os.path.join(folder, f"{name}.py") for name in beside]
    texts = [source(path) for path in beside if os.path.exists(f"{ROOT}/{path}")]
    texts += [source(script), source("electra_tf/cli.py")]
    return {name.replace("-", "_") for text in texts for name in DEFINED.findall(text)}


def value_of(arguments, flag):
    """The quoted or bare value of a flag; None without one."""
    found = re.search(rf"--{flag}[ =]\s*('[^']*'|\S+)", arguments)
    return found and found[1].strip("'")


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_and_hparams_of_a_documented_command_exist(
    command, monkeypatch, tmp_path
):
    script, arguments = COMMANDS[command]
    assert os.path.exists(os.path.join(ROOT, script))
    for flag in re.findall(r"(?<=\s)--([a-z][\w-]*)", QUOTED.sub("", arguments)):
        name = flag.replace("-", "_")
        assert {name, name.removeprefix("no")} & flags_of(script), flag
    if script not in CONFIGS:
        return
    monkeypatch.chdir(ROOT)
    text = value_of(arguments, "hparams") or "{}"
    config = value_of(arguments, "config")
    if text.startswith("{"):
        # What the pages leave open.
        hparams = json.loads(text.replace("[TASK]", '["rte"]').replace("EPOCHS", "3"))
        place = str(tmp_path), "M"
        CONFIGS[script].from_hparams(*place, hparams, config and read_hparams(config))


def test_flags_are_seen():
    assert len(COMMANDS) > 60
    assert {"data_dir", "dry_run"} <= flags_of("run_pretraining.py")
    assert {"seeds", "output_dir"} <= flags_of("experiments/masking.py")
    assert "no_such_flag" not in flags_of("run_pretraining.py")
    text = """`x.py --only` python3 y.py --a 1 \\\n --hparams '{\n"b": 2}' --c"""
    found = [match[1] for match in COMMAND.finditer(text)]
    assert found == ["x.py", "y.py"]
    assert value_of(text, "hparams") == '{\n"b": 2}'
