# SPDX-License-Identifier: Apache-2.0
"""A fine-tuned model to export."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.export import signatures
from electra_tf.export.request import ExportRequest
from electra_tf.export.signatures import PROBES, Check, ExportedModel, Servable, encoded
from electra_tf.finetune.results import CONFIG, hparams_in
from electra_tf.finetune.task import ServedModel, TaskFacts
from electra_tf.inference.finetuned import TaskPredictor, predictor_of, read_trial
from electra_tf.paths import escape
from electra_tf.storage.manifest import split_name
from electra_tf.storage.mirror import bring_files, bring_model
from electra_tf.text.tf_packing import EncoderInputs
from electra_tf.text.tf_tokenization import TokensInText
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import resolve_settings

_TRIAL = re.compile(r"_[0-9]+$")  # ends the name of its folder; a copy's goes on


class ExportedTask(NamedTuple):
    """A fine-tuned model and one task of it."""

    source: ExportedModel
    facts: TaskFacts
    config: FinetuningConfig
    folder: Path  # of the trial
    predictor: TaskPredictor  # the model in Python

    @property
    def variables(self) -> list:
        """Those of the encoder and of the task's head."""
        return self.source.pretrainer.electra.variables + self._head.variables

    @property
    def _head(self):
        heads = self.source.pretrainer.heads
        return next(head for head in heads if head.name == self.facts.name)

    @property
    def settings(self) -> dict[str, Any]:
        """What predictions depend on beside the weights, for a manifest."""
        return self.predictor.reader.settings()

    def servable(self) -> Servable:
        """The content of a SavedModel."""
        source, head = self.source, self._head.head
        model = ServedModel(
            self.facts, self.config, source.tf_tokenizer(), self.outputs
        )
        specs = [
            tf.TensorSpec(shape, tf.string, name=name)
            for name, shape in head.text_shapes(self.facts).items()
        ]

        @tf.function(autograph=False, input_signature=specs)
        def of_texts(*texts):
            pairs = zip(texts, specs, strict=True)
            texts = [tf.ensure_shape(text, spec.shape) for text, spec in pairs]
            return head.answer_texts(model, *texts)

        asked = head.probes(self.facts, PROBES)
        inputs = {name: encoded(texts) for name, texts in asked.items()}
        in_python = model._replace(tokenizer=_EagerTokenizer(source.tokenizer()))
        expected = head.answer_texts(in_python, *map(tf.constant, inputs.values()))
        # In half precision the best change with the order of the operations.
        is_exact = source.facts["precision"] == "float32"
        expected = {
            name: value.numpy()
            for name, value in expected.items()
            if is_exact or value.dtype.is_floating
        }
        checks = [Check("serving_default", inputs, expected)]
        facts = {"type": self.facts.kind, "labels": list(self.facts.labels)}
        facts |= self.settings
        ids = functools.partial(head.answer_ids, model)
        return signatures.servable(source, self.variables, of_texts, ids, checks, facts)

    def outputs(self, inputs: EncoderInputs) -> dict[str, tf.Tensor]:
        """The head's outputs, of a tagger at all tokens."""
        features = {"input_mask": inputs.mask, "segment_ids": inputs.type_ids}
        hidden = self.source.pretrainer.electra(*inputs).sequence_output
        return self._head.outputs(hidden, features)


class _EagerTokenizer:
    """A `Tokenizer` in place of a `TFTokenizer`, outside of graphs."""

    def __init__(self, tokenizer: Tokenizer):
        self.vocab, self._tokenizer = tokenizer.vocab, tokenizer

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.tokenize_with_offsets(texts).ids

    def tokenize_with_offsets(self, texts: tf.Tensor) -> TokensInText:
        """Without surfaces."""
        ids, starts, ends = [], [], []
        for text in texts.numpy():
            pieces, offsets = self._tokenizer.encode_with_offsets(text.decode())
            ids.append(pieces)
            starts.append([start for start, _ in offsets])
            ends.append([end for _, end in offsets])
        found = (tf.ragged.constant(x, tf.int32, 1) for x in (ids, starts, ends))
        return TokensInText(*found, None)


def trial_dir_of(request: ExportRequest) -> Path:
    """The directory of the fine-tuned model that export_model.py was asked for.

    Raises `UserError` when a run has none for the task, or several, and for hparams.
    """
    if request.hparams:
        raise UserError(
            f"--hparams does not go with --what {request.what}: a fine-tuned model has "
            f"its own, in {CONFIG} of its folder."
        )
    if request.init_checkpoint:
        return Path(request.init_checkpoint)
    bring_model(request.model_dir)
    parent = Path(request.model_dir) / "finetuning_models"
    tasks = {
        path.parent: hparams_in(path.parent).get("task_names", [])
        for path in map(Path, bring_files(f"{escape(str(parent))}/*/{CONFIG}"))
        if _TRIAL.search(path.parent.name)
    }
    found = [folder for folder, names in tasks.items() if request.what in names]
    if len({folder.name.rpartition("_")[0] for folder in found}) == 1:
        return min(found, key=lambda folder: int(folder.name.rpartition("_")[2]))
    if found:
        names = ", ".join(folder.name for folder in found)
        raise UserError(
            f"{parent} holds several models for {request.what}: {names}.\n"
            "Give one as --init-checkpoint, without --data-dir and --model-name."
        )
    there = sorted({name for names in tasks.values() for name in names})
    raise UserError(
        f"--what {request.what!r}: no part of a pre-trained model, and no task that "
        f"{request.model_dir} was fine-tuned on ({', '.join(there) or 'none'})."
    )


def task_of(request: ExportRequest, precision: str = "float32") -> ExportedTask:
    """The task that export_model.py was asked for."""
    folder = trial_dir_of(request)
    return read_task(folder, request.what, precision, request.vocab_file)


def read_task(
    folder: Path, task: str, precision: str = "float32", vocab_file: str | None = None
) -> ExportedTask:
    """A fine-tuned model with its newest weights.

    Args:
      folder: of a trial, `<data-dir>/models/<model-name>/finetuning_models/<...>_1`.
      task: one of its tasks.
      vocab_file: the vocabulary, if it is not in the data directory.

    Raises `UserError`: 2 for anything else, 65 for damaged checkpoints.
    """
    trained = read_trial(folder, task, precision, vocab_file=vocab_file)
    folder, config, vocab = folder.absolute(), trained.config, trained.vocab
    step, _ = split_name(Path(trained.origin).name)
    source = ExportedModel(
        name=f"{config.model_name}/{folder.name}",
        vocab=vocab,
        tokenizer_config=resolve_settings(vocab, do_lower_case=config.do_lower_case),
        max_seq_length=config.max_seq_length,
        pretrainer=trained.model,
        facts={"step": step, "task": task, "precision": precision},
    )
    predictor = predictor_of(trained, folder, task)
    return ExportedTask(source, trained.facts_of(task), config, folder, predictor)
