# SPDX-License-Identifier: Apache-2.0
"""The settings of a run's tokenizer cannot change, and the model keeps them."""

import json
import shutil

import pytest

import electra_tf
from electra_tf.errors import UserError
from electra_tf.text.tokenizer_config import TokenizerConfig
from tests.helpers.runs import TINY, pretrain, run_script, tiny, write_tiny_data

KEPT = {"do_lower_case": True, "strip_accents": False}


@pytest.fixture(scope="module")
def begun(pretrained, tmp_path_factory):
    """A data directory with models/electra, a finished run of TINY."""
    folder = tmp_path_factory.mktemp("run") / "data"
    return shutil.copytree(pretrained("electra"), folder)


@pytest.fixture(scope="module")
def others(begun):
    """Data that were built with the same vocabulary and --no-strip-accents."""
    corpus = begun / "corpus"
    corpus.mkdir()
    words = [f"w{i % 55}" for i in range(4000)]
    lines = [" ".join(words[i : i + 10]) for i in range(0, len(words), 10)]
    (corpus / "text.txt").write_text("\n".join(lines))
    places = f"--vocab-file={begun}/vocab.txt", f"--output-dir={begun}/others"
    flags = f"--corpus-dir={corpus}", "--max-seq-length=32", "--no-strip-accents"
    built = run_script("build_pretraining_dataset.py", *places, *flags)
    assert built.returncode == 0, built.stderr
    return str(begun / "others" / "pretrain_data.tfrecord*")


@pytest.mark.parametrize("read", ["trained_on", "a_phase", "evaluated", "sampled"])
def test_data_of_other_settings_are_refused_at_every_start(begun, others, read):
    parts = [{"num_train_steps": 12}, {"num_train_steps": 1}]
    changes = {
        "trained_on": {"num_train_steps": 13, "pretrain_tfrecords": others},
        "a_phase": {
            "num_train_steps": 13,
            "phases": [parts[0], parts[1] | {"pretrain_tfrecords": others}],
        },
        "evaluated": {"do_train": False, "do_eval": True, "eval_tfrecords": others},
        "sampled": {"sample_steps": 1, "eval_tfrecords": others},
    }[read]
    done = pretrain(begun, "electra", TINY | changes)
    assert done.returncode == 2, done.stdout
    assert f"{begun}/others were built uncased, accents kept" in done.stderr
    assert "ask for text that is uncased, accents stripped" in done.stderr


def test_a_run_keeps_its_recorded_settings(tmp_path):
    data = write_tiny_data(tmp_path / "data")
    hparams = tiny(num_train_steps=2, num_eval_steps=1)
    beside, run = data / "vocab.txt.json", data / "models" / "kept"
    beside.write_text(json.dumps(KEPT))
    done = pretrain(data, "kept", hparams)
    assert done.returncode == 0, done.stderr
    prefix = run / "model.ckpt-2"
    kept = TokenizerConfig(**KEPT)
    # Lost when the vocabulary was copied: they are still what the run has learned by.
    beside.unlink()
    for place in (run, prefix):
        assert electra_tf.load(place).tokenizer.config == kept
    for changes in ({"num_train_steps": 3}, {"do_train": False, "do_eval": True}):
        done = pretrain(data, "kept", hparams | changes)
        assert done.returncode == 2, done.stdout
        assert f"{prefix} was trained on text that is {kept}" in done.stderr
    # Replaced by others.
    beside.write_text(json.dumps(KEPT | {"strip_accents": True}))
    with pytest.raises(UserError, match="was trained on text that is uncased, acc"):
        electra_tf.load(run)
