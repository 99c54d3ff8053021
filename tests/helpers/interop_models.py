# SPDX-License-Identifier: Apache-2.0
"""The original's recorded models, as the tests of conversions use them."""

import functools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from electra_tf.errors import UserError
from electra_tf.interop import readers
from electra_tf.interop.checkpoint import StoredModel
from electra_tf.pretrain import stored
from tests.helpers.runs import GOLDEN

quiet = {"log": lambda line: None}
VOCAB = str(GOLDEN / "vocab_tiny.txt")
RUNS = sorted(path.name for path in (GOLDEN / "pretrain").iterdir())
# Texts on which this tokenizer, that of transformers and that of KerasHub agree.
TEXTS = [
    "The old man, and the sea! DON'T (x) a-b.",
    "Café naïve Über São Ångström",
    "Ελληνικά ΑΒΓ Привет МИР שלום عربي नमस्ते ไทย",
    "中文x東京 ひらがな カタカナ",
    "x" + "a" * 90 + " \t\n 3.14 $5 @home #1",
]


def config_of(run: str) -> dict:
    text = (GOLDEN / "pretrain" / run / "config.json").read_text()
    return json.loads(text)["hparams"]


def heads_of(run: str) -> dict:
    """The hparam that a checkpoint's weights do not show."""
    overrides = config_of(run)["model_hparam_overrides"]
    return {"num_attention_heads": overrides["num_attention_heads"]}


def prefix_of(run: str, checkpoint: str = "init.ckpt") -> str:
    return str(GOLDEN / "pretrain" / run / checkpoint)


@functools.cache
def golden(run: str, checkpoint: str = "init.ckpt") -> StoredModel:
    """A recorded model, read from the original's checkpoint; do not change it."""
    hparams = {"model_hparam_overrides": heads_of(run), "do_lower_case": True}
    return read(prefix_of(run, checkpoint), VOCAB, hparams, slots=True)[0]


def read_model(path, *given, allow_pytorch_bin=False, log=print, **options):
    """The whole model at a path."""
    found = readers.find(path, log, allow_pytorch_bin)
    return stored.read(found, *given, log=log, **options)


def read(path, vocab_file=None, hparams=None, **options) -> tuple[StoredModel, str]:
    """Returns (model, log)."""
    lines = []
    model = read_model(path, vocab_file, hparams, log=lines.append, **options)
    return model, "\n".join(lines)


def refused(path, code: int, *texts: str, vocab_file=VOCAB, hparams=None) -> None:
    """Asserts that a model is not read, with an error of three lines at most."""
    with pytest.raises(UserError) as error:
        read(path, vocab_file, hparams)
    message = str(error.value)
    assert error.value.exit_code == code, message
    assert len(message.splitlines()) <= 3
    assert all(text in message for text in texts), message


def flip_one_bit(file, rng) -> bytes:
    """Damages a file; returns its former content."""
    data = file.read_bytes()
    flipped = bytearray(data)
    flipped[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    file.write_bytes(flipped)
    return data


def change_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_json(path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def assert_same(model: StoredModel, stored: StoredModel) -> None:
    """Asserts equal shapes and vocabularies, and weights that are equal bit by bit."""
    assert_equal_tensors(model.tensors, stored.tensors)
    assert model.vocab.tokens == stored.vocab.tokens
    assert model.config.model_config() == stored.config.model_config()
    if stored.config.generator_kind.has_own_encoders:
        assert model.config.generator_config() == stored.config.generator_config()


def assert_equal_tensors(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def recorded(run: str) -> dict[str, np.ndarray]:
    """The outputs of the original program."""
    return dict(np.load(GOLDEN / "pretrain" / run / "forward.npz"))


def inputs(record, corrupted: bool) -> dict[str, np.ndarray]:
    """The inputs of the discriminator (or the generator) of a recording."""
    ids = record["corrupted_input_ids" if corrupted else "masked_input_ids"]
    names = ("input_mask", "segment_ids")
    return {"input_ids": ids, **{name: record[name] for name in names}}


def at_masked(record, values) -> np.ndarray:
    """Rows of [B, L, ...] at the masked positions."""
    positions = record["masked_lm_positions"]
    return values[np.arange(len(positions))[:, None], positions]
