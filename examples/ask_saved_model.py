#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks an exported classifier about texts; electra_tf is not needed.

python3 examples/ask_saved_model.py EXPORT_DIR TEXT [TEXT ...]

EXPORT_DIR is a SavedModel, or the folder of its versions, whose newest one is asked.
No setting of TensorFlow's turns off the notices that its import prints: 2>/dev/null.
"""

import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers the ops that read text)


def main(export_dir: str, texts: list[str]) -> None:
    classify = tf.saved_model.load(model_in(export_dir)).signatures["serving_default"]
    takes, gives = classify.structured_input_signature[1], classify.structured_outputs
    if set(takes) != {"text"} or not {"label", "probability"} <= set(gives):
        sys.exit(
            f"error: {export_dir} does not classify single texts: it takes "
            f"{', '.join(sorted(takes))} and gives {', '.join(sorted(gives))}."
        )
    answer = classify(text=tf.constant(texts))
    labels, probabilities = answer["label"].numpy(), answer["probability"].numpy()
    for text, label, probability in zip(texts, labels, probabilities, strict=True):
        print(f"{label.decode()} ({probability:.0%}): {text}")


def model_in(export_dir: str) -> str:
    """The directory itself, or that of its newest version."""
    versions = (p.parent for p in Path(export_dir).glob("*/saved_model.pb"))
    newest = max((int(p.name) for p in versions if p.name.isdigit()), default=None)
    found = Path(export_dir) if newest is None else Path(export_dir, str(newest))
    if not (found / "saved_model.pb").is_file():
        sys.exit(f"error: {export_dir} has no SavedModel.")
    return str(found)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
