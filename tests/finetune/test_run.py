# SPDX-License-Identifier: Apache-2.0
"""init_checkpoint of any format, and its refusals; trials in their own processes."""

import dataclasses
import functools
import json
import shutil

import numpy as np
import pytest

import electra_tf
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.export import formats
from electra_tf.finetune.classification import ClassHead
from electra_tf.finetune.model import build_finetuning_model, load_encoder
from electra_tf.finetune.run import hparams_of
from electra_tf.interop import huggingface, readers
from electra_tf.interop.checkpoint import FINETUNE
from electra_tf.text.vocabulary import Vocabulary, write_tokens
from tests.helpers import forked_runs, tiny_finetuning
from tests.helpers.exporting import tiny_source, write_run
from tests.helpers.runs import SPECIAL, by_default, check_ok, refused
from tests.helpers.tiny_finetuning import TINY, finetune, fork

# Format -> the directory below the output of export_model.py.
MODELS = {"run": "", "tf1": ""}
MODELS |= dict.fromkeys(("huggingface", "keras_hub"), "discriminator")
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SHAPE |= {"max_position_embeddings": 40, "hidden_act": "gelu"}
DEFAULT = ("run", "huggingface", "tf1")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Task data and a pre-trained model."""
    data = tiny_finetuning.write_data(tmp_path_factory.mktemp("exported"))
    write_run(data, tiny_source())
    return data


@pytest.fixture(scope="module")
def model(data):
    """A function: name of MODELS -> its directory."""

    @functools.cache
    def export(name):
        if name == "run":
            return data / "models" / "tiny"
        out = data / name
        formats.export(formats.ExportRequest(name, str(out), str(data), "tiny"))
        return out / MODELS[name]

    return export


def run_from(data, path, vocab=None, **explicit):
    """(the model at a path, the config of a run from it, the log), checked."""
    log = []
    found = readers.find(str(path), log.append)
    usual = str(vocab or data / "vocab.txt")
    known = hparams_of(found, explicit, usual, log.append)
    explicit |= {"max_seq_length": 24}
    config = FinetuningConfig.from_hparams(str(data), "m", explicit, None, known)
    if found.vocab_file is None:
        found = dataclasses.replace(found, vocab_file=config.vocab_file)
    vocab = Vocabulary.load(config.vocab_file)
    found.check(config, vocab, FINETUNE)
    return found, config, log


def fitting(message):
    """The hparams that an error advises."""
    return json.loads(message.split("fit it: ")[1])


@pytest.mark.parametrize("name", by_default(MODELS, DEFAULT))
def test_weights_and_shape_are_those_of_any_format(data, model, tmp_path, name):
    found, config, log = run_from(data, model(name))
    for key, value in SHAPE.items():
        assert getattr(config.model_config(), key) == value
    assert config.embedding_size == 8
    ours = build_finetuning_model(config, {"a": ClassHead(3)})
    weights = {v.path: v for v in ours.variables}
    heads = {k: v.numpy() for k, v in weights.items() if k.startswith("task_")}
    load_encoder(found.tensors(log.append), weights)
    theirs = {v.path: v.numpy() for v in tiny_source().pretrainer.variables}
    for key, value in weights.items():
        np.testing.assert_array_equal(value, heads.get(key, theirs.get(key)), key)
    if name == "keras_hub":
        assert any("left out: the pooler" in line for line in log)
    # Another shape, vocabulary or case is refused with the hparams that fit.
    for changed in ({"num_attention_heads": 4}, {"hidden_act": "relu"}):
        [(key, value)] = changed.items()
        words = f"{key} is {SHAPE[key]!r} there, {value!r} here"
        with pytest.raises(UserError, match=words) as caught:
            run_from(data, model(name), model_hparam_overrides=changed)
        right = fitting(str(caught.value))
        assert right["model_hparam_overrides"]["hidden_size"] == 16
        assert "hidden_act" not in right["model_hparam_overrides"]
    other = tmp_path / "other.txt"
    other.write_text((data / "vocab.txt").read_text().replace("doctor", "other"))
    words = "was trained with another vocabulary"
    with pytest.raises(UserError, match=words) as caught:
        run_from(data, model(name), vocab_file=str(other))
    own = fitting(str(caught.value))["vocab_file"]
    assert (data / "vocab.txt").read_text() == open(own).read()
    if name != "run":
        with pytest.raises(UserError) as caught:
            run_from(data, model(name), do_lower_case=False)
        assert fitting(str(caught.value)) == {"do_lower_case": True}


def test_checkpoint_without_settings(data, model, tmp_path):
    """As the original writes it: it stores neither heads nor case."""
    found = readers.find(str(model("tf1")), print)
    unknown = {"known": {}, "tokenizer_config": None, "vocab_file": None}
    found = dataclasses.replace(found, **unknown)
    with pytest.raises(UserError, match="does not say its number of attention heads"):
        hparams_of(found, {}, "none", print)
    words = (data / "vocab.txt").read_text().split()
    words = [word if word in SPECIAL else f"{word}A" for word in words]
    cased = write_tokens(tmp_path / "vocab.txt", words).path
    heads = {"model_hparam_overrides": {"num_attention_heads": 2}}

    heads["do_lower_case"] = True
    hparams_of(found, heads, cased, print)


def test_hparams_of_the_shape_must_agree(data, model):
    found = readers.find(str(model("run")), print)

    def known(**explicit):
        return hparams_of(found, explicit, "none", print)

    for wrong in (
        {"model_size": "base"},
        {"embedding_size": 64},
        {"model_hparam_overrides": {"num_attention_heads": 4}},
    ):
        with pytest.raises(UserError, match="there, .* here"):
            known(**wrong)
    same = SHAPE | {"hidden_dropout_prob": 0.2}
    agreed = known(model_size="small", model_hparam_overrides=same, do_lower_case=True)
    assert agreed["model_hparam_overrides"].pop("hidden_dropout_prob") == 0.2
    assert agreed["model_hparam_overrides"].items() <= SHAPE.items()
    assert agreed["embedding_size"] == 8 and agreed["model_size"] == "small"


def without_peers():
    """As if transformers were not installed."""
    huggingface._peer_installed = lambda: False


def test_run_from_a_foreign_model_keeps_its_vocabulary(
    data, model, tmp_path, monkeypatch
):
    """Given by a relative path; the trial is read from elsewhere."""
    place, foreign = tmp_path / "data", tmp_path / "hf"
    place.mkdir()
    (place / "finetuning_data").symlink_to(data / "finetuning_data")
    shutil.copytree(model("huggingface"), foreign)
    (foreign / "manifest.json").unlink()
    monkeypatch.chdir(tmp_path)
    given = {"task_names": ["sts"], "num_train_epochs": 0.1, "num_trials": 2}
    given |= {"init_checkpoint": "hf", "embedding_size": 8}
    run = fork(
        *(place, "m", given | {"model_hparam_overrides": {}}), before=without_peers
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("transformers and torch are not installed") == 1
    assert "Encoder's weights from hf" in run.stdout
    trial = place / "models" / "m" / "finetuning_models" / "sts_model_1"
    monkeypatch.chdir(data)
    [row] = electra_tf.load(trial).predict([("waa", "wab")])
    foreign.rename(tmp_path / "gone")

    assert electra_tf.load(trial, data_dir=str(data)).predict([("waa", "wab")]) == [row]
    other = (data / "vocab.txt").read_text().replace("doctor", "new")
    (place / "vocab.txt").write_text(other)
    refused(lambda: electra_tf.load(trial), "was trained with another")


# Trials in processes of their own, merged afterwards.

HPARAMS = {"task_names": ["sts"], "num_trials": 3, "num_train_epochs": 2.0}


def results(data, model):
    path = data / "models" / model / "results" / "sts_results.json"
    trials = json.loads(path.read_text())["trials"]
    return {trial["trial"]: trial["scores"] for trial in trials}


@pytest.mark.thorough
def test_trials_side_by_side_give_the_results_of_one_run(data, monkeypatch):
    # With fewer threads, sums are computed in another order.
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    check_ok(finetune(data, "in_turn", HPARAMS))
    expected = results(data, "in_turn")
    hparams = json.dumps(TINY | HPARAMS)
    command = "run_finetuning.py", f"--data-dir={data}", "--model-name=array"
    command += (f"--hparams={hparams}",)
    runs = [
        forked_runs.Run(data / "logs" / f"trial_{k}", *command, f"--trial={k}")
        for k in (3, 1)
    ]
    for run in runs:
        check_ok(run.wait())
    check_ok(finetune(data, "array", HPARAMS, "--merge"), "not made yet: trial 2")
    assert results(data, "array") == {k: expected[k] for k in (1, 3)}
    whole = finetune(data, "array", HPARAMS)
    assert "Trial 1 is finished" in whole.stdout and whole.returncode == 0
    assert results(data, "array") == expected
