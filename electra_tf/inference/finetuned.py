# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned models that predict: trials, and Hugging Face models with a task's head.

    model = electra_tf.load("data/models/m/finetuning_models/mine_model_1")
    [row] = model.predict(["The film was great."])
    row["label"], row["probabilities"]

A trial's features and outputs are those of its own evaluation. Settings that have no
place in the files of transformers (columns, unanswerable questions, windows) are read
from the manifest that `export_model.py` writes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_tf import startup
from electra_tf.config.finetuning import FinetuningConfig, vocabulary_of
from electra_tf.console import Log, silent
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune import preprocessing, registry
from electra_tf.finetune.classification import NumberHead
from electra_tf.finetune.conll import stored_scheme
from electra_tf.finetune.inputs import Input, shown
from electra_tf.finetune.results import hparams_in
from electra_tf.finetune.task import TASKS_FILE, Task, read_tasks
from electra_tf.inference.model import Predictor
from electra_tf.inference.scoring import chunks
from electra_tf.interop import electra, huggingface, readers
from electra_tf.interop.checkpoint import FINETUNE, StoredModel, fit_rows
from electra_tf.interop.networks import Network
from electra_tf.interop.task_heads import HEADS
from electra_tf.pretrain.stored import read
from electra_tf.storage import checkpoints
from electra_tf.storage.manifest import MANIFEST, read_json_if_there, split_name
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from electra_tf.finetune.model import FinetuningModel
    from electra_tf.text.tokenization import PackedTexts

# Sequences that are computed before the first prediction is made.
_CHUNK = 512
_LONGEST = 512  # tokens of a window, at most


def read_huggingface(folder: Path) -> FinetunedModel | None:
    """The model in a directory of Hugging Face; None for one without a task's head.

    Raises `UserError`: 65 for damaged files.
    """
    if not huggingface.is_directory_of(folder):
        return None
    config = read_json_if_there(folder / huggingface.CONFIG)
    architecture = (config.get("architectures") or [""])[0]
    known = tuple(row.architecture.removeprefix("Electra") for row in HEADS.values())
    return _predictor(folder, config) if architecture.endswith(known) else None


