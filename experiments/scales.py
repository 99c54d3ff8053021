# SPDX-License-Identifier: Apache-2.0
"""The scales that experiments run at: recipe, budget, data, and what is measured."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import marks_task
from checkout import ROOT
from report import Comparison

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.config.model import SIZES
from electra_tf.config.run import read_config
from electra_tf.errors import UserError
from electra_tf.finetune.registry import originals_with_data
from electra_tf.processes import Commands
from electra_tf.storage.manifest import sha256

# GLUE without WNLI, as the ELECTRA paper reports it: task -> metric.
GLUE = {
    "cola": "mcc",
    "sst": "accuracy",
    "mrpc": "accuracy",
    "sts": "spearman",
    "qqp": "accuracy",
    "mnli": "accuracy",
    "qnli": "accuracy",
    "rte": "accuracy",
}
# Learning rates of fine-tuning: the ELECTRA paper, Table 7. The original's program has
# 1e-4 for small.
RATES = {"small": 3e-4, "base": 1e-4, "large": 5e-5}
# pocket learns from sequences of 32 tokens, so it is measured by short sentences.
_CHUNK_WORDS = 16
_CHUNK_SENTENCES = 600


class Measure(NamedTuple):
    """A task that pre-trained models are fine-tuned on, and its metric."""

    task: str
    metric: str
    hparams: dict[str, Any] = {}


class Scale(NamedTuple):
    """What runs of one size have in common.

    Attributes:
      recipe: hparams of pre-training; a run may take the FLOPs that these take.
      finetuning: hparams of fine-tuning.
      trials: fine-tuning runs of each pre-trained model; their median is its score.
    """

    recipe: dict[str, Any]
    finetuning: dict[str, Any]
    trials: int


def scale_named(name: str) -> Scale:
    """The scale that a command line names."""
    if name == "pocket":
        here = Path(__file__).parent
        return Scale(
            read_hparams(str(here / "pocket.json")),
            read_hparams(str(here / "pocket_finetuning.json")),
            trials=1,
        )
    recipe = read_config(f"electra_{name}")
    finetuning = {"model_size": name, "learning_rate": RATES[name]}
    return Scale(recipe, finetuning, trials=10)


class Data(NamedTuple):
    """What all runs of an output directory are trained on.

    Attributes:
      directory: of vocabulary and TFRecords.
      jobs: what makes them, before the runs.
      sha256: of files that the user may replace, by name; None: they are ours.
    """

    directory: Path
    jobs: list[Commands]
    sha256: dict[str, str] | None


def pocket_data(output: Path, corpus: Path, recipe: Mapping[str, Any]) -> Data:
    """A vocabulary and TFRecords of a directory of text, in `output`."""
    folder = output / "data"
    vocab, records = folder / "vocab.txt", folder / "pretrain_tfrecords"
    build_vocab = [
        *(sys.executable, str(ROOT / "build_vocab.py"), f"--corpus-dir={corpus}"),
        *(f"--vocab-size={recipe['vocab_size']}", f"--output-file={vocab}"),
    ]
    build = [
        *(sys.executable, str(ROOT / "build_pretraining_dataset.py")),
        *(f"--corpus-dir={corpus}", f"--vocab-file={vocab}"),
        *(f"--output-dir={records}", f"--max-seq-length={recipe['max_seq_length']}"),
    ]
    commands = [] if vocab.exists() else [build_vocab]
    commands += [] if (records / "manifest.json").exists() else [build]
    jobs = (
        [Commands("Data", commands, output / "logs" / "data.log")] if commands else []
    )
    return Data(folder, jobs, None)


def given_data(data_dir: Path | None, scale: str) -> Data:
    """What a user has built for a scale larger than pocket."""
    if data_dir is None:
        raise UserError(
            f"--scale {scale} needs --data-dir: a directory with vocab.txt, "
            "pretrain_tfrecords and finetuning_data."
        )
    files = [data_dir / "vocab.txt", data_dir / "pretrain_tfrecords" / "manifest.json"]
    found = {f"sha256 of {path}": sha256(path) for path in files if path.exists()}
    return Data(data_dir, [], found)


def glue_tasks(there: Sequence[str], data_dir: Path) -> list[str]:
    """The tasks of GLUE that are there, in the paper's order.

    Args:
      there: the original's tasks that have data.
    """
    found = [task for task in GLUE if task in there]
    if not found:
        raise UserError(
            f"found no data of {', '.join(GLUE)}.\nGLUE's files go into "
            f"{data_dir / 'finetuning_data'}/<task>, as docs/fine_tuning.md says."
        )
    return found


def paper_rate(hparams: Mapping[str, Any]) -> float | None:
    """The paper's rate for fine-tuning; None for a model of none of its sizes."""
    size = hparams.get("model_size", "small")
    shape = SIZES[size] | hparams.get("model_hparam_overrides", {})
    is_paper = all(shape[name] == value for name, value in SIZES[size].items())
    return RATES[size] if is_paper else None


def measures(
    scale: str, output: Path, data_dir: Path | None, comparison: Comparison
) -> dict[str, Measure]:
    """What models are measured by: name -> Measure; files are written where needed."""
    if scale != "pocket":
        if comparison.tuning:
            raise UserError("what is tuned here is --scale pocket; others are papers'.")
        config = FinetuningConfig.from_hparams(str(data_dir), "m", {})
        there = glue_tasks(originals_with_data(config), data_dir)
        return {task: Measure(task, GLUE[task]) for task in there}
    folder = output / "data" / "tasks"
    split = "tuning" if comparison.tuning else "test"
    marks_task.write(folder, ROOT / "examples")
    dev = {"marks": f"marks_{split}.txt"}
    if data_dir is not None:
        chunk = data_dir / "finetuning_data" / "chunk"
        _write_chunk(folder, chunk)
        dev["chunk"] = f"chunk_{split}.txt"
    end = "_tuning" if comparison.tuning else ""
    return {
        name + end: Measure(name, "f1", {"tasks": {name: _tagging(folder, name, file)}})
        for name, file in dev.items()
    }


def _tagging(folder: Path, name: str, dev: str) -> dict[str, str]:
    train = str(folder / f"{name}_train.txt")
    return {"type": "tagging", "train": train, "dev": str(folder / dev)}


def _write_chunk(folder: Path, source: Path) -> None:
    """The first short sentences to train on, the last to tune by; those of dev."""

    def short(file: str) -> list[str]:
        text = (source / file).read_text(encoding="utf-8").strip()
        found = text.split("\n\n")
        return [s for s in found if len(s.splitlines()) <= _CHUNK_WORDS]

    train, count = short("train.txt"), _CHUNK_SENTENCES
    parts = {"train": train[:count], "tuning": train[count:][-count:]}
    for name, sentences in (parts | {"test": short("dev.txt")}).items():
        marks_task.write_once(folder / f"chunk_{name}.txt", "\n\n".join(sentences))
