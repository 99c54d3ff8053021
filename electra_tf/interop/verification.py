# SPDX-License-Identifier: Apache-2.0
"""What was written, read again and compared with what it was written from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import networks
from electra_tf.interop.stored_model import StoredModel

TOLERANCE = 1e-5


class Result(NamedTuple):
    """One comparison."""

    quantity: str
    read_by: str  # the library that read and ran the files
    difference: float  # greatest absolute difference
    tolerance: float | None  # None: measured, not judged


class Words(NamedTuple):
    """How another tokenizer does on the words of a vocabulary."""

    different: int
    total: int

    def __str__(self) -> str:
        return f"{self.different} of {self.total} words of the vocabulary get other ids"


def words_tokenized_otherwise(
    stored: StoredModel, encode: Callable[[list[str]], list[list[int]]]
) -> Words:
    """Counts the words of the vocabulary whose ids differ, alone or in capitals.

    Args:
      encode: the other tokenizer: texts to ids, without [CLS] and [SEP].
    """
    from electra_tf.text.tokenization import Tokenizer

    tokenizer = Tokenizer(stored.vocab, *stored.tokenizer_config)
    words = [t for t in stored.vocab.tokens if not t.startswith(("##", "["))]
    texts = [f"{word} {word.upper()}" for word in words]
    pairs = zip(texts, encode(texts), strict=True)
    different = sum(tokenizer.encode(text) != ids for text, ids in pairs)
    return Words(different, len(words))


def fixed_batch(
    vocab_size: int, max_length: int, pad_id: int = 0, types: int = 2
) -> dict[str, np.ndarray]:
    """Four rows of ids with padding and two segments, int32 [4, L]."""
    length = min(max_length, 32)
    rng = np.random.default_rng(6)
    ids = rng.integers(0, vocab_size, (4, length)).astype(np.int32)
    real = np.linspace(length, max(3, length // 3), 4).astype(int)[:, None]
    mask = (np.arange(length) < real).astype(np.int32)
    segments = ((np.arange(length) >= real // 2) * mask).astype(np.int32)
    ids = np.where(mask == 1, ids, pad_id).astype(np.int32)
    return {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": segments % types,
    }


def batch_for(stored: StoredModel) -> dict[str, np.ndarray]:
    """`fixed_batch` for a model."""
    shape = stored.config.model_config()
    return fixed_batch(
        shape.vocab_size, shape.max_position_embeddings, stored.vocab.pad_id
    )


def difference(ours: np.ndarray, theirs: np.ndarray, mask=None) -> float:
    """The greatest absolute difference, infinite for other shapes or no numbers.

    Args:
      mask: [B, L], where the first two axes count; None: everywhere.
    """
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        return float("inf")
    gap = np.abs(ours - theirs)
    if mask is not None:
        gap = gap[np.asarray(mask, bool)]
    worst = float(np.max(gap, initial=0.0))
    return worst if np.isfinite(worst) else float("inf")


def compare(
    prefix: str,
    read_by: str,
    ours: dict[str, np.ndarray],
    theirs: dict[str, np.ndarray],
    mask=None,
    tolerance: float = TOLERANCE,
) -> list[Result]:
    """Results for outputs by name; raises `UserError` (65) beyond the tolerance.

    The tolerance is relative to the greatest value of an output where that exceeds 1.
    """
    results = []
    for name, expected in ours.items():
        found = difference(expected, theirs[name], mask)
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        results.append(Result(f"{prefix}{name}", read_by, found, tolerance * scale))
    require(results)
    return results


def require(results: Iterable[Result]) -> None:
    """Raises `UserError` (65) for the first result beyond its tolerance."""
    for r in results:
        if r.tolerance is not None and not r.difference <= r.tolerance:
            raise UserError(
                f"{r.quantity} as read by {r.read_by} differs by {r.difference:.3g}; "
                f"{r.tolerance:.3g} are allowed.\nNothing was written. Is another "
                "version of that library installed?",
                EXIT_DAMAGED,
            )


def show(results: Iterable[Result], log: Callable[[str], None]) -> None:
    """A line for each comparison."""
    for r in results:
        line = f"{r.read_by}: {r.quantity}, max difference {r.difference:.3g}"
        if r.tolerance is None:
            log(f"measured with {line}")
        else:
            log(f"verified with {line} (allowed {r.tolerance:.3g})")


def tensors(stored: StoredModel, again: StoredModel) -> list[Result]:
    """Every weight and slot and the step, bit by bit."""
    results = []
    for quantity, ours, theirs in (
        ("weights", stored.tensors, again.tensors),
        ("Adam slots", stored.slots, again.slots),
        ("step", {"step": np.array(stored.step)}, {"step": np.array(again.step)}),
    ):
        if ours.keys() != theirs.keys():
            gap = float("inf")
        else:
            gap = max((difference(ours[k], theirs[k]) for k in ours), default=0.0)
        results.append(Result(quantity, "electra_tf", gap, 0.0))
    require(results)
    return results


def outputs(stored: StoredModel, again: StoredModel) -> list[Result]:
    """Hidden states and heads of all networks on a fixed batch."""
    batch = batch_for(stored)
    what = "all" if networks.is_representable(stored) else networks.DISCRIMINATOR
    theirs = networks.split(again, what)
    results = []
    for folder, network in networks.split(stored, what).items():
        results += compare(
            f"{folder}/",
            "electra_tf",
            networks.outputs(network, batch),
            networks.outputs(theirs[folder], batch),
        )
    return results