def _predictor(folder: Path, config: Mapping[str, Any]) -> FinetunedModel | None:
    found = huggingface.info(folder, silent)
    if found.vocab_file is None or found.tokenizer_config is None:
        raise UserError(f"{folder} comes without the files of its tokenizer.")
    vocab = Vocabulary.load(found.vocab_file)
    network = huggingface.read_network(folder)
    architectures = config["architectures"][:1]
    if network.head() and [huggingface.architecture_of(network)] == architectures:
        return None  # A discriminator can be a token classifier there.
    kind = _kind_of(folder, network, config)
    heads = huggingface.family_of(network.shape).HEADS
    theirs, of_type = heads[kind], registry.TYPES[kind]
    manifest = read_json_if_there(folder / MANIFEST)
    labels: tuple[str, ...] = ()
    if theirs.has_classes:
        # A tagger's id2label has other letters.
        labels = tuple(manifest.get("labels", ()))
        labels = labels or _labels(folder, config, network)
    settings = manifest.get("task", {})
    columns = settings.get("columns") or [("text", "text_b"), ("text",)]
    is_v2 = settings.get("has_impossible", True)
    length = huggingface.max_length(folder, network.shape) or _LONGEST
    length = min(length, _LONGEST, network.shape.max_length)
    description = {"type": kind, "scheme": "plain", "has_impossible": is_v2}
    hparams = {
        "task_names": [kind],
        "tasks": {kind: description},
        "vocab_file": found.vocab_file,
        "do_lower_case": found.tokenizer_config.do_lower_case,
        "embedding_size": network.embedding_size,
        "model_hparam_overrides": network.shape.overrides(),
        "max_seq_length": length,
        "max_query_length": min(64, length // 4),
        "n_best_size": min(20, length),
        "joint_prediction": False,
        "answerable_classifier": False,
        "qa_na_threshold": 0.0,  # as in transformers
    }
    hparams |= settings.get("hparams", {})
    config = FinetuningConfig.from_hparams(str(folder), "model", hparams)
    task = of_type.task(kind, config, Tokenizer(vocab, *found.tokenizer_config))
    task.usual_columns, task.num_texts = [*map(tuple, columns)], len(columns[0])
    task.stored = {"labels": labels}
    usual = task.settings()
    task.settings = lambda: usual | settings  # what an input file has where
    startup.import_tensorflow()
    from electra_tf.finetune.model import build_finetuning_model

    head = of_type.head.stored(labels, config)
    if isinstance(head, NumberHead):
        head = dataclasses.replace(head, is_bounded=False)
    if len(theirs.layers) > 1:
        head = dataclasses.replace(head, has_hidden_layer=True)
    model = build_finetuning_model(config, {kind: head}, dtype="float32")
    weights = theirs.read(network.tensors, f"task_specific/{kind}/")
    weights = fit_rows(checkpoints.of_arrays(str(folder), weights), vocab)
    weights.assign_to({v.path: v.value for v in model.variables})
    name = manifest.get("what", kind)
    return FinetunedModel(task, model, str(folder), name)


def _kind_of(folder: Path, network: Network, config: Mapping[str, Any]) -> str:
    """The kind of head that config.json and the weights agree on."""
    [expected] = config["architectures"][:1]
    found = huggingface.architecture_of(network)
    if not expected.endswith(found.removeprefix("Electra")):
        raise UserError(
            f"{folder / huggingface.CONFIG} names {expected}, but the weights are "
            f"those of {found}.",
            EXIT_DAMAGED,
        )
    count, problem = _num_outputs(network), config.get("problem_type") or None
    for kind, row in huggingface.family_of(network.shape).HEADS.items():
        if row.architecture != found or not row.fits(problem, count):
            continue
        electra.check_fixed(config, row.settings, folder / huggingface.CONFIG)
        return kind
    raise UserError(
        f"{folder / huggingface.CONFIG}: problem_type {problem!r} with {count} outputs "
        "cannot be read."
    )


def _num_outputs(network: Network) -> int:
    return len(network.weight(f"{network.task.layers[-1]}/bias"))


def _labels(
    folder: Path, config: Mapping[str, Any], network: Network
) -> tuple[str, ...]:
    """The names of the classes, in the order of the outputs; tags may be equal."""
    count, row = _num_outputs(network), network.task
    names = config.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    try:
        labels = tuple(str(names[str(i)]) for i in range(count))
    except (LookupError, TypeError):
        labels = ()
    if len(labels if row.may_repeat else {*labels}) == count == len(names):
        return labels
    raise UserError(
        f"{folder / huggingface.CONFIG}: id2label is {shown(names)}, which does not "
        f"give each of {count} outputs a name of its own.",
        EXIT_DAMAGED,
    )


def _vocabulary(folder: Path, hparams: dict[str, Any], default: str) -> str:
    """The vocabulary of a trial's hparams, or the default one if it is missing."""
    stored = hparams.get("vocab_file", default)
    for path in (stored, default):
        if Vocabulary.load_if_there(path):
            return path
    raise UserError(
        f"{stored}, the vocabulary of {folder}, does not exist.\nName its place: "
        "predict by --data-dir, export_model.py by --vocab-file."
    )


def read_trial(
    folder: Path,
    task: str | None,
    precision: str | None = None,
    data_dir: str | None = None,
    vocab_file: str | None = None,
) -> FinetunedModel:
    """A task of a trial with the newest weights, or the best, where kept.

    Args:
      folder: `<data-dir>/models/<model-name>/finetuning_models/<...>_1`.
      task: one of its tasks; None: the first.
      precision: of its computation; None: that of the training.
      data_dir: of the vocabulary; None: the data directory that holds the folder.
      vocab_file: the vocabulary, if it is elsewhere.

    Raises `UserError`: 2 for other folders, 65 for damaged checkpoints.
    """
    folder = folder.absolute()
    found = readers.find(folder, silent)
    hparams = hparams_in(folder)
    for description in hparams.get("tasks", {}).values():  # of an earlier version
        description.pop("quoted", None)
        description.pop("class_weights", None)  # of training alone
        if "scheme" in description:
            description["scheme"] = stored_scheme(description["scheme"])
    names = hparams.get("task_names", [])
    if not names or (task is not None and task not in names):
        raise UserError(
            f"{folder} was not fine-tuned on {task!r}; its tasks are "
            f"{', '.join(names) or 'none'}."
        )
    parents = [*folder.parents, *[folder] * 4]
    data_dir, model_name = data_dir or str(parents[3]), parents[1].name or "model"
    default = vocabulary_of(data_dir, model_name)
    hparams["vocab_file"] = vocab_file or _vocabulary(folder, hparams, default)
    config = FinetuningConfig.from_hparams(data_dir, model_name, hparams)
    vocab = Vocabulary.load(config.vocab_file)
    if not (stored := read_tasks(folder)):
        raise UserError(
            f"{folder / TASKS_FILE}, which names the labels of its tasks, is missing: "
            "copy it again.",
            EXIT_DAMAGED,
        )
    found.check(config, vocab, FINETUNE)
    startup.import_tensorflow()
    from electra_tf.finetune.model import build_finetuning_model

    heads = {
        one["name"]: registry.TYPES[one["type"]].head.stored(one["labels"], config)
        for one in stored
    }
    model = build_finetuning_model(config, heads, dtype=precision)
    weights = {v.path: v.value for v in model.variables}
    found.tensors(silent).assign_to(weights)
    name = task or names[0]
    reader = registry.make_task(name, config, vocab, folder)
    return FinetunedModel(reader, model, found.origin, name)


class FinetunedModel(Predictor):
    """One task of a fine-tuned model.

    Attributes:
      reader: the task, which reads inputs and forms predictions.
      layer: the task's `TaskHead`, on the encoder of `network`.
    """

    def __init__(
        self,
        reader: Task,
        network: FinetuningModel,
        origin: str,
        name: str | None = None,
    ):
        """Args: name: of the task; by default reader.name. See the class."""
        self.reader, self.config, self.network = reader, reader.config, network
        self._number = [head.name for head in network.heads].index(reader.name)
        self.layer = network.heads[self._number]
        self.encoder, self.tokenizer = network.electra, reader.tokenizer
        self.vocab = self.tokenizer.vocab
        self.max_seq_length = reader.config.max_seq_length
        head = reader.head
        most = reader.num_texts if head.reads == "texts" else len(head.fields)
        facts = {
            "vocab_sha256": self.vocab.sha256,
            "max_seq_length": self.config.max_seq_length,
            "eval_batch_size": self.config.eval_batch_size,
        }
        task = name or reader.name
        reading = reader.read_inputs, self._predictions
        super().__init__(origin, task, type(head), *reading, most, facts)

    @property
    def folder(self) -> Path:
        """The directory of its trial."""
        return Path(self.origin).parent

    @property
    def title(self) -> str:
        return f"{self.config.model_name}/{self.folder.name}"

    @property
    def provenance(self) -> dict[str, Any]:
        """Of the weights, for the manifest of an export."""
        step, _ = split_name(Path(self.origin).name)
        return {"objective": "fine-tuned", "step": step, "task": self.task}

    def stored(self, log: Log = print) -> StoredModel:
        """Its encoder, as files hold it; `log` gets notes on its checkpoints."""
        # Exports of a task add its head themselves: no note that it is left out.
        found = readers.find(self.folder, log)
        return read(found, self.config.vocab_file, log=silent)

    @property
    def variables(self) -> list:
        """Those of the encoder and of the task's head."""
        return self.encoder.variables + self.layer.variables

    def head_outputs(self, inputs: PackedTexts) -> dict[str, Any]:
        """The head's outputs for packed ids, of a tagger at all tokens."""
        hidden = self.encoder(*inputs).sequence_output
        return self.layer.outputs(hidden, inputs._asdict())

    def _predictions(
        self, inputs: Iterable[Input]
    ) -> Iterator[tuple[Input, dict[str, Any]]]:
        # Inputs are read until there are enough sequences for one call.
        prepared, length = self._prepared(inputs), lambda one: max(1, len(one[2]))
        for chunk in chunks(prepared, _CHUNK, length):
            outputs = self.outputs([x for _, _, features in chunk for x in features])
            for one, example, features in chunk:
                rows = list(itertools.islice(outputs, len(features)))
                yield one, self.reader.prediction(example, rows)

    def _prepared(self, inputs: Iterable[Input]) -> Iterator[tuple[Input, Any, list]]:
        """Yields each input with its example and the features of its sequences."""
        for number, one in enumerate(inputs):
            example = self.reader.input_example(number, one.fields)
            yield one, example, list(self.reader.featurize(example, False))

    def outputs(self, features: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The outputs of the task's head for each sequence, in order."""
        from electra_tf.finetune.batches import head_outputs

        if not features:  # all texts are empty
            return iter(())
        rows = [(self.reader, one) for one in features]
        length = self.max_seq_length
        arrays = preprocessing.pack(rows, {self.reader: self._number}, length)
        store = preprocessing.FeatureStore(arrays, len(self.network.heads))
        return head_outputs(self.network, self.reader, store)
