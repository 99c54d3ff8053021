# SPDX-License-Identifier: Apache-2.0
"""The tasks that hparams can name: the original's, described ones, those of a module.

    "tasks": {"mytask": {"type": "classification", "train": "train.tsv", "dev":
              "dev.tsv", "text_a": "sentence", "label": "class", "metric": "mcc"}}

Types: classification, multilabel, regression (of one text, or two with text_b), tagging
(words and tags on lines as CoNLL has them, or lists in JSONL; spans or plain tags),
multiple_choice, qa (files in SQuAD's form). Texts come from .tsv, .csv, .jsonl,
.json or .parquet; paths are relative to --data-dir.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import absl.logging

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import (
    classification,
    glue,
    multilabel,
    multiple_choice,
    qa,
    tagging,
)
from electra_tf.finetune.tagging import ChunkTask
from electra_tf.finetune.task import TEXT, Task, TaskType, take_stored
from electra_tf.interop import networks
from electra_tf.storage.manifest import sha256
from electra_tf.text.records import tfds_builder
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

TYPES: dict[str, TaskType] = tagging.TYPES | multiple_choice.TYPES
TYPES |= classification.TYPES | multilabel.TYPES | qa.TYPES
# Names go into those of files and variables.
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def make_tasks(
    config: FinetuningConfig, vocab: Vocabulary, trained: Path | None = None
) -> list[Task]:
    """The tasks that `task_names` names, their data checked as far as it was read.

    Raises `UserError` for an unknown name, with the nearest known one, and for a task
    that is not the one of the model; see `make_task`.
    """
    named: dict[str, Task] = {}
    for name in config.task_names:
        task = make_task(name, config, vocab, trained)
        if task.name in named:
            raise UserError(f"task_names: two tasks are called {task.name!r}.")
        named[task.name] = task
        task.check()
    kinds = {name: task.head.kind for name, task in named.items()}
    weighted = {n for n, task in named.items() if hasattr(task.head, "class_weights")}
    if wrong := config.class_weights.keys() - weighted:
        raise UserError(
            f"class_weights: {min(wrong)} is not a task in task_names with classes for "
            f"texts; these have the types {kinds}."
        )
    smoothed = [kind for kind, row in TYPES.items() if row.head.has_classes]
    if config.label_smoothing and not {*smoothed} & {*kinds.values()}:
        raise UserError(
            f"label_smoothing is for {' and '.join(smoothed)}; these tasks are "
            f"{', '.join(kinds.values())}."
        )
    return [*named.values()]


def make_task(
    name: str, config: FinetuningConfig, vocab: Vocabulary, trained: Path | None = None
) -> Task:
    """One task by its name in `task_names`.

    A name "module:Class" is imported: it must be what the user typed, never what a
    model directory names.

    Args:
      trained: the directory of the fine-tuned model that is not trained further; what
        it was trained for rules over the data, above all the names of labels.
    """
    settings = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    task = _make_task(name, config, Tokenizer(vocab, *settings))
    if trained:
        take_stored(task, trained)
    return task


def originals_with_data(config: FinetuningConfig) -> list[str]:
    """The names of the original's tasks that have training data, wherever they lie."""
    known = _originals(config)
    return [name for name in known if known[name](name, config, None).is_there("train")]


def _originals(config) -> dict[str, Callable[..., Task]]:
    """The original's tasks by their names."""
    if config.data_source == "tfds":
        tasks = dict.fromkeys(glue.GLUE, TfdsGlueTask)
        return tasks | dict.fromkeys(_SQUAD, TfdsQATask)
    known: dict[str, Callable[..., Task]] = {"chunk": ChunkTask}
    known |= dict.fromkeys(glue.GLUE, glue.glue_task)
    return known | dict.fromkeys((*qa.SQUAD, *qa.MRQA), qa.QATask)


def _make_task(
    name: str, config: FinetuningConfig, tokenizer: Tokenizer | None
) -> Task:
    if name in config.tasks:
        return make_own_task(name, config, tokenizer)
    if ":" in name:
        return _from_module(name)(config, tokenizer)
    known = _originals(config)
    if name in known:
        return known[name](name, config, tokenizer)
    names = sorted({*known, *config.tasks})
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise UserError(f"unknown task {name!r}{hint}\nTasks: {', '.join(names)}.")


