# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face with the head of a task, read as fine-tuned trials are.

What transformers' files do not say (columns, whether questions may have no answer, how
windows are cut) stands in the manifest of what `export_model.py` writes.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import startup
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.console import say_nothing
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune import registry
from electra_tf.finetune.classification import MultilabelTask
from electra_tf.finetune.inputs import Columns, shown
from electra_tf.finetune.task import TaskFacts
from electra_tf.inference.predictor import FinetunedModel, TaskPredictor
from electra_tf.interop import huggingface
from electra_tf.interop.checkpoint import fit_rows
from electra_tf.interop.huggingface import ARCHITECTURES
from electra_tf.interop.networks import CLASSIFIER, EMBEDDINGS, TEXT_CLASSIFIER, Network
from electra_tf.storage import checkpoints
from electra_tf.storage.manifest import MANIFEST, read_json
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary

_SEGMENTS = EMBEDDINGS + "token_type_embeddings"
_ENDINGS = ("ForTokenClassification", "ForSequenceClassification")
_ENDINGS += ("ForQuestionAnswering",)
# Kind of head -> what transformers calls the problem.
PROBLEMS = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}
# Settings that predictions follow from, beside the weights.
_QA_HPARAMS = ("max_query_length", "doc_stride", "max_answer_length", "n_best_size")
_QA_HPARAMS += ("qa_na_threshold",)
_LONGEST = 512  # tokens, whatever the tokenizer's settings say


def settings_of(facts: TaskFacts, config: FinetuningConfig) -> dict[str, Any]:
    """What a manifest says of a task, so that predictions are those of its trial."""
    found: dict[str, Any] = {"hparams": {"max_seq_length": config.max_seq_length}}
    if facts.kind != "qa":
        return found | registry.table_of(facts, config)
    usual = "offsets" if facts.name in config.tasks else "original"
    found["hparams"] |= {name: getattr(config, name) for name in _QA_HPARAMS}
    found["hparams"]["answer_text"] = config.answer_text or usual
    return found | {"has_impossible": facts.has_impossible}


class _Texts(registry.TextTask):
    """Texts, or pairs where the input has them and the model does not say.

    Attributes:
      choices: the columns that the model was trained on, if it says so.
    """

    choices: Sequence[Columns] = ()

    @property
    def columns(self) -> list[Columns]:
        """Where texts may stand in a table."""
        return list(self.choices) or [("text", "text_b"), ("text",)]

    def answer(self, row: dict[str, Any], form: str = ".3f") -> str:
        """A label's name; or the number, since the head has the task's scale."""
        if self.labels:
            return super().answer(row, form)
        return format(float(row["predictions"]), form)


class _Topics(_Texts, MultilabelTask):
    """Texts with any number of classes."""


_TASKS = {
    "classification": _Texts,
    "multilabel": _Topics,
    "regression": _Texts,
    "tagging": registry.TaggingTask,
    "qa": registry.qa.QATask,
}


def read(folder: Path) -> TaskPredictor | None:
    """The model in a directory of Hugging Face; None for one without a task's head.

    Raises `UserError`: 65 for damaged files.
    """
    if not huggingface.is_directory_of(folder):
        return None
    path = folder / huggingface.CONFIG
    config = read_json(path) if path.is_file() else {}
    architecture = (config.get("architectures") or [""])[0]
    return _predictor(folder, config) if architecture.endswith(_ENDINGS) else None


