# SPDX-License-Identifier: Apache-2.0
"""Tiny models to export, and a process without electra_tf to use the exports."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from electra_tf.export import saved_model
from electra_tf.inference.pretrained_model import PretrainedModel
from electra_tf.interop.checkpoint import StoredModel
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import (
    SPECIAL_TOKENS,
    TokenizerConfig,
    Vocabulary,
    write_tokens,
)
from tests.helpers.tiny_pretraining import VARIANTS, VOCAB_SIZE, tiny_config, tiny_model

CLIENT = Path(__file__).with_name("saved_model_client.py")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = "the doctor opened giraffe and read it . , ! 中 é ##é is a good bad film book"
NAMES = ("input_word_ids", "input_mask", "input_type_ids")


def tiny_vocabulary(size=VOCAB_SIZE) -> Vocabulary:
    """Spells every word of small letters."""
    tokens = [*SPECIAL_TOKENS, *WORDS.split()]
    tokens += [c for c in LETTERS if c not in tokens]
    tokens += [f"##{c}" for c in LETTERS]
    tokens += [f"unused{i}" for i in range(size - len(tokens))]
    return Vocabulary(tuple(tokens))


def model_of(vocab: Vocabulary, network, step=0) -> PretrainedModel:
    """A loaded model, of weights that no file holds."""
    config, known = network.hparams, {"generator": network.hparams.generator}
    rest = TokenizerConfig(), {}, {}, step, "here", known
    return PretrainedModel(StoredModel(config, vocab, *rest), network)


def tiny_source(variant="electra", vocab=None, **changes) -> PretrainedModel:
    network = tiny_model(variant, **changes)
    source = model_of(vocab or tiny_vocabulary(), network, step=7)
    source.name = variant
    return source


@functools.cache
def shared_source(variant="electra") -> PretrainedModel:
    """A model that tests may look at, not change."""
    return tiny_source(variant, dropout=0.2, layers=2)


def write_part(source: PretrainedModel, what, folder) -> Path:
    """Writes the SavedModel of a part; returns its directory."""
    [what] = saved_model.parts_of(source, what)
    made = {what: saved_model.WHAT[what](source)}
    return saved_model.write_saved_models(made, source, folder)[0]


@functools.cache
def _shared_folder(variant) -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix=f"exported_{variant}_")


@functools.cache
def shared_export(variant, what) -> Path:
    """A SavedModel of that model; made once for all tests of a process."""
    folder = _shared_folder(variant).name
    return write_part(shared_source(variant), what, folder)


def write_run(data: Path, source: PretrainedModel, **hparams) -> Path:
    """Puts the model into a data directory, as the 7th step of a run called tiny."""
    model_dir = data / "models" / "tiny"
    model_dir.mkdir(parents=True)
    write_tokens(data / "vocab.txt", source.vocab.tokens)
    variant = VARIANTS[source.name] | hparams
    tiny_config(**variant).save(str(model_dir / "config.json"))
    weights = {v.path: v.value for v in source.pretrainer.variables}
    weights["global_step"] = tf.Variable(7, dtype=tf.int64)
    Checkpoints(model_dir, log=lambda line: None).save(7, weights)
    return model_dir


class Failed(NamedTuple):
    """A job that ended with an error."""

    traceback: str


def fresh_process(folder: Path, *jobs: tuple[str, dict]) -> list:
    """The answers of jobs of saved_model_client.py, done in a process of their own."""
    answer, order = folder / "answer.json", folder / "order.json"
    content = {"jobs": jobs, "answer": answer}
    order.write_text(json.dumps(content, default=str))
    done = subprocess.run(
        [sys.executable, "-I", str(CLIENT), str(order)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(answer.read_text())
    return [a["done"] if "done" in a else Failed(a["failed"]) for a in answers]