def _from_module(name: str) -> type[Task]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"cannot load the task {name}: {error}.\nIts folder must be on PYTHONPATH."
        ) from None
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise UserError(
            f"{name} is not a class derived from one of electra_tf.finetune."
        )
    return found


def make_own_task(name: str, config, tokenizer) -> Task:
    """The task that `config.tasks` describes under this name.

    Raises `UserError` for a description that is wrong, naming the key.
    """
    description = config.tasks[name]
    check_description(name, description)
    return TYPES[description["type"]].task(name, config, tokenizer)


def check_description(name: str, description: dict[str, Any]) -> None:
    """Raises a UserError that names the key that is wrong or missing."""
    if problem := next(_problems(name, description), None):
        raise UserError(f"task {name!r}: {problem}.")


def _problems(name: str, description: dict[str, Any]) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield "a name has letters, digits and the signs _ . - only"
    if name in networks.PARTS:
        yield (
            f"{', '.join(networks.PARTS)} are parts of a pre-trained model for "
            "export_model.py.\nGive the task another name"
        )
    kind = description.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        yield f"type is {kind!r}; it is one of {', '.join(TYPES)}"
        return
    keys = {"type": TEXT, "train": TEXT.needed, "dev": TEXT.needed, "test": TEXT}
    keys |= TYPES[kind].keys
    for name, value in description.items():
        if name not in keys:
            left = " (left in version 0.2: .csv has quotes, .tsv has none)"
            left *= name == "quoted"
            yield f"unknown key {name!r}{left}; {kind} has {', '.join(keys)}"
        elif not keys[name].fits(value):
            yield f"{name} is {value!r}; it must be {keys[name].what}"
    for name, key in keys.items():
        if key.is_needed and name not in description:
            yield f"{name!r} is missing; {kind} needs it"


_SQUAD = {"squad": "squad/v2.0", "squadv1": "squad/v1.1"}


class _Prepared:
    """A task on a data set of tensorflow_datasets that is on disk."""

    def _split(self, split: str) -> tuple[Any, str]:
        """(builder, its name of the split); a `UserError` if that is not there."""
        name = _SQUAD.get(self.name)
        if name is None:
            theirs, split = glue.place_of(self.name, split)
            name = f"glue/{theirs}"
        # By default it logs each file that it opens.
        absl.logging.set_verbosity(absl.logging.WARNING)
        builder = tfds_builder(name, self.config.tfds_data_dir)
        split = split.replace("dev", "validation")
        if split not in builder.info.splits:
            raise UserError(f"{self.name}: no split {split} in {builder.data_dir}.")
        return builder, split

    def prepared(self, split: str) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        """(full name, features by name, rows as they lie on disk)."""
        import tensorflow_datasets as tfds

        builder, name = self._split(split)
        options = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        rows = builder.as_dataset(name, shuffle_files=False, read_config=options)
        text = json.dumps([*rows.as_numpy_iterator()], default=_plain)
        where = f"{builder.info.full_name}, {name}"
        return where, builder.info.features, json.loads(text)

    def is_there(self, split: str) -> bool:
        """Whether a split is prepared."""
        with contextlib.suppress(UserError):
            return bool(self._split(split))
        return False

    def data_hash(self, split: str) -> str:
        """Of the files of the split."""
        builder, name = self._split(split)
        hashes = [sha256(path) for path in builder.info.splits[name].filepaths]
        return " ".join([builder.info.full_name, *hashes])


def _plain(value: Any) -> Any:
    """Text for bytes, and lists and numbers for NumPy's."""
    return value.decode() if isinstance(value, bytes) else value.tolist()


class TfdsGlueTask(_Prepared, glue.GlueRowsTask):
    """A task of GLUE."""

    def table(self, split):
        """Sorted by their index."""
        where, features, rows = self.prepared(split)
        rows.sort(key=lambda row: row["idx"])
        places = (f"{where}, index {row['idx']}" for row in rows)
        names = getattr(features["label"], "names", ())
        return names, zip(places, rows, strict=True)


class TfdsQATask(_Prepared, qa.QATask):
    """SQuAD 1.1 or 2.0."""

    def entries(self, split: str):
        """(place, object with a text and questions) for each."""
        where, _, rows = self.prepared(split)
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            found.setdefault(row["context"], []).append(row)
        for context, questions in found.items():
            place = f"{where}, question {questions[0]['id']}"
            yield place, {"context": context, "qas": questions}
