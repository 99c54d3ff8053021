# SPDX-License-Identifier: Apache-2.0
"""A unigram generator from the data to a trained, detecting and exported model."""

import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from tests.helpers.building import VOCAB, succeed, write_corpus
from tests.helpers.runs import pretrain, run_script, tiny


@pytest.mark.thorough
def test_trained_continued_detected_and_exported(tmp_path):
    data = tmp_path / "data"
    records = data / "pretrain_tfrecords"
    succeed(write_corpus(data / "text"), records, "--max-seq-length=32")
    hparams = tiny(generator="unigram", vocab_file=str(VOCAB), num_train_steps=5)
    done = pretrain(data, "unigram", hparams)
    assert done.returncode == 0, done.stderr
    done = pretrain(data, "unigram", hparams | {"num_train_steps": 6})
    assert "Continuing from" in done.stdout, done.stderr

    run = data / "models" / "unigram"
    counts = np.loadtxt(records / "token_counts.txt")
    name = "unigram_generator/token_counts"
    kept = tf.train.load_variable(str(run / "model.ckpt-6"), name)
    np.testing.assert_array_equal(kept, counts)

    model = electra_tf.load(run)
    [tokens] = model.detect("the old man went to the sea")
    assert all(0 < token.probability < 1 for token in tokens)
    [corrupted] = model.corrupt("the old man went to the sea " * 3)
    assert any(token.replacement for token in corrupted)

    # Evaluated as another's init_checkpoint, it brings its counts.
    (records / "token_counts.txt").unlink()
    evaluate = {"do_train": False, "do_eval": True, "init_checkpoint": str(run)}
    done = pretrain(data, "evaluated", hparams | evaluate)
    assert done.returncode == 0, done.stderr

    source = ["--data-dir", str(data), "--model-name", "unigram"]
    out = tmp_path / "tf1"
    done = run_script("export_model.py", *source, "--format=tf1", f"--output-dir={out}")
    assert done.returncode == 0, done.stderr
    # What was exported is a unigram model again, without the run's config.
    flags = (
        "--format=saved_model",
        "--what=detector",
        f"--output-dir={tmp_path}/saved",
    )
    done = run_script("export_model.py", f"--init-checkpoint={out}", *flags)
    assert done.returncode == 0, done.stderr
