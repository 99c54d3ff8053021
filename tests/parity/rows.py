# SPDX-License-Identifier: Apache-2.0
"""Rows of the report, and the files of a recording."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import numpy as np

from electra_tf.text.vocabulary import Vocabulary


class Row(NamedTuple):
    """One compared quantity: its worst deviation, and the tolerance there."""

    quantity: str
    deviation: float
    tolerance: float


def compare(quantity: str, ours, golden, rtol: float = 0.0, atol: float = 0.0) -> Row:
    """The element that uses most of its tolerance `atol + rtol * |golden|`."""
    ours, golden = np.asarray(ours, np.float64), np.asarray(golden, np.float64)
    if ours.shape != golden.shape:
        return Row(f"{quantity}: shape {ours.shape} for {golden.shape}", np.inf, 0.0)
    if not golden.size:
        return Row(quantity, 0.0, atol)
    deviation = np.abs(ours - golden)
    deviation = np.where(np.isfinite(ours), deviation, np.inf)
    allowed = atol + rtol * np.abs(golden)
    worst = np.argmax(deviation / np.maximum(allowed, 1e-30))
    return Row(quantity, float(deviation.flat[worst]), float(allowed.flat[worst]))


def forward_row(quantity: str, ours, golden) -> Row:
    return compare(quantity, ours, golden, rtol=1e-5, atol=2e-5)


def equal(quantity: str, ours, golden) -> Row:
    """For values that must be equal."""
    return Row(quantity, float(ours != golden), 0.0)


def read_json(*parts: str) -> Any:
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


def vocabulary(directory: str, name: str = "vocab_tiny.txt") -> Vocabulary:
    """The vocabulary in `directory` or the nearest one above."""
    folder = os.path.abspath(directory)
    while not os.path.exists(os.path.join(folder, name)):
        parent = os.path.dirname(folder)
        if parent == folder:
            raise FileNotFoundError(f"{name} in {directory} or above")
        folder = parent
    return Vocabulary.load(os.path.join(folder, name))
