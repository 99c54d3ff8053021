#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks an exported classifier about texts; electra_tf is not needed.

python3 examples/ask_saved_model.py EXPORT_DIR TEXT [TEXT ...]
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers the ops that read text)


def main(export_dir: str, texts: list[str]) -> None:
    classify = tf.saved_model.load(export_dir).signatures["serving_default"]
    answer = classify(text=tf.constant(texts))
    labels, probabilities = answer["label"].numpy(), answer["probability"].numpy()
    for text, label, probability in zip(texts, labels, probabilities, strict=True):
        print(f"{label.decode()} ({probability:.0%}): {text}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
