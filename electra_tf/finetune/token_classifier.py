# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's ElectraForTokenClassification as a fine-tuned trial is read.

Its head is computed as a tagger's is here. That of texts has a layer more, and what
`export_model.py` writes for it is read as a trial, not from there.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from electra_tf import startup
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune.own_tasks import make_own_task
from electra_tf.finetune.predictor import TaskPredictor
from electra_tf.finetune.task import TaskFacts
from electra_tf.finetune.trained import Trained
from electra_tf.interop import huggingface
from electra_tf.interop.networks import CLASSIFIER
from electra_tf.storage import stored_tensors
from electra_tf.storage.manifest import read_json
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary

_NAME = "tags"
_SEGMENTS = "electra/embeddings/token_type_embeddings"
_ENDING = "Classification"


def read(folder: Path) -> TaskPredictor | None:
    """The tagger in a directory of Hugging Face; None for what is no classifier.

    Raises `UserError`: 2 for a head that is computed otherwise there, 65 for damaged
    files.
    """
    if not huggingface.is_directory_of(folder):
        return None
    config = folder / huggingface.CONFIG
    names = read_json(config).get("architectures") if config.is_file() else None
    kind = (names or [""])[0]
    if kind.endswith("ForTokenClassification"):
        return _tagger(folder)
    if kind.endswith((_ENDING, "ForQuestionAnswering", "ForMultipleChoice")):
        raise UserError(
            f"{folder} is an {kind}, whose head cannot be read here, only that of "
            "ElectraForTokenClassification.\nGive the trial that it was exported from, "
            "or fine-tune its encoder (init_checkpoint)."
        )
    return None


def _tagger(folder: Path) -> TaskPredictor:
    settings = huggingface.settings_of(folder, lambda line: None)
    if settings.vocab_file is None or settings.tokenizer_config is None:
        raise UserError(f"{folder} comes without the files of its tokenizer.")
    network = huggingface.read_network(folder)
    if network.head() != CLASSIFIER or not network.labels:
        raise UserError(f"{folder} has no classifier of tokens, or no names of labels.")
    vocab = Vocabulary.load(settings.vocab_file)
    task = {"type": "tagging", "scheme": "plain", "train": "none", "dev": "none"}
    overrides = dataclasses.asdict(network.shape)
    del overrides["vocab_size"]
    hparams = {
        "task_names": [_NAME],
        "tasks": {_NAME: task},
        "vocab_file": settings.vocab_file,
        "do_lower_case": settings.tokenizer_config.do_lower_case,
        "embedding_size": network.embedding_size,
        "model_hparam_overrides": overrides,
        "max_seq_length": network.shape.max_position_embeddings,
    }
    config = FinetuningConfig.from_hparams(str(folder), "model", hparams)
    facts = TaskFacts(_NAME, "tagging", tuple(network.labels))
    tokenizer = Tokenizer(vocab, *settings.tokenizer_config)
    tagger = make_own_task(_NAME, config, tokenizer)
    tagger.stored = facts
    startup.import_tensorflow()
    from electra_tf.finetune.model import build_finetuning_model

    model = build_finetuning_model(config, [facts], dtype="float32")
    head = f"task_specific/{_NAME}/dense/"
    tensors = {k.replace(CLASSIFIER, head): v for k, v in network.tensors.items()}
    # Texts are segment 1 for a tagger here, segment 0 there.
    tensors[_SEGMENTS] = np.repeat(tensors[_SEGMENTS][:1], len(tensors[_SEGMENTS]), 0)
    weights = stored_tensors.of_arrays(str(folder), tensors)
    weights.assign_to({v.path: v.value for v in model.variables})
    return TaskPredictor(Trained(config, vocab, [facts], model, str(folder)), tagger, 0)
