# SPDX-License-Identifier: Apache-2.0
"""run_pretraining.py as its users run it."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from electra_tf.errors import UserError
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import TokenizerConfig
from electra_tf.train import distribution
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from tests.helpers import forked_runs, without_tensorflow
from tests.helpers.forked_runs import eagerly, metrics_of, tensors_of
from tests.helpers.runs import (
    TINY,
    check_ok,
    check_refused,
    pretrain,
    refused,
    run_script,
    start_here,
    tiny,
    write_tiny_data,
)
from tests.helpers.workers import tf_configs

EVALUATE = {"do_train": False, "do_eval": True}
EVALUATE_ONCE = TINY | EVALUATE | {"num_eval_steps": 1}


@pytest.fixture(scope="module")
def data(pretrained, tmp_path_factory):
    """A data directory with models/electra, a finished run of TINY."""
    folder = tmp_path_factory.mktemp("run") / "data"
    return shutil.copytree(pretrained("electra"), folder)


def final_state(run_directory, step):
    weights = run_directory / f"model.ckpt-{step}.data-00000-of-00001"
    return weights.read_bytes(), metrics_of(run_directory)


def run_eagerly(data, name, hparams):
    return forked_runs.pretrain(data, name, hparams, before=eagerly).wait()


def pretrain_eagerly(data, name, hparams):
    return check_ok(run_eagerly(data, name, hparams))


# Mistakes.


def test_mistakes_are_found_without_tensorflow(data, tmp_path):
    env = without_tensorflow.environment(tmp_path / "env")
    run = pretrain(data, "wrong", {}, "--dry-rum", env=env)
    check_refused(run, 1, "Did you mean: dry_run")
    run = pretrain(data, "electra", tiny(embedding_size=8), env=env)
    check_refused(run, 2, "embedding_size is 16 there, 8 here", "--model-name")


@pytest.mark.parametrize(
    ("name", "hparams", "text"),
    [
        ("wrong", {"vocab_size": 61}, "hparam vocab_size is 61"),
        ("wrong", {"vocab_file": "/nowhere/vocab.txt"}, "/nowhere/vocab.txt"),
        ("wrong", {"model_dir": "hdfs://host/run"}, "hdfs:// cannot be opened"),
        ("wrong", EVALUATE, "no checkpoint to evaluate"),
        ("wrong", tiny(pretrain_tfrecords="/nowhere/x*"), "/nowhere/x*"),
        ("../../elsewhere", TINY, "is not the name of a directory below"),
        ("electra", tiny(electra_objective=False), "objective is 'electra' there"),
        ("electra", TINY | {"vocab_file": "other.txt"}, "vocab_sha256"),
    ],
)
def test_mistakes(data, name, hparams, text, monkeypatch, tmp_path):
    # TensorFlow has started in this process.
    monkeypatch.setattr(distribution, "configure_devices", lambda config: None)
    monkeypatch.chdir(tmp_path)
    words = (data / "vocab.txt").read_text().replace("w7\n", "x7\n")
    (tmp_path / "other.txt").write_text(words)
    refused(lambda: start_here(data, name, hparams), text, code=2)
    assert not (data / "models" / "wrong" / "config.json").exists()


def test_tpus_of_several_workers_are_refused(data):
    """Each would train alone, and the steps of all but one would be lost."""
    env = {"TF_CONFIG": tf_configs(2)[1]}
    run = forked_runs.pretrain(data, "pod", tiny(use_tpu=True), env=env).wait()
    check_refused(run, 2, "use_tpu", "TF_CONFIG names 2 workers")
    assert not (data / "models" / "pod").exists()


# A whole run.


def test_a_saved_config_makes_the_same_run(data):
    models = data / "models"
    config = models / "electra" / "config.json"
    done = pretrain(data, "copy", {}, "--config", str(config))
    says = ("Config:", "learning_rate: 0.002", "parameters", "0.96 epochs", "12/12")
    check_ok(done, *says)
    run = models / "copy"
    assert final_state(run, 12) == final_state(models / "electra", 12)
    assert Checkpoints(run).steps() == [0, 5, 10, 12]
    assert [row["step"] for row in metrics_of(run)] == list(range(1, 13))
    assert (run / "loss_curves.png").read_bytes().startswith(b"\x89PNG")
    (events,) = (run / "tensorboard").iterdir()
    assert b"training/disc_loss" in events.read_bytes()
    saved = json.loads((run / "config.json").read_text())
    assert saved["learning_rate"] == 2e-3 and "data_dir" not in saved


def test_evaluation_has_the_originals_metrics(data):
    run = data / "models" / "electra"
    before = set(os.listdir(run))
    results = {}
    for devices in ("1", "2"):
        env = {CPU_DEVICES_VARIABLE: devices}
        done = forked_runs.pretrain(data, "electra", TINY | EVALUATE, env=env).wait()
        check_ok(done)
        written = json.loads((run / "results" / "unsup_results.json").read_text())
        results[devices] = written["metrics"]
        assert written["global_step"] == 12 and written["is_training_data"]
    assert set(os.listdir(run)) - before == {"results"}
    names = {"loss", "masked_lm_accuracy", "masked_lm_loss", "disc_loss", "disc_auc"}
    names |= {"sampled_masked_lm_accuracy", "disc_auc_tokens", "disc_accuracy"}
    names |= {"disc_precision", "disc_recall"}
    assert set(results["1"]) == names
    text = (run / "results" / "unsup_results.txt").read_text()
    for name in names:
        assert f"  {name} = " in done.stdout and f"{name} = " in text
        if name != "loss":  # of a replica's batch, in the sum over replicas
            assert results["2"][name] == pytest.approx(results["1"][name], abs=1e-5)


def test_a_dry_run_writes_nothing(data, tmp_path):
    run = data / "models" / "electra"
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    longer = pretrain(data, "electra", TINY | {"num_train_steps": 50}, "--dry-run")
    check_ok(longer, f"Continuing from {run}/model.ckpt-12.")
    done = pretrain(data, "electra", TINY | EVALUATE, "--dry-run")
    check_ok(done, f"to evaluate: {run}/model.ckpt-12\n")
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before
    # A vocabulary with tokens that no text has is reported before the training.
    vocab, tokens = tmp_path / "vocab.txt", (data / "vocab.txt").read_text().split()
    vocab.write_text("\n".join([*tokens[:-3], "Ab", "Bc", "Cd"]))
    new = pretrain(data, "dry", TINY | {"vocab_file": str(vocab)}, "--dry-run")
    check_ok(new, "Dry run: nothing", "FLOPs", f"Note: 3 tokens of {vocab}, 'Ab'")
    assert not (data / "models" / "dry").exists()


@pytest.mark.thorough
def test_a_unigram_generator_keeps_the_counts_of_its_data(data):
    counts = data / "pretrain_tfrecords" / "token_counts.txt"
    counts.write_text("".join(f"{n}\n" for n in range(60)))
    hparams = TINY | {"generator": "unigram", "num_train_steps": 2}
    pretrain_eagerly(data, "unigram", hparams)
    counts.unlink()
    run = data / "models" / "unigram"
    name = "unigram_generator/token_counts"
    kept = tf.train.load_variable(str(run / "model.ckpt-2"), name)
    assert kept.tolist() == list(range(60))
    # It brings them to an evaluation.
    pretrain_eagerly(
        data, "of_unigram", hparams | EVALUATE | {"init_checkpoint": str(run)}
    )


# Runs that are continued with other hparams or data, from the original's, or evaluated.

MORE = {"num_train_steps": 13}
KEPT = {"do_lower_case": True, "strip_accents": False}


@pytest.fixture
def run_again(data):
    """Continues a copy of the run: (its output, its directory)."""
    copies = []

    def again(code, **changes):
        name = f"again_{os.getpid()}_{len(copies)}"
        copies.append(data / "models" / name)
        shutil.copytree(data / "models" / "electra", copies[-1])
        run = run_eagerly(data, name, TINY | changes)
        assert run.returncode == code, run.stdout + run.stderr
        return run.stdout + run.stderr, copies[-1]

    yield again
    for folder in copies:
        shutil.rmtree(folder)


def settings_at(folder, step):
    return Checkpoints(folder, read_only=True).verify(step).settings


def test_config_is_written_only_if_a_step_is_made(data, run_again):
    before = (data / "models" / "electra" / "config.json").read_bytes()
    for code, changes, text in (
        (2, {"max_seq_length": 16}, "max_seq_length is 16"),
        (0, {"mask_prob": 0.4, "temperature": 9}, "nothing to do"),
    ):
        printed, folder = run_again(code, **changes)
        assert text in printed
        assert (folder / "config.json").read_bytes() == before
    _, folder = run_again(0, mask_prob=0.4, **MORE)
    assert json.loads((folder / "config.json").read_text())["mask_prob"] == 0.4


@pytest.mark.thorough
def test_init_checkpoint_is_for_the_first_start(data, run_again):
    first = {"init_checkpoint": str(data / "models" / "electra"), "num_train_steps": 1}
    for hparams in (first, {"num_train_steps": 2}):
        run = pretrain_eagerly(data, "warm", TINY | hparams)
    # Left out later, it is kept.
    assert "init_checkpoint" not in run.stdout.split("Config:")[0]
    folder, start = data / "models" / "warm", first["init_checkpoint"]
    assert settings_at(folder, 2)["init_checkpoint"] == start
    config = json.loads((folder / "config.json").read_text())
    assert config["init_checkpoint"] == start
    printed, _ = run_again(2, **first)
    for word in ("init_checkpoint None", "would have no effect"):
        assert word in printed


@pytest.mark.thorough
def test_other_data_are_reported(run_again, tmp_path):
    other = write_tiny_data(tmp_path / "other", examples=40)
    place = {"pretrain_tfrecords": f"{other}/pretrain_tfrecords/*"}
    printed, folder = run_again(0, **MORE, **place)
    assert "Changed since step 12: data [['2 files, " in printed
    assert settings_at(folder, 13)["data"] != settings_at(folder, 12)["data"]


# The original's checkpoints, and weights that are evaluated.


@pytest.fixture(scope="module")
def original(data):
    """A run directory with what the original has of that run after 10 steps."""
    folder = data / "models" / "of_original"
    folder.mkdir()
    for path in (data / "models" / "electra").glob("model.ckpt-10.*"):
        if path.suffix != ".json":
            shutil.copy(path, folder)
    (folder / "model.ckpt-10.meta").write_bytes(b"a graph")
    (folder / "graph.pbtxt").write_text("node {}")
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    return folder


def test_a_run_of_the_original_is_evaluated_and_continued(data, original):
    check_ok(run_eagerly(data, "of_original", EVALUATE_ONCE), "global_step = 10")
    keep = TINY | {"keep_checkpoint_max": 1, "save_checkpoints_steps": 1}
    check_ok(pretrain(data, "of_original", keep), "Continuing from the original's")
    expected = tensors_of(data / "models" / "electra" / "model.ckpt-12")
    found = tensors_of(original / "model.ckpt-12")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    # The original's checkpoint is not removed; of the new ones, one is kept.
    names = {path.name for path in original.glob("*.index")}
    assert names == {"model.ckpt-10.index", "model.ckpt-12.index"}


def test_a_damaged_run_is_not_taken_for_the_originals(data):
    models = data / "models"
    shutil.copytree(models / "electra", models / "damaged_run")
    for path in (models / "damaged_run").glob("model.ckpt-*.json"):
        path.unlink()
    done = pretrain(data, "damaged_run", TINY)
    check_refused(done, 65, "model.ckpt-12.json is missing")


def test_an_init_checkpoint_is_evaluated(data):
    model = str(data / "models" / "electra")
    done = run_eagerly(
        data, "evaluated_only", EVALUATE_ONCE | {"init_checkpoint": model}
    )
    check_ok(done, "global_step = 12", f"Evaluating {model}")
    # Weights of another model are refused though they fit: the number of heads has no
    # influence on their shapes.
    heads = tiny(overrides={"num_attention_heads": 4})
    changes = EVALUATE | {"init_checkpoint": model}
    done = pretrain(data, "evaluated_other", heads | changes)
    check_refused(done, 2, "num_attention_heads is 2 there, 4 here")


def test_without_slots_it_cannot_be_continued(data):
    folder = data / "models" / "released"
    folder.mkdir()
    found = tensors_of(data / "models" / "electra" / "model.ckpt-12")
    found = {k: v for k, v in found.items() if not k.endswith(("/adam_m", "/adam_v"))}
    tf.raw_ops.SaveV2(
        prefix=str(folder / "model.ckpt-12"),
        tensor_names=sorted(found),
        shape_and_slices=[""] * len(found),
        tensors=[tf.constant(found[name]) for name in sorted(found)],
    )
    (folder / "model.ckpt-12.meta").write_bytes(b"a graph")
    check_refused(pretrain(data, "released", TINY), 2, "no Adam slots")


# Tokenizer settings.


@pytest.fixture(scope="module")
def others(data):
    """Data that were built with the same vocabulary and --no-strip-accents."""
    corpus = data / "corpus"
    corpus.mkdir()
    words = [f"w{i % 55}" for i in range(4000)]
    lines = [" ".join(words[i : i + 10]) for i in range(0, len(words), 10)]
    (corpus / "text.txt").write_text("\n".join(lines))
    places = f"--vocab-file={data}/vocab.txt", f"--output-dir={data}/others"
    flags = f"--corpus-dir={corpus}", "--max-seq-length=32", "--no-strip-accents"
    check_ok(run_script("build_pretraining_dataset.py", *places, *flags))
    return str(data / "others" / "pretrain_data.tfrecord*")


@pytest.mark.parametrize(
    "read", ["trained_on", "a_phase", "evaluated", "evaluated_in_training"]
)
def test_data_of_other_settings_are_refused_at_every_start(data, others, read):
    parts = [{"num_train_steps": 12}, {"num_train_steps": 1}]
    changes = {
        "trained_on": {"num_train_steps": 13, "pretrain_tfrecords": others},
        "a_phase": {
            "num_train_steps": 13,
            "phases": [parts[0], parts[1] | {"pretrain_tfrecords": others}],
        },
        "evaluated": {"do_train": False, "do_eval": True, "eval_tfrecords": others},
        "evaluated_in_training": {"eval_every_steps": 1, "eval_tfrecords": others},
    }[read]
    with pytest.raises(
        UserError, match="text that is uncased, accents strip"
    ) as caught:
        start_here(data, "electra", TINY | changes)
    assert f"{data}/others were built uncased, accents kept" in str(caught.value)


def test_a_run_keeps_its_recorded_settings(tmp_path):
    data = write_tiny_data(tmp_path / "data")
    hparams = tiny(num_train_steps=2, num_eval_steps=1)
    beside, run = data / "vocab.txt.json", data / "models" / "kept"
    beside.write_text(json.dumps(KEPT))
    pretrain_eagerly(data, "kept", hparams)
    prefix = run / "model.ckpt-2"
    kept = TokenizerConfig(**KEPT)
    # Lost when the vocabulary was copied: they are still what the run has learned by.
    beside.unlink()
    for place in (run, prefix):
        assert electra_tf.load(place).tokenizer.config == kept
    for changes in ({"num_train_steps": 3}, {"do_train": False, "do_eval": True}):
        with pytest.raises(UserError, match=f"{prefix} was trained .* that is {kept}"):
            start_here(data, "kept", hparams | changes)
    # Replaced by others.
    beside.write_text(json.dumps(KEPT | {"strip_accents": True}))
    refused(lambda: electra_tf.load(run), "was trained on text that is uncased, acc")
