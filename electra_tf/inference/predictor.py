# SPDX-License-Identifier: Apache-2.0
"""What all models that predict have in common, and a fine-tuned trial as one.

    model = electra_tf.load("data/models/m/finetuning_models/mine_model_1")
    [row] = model.predict(["The film was great."])
    row["label"], row["probabilities"]

A trial's features and outputs are those of its own evaluation.
"""

from __future__ import annotations

import abc
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from electra_tf import startup
from electra_tf.config.finetuning import FinetuningConfig, vocabulary_of
from electra_tf.console import say_nothing
from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.finetune import preprocessing, registry
from electra_tf.finetune.inputs import Input, Source, shown
from electra_tf.finetune.results import finite, hparams_in
from electra_tf.finetune.task import FACTS_FILE, Task, TaskFacts, facts_of, read_facts
from electra_tf.inference.model import Model
from electra_tf.interop import readers
from electra_tf.interop.checkpoint import FINETUNE
from electra_tf.storage.remote import fetch_once
from electra_tf.storage.remote_run import bring_model
from electra_tf.text.vocabulary import Vocabulary

# Sequences that are computed before the first prediction is made.
_CHUNK = 512
# What an input may be a tuple of, by the key of `inputs.FORMS`.
_COLUMNS = {"texts": ("text", "text_b"), "questions": ("question", "context")}


def plain(value: Any) -> Any:
    """A tensor, an array or one of its values as Python has them; bytes as text."""
    value = value.numpy() if hasattr(value, "numpy") else value
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class Predictor(Model, abc.ABC):
    """A model that predicts.

    Args:
      origin: where its weights are.
      task: that it was fine-tuned on, by its name.
      reads: what it predicts for, a key of `inputs.FORMS`.
      num_texts: 2 for pairs.
      fewest: of them that an input may have, if not as many.
      facts: in JSON, what its answers depend on besides the weights.
    """

    def __init__(
        self,
        origin: str,
        task: str,
        reads: str,
        num_texts: int = 1,
        fewest: int | None = None,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.origin, self.task, self.reads, self.facts = origin, task, reads, facts
        self.name, self.what = origin, f"a model fine-tuned on {task}"
        count = num_texts if reads == "texts" else 2
        self._columns = _COLUMNS.get(reads, ())[:count]
        self._fewest = fewest or len(self._columns)

    @abc.abstractmethod
    def read_inputs(self, source: Source) -> Iterator[Input]:
        """What is to be predicted, in a user's file."""

    @abc.abstractmethod
    def predictions(
        self, inputs: Iterable[Input]
    ) -> Iterator[tuple[Input, dict[str, Any]]]:
        """Yields each input with its prediction, in order."""

    def rows(self, inputs: Iterable[Input]) -> Iterator[dict[str, Any]]:
        """Yields the fields of each input and its prediction, in order.

        Raises `UserError` (70) for outputs that are not finite.
        """
        for one, found in self.predictions(inputs):
            if finite(found) != found:
                raise UserError(
                    f"{one.where}: {self.origin} gives it {shown(found)}: its weights "
                    "or activations are not finite.",
                    EXIT_DIVERGED,
                )
            yield one.fields | found

    def predict(self, inputs: Iterable[Any]) -> list[dict[str, Any]]:
        """Predictions in order; docs/prediction.md says what they hold.

        Args:
          inputs: texts, pairs of texts, lists of words or pairs (question, context), as
            str, bytes or tensors; or objects by column, as a line of .jsonl has them.

        Raises `UserError` naming the input that cannot be used.
        """
        inputs = plain(inputs) if hasattr(inputs, "ndim") else inputs
        inputs = [inputs] if isinstance(inputs, str | bytes | Mapping) else inputs
        objects = (self._object(number, one) for number, one in enumerate(inputs))
        return list(self.rows(self.read_inputs(Source.of_objects(objects))))

    def _object(self, number: int, one: Any) -> Mapping[str, Any]:
        if isinstance(one, Mapping):
            return one
        one = plain(one)
        is_list = isinstance(one, Iterable) and not isinstance(one, str)
        if self.reads == "words" and (is_list or isinstance(one, str)):
            return {"words": list(one) if is_list else one.split()}
        parts = tuple(one) if is_list else (one,) * isinstance(one, str)
        if not self._columns or not self._fewest <= len(parts) <= len(self._columns):
            raise UserError(
                f"input {number} is {shown(one)}; {self.task} takes "
                f"{' and '.join(self._columns) or 'words'}."
            )
        return dict(zip(self._columns, parts, strict=False))


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


def read_trial(
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

    Raises `UserError`: 2 for anything else, 65 for damaged checkpoints.
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
    found = readers.find(str(folder), say_nothing)
    found.check(config, vocab, FINETUNE)
    startup.import_tensorflow()
    from electra_tf.finetune.model import build_finetuning_model, load_all

    model = build_finetuning_model(config, facts, dtype=precision)
    weights = {v.path: v.value for v in model.variables}
    load_all(found, weights, say_nothing)
    return FinetunedModel(config, vocab, facts, model, found.origin)


class TaskPredictor(Predictor):
    """One task of a fine-tuned model.

    Args:
      number: of the task's head.
    """

    def __init__(self, trained: FinetunedModel, task: Task, number: int):
        from electra_tf.finetune.batches import head_outputs

        texts = task.num_texts
        columns = getattr(task, "columns", ()) if task.reads == "texts" else ()
        fewest = min(map(len, columns), default=None)
        facts = {
            "vocab_sha256": trained.vocab.sha256,
            "max_seq_length": trained.config.max_seq_length,
            "eval_batch_size": trained.config.eval_batch_size,
        }
        super().__init__(trained.origin, task.name, task.reads, texts, fewest, facts)
        self._task, self._number, self._config = task, number, trained.config
        self.encoder, self.tokenizer = trained.model.electra, task.tokenizer
        self.max_seq_length = trained.config.max_seq_length
        self._num_heads = len(trained.model.heads)
        self._run = functools.partial(
            *(head_outputs, trained.model, task.name, trained.config)
        )

    def read_inputs(self, source: Source) -> Iterator[Input]:
        """What is to be predicted, by the task's own columns."""
        return self._task.read_inputs(source)

    def predictions(
        self, inputs: Iterable[Input]
    ) -> Iterator[tuple[Input, dict[str, Any]]]:
        """Yields each input with its prediction, in order."""
        for chunk in self._chunks(inputs):
            outputs = self.outputs([x for _, _, features in chunk for x in features])
            for one, example, features in chunk:
                rows = list(itertools.islice(outputs, len(features)))
                yield one, self._task.prediction(example, rows)

    def _chunks(self, inputs: Iterable[Input]) -> Iterator[list[tuple]]:
        """Inputs with their examples and those's features, some hundred sequences."""
        chunk, size = [], 0
        for number, one in enumerate(inputs):
            example = self._task.input_example(number, one.fields)
            features = list(self._task.featurize(example, False))
            chunk.append((one, example, features))
            size += max(1, len(features))
            if size >= _CHUNK:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def outputs(self, features: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Those of the task's head for each sequence, in order."""
        if not features:  # of empty texts only
            return iter(())
        rows = [(self._task, found) for found in features]
        length = self._config.max_seq_length
        arrays = preprocessing.pack(rows, {self._task: self._number}, length)
        store = preprocessing.FeatureStore(arrays, self._num_heads)
        return self._run(store)
