# SPDX-License-Identifier: Apache-2.0
"""Writes a SavedModel into a versioned directory, whole and verified or not at all."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.export import warmup
from electra_tf.export.exported import Check, Export, Source
from electra_tf.storage.files import PARTIAL, cannot_write, sync_directory
from electra_tf.storage.manifest import MANIFEST, checksums
from electra_tf.storage.versions import installed_versions

_PACKAGES = ("electra-tf", "tensorflow", "tensorflow-text", "keras")

# Above it, a SavedModel is not the model. bfloat16 has 8 bits, and rounds elsewhere
# where TensorFlow puts operations together.
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 0.25}


def write(
    export: Export,
    source: Source,
    what: str,
    output_dir: str | os.PathLike,
    exact_checks: Sequence[Check] = (),
) -> Path:
    """Writes `<output_dir>/<what>/<next version>/` as TensorFlow Serving wants it.

    The files are loaded again and compared with the model before the directory gets
    its name; manifest.json holds the greatest difference, sizes and checksums.

    Args:
      exact_checks: what the model says in float32; how much the SavedModel differs is
        only noted.

    Returns the directory.  Raises UserError: 73 when it cannot be written, 65 when
    what was written does not compute what the model does.
    """
    base = Path(output_dir) / what
    partial = None
    try:
        base.mkdir(parents=True, exist_ok=True)
        final = base / str(_next_version(base))
        partial = final.with_name(final.name + PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        _save(export, source, what, partial)
        tolerance = TOLERANCE[source.facts.get("precision", "float32")]
        loaded = tf.saved_model.load(str(partial))
        differences = _differences(loaded, export.checks)
        _require_within(differences, tolerance, partial)
        content = _manifest(export, source, what, partial) | {
            "max_difference": max(differences.values()),
            "differences": differences,
            "tolerance": tolerance,
        }
        if exact_checks:
            lost = _differences(loaded, exact_checks)
            content["differences_from_float32"] = lost
        _write_durably(partial / MANIFEST, content)
        os.replace(partial, final)
        sync_directory(base)
    except OSError as error:
        raise cannot_write(base, error) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
    return final


def _write_durably(path: Path, content: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as f:
        f.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        f.flush()
        os.fsync(f.fileno())


def _next_version(base: Path) -> int:
    versions = [int(p.name) for p in base.iterdir() if p.name.isdecimal()]
    return max(versions, default=0) + 1


def _save(export: Export, source: Source, what: str, partial: Path) -> None:
    # The vocabulary is in the graph; as an asset it is there for people and tools.
    partial.mkdir()
    vocab_file = partial / "vocab.txt"
    text = "".join(f"{token}\n" for token in source.vocab.tokens)
    vocab_file.write_text(text, encoding="utf-8")
    export.root.vocab_file = tf.saved_model.Asset(str(vocab_file))
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)  # TensorFlow reports each step of a save.
    try:
        tf.saved_model.save(export.root, str(partial), signatures=export.signatures)
        vocab_file.unlink()
        requests = [(check.signature, check.inputs) for check in export.checks]
        warmup.write(str(partial), what, requests)
    except tf.errors.OpError as error:
        raise OSError(None, error.message.splitlines()[0]) from error
    finally:
        logging.set_verbosity(verbosity)
    for path in partial.rglob("*"):
        if path.is_file():
            with open(path, "rb") as f:
                os.fsync(f.fileno())


def _differences(loaded, checks: Sequence[Check]) -> dict[str, float]:
    """The greatest difference of each output, as "signature/output"."""
    found: dict[str, float] = {}
    for check in checks:
        inputs = {name: tf.constant(x) for name, x in check.inputs.items()}
        outputs = loaded.signatures[check.signature](**inputs)
        for name, expected in check.expected.items():
            key = f"{check.signature}/{name}"
            found[key] = difference(outputs[name].numpy(), expected)
    return found


def _require_within(found: dict[str, float], tolerance: float, directory: Path) -> None:
    for key, gap in found.items():
        if not gap <= tolerance:
            raise UserError(
                f"the SavedModel written to {directory} is not the model: its {key} "
                f"differs by {gap:.3g}, {tolerance:.3g} are allowed.\nThis is a defect "
                "of the export; nothing was put in place.",
                EXIT_DAMAGED,
            )


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """The greatest difference; infinite for another shape, text or number.

    Absolute, and relative to expected numbers beyond 1.
    """
    if actual.shape != expected.shape:
        return float("inf")
    if expected.dtype.kind != "f":
        same = np.array_equal(actual.astype(object), expected.astype(object))
        return 0.0 if same else float("inf")
    gap = np.abs(actual.astype(np.float64) - expected)
    gap = np.max(gap / np.maximum(1.0, np.abs(expected)), initial=0.0)
    return float(gap) if np.isfinite(gap) else float("inf")


def _manifest(
    export: Export, source: Source, what: str, partial: Path
) -> dict[str, Any]:
    return {
        "format": "saved_model",
        "what": what,
        "model": source.name,
        "objective": source.objective,
        "max_seq_length": source.max_seq_length,
        "vocab_sha256": source.vocab.sha256,
        **source.tokenizer_config._asdict(),
        **export.facts,
        **source.facts,
        "versions": installed_versions(*_PACKAGES),
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "files": checksums(partial),
    }
