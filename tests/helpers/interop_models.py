# SPDX-License-Identifier: Apache-2.0
"""The original's recorded models, as the tests of conversions use them."""

import json
import random
import unicodedata

import numpy as np

from electra_tf.interop import sources
from electra_tf.interop.stored_model import StoredModel
from tests.helpers.runs import GOLDEN

VOCAB = str(GOLDEN / "vocab_tiny.txt")
RUNS = sorted(path.name for path in (GOLDEN / "pretrain").iterdir())
# First and last code point of ten scripts.
SCRIPTS = {
    "latin": (0x41, 0x17F),
    "greek": (0x370, 0x3FF),
    "cyrillic": (0x400, 0x4FF),
    "hebrew": (0x590, 0x5FF),
    "arabic": (0x600, 0x6FF),
    "devanagari": (0x900, 0x97F),
    "thai": (0xE00, 0xE7F),
    "hangul": (0xAC00, 0xAFFF),
    "kana": (0x3040, 0x30FF),
    "cjk": (0x4E00, 0x5FFF),
}


def heads_of(run: str) -> dict:
    """What a checkpoint cannot say."""
    overrides = config_of(run)["model_hparam_overrides"]
    return {"num_attention_heads": overrides["num_attention_heads"]}


def config_of(run: str) -> dict:
    text = (GOLDEN / "pretrain" / run / "config.json").read_text()
    return json.loads(text)["hparams"]


def prefix_of(run: str, checkpoint: str = "init.ckpt") -> str:
    return str(GOLDEN / "pretrain" / run / checkpoint)


def golden(run: str, checkpoint: str = "init.ckpt", **hparams) -> StoredModel:
    """A recorded model, read from the original's checkpoint."""
    hparams = {"model_hparam_overrides": heads_of(run)} | hparams
    return sources.read(
        prefix_of(run, checkpoint), VOCAB, hparams, log=lambda line: None
    )


def recorded(run: str) -> dict[str, np.ndarray]:
    """What the original computed."""
    return dict(np.load(GOLDEN / "pretrain" / run / "forward.npz"))


def inputs(record, corrupted: bool) -> dict[str, np.ndarray]:
    """What the discriminator (or the generator) of a recording has read."""
    ids = record["corrupted_input_ids" if corrupted else "masked_input_ids"]
    names = ("input_mask", "segment_ids")
    return {"input_ids": ids, **{name: record[name] for name in names}}


def at_masked(record, values) -> np.ndarray:
    """Rows of [B, L, ...] at the masked positions."""
    positions = record["masked_lm_positions"]
    return values[np.arange(len(positions))[:, None], positions]


def strings(keep=lambda character: True, count: int = 1000) -> list[str]:
    """Strings in ten scripts, of characters that every Unicode table in use knows.

    Without capital sigma: at the end of a word Python, and so the original, makes it a
    final small one; other libraries do not (docs/checkpoints.md).

    Args:
      keep: which characters to use; a script without any is left out.
    """
    old = unicodedata.ucd_3_2_0
    rng = random.Random(6)
    scripts = []
    for first, last in SCRIPTS.values():
        block = map(chr, range(first, last + 1))
        letters = [c for c in block if old.category(c) != "Cn" and c != "Σ" and keep(c)]
        if letters:
            scripts.append(letters)
    return [
        "".join(
            rng.choice(scripts[i % len(scripts)])
            if rng.random() < 0.8
            else rng.choice(" .,-!\n")
            for _ in range(30)
        )
        for i in range(count)
    ]
