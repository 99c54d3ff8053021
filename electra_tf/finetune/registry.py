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

import difflib
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from electra_tf.finetune.task import TEXT, Task, TaskType, take_stored
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

TYPES: dict[str, TaskType] = tagging.TYPES | multiple_choice.TYPES
TYPES |= classification.TYPES | multilabel.TYPES | qa.TYPES
# The original's tasks by their names.
ORIGINALS: dict[str, Callable[..., Task]] = {"chunk": tagging.ChunkTask}
ORIGINALS |= dict.fromkeys(glue.GLUE, glue.GlueTask)
ORIGINALS |= dict.fromkeys((*qa.SQUAD, *qa.MRQA), qa.QATask)
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
    smoothed = {n for n, t in named.items() if hasattr(t.head, "label_smoothing")}
    if config.label_smoothing and not smoothed:
        raise UserError(
            "label_smoothing is for classification and tagging, and task_names has "
            f"neither: {', '.join(named)}."
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
    tokenizer = Tokenizer(vocab, *settings)
    if name in config.tasks:
        description = config.tasks[name]
        if problem := next(_problems(name, description), None):
            raise UserError(f"task {name!r}: {problem}.")
        task = TYPES[description["type"]].task(name, config, tokenizer)
    elif ":" in name:
        task = _from_module(name)(config, tokenizer)
    elif name in ORIGINALS:
        task = ORIGINALS[name](name, config, tokenizer)
    else:
        names = sorted({*ORIGINALS, *config.tasks})
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UserError(f"unknown task {name!r}{hint}\nTasks: {', '.join(names)}.")
    if trained:
        take_stored(task, trained)
    return task


def originals_with_data(config: FinetuningConfig) -> list[str]:
    """The names of the original's tasks that have training data, wherever they lie."""
    tasks = (make(name, config, None) for name, make in ORIGINALS.items())
    return [task.name for task in tasks if task.is_there("train")]


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


def _problems(name: str, description: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a description, by the key."""
    if not _NAME.fullmatch(name):
        yield "a name has letters, digits and the signs _ . - only"
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
