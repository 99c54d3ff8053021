# SPDX-License-Identifier: Apache-2.0
"""How a run's text was tokenised: it stays so, and whoever takes the model is told."""

import json
import shutil

import pytest

import electra_tf
from electra_tf.errors import UserError
from electra_tf.text.tokenizer_config import TokenizerConfig
from tests.helpers.runs import pretrain, run_script, tiny, write_tiny_data

HPARAMS = tiny(num_train_steps=2, num_eval_steps=1)
KEPT = {"do_lower_case": True, "strip_accents": False}


@pytest.fixture(scope="module")
def begun(tiny_data):
    """A data directory with a finished run of two steps, "begun"."""
    done = pretrain(tiny_data, "begun", HPARAMS)
    assert done.returncode == 0, done.stderr
    return tiny_data


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


@pytest.mark.parametrize(
    "read",
    ["trained_on", "a_phase", "evaluated", "evaluated_beside", "sampled"],
)
def test_data_of_other_settings_are_refused_at_every_start(begun, others, read):
    parts = [{"num_train_steps": 2}, {"num_train_steps": 1}]
    changes = {
        "trained_on": {"num_train_steps": 3, "pretrain_tfrecords": others},
        "a_phase": {
            "num_train_steps": 3,
            "phases": [parts[0], parts[1] | {"pretrain_tfrecords": others}],
        },
        "evaluated": {"do_train": False, "do_eval": True, "eval_tfrecords": others},
        "evaluated_beside": {"eval_every_steps": 1, "eval_tfrecords": others},
        "sampled": {"sample_steps": 1, "eval_tfrecords": others},
    }[read]
    done = pretrain(begun, "begun", HPARAMS | changes)
    assert done.returncode == 2, done.stdout
    assert f"{begun}/others were built uncased, accents kept" in done.stderr
    assert "ask for text that is uncased, accents stripped" in done.stderr


def test_data_that_are_not_read_any_more_may_be_any(begun, others):
    shutil.copytree(begun / "models" / "begun", begun / "models" / "other")
    usual = {"pretrain_tfrecords": str(begun / "pretrain_tfrecords" / "*")}
    parts = [{"num_train_steps": 2, "pretrain_tfrecords": others}]
    parts += [{"num_train_steps": 1} | usual]
    changes = {"num_train_steps": 3, "phases": parts, "eval_tfrecords": others}
    done = pretrain(begun, "other", HPARAMS | changes)
    assert done.returncode == 0, done.stderr


def test_the_settings_that_a_run_has_recorded_are_its_own(tmp_path):
    data = write_tiny_data(tmp_path / "data")
    beside, run = data / "vocab.txt.json", data / "models" / "kept"
    beside.write_text(json.dumps(KEPT))
    done = pretrain(data, "kept", HPARAMS)
    assert done.returncode == 0, done.stderr
    prefix = run / "model.ckpt-2"
    kept = TokenizerConfig(**KEPT)
    assert electra_tf.load(run).tokenizer.config == kept
    # Lost when the vocabulary was copied: they are still what the run has learned by.
    beside.unlink()
    for place in (run, prefix):
        assert electra_tf.load(place).tokenizer.config == kept
    for changes in ({"num_train_steps": 3}, {"do_train": False, "do_eval": True}):
        done = pretrain(data, "kept", HPARAMS | changes)
        assert done.returncode == 2, done.stdout
        assert f"{prefix} was trained on text that is {kept}" in done.stderr
        assert 'strip_accents": false' in done.stderr
    # Replaced by others: who is right?
    beside.write_text(json.dumps(KEPT | {"strip_accents": True}))
    with pytest.raises(UserError, match="was trained on text that is uncased, acc"):
        electra_tf.load(run)
    # Of an earlier version, which recorded none: what lies beside it holds.
    manifest = prefix.with_name("model.ckpt-2.json")
    content = json.loads(manifest.read_text())
    del content["settings"]["tokenizer"]
    manifest.write_text(json.dumps(content))
    assert electra_tf.load(prefix).tokenizer.config.strip_accents
