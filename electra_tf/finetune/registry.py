# SPDX-License-Identifier: Apache-2.0
"""The tasks that hparams can name: the original's, described ones, those of a module.

    "tasks": {"mytask": {"type": "classification", "train": "train.tsv", "dev":
              "dev.tsv", "text_a": "sentence", "label": "class", "metric": "mcc"}}

Types: classification, multilabel, regression (of one text, or two with text_b), tagging
(words and tags on lines as CoNLL has them, or lists in JSONL; spans or plain tags), qa
(files in SQuAD's form). Texts come from TSV or CSV with a header, from JSONL or from
Parquet; paths are relative to --data-dir.
"""

from __future__ import annotations

import difflib
import importlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import (
    glue,
    qa,
    tagging,
    tfds_source,
)
from electra_tf.finetune.classification import (
    METRICS,
    OwnTextTask,
    TextTask,
    columns_of,
    metrics_of,
)
from electra_tf.finetune.multilabel import OwnMultilabelTask
from electra_tf.finetune.qa import OwnQATask
from electra_tf.finetune.tag_schemes import Notation
from electra_tf.finetune.tagging import OwnTaggingTask, TaggingTask
from electra_tf.finetune.task import (
    FACTS_FILE,
    FILES,
    SMOOTHED,
    Task,
    TaskFacts,
    check_facts,
    read_facts,
)
from electra_tf.interop import networks
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
    of_glue = glue.glue_task if reads_data else glue.GlueTask
    known |= dict.fromkeys(glue.GLUE, of_glue)
    return known | {name: qa.QATask for name in (*qa.SQUAD, *qa.MRQA)}


def _make_task(
    name: str, config: FinetuningConfig, tokenizer: Tokenizer | None, reads_data: bool
) -> Task:
    known = _originals(reads_data)
    if name in config.tasks:
        return make_own_task(name, config, tokenizer)
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
        elif not isinstance(named[name], TextTask):
            reason = f"the class of {name} has no class_weights; a TextTask has"
        else:
            # What is wrong with them is said now.
            _ = reads_data and named[name].class_weights
            continue
        raise UserError(f"class_weights: {reason}.")


def _check_answerability(task: Task, config: FinetuningConfig) -> None:
    """Joint prediction has no score of "no answer" but that of the classifier."""
    has_score = config.answerable_classifier or not config.joint_prediction
    if task.is_v2 and not has_score:
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


_TYPES = {
    "metric": ((str, list), "text, or a list of it"),
    "class_weights": ((str, list, dict), 'a list, an object {...} or "balanced"'),
    "lowest": ((int, float), "a number"),
    "highest": ((int, float), "a number"),
    "has_impossible": (bool, "true or false"),
    "quoted": (bool, "true or false"),
    "delimiter": (str, "one character, such as ;"),
    "words": ((str, int), "a column's name, or its number from 1"),
    "tags": ((str, int), "a column's name, or its number from 1"),
    "tag_names": (list, "a list of names"),
    "label_names": (list, "a list of names"),
    "multilabel label": ((str, list), "a column, or a list of one for each class"),
}
_TABLE_KEYS = ("delimiter", "quoted")  # of a table in text
# Names go into those of files and variables.
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# Type -> the keys that a description may have beside the files; * must be there.
KEYS = {
    "classification": (
        *("text_a*", "text_b", "label*", "id", "metric", "class_weights"),
    ),
    "multilabel": (
        *("text_a*", "text_b", "label*", "id", "separator", "label_names"),
        "class_weights",
    ),
    "regression": ("text_a*", "text_b", "label*", "id", "lowest", "highest"),
    "tagging": ("words", "tags", "id", "scheme", "tag_names"),
    "qa": ("has_impossible",),
}


def make_own_task(name: str, config, tokenizer) -> Task:
    """The task that `config.tasks` describes under this name.

    Raises `UserError` for a description that is wrong, naming the key.
    """
    description = config.tasks[name]
    check_description(name, description)
    kinds = {"tagging": OwnTaggingTask, "qa": OwnQATask}
    kinds["multilabel"] = OwnMultilabelTask
    return kinds.get(description["type"], OwnTextTask)(name, config, tokenizer)


def check_description(name: str, description: dict[str, Any]) -> None:
    """Raises a UserError that names the key that is wrong or missing."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"task {name!r}: a name has letters, digits and the signs _ . - only."
        )
    if name in networks.PARTS:
        raise UserError(
            f"task {name!r}: export_model.py has that name for a part of a pre-trained "
            f"model, as it has {', '.join(p for p in networks.PARTS if p != name)}.\n"
            "Give the task another name."
        )
    kind = description.get("type")
    if not isinstance(kind, str) or kind not in KEYS:
        raise UserError(
            f"task {name}: type is {kind!r}; it is one of {', '.join(KEYS)}."
        )
    keys = [key.rstrip("*") for key in KEYS[kind]]
    known = ["type", *FILES, *keys, *_TABLE_KEYS * (kind != "tagging")]
    for key in description:
        if key not in known:
            raise UserError(
                f"task {name}: unknown key {key!r}; {kind} has {', '.join(known)}."
            )
    needed = ["train", "dev"] + [k[:-1] for k in KEYS[kind] if k.endswith("*")]
    for key in needed:
        if key not in description:
            raise UserError(f"task {name}: {key!r} is missing; {kind} needs it.")
    for key, value in description.items():
        usual = _TYPES.get(key, (str, "text"))
        types, what = _TYPES.get(f"{kind} {key}", usual)
        is_other_bool = isinstance(value, bool) and types is not bool
        if is_other_bool or not isinstance(value, types):
            raise UserError(f"task {name}: {key} is {value!r}; it must be {what}.")
    top, metrics = description.get("highest", math.inf), metrics_of(description)
    rules = {
        "lowest": (lambda low: low < top, f"below highest ({top})"),
        "delimiter": (lambda sign: len(sign) == 1, "one character, such as ;"),
        "separator": (bool, "the sign between labels, such as ,"),
        "metric": (
            lambda _: metrics and set(map(str, metrics)) <= {*METRICS},
            f"one of {', '.join(METRICS)}, or a list of them, the main one first",
        ),
    }
    for key, (is_right, what) in rules.items():
        if key in description and not is_right(description[key]):
            value = description[key]
            raise UserError(f"task {name}: {key} is {value!r}; it must be {what}.")
    if "scheme" in description:
        Notation.named(description["scheme"])


def table_of(facts: TaskFacts, config) -> dict[str, Any]:
    """Where a table has a task's texts or words, and ids: for an export's manifest."""
    if facts.kind == "qa":
        return {}
    said = config.tasks.get(facts.name, {})
    usual = TaggingTask if facts.kind == "tagging" else TextTask
    found = {"identity": (said.get("id", "id"),) if said else usual.identity}
    if facts.kind == "tagging":
        return found | {"words": said.get("words", usual.word_column)}
    of_glue = glue.GLUE[facts.name].columns if facts.name in glue.GLUE else ()
    return found | {"columns": columns_of(said, of_glue, facts.num_texts)}
