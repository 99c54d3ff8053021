# SPDX-License-Identifier: Apache-2.0
"""The tasks that hparams can name: the original's, one's own, those of a module."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import (
    classification,
    glue_rows,
    own_tasks,
    qa,
    tagging,
    tfds_source,
)
from electra_tf.finetune.task import (
    FACTS_FILE,
    SMOOTHED,
    Task,
    TaskFacts,
    check_facts,
    read_facts,
)
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary, resolve_settings


def make_tasks(
    config: FinetuningConfig,
    vocab: Vocabulary,
    trained: Path | None = None,
    reads_data: bool = True,
    own: Mapping[str, FinetuningConfig] = MappingProxyType({}),
) -> list[Task]:
    """The tasks that `task_names` names, their data checked as far as it was read.

    Args:
      trained: the directory of the fine-tuned model that is not trained further; what
        it was trained for rules over the data, above all the names of labels.
      reads_data: false where the tasks' own files are not needed.
      own: what tasks are made with, by their names, that have another config.

    Raises `UserError` for a name that is none, with the nearest that is, and for a task
    that is not the one of the model.
    """
    stored: dict[str, TaskFacts] = {}
    if trained is not None and (trained / FACTS_FILE).is_file():
        stored = {facts.name: facts for facts in read_facts(trained)}
    settings = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    tokenizer = Tokenizer(vocab, *settings)
    tasks = []
    for name in config.task_names:
        task = _make_task(name, own.get(name, config), tokenizer, reads_data)
        tasks.append(task)
        for other, known_task in zip(config.task_names, tasks[:-1], strict=False):
            if known_task.name == task.name:
                raise UserError(
                    f"task_names: {other} and {name} are both called {task.name!r}, "
                    "as which their heads and files are known.\nGive one another name."
                )
        _check_answerability(task, task.config)
        if task.name in stored:
            task.stored = stored[task.name]
            check_facts(task, task.stored, str(trained / FACTS_FILE))
        if reads_data:
            task.check()
    _check_class_weights(tasks, config, reads_data)
    if config.label_smoothing and not any(t.head.kind in SMOOTHED for t in tasks):
        raise UserError(
            "label_smoothing is for classification and tagging; these tasks are "
            f"{', '.join(task.head.kind for task in tasks)}."
        )
    return tasks


def originals_with_data(config: FinetuningConfig) -> list[str]:
    """The names of the original's tasks that have training data, wherever they lie."""
    names = tfds_source.NAMES if config.data_source == "tfds" else _originals(True)
    return [n for n in names if _make_task(n, config, None, True).is_there("train")]


def _originals(reads_data: bool) -> dict[str, Callable[..., Task]]:
    """The original's tasks by their names."""
    known: dict[str, Callable[..., Task]] = {"chunk": tagging.TaggingTask}
    # Which files there are is not asked for, perhaps of a bucket, where none is read.
    glue = glue_rows.glue_task if reads_data else classification.GlueTask
    known |= dict.fromkeys(classification.GLUE, glue)
    return known | {name: qa.QATask for name in (*qa.SQUAD, *qa.MRQA)}


def _make_task(
    name: str, config: FinetuningConfig, tokenizer: Tokenizer | None, reads_data: bool
) -> Task:
    known = _originals(reads_data)
    if name in config.tasks:
        return own_tasks.make_own_task(name, config, tokenizer)
    if ":" in name:
        return _from_module(name)(config, tokenizer)
    if name in known and config.data_source == "tfds":
        return tfds_source.make_tfds_task(name, config, tokenizer)
    if name in known:
        return known[name](name, config, tokenizer)
    names = sorted({*known, *config.tasks})
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise UserError(f"unknown task {name!r}{hint}\nTasks: {', '.join(names)}.")


def _check_class_weights(
    tasks: list[Task], config: FinetuningConfig, reads_data: bool
) -> None:
    """The hparam is for tasks that have classes and no description."""
    named = {task.name: task for task in tasks}
    for name in config.class_weights:
        if name not in named:
            reason = f"{name} is none of task_names ({', '.join(named)})"
        elif name in config.tasks:
            reason = f"the description of {name} says them, as its class_weights"
        elif (kind := named[name].head.kind) != "classification":
            reason = f"{name} is a task of {kind}, which has no single class"
        elif not hasattr(type(named[name]), "class_weights"):
            reason = f"the class of {name} has no class_weights; a TextTask has"
        else:
            # What is wrong with them is said now.
            _ = reads_data and named[name].class_weights
            continue
        raise UserError(f"class_weights: {reason}.")


def _check_answerability(task: Task, config: FinetuningConfig) -> None:
    """Joint prediction has no score of "no answer" but that of the classifier."""
    is_told = config.answerable_classifier or not config.joint_prediction
    if getattr(task, "is_v2", False) and not is_told:
        raise UserError(
            f"{task.name} has questions without an answer, which joint_prediction "
            "cannot tell without answerable_classifier.\n"
            "Set one: joint_prediction to false, or answerable_classifier to true."
        )


def _from_module(name: str) -> type[Task]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            advice = f"\nThe folder with {error.name} must be on PYTHONPATH."
        raise UserError(f"cannot load the task {name}: {error}.{advice}") from None
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise UserError(
            f"{name} is not a task's class; derive it from one of electra_tf.finetune."
        )
    if missing := sorted(found.__abstractmethods__):
        raise UserError(f"{name} does not define {', '.join(missing)}.")
    return found
