# SPDX-License-Identifier: Apache-2.0
"""Keras from end to end: text -> `fit` -> a .keras file -> a classifier on the encoder.

  python examples/keras_fit.py --steps 300

Pre-trains a small ELECTRA on the novels beside this file, and fine-tunes its encoder to
tell two of their authors apart. Some minutes on two CPU cores.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import electra_tf as et

CORPUS = Path(__file__).parent / "corpus"
LENGTH = 64


def pretrain(directory: Path, steps: int) -> et.Vocabulary:
    """Trains with `fit`, saves electra.keras, and returns the vocabulary."""
    vocab = et.train_vocabulary(CORPUS, 4096, directory / "vocab.txt")
    records = et.build_dataset(CORPUS, vocab, directory / "data", max_seq_length=LENGTH)
    config = et.PretrainingConfig(
        max_seq_length=LENGTH,
        train_batch_size=32,
        num_train_steps=steps,
        num_warmup_steps=steps // 10,
        learning_rate=1e-3,
        model_hparam_overrides={"hidden_size": 128, "num_hidden_layers": 2},
        generator_hidden_size=0.5,
    )
    model = et.build_pretrainer(config, vocab)
    model.compile(et.create_optimizer(config))
    model.fit(
        et.make_dataset(records, config, vocab),
        steps_per_epoch=steps // 3,
        epochs=3,
        validation_data=et.make_dataset(records, config, vocab, num_batches=5),
    )
    model.save(directory / "electra.keras")
    return vocab


def passages(vocab: et.Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Token ids [N, L] of passages of two novels, and which novel each is from."""
    tokenizer, rows, labels = et.Tokenizer(vocab), [], []
    for label, path in enumerate(sorted(CORPUS.glob("*.txt"))[:2]):
        ids = tokenizer.encode(path.read_text(encoding="utf-8")[:200_000])
        parts = np.array(ids[: len(ids) // LENGTH * LENGTH]).reshape(-1, LENGTH)
        parts[:, 0], parts[:, -1] = vocab.cls_id, vocab.sep_id
        rows.append(parts)
        labels += [label] * len(parts)
    return np.concatenate(rows), np.array(labels)


def main() -> None:
    """Trains both, and prints the accuracy on passages that the second did not see."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output-dir", type=Path, default=Path("keras_output"))
    args = parser.parse_args()
    vocab = pretrain(args.output_dir, args.steps)
    electra = keras.saving.load_model(args.output_dir / "electra.keras").electra
    ids = keras.Input((LENGTH,), dtype="int32")
    scores = keras.layers.Dense(2)(electra(ids).sequence_output[:, 0])
    classifier = keras.Model(ids, scores)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.Adam(3e-4), loss, metrics=["accuracy"])
    x, y = passages(vocab)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    held_out = len(y) // 5
    classifier.fit(x[held_out:], y[held_out:], epochs=3, batch_size=32)
    _, accuracy = classifier.evaluate(x[:held_out], y[:held_out], verbose=0)
    print(f"Accuracy on held-out passages: {accuracy:.2f}")


if __name__ == "__main__":
    main()