def _predictor(folder: Path, config: Mapping[str, Any]) -> TaskPredictor:
    found = huggingface.info(folder, say_nothing)
    if found.vocab_file is None or found.tokenizer_config is None:
        raise UserError(f"{folder} comes without the files of its tokenizer.")
    vocab = Vocabulary.load(found.vocab_file)
    network = huggingface.read_network(folder)
    kind = _kind_of(folder, network, config)
    count = len(network.tensors[f"{network.head()}bias"])
    labels = () if kind in ("regression", "qa") else _labels(folder, config, count)
    manifest = folder / MANIFEST
    said = read_json(manifest).get("task", {}) if manifest.is_file() else {}
    choices = [tuple(columns) for columns in said.get("columns", ())]
    length = huggingface.max_length(folder) or _LONGEST
    length = min(length, _LONGEST, network.shape.max_position_embeddings)
    hparams = {
        "task_names": [kind],
        "tasks": {kind: _description(kind, said, choices)},
        "vocab_file": found.vocab_file,
        "do_lower_case": found.tokenizer_config.do_lower_case,
        "embedding_size": network.embedding_size,
        "model_hparam_overrides": network.shape.overrides(),
        "max_seq_length": length,
        "max_query_length": min(64, length // 4),
        "n_best_size": min(20, length),
        "joint_prediction": False,
        "answerable_classifier": False,
        "qa_na_threshold": 0.0,  # there, too
    }
    hparams |= said.get("hparams", {})
    config = FinetuningConfig.from_hparams(str(folder), "model", hparams)
    task = _TASKS[kind](kind, config, Tokenizer(vocab, *found.tokenizer_config))
    task.choices = choices
    task.identity = tuple(said.get("identity", ("id",)))
    task.word_column = said.get("words", "words")
    facts = TaskFacts(kind, kind, labels, getattr(task, "num_texts", 1))
    task.stored = facts
    startup.import_tensorflow()
    from electra_tf.finetune.model import build_finetuning_model

    spec = facts.head._replace(has_hidden_layer=kind in PROBLEMS)
    head = types.SimpleNamespace(name=kind, head=spec)
    model = build_finetuning_model(config, [head], dtype="float32")
    weights = checkpoints.of_arrays(str(folder), _tensors(network, kind))
    weights = fit_rows(weights, vocab)
    weights.assign_to({v.path: v.value for v in model.variables})
    return TaskPredictor(
        FinetunedModel(config, vocab, [facts], model, str(folder)), task, 0
    )


def _kind_of(folder: Path, network: Network, config: Mapping[str, Any]) -> str:
    """The kind of head that config.json and the weights agree on."""
    theirs, [said] = ARCHITECTURES[network.head()], config["architectures"][:1]
    if not said.endswith(theirs.removeprefix("Electra")):
        raise UserError(
            f"{folder / huggingface.CONFIG} says {said}, the weights beside it are "
            f"those of {theirs}.",
            EXIT_DAMAGED,
        )
    if network.head() != TEXT_CLASSIFIER:
        return "tagging" if network.head() == CLASSIFIER else "qa"
    count = len(network.tensors[f"{TEXT_CLASSIFIER}bias"])
    usual = PROBLEMS["regression" if count == 1 else "classification"]
    problem = config.get("problem_type") or usual
    for kind, name in PROBLEMS.items():
        if name == problem and (count == 1 or kind != "regression"):
            return kind
    raise UserError(
        f"{folder / huggingface.CONFIG}: problem_type is {problem!r} with {count} "
        f"outputs; read here are {', '.join(PROBLEMS.values())} (with one)."
    )


def _labels(folder: Path, config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """The names of the classes, in the order of the outputs."""
    places = [str(i) for i in range(count)]
    said = config.get("id2label") or {place: f"LABEL_{place}" for place in places}
    is_whole = isinstance(said, dict) and said.keys() == {*places}
    if not is_whole or len({*map(str, said.values())}) != count:
        raise UserError(
            f"{folder / huggingface.CONFIG}: id2label is {shown(said)}, which does not "
            f"give each of {count} outputs a name of its own.",
            EXIT_DAMAGED,
        )
    return tuple(str(said[place]) for place in places)


def _description(kind: str, said, choices: Sequence[Columns]) -> dict[str, Any]:
    """As the hparam `tasks` has it."""
    found = {"type": kind, "train": "none", "dev": "none"}
    if kind in PROBLEMS:
        columns = choices[0] if choices else ("text", "text_b")
        names = zip(("text_a", "text_b"), columns, strict=False)
        return found | dict(names) | {"label": "label"}
    if kind == "qa":
        return found | {"has_impossible": said.get("has_impossible", True)}
    return found | {"scheme": "plain"}


def _tensors(network: Network, kind: str) -> dict[str, np.ndarray]:
    """The weights by the names that a FinetuningModel has for them."""
    found, scope = dict(network.tensors), f"task_specific/{kind}/"
    if kind in PROBLEMS:
        layers = {"hidden": f"{CLASSIFIER}dense/", "dense": TEXT_CLASSIFIER}
    else:
        layers = {"dense": network.head()}
    for ours, theirs in layers.items():
        for part in ("kernel", "bias"):
            found[f"{scope}{ours}/{part}"] = found.pop(f"{theirs}{part}")
    if kind == "tagging":
        # Texts are segment 1 for a tagger here, segment 0 there.
        rows = len(found[_SEGMENTS])
        found[_SEGMENTS] = np.repeat(found[_SEGMENTS][:1], rows, 0)
    if kind == "qa":
        for part in ("kernel", "bias"):
            both = found.pop(f"{scope}dense/{part}")
            found[f"{scope}dense/{part}"] = both[..., :1]
            found[f"{scope}dense_1/{part}"] = both[..., 1:]
    return found
