# SPDX-License-Identifier: Apache-2.0
"""A fine-tuned model out of the directory of its trial, for export and prediction."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf import startup
from electra_tf.config.finetuning import FinetuningConfig, vocabulary_of
from electra_tf.console import say_nothing
from electra_tf.errors import UserError
from electra_tf.finetune import initial_weights, registry
from electra_tf.finetune.results import hparams_in
from electra_tf.finetune.task import FACTS_FILE, TaskFacts, facts_of, read_facts
from electra_tf.interop import compare
from electra_tf.storage.remote import fetch_once
from electra_tf.storage.remote_run import bring_model
from electra_tf.text.vocabulary import Vocabulary


class FinetunedModel(NamedTuple):
    """A fine-tuned model and what it is for."""

    config: FinetuningConfig
    vocab: Vocabulary
    facts: list[TaskFacts]  # of all its tasks, in the order of its heads
    model: Any  # finetune.model.FinetuningModel
    origin: str  # the checkpoint that the weights are of

    def facts_of(self, task: str) -> TaskFacts:
        """Of one of its tasks, by its name in task_names; a class has another."""
        return self.facts[self.config.task_names.index(task)]


def _vocabulary(folder: Path, hparams: dict[str, Any], usual: str) -> str:
    """The file that a trial names, or the usual one where that is gone."""
    places = list(dict.fromkeys([hparams.get("vocab_file", usual), usual]))
    for path in places:
        if os.path.isfile(fetch_once(path)):
            return path
    raise UserError(
        f"{places[0]}, the vocabulary of {folder}, does not exist"
        f"{''.join(f', nor does {path}' for path in places[1:])}.\nSay where it is: "
        "predict by --data-dir, export_model.py by --vocab-file."
    )


def read(
    folder: Path,
    task: str | None,
    precision: str | None = None,
    data_dir: str | None = None,
    vocab_file: str | None = None,
) -> FinetunedModel:
    """The model of a trial with its newest weights, or the best where those stay.

    Args:
      folder: `<data-dir>/models/<model-name>/finetuning_models/<...>_1`.
      task: one of its tasks, which must be there; None: any.
      precision: of its computation; None: that of the training.
      data_dir: where the vocabulary is; None: as the place of the folder says.
      vocab_file: the vocabulary, if it is elsewhere.

    Raises `UserError`: 2 for what is no such model, 65 for damaged checkpoints.
    """
    folder = folder.absolute()
    bring_model(folder)
    hparams = hparams_in(folder)
    names = hparams.get("task_names", [])
    if not names or (task is not None and task not in names):
        raise UserError(
            f"{folder} was not fine-tuned on {task!r}; its tasks are "
            f"{', '.join(names) or 'none'}."
        )
    place = [*folder.parents, *[folder] * 4]
    data_dir, model_name = data_dir or str(place[3]), place[1].name or "model"
    usual = vocabulary_of(data_dir, model_name)
    hparams["vocab_file"] = vocab_file or _vocabulary(folder, hparams, usual)
    config = FinetuningConfig.from_hparams(data_dir, model_name, hparams)
    vocab = Vocabulary.load(config.vocab_file)
    if (folder / FACTS_FILE).is_file():
        facts = read_facts(folder)
    else:
        facts = [facts_of(t) for t in registry.make_tasks(config, vocab)]
    found = initial_weights.find(str(folder), say_nothing)
    compare.check(found, config, vocab, compare.FINETUNE)
    startup.import_tensorflow()
    from electra_tf.finetune.model import build_finetuning_model

    model = build_finetuning_model(config, facts, dtype=precision)
    weights = {v.path: v.value for v in model.variables}
    initial_weights.load_all(found, weights, say_nothing)
    return FinetunedModel(config, vocab, facts, model, found.origin)
