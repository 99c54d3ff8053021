# SPDX-License-Identifier: Apache-2.0
"""A unigram generator from the data to a trained, detecting and exported model."""

import json

import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from tests.helpers.building import succeed, write_corpus
from tests.helpers.runs import pretrain, run_script, tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data that build_pretraining_dataset.py made."""
    folder = tmp_path_factory.mktemp("data")
    records = folder / "pretrain_tfrecords"
    succeed(write_corpus(folder / "text"), records, "--max-seq-length=32")
    vocab = json.loads((records / "manifest.json").read_text())["vocab"]
    assert vocab["size"] == 1000
    return folder


def hparams(**changes):
    from tests.helpers.building import VOCAB

    return tiny(generator="unigram", vocab_file=str(VOCAB), **changes)


@pytest.mark.thorough
def test_trained_continued_detected_and_exported(data, tmp_path):
    done = pretrain(data, "unigram", hparams(num_train_steps=5))
    assert done.returncode == 0, done.stderr
    done = pretrain(data, "unigram", hparams(num_train_steps=10))
    assert "Continuing from" in done.stdout, done.stderr

    run = data / "models" / "unigram"
    counts = np.loadtxt(data / "pretrain_tfrecords" / "token_counts.txt")
    kept = tf.train.load_variable(
        str(run / "model.ckpt-10"), "unigram_generator/token_counts"
    )
    np.testing.assert_array_equal(kept, counts)

    model = electra_tf.load(run)
    [tokens] = model.detect("the old man went to the sea")
    assert all(0 < token.probability < 1 for token in tokens)
    [corrupted] = model.corrupt("the old man went to the sea " * 3)
    assert any(token.replacement for token in corrupted)

    # Evaluated as another's init_checkpoint, it brings its counts.
    counted = data / "pretrain_tfrecords" / "token_counts.txt"
    hidden = counted.rename(data / "hidden.txt")
    evaluate = {"do_train": False, "do_eval": True, "init_checkpoint": str(run)}
    done = pretrain(data, "evaluated", hparams(**evaluate))
    assert done.returncode == 0, done.stderr
    hidden.rename(counted)

    source = ["--data-dir", str(data), "--model-name", "unigram"]
    out = tmp_path / "tf1"
    done = run_script("export_model.py", *source, "--format=tf1", f"--output-dir={out}")
    assert done.returncode == 0, done.stderr
    # What was exported is a unigram model again, without the run's config.
    done = run_script(
        "export_model.py",
        f"--init-checkpoint={out}",
        "--format=saved_model",
        "--what=detector",
        f"--output-dir={tmp_path / 'saved'}",
    )
    assert done.returncode == 0, done.stderr
    done = run_script(
        "export_model.py",
        *source,
        "--format=huggingface",
        f"--output-dir={tmp_path / 'hf'}",
    )
    assert done.returncode == 2
    assert "unigram generator" in done.stderr and "--what discriminator" in done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"generator": "unigram"},
        {"rare_mask_power": 0.5, "repeated_masks": "fixed"},
    ],
)
def test_data_without_counts_are_refused_with_the_way_to_get_them(tiny_data, changes):
    done = pretrain(tiny_data, "no_counts", tiny(**changes), "--dry-run")
    assert done.returncode == 2
    assert "token_counts.txt not found" in done.stderr
    assert "build_pretraining_dataset.py" in done.stderr
    assert "Traceback" not in done.stderr
