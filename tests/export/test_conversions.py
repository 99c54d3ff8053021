# SPDX-License-Identifier: Apache-2.0
"""Heads of fine-tuned models in transformers answer as they do here."""

import json

import numpy as np
import pytest

from electra_tf.errors import EXIT_CONFIG, UserError
from electra_tf.export import conversions, finetuned, formats
from electra_tf.export.formats import ExportRequest
from electra_tf.interop import sources
from tests.helpers.cards import run_snippets
from tests.helpers.tiny_trials import (
    TOPICS,
    answers,
    batch_of,
    write_data,
    write_trials,
)

quiet = {"log": lambda line: None}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_trials(write_data(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def tasks(folders):
    """Name -> the model that was read from there."""
    return {name: finetuned.read_task(*place) for name, place in folders.items()}


@pytest.fixture(scope="module")
def directories(folders, tmp_path_factory):
    """Name -> the directory that transformers reads."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("safetensors")
    parent, found = tmp_path_factory.mktemp("hf"), {}
    for name in ("cola", "sts", "chunk", "topics", "plain"):
        folder, what = map(str, folders[name])
        request = ExportRequest("huggingface", str(parent / name), what=what)
        formats.export(request._replace(init_checkpoint=folder))
        found[name] = parent / name / what
    return found


def run_transformers(folder, batch):
    import torch
    import transformers

    [name] = json.loads((folder / "config.json").read_text())["architectures"]
    model = getattr(transformers, name).from_pretrained(str(folder)).eval()
    inputs = [torch.tensor(value).long() for value in batch.values()]
    with torch.no_grad():
        return model.config, model(*inputs)


@pytest.mark.parametrize("name", ["cola", "sts", "topics", "chunk"])
def test_labels_and_numbers_are_those_of_transformers(directories, tasks, name):
    batch = batch_of(tasks[name])
    config, output = run_transformers(directories[name], batch)
    expected = answers(tasks[name], batch)
    logits = output.logits.numpy()
    if name == "sts":
        assert config.problem_type == "regression" and config.num_labels == 1
        np.testing.assert_allclose(logits[:, 0], expected["value"], atol=1e-5)
        assert len(np.unique(logits.round(2))) > 1
        return
    assert list(config.id2label.values()) == list(tasks[name].facts.labels)
    real = batch["input_mask"] == 1 if name == "chunk" else ...
    gap = {"atol": 2e-5, "rtol": 1e-5}
    np.testing.assert_allclose(logits[real], expected["logits"][real], **gap)
    if name == "topics":
        assert config.problem_type == "multi_label_classification"
        assert tuple(config.id2label.values()) == TOPICS


def test_numbers_are_cut_at_both_ends(directories, tasks):
    batch = batch_of(tasks["sts"], 1, 400)
    _, output = run_transformers(directories["sts"], batch)
    values = answers(tasks["sts"], batch)["value"]
    np.testing.assert_allclose(output.logits.numpy()[:, 0], values, atol=1e-4)
    assert {0.0, 5.0} < set(values.tolist()), np.unique(values)


def test_starts_and_ends_are_those_of_transformers(directories, tasks):
    task = tasks["plain"]
    batch = batch_of(task)
    _, output = run_transformers(directories["plain"], batch)
    expected = answers(task, batch)
    in_text = batch["input_mask"] * batch["input_type_ids"] == 1
    in_text[:, 0] = True
    for name in ("start_logits", "end_logits"):
        theirs = output[name].numpy()[in_text]
        gap = {"atol": 2e-5, "rtol": 1e-5}
        np.testing.assert_allclose(theirs, expected[name][in_text], **gap)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("joint", "the end by the start"),
        ("at_cls", "no logit of its own for questions without an answer"),
    ],
)
def test_heads_without_equal_are_refused(folders, tasks, tmp_path, name, reason):
    with pytest.raises(UserError, match=reason) as error:
        conversions.write_task(tasks[name], folders[name][0], tmp_path / "out")
    assert error.value.exit_code == EXIT_CONFIG and "--what encoder" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_more_labels_than_fit_are_refused(folders, tasks, tmp_path):
    task = tasks["topics"]
    labels = tuple(f"label {i}" for i in range(17))
    task = task._replace(facts=task.facts._replace(labels=labels))
    with pytest.raises(
        UserError, match="leaves 16 labels as they are; this task has 17"
    ):
        conversions.write_task(task, folders["topics"][0], tmp_path / "out")


def test_a_head_that_became_another_is_not_written(
    folders, tasks, tmp_path, monkeypatch
):
    pytest.importorskip("safetensors")
    monkeypatch.setattr(conversions, "_SHARP", 2.0**4)
    with pytest.raises(UserError, match="electra_tf as fine-tuned"):
        conversions.write_task(tasks["sts"], folders["sts"][0], tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_tokenizers_cut_where_the_head_was_trained_to(directories):
    for name in ("cola", "plain"):
        path = directories[name] / "tokenizer_config.json"
        assert json.loads(path.read_text())["model_max_length"] == 24


def test_the_encoder_of_each_comes_back(directories, folders):
    for name, folder in directories.items():
        stored = sources.read(folders[name][0], **quiet)
        again = sources.read(folder, **quiet)
        assert again.tensors.keys() == stored.tensors.keys()
        for key, array in stored.tensors.items():
            if name != "chunk" or "token_type" not in key:
                np.testing.assert_array_equal(again.tensors[key], array)


def test_the_snippets_of_the_cards_run(directories, tmp_path):
    cards = [folder / "README.md" for folder in directories.values()]
    said = run_snippets(tmp_path, cards)
    assert "'label': '" in said["cola"] and "'entity': '" in said["chunk"]
    assert "'label': 'sts'" in said["sts"] and said["squad"].strip()
    # A text has any number of these labels: all are shown.
    assert all(f"'label': '{topic}'" in said["topics"] for topic in TOPICS)
