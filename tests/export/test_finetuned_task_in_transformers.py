# SPDX-License-Identifier: Apache-2.0
"""Heads of fine-tuned models compute the same in transformers."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import electra_tf
from electra_tf.errors import EXIT_CONFIG, UserError
from electra_tf.export import ExportRequest, finetuned_task, formats
from electra_tf.inference.finetuned import read_trial
from electra_tf.interop import task_heads
from tests.helpers.cards import run_snippets
from tests.helpers.interop_models import read_model
from tests.helpers.runs import by_default
from tests.helpers.tiny_finetuning import TINY
from tests.helpers.tiny_trials import (
    PLAIN,
    SQUAD,
    TOPICS,
    answers,
    batch_of,
    topics_task,
    write_data,
    write_run,
    write_trials,
)

NAMES = ("cola", "sts", "chunk", "topics", "plain")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_trials(write_data(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def converted(folders, tmp_path_factory):
    """A function: name -> (the task, the directory that transformers reads)."""
    for package in ("torch", "transformers", "safetensors"):
        pytest.importorskip(package)

    @functools.cache
    def convert(name):
        (folder, what), out = folders[name], tmp_path_factory.mktemp(name)
        request = ExportRequest("huggingface", str(out), what=what)
        formats.export(request._replace(init_checkpoint=str(folder)))
        return read_trial(folder, what), out / what

    return convert


def run_transformers(folder, batch):
    import torch
    import transformers

    [name] = json.loads((folder / "config.json").read_text())["architectures"]
    model = getattr(transformers, name).from_pretrained(str(folder)).eval()
    inputs = [torch.tensor(value).long() for value in batch.values()]
    with torch.no_grad():
        return model.config, model(*inputs)


@pytest.mark.parametrize("name", by_default(NAMES, ["cola"]))
def test_outputs_are_those_of_transformers(converted, folders, name):
    task, directory = converted(name)
    batch = batch_of(task)
    config, output = run_transformers(directory, batch)
    expected = answers(task, batch)
    gap = {"atol": 2e-5, "rtol": 1e-5}
    if name == "plain":
        in_text = batch["input_mask"] * batch["input_type_ids"] == 1
        in_text[:, 0] = True
        for key in ("start_logits", "end_logits"):
            theirs = output[key].numpy()[in_text]
            np.testing.assert_allclose(theirs, expected[key][in_text], **gap)
    elif name == "sts":
        assert config.problem_type == "regression" and config.num_labels == 1
        logits = output.logits.numpy()[:, 0]
        np.testing.assert_allclose(logits, expected["value"], atol=1e-5)
        assert len(np.unique(logits.round(2))) > 1
        # Both ends of the scale.
        batch = batch_of(task, 1, 400)
        logits = run_transformers(directory, batch)[1].logits.numpy()[:, 0]
        values = answers(task, batch)["value"]
        np.testing.assert_allclose(logits, values, atol=1e-4)
        assert {0.0, 5.0} < set(values.tolist()), np.unique(values)
    else:
        labels = tuple(task.reader.labels)
        if name == "chunk":
            labels = tuple(x.replace("S-", "B-").replace("E-", "I-") for x in labels)
        assert tuple(config.id2label.values()) == labels
        real = batch["input_mask"] == 1 if name == "chunk" else ...
        logits = output.logits.numpy()[real]
        np.testing.assert_allclose(logits, expected["logits"][real], **gap)
        is_multilabel = config.problem_type == "multi_label_classification"
        assert is_multilabel == (name == "topics")
    # The length of the head's training, and the encoder as it was.
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 24
    stored = read_model(folders[name][0], log=lambda line: None)
    again = read_model(directory, log=lambda line: None)
    assert again.tensors.keys() == stored.tensors.keys()
    for key, array in stored.tensors.items():
        if name != "chunk" or "token_type" not in key:
            np.testing.assert_array_equal(again.tensors[key], array)


@pytest.mark.thorough
def test_tagged_names_are_whole_in_pipelines(tmp_path):
    """The pipeline joins B- and I-; the labels that we read are those of the trial."""
    torch, transformers = (pytest.importorskip(x) for x in ("torch", "transformers"))
    data, file = write_data(tmp_path), tmp_path / "names.jsonl"
    row = {"words": [*"abcd"], "tags": ["B-X", "I-X", "O", "B-X"]}
    file.write_text(json.dumps(row) + "\n")
    own = {"type": "tagging", "words": "words", "tags": "tags"}
    own |= {"train": str(file), "dev": str(file)}
    config, _, _ = write_run(data, {"task_names": ["own"], "tasks": {"own": own}})
    task = read_trial(Path(config.trial_dir(1)), "own")
    finetuned_task.write_task(task, tmp_path / "out", log=lambda line: None)
    directory, labels = tmp_path / "out" / "own", task.reader.labels
    tags = ["B-X", "E-X", "O", "S-X", "S-X"]

    class Head(torch.nn.Module):
        def forward(self, hidden):
            logits = torch.zeros(*hidden.shape[:2], len(labels))
            for place, tag in enumerate(tags, start=1):
                logits[0, place, labels.index(tag)] = 9.0
            return logits

    run = transformers.pipeline(
        "token-classification", model=str(directory), aggregation_strategy="first"
    )
    run.model.classifier = Head()
    names = run("waa wab waz waa wab")
    assert [name["word"] for name in names] == ["waa wab", "waa", "wab"]
    assert {name["entity_group"] for name in names} == {"X"}
    assert electra_tf.load(directory).reader.labels == list(labels)
    copy = shutil.copytree(directory, tmp_path / "copy")
    (copy / "manifest.json").unlink()  # Two outputs have one name then.
    [row] = electra_tf.load(copy).predict([["waa", "wab", "waz"]])
    assert {*row["tags"]} <= {*run.model.config.id2label.values()}


MODERN = {
    "cola": "ForSequenceClassification",
    "sts": "ForSequenceClassification",
    "topics": "ForSequenceClassification",
    "chunk": "ForTokenClassification",
    "pick": "ForMultipleChoice",
    "squad": "ForQuestionAnswering",
}
INPUTS = {"chunk": [["waa", "wab"], ["waz"]], "pick": [("waa", ["wab", "waz"])]}
INPUTS |= {"squad": [("waa wab", "waz waa wab")], "sts": [("waa wab", "waz")]}


@pytest.fixture(scope="module")
def modern(tmp_path_factory):
    """The folders of trials on the modern block, by their tasks."""
    data = write_data(tmp_path_factory.mktemp("data"))
    shape = TINY["model_hparam_overrides"] | {"block": "modern", "local_window": 8}
    shape |= {"num_hidden_layers": 2, "intermediate_size": 48}
    pick = {"type": "multiple_choice", "text_a": "a", "choices": "c", "label": "b"}
    (data / "pick.jsonl").write_text('{"a": "waa", "c": ["wab", "waz"], "b": 1}\n')
    tasks = topics_task(data)["tasks"]
    tasks["pick"] = pick | dict.fromkeys(("train", "dev"), str(data / "pick.jsonl"))
    found = {}
    for name in ("cola", "sts", "topics", "chunk", "pick", "squad"):
        hparams = {"tasks": tasks, "model_hparam_overrides": shape}
        hparams |= SQUAD | PLAIN if name == "squad" else {}
        hparams |= {"task_names": [name], "model_dir": name}
        config, _, _ = write_run(data, hparams)
        found[name] = Path(config.trial_dir(1))
    return found


@pytest.mark.parametrize("name", by_default(MODERN, ["cola", "chunk"]))
def test_heads_of_the_modern_block(modern, tmp_path, name):
    """Verified against transformers as they are written; read back, they answer."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    request = ExportRequest("huggingface", str(tmp_path / "out"), what=name)
    formats.export(request._replace(init_checkpoint=str(modern[name])))
    folder = tmp_path / "out" / name
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [f"ModernBert{MODERN[name]}"]
    manifest = json.loads((folder / "manifest.json").read_text())
    checks = {(c["quantity"], c["read_by"]) for c in manifest["verification"]}
    for reader in ("electra_tf as fine-tuned", "electra_tf", "transformers"):
        assert ("logits", reader) in checks
    inputs = INPUTS.get(name, ["waa wab", "waz"])
    ours = electra_tf.load(modern[name]).predict(inputs)
    again = electra_tf.load(folder).predict(inputs)
    for one, other in zip(ours, again, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            if key == "value":  # There a number is not cut to the scale.
                other[key] = np.clip(other[key], 0, 5)
            elif key == "tags":  # A trial's are those of its file.
                other[key] = [x.replace("S-", "B-") for x in other[key]]
            assert other[key] == pytest.approx(value, abs=1e-4), key


@pytest.mark.parametrize(
    "name, reason",
    [
        ("joint", "the end by the start"),
        ("at_cls", "no logit of its own for questions without an answer"),
        ("topics", "carries 16 labels; this task has 17"),
    ],
)
def test_heads_without_an_equivalent_are_refused(folders, tmp_path, name, reason):
    task = read_trial(*folders[name])
    if name == "topics":
        labels = tuple(f"label {i}" for i in range(17))
        task.reader.labels = labels
    with pytest.raises(UserError, match=reason) as error:
        finetuned_task.write_task(task, tmp_path / "out")
    assert error.value.exit_code == EXIT_CONFIG
    assert not list(tmp_path.iterdir())


def test_head_that_computes_otherwise_is_not_written(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(task_heads, "_SHARP", 2.0**4)
    task = read_trial(*folders["sts"])
    with pytest.raises(UserError, match="electra_tf as fine-tuned"):
        finetuned_task.write_task(task, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_snippets_of_the_cards_run(converted, tmp_path):
    cards = [converted(name)[1] / "README.md" for name in NAMES]
    printed = run_snippets(tmp_path, cards)
    assert "'label': '" in printed["cola"] and "'entity_group': '" in printed["chunk"]
    assert "'label': 'sts'" in printed["sts"] and printed["squad"].strip()
    assert all(f"'label': '{topic}'" in printed["topics"] for topic in TOPICS)
