# SPDX-License-Identifier: Apache-2.0
"""Tagging of one's own files: truncation, unknown tags, no tags, plain tags."""

import json

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import preprocessing
from tests.helpers.own_task import own_tasks, with_answer

NER = "the O\ndog I-PER\ncat I-LOC\n\nran O\n\n"


def predicted(task, split, *tags):
    """The split's scorer with these predictions, sentence by sentence."""
    scorer = task.scorer(split)
    index = {tag: i for i, tag in enumerate(task.labels)}
    for example, ours in zip(task.read(split), tags, strict=True):
        [features] = task.featurize(example, False)
        ids = [index[tag] for tag in ours]
        right = features["labels"] + [0] * 16
        row = {"eid": example.eid, "predictions": ids, "labels": right, "loss": 0.0}
        row["logits"] = 50.0 * np.eye(len(index))[ids]
        row["labels_mask"] = features["labels_mask"]
        scorer.update(with_answer(task, row))
    return scorer


def written(task, split, scorer, folder):
    """What is written of a split, as CoNLL's lines and as JSON."""
    rows, lines = task.write_predictions(split, scorer, str(folder / "out"))
    rows = [json.loads(row) for row in open(rows, encoding="utf-8")]
    return open(lines, encoding="utf-8").read(), rows


def test_iob1_is_read_and_written(tmp_path):
    text = "dog I-PER\ncat I-LOC\nran I-LOC\ndog B-LOC\n\n"
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging")
    assert task.read("dev")[0].tags == ["S-PER", "B-LOC", "E-LOC", "S-LOC"]
    scorer = predicted(task, "dev", ["S-PER", "B-LOC", "E-LOC", "S-LOC"])
    assert dict(scorer.get_results())["f1"] == 100.0
    lines, _ = written(task, "dev", scorer, tmp_path)
    tags = [line.split()[1:] for line in lines.splitlines() if line]
    assert tags == [[t, t] for t in ("I-PER", "I-LOC", "I-LOC", "B-LOC")]


@pytest.mark.parametrize("length", [8, 9])
@pytest.mark.parametrize("kind", ["own", "chunk"])
def test_last_word_of_many_pieces(tmp_path, length, kind):
    words = ["un", "##dog", "the"]
    text = f"the O\nun{'dog' * 40} B-NP\n\n"
    name = "train.txt" if kind == "own" else "finetuning_data/chunk/train.txt"
    files = {name: text, name.replace("train", "dev"): text}
    more = {"task_names": ["chunk"]} if kind == "chunk" else {}
    tasks = own_tasks(tmp_path, files, "tagging", words, max_seq_length=length, **more)
    store = preprocessing.features(tasks[0].config, tasks, "train", True)
    assert store["input_ids"].shape == (1, length)
    task = tasks[0]
    assert store["input_ids"][0, -1] == task.tokenizer.vocab.sep_id
    assert store[f"{task.name}:labels_mask"][0].sum() == 2


def test_chunk_predictions_use_the_full_length(tmp_path):
    text = "dog B-NP\n" * 16 + "\n"
    files = {f"finetuning_data/chunk/{n}.txt": text for n in ("train", "dev")}
    more = {"task_names": ["chunk"], "max_seq_length": 24}
    [task] = own_tasks(tmp_path, files, "tagging", **more)
    [scored] = task.featurize(task.read("dev")[0], False)
    assert len(scored["labeled_positions"]) == 5  # as the original does
    for count, tagged in ((16, 16), (22, 22), (30, 22)):
        example = task.input_example(0, {"words": ["dog"] * count})
        [features] = task.featurize(example, False)
        assert len(features["labeled_positions"]) == tagged
        assert len(features["input_ids"]) <= 24


def test_words_that_are_cut_off_count_as_missed(tmp_path):
    text = "dog B-PER\n" * 20 + "\n"
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging", max_seq_length=12)
    [features] = task.featurize(task.read("dev")[0], False)
    assert len(features["labeled_positions"]) == 10
    results = dict(predicted(task, "dev", ["S-PER"] * 10).get_results())
    assert (results["precision"], results["recall"]) == (100.0, 50.0)


def test_words_without_tokens_beyond_the_length_are_counted(tmp_path):
    """They take no room, so that more words than tokens fit."""
    text = "dog B-PER\n\u200b O\n" * 10 + "\n"
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging", max_seq_length=12)
    store = preprocessing.features(task.config, [task], "train", True)
    assert store["input_mask"].sum() == 12
    assert store["mine:labels_mask"].sum() == 12 and store.num_cut == 20 - 12


def test_scheme_of_an_older_model_is_read(tmp_path):
    """Before 0.2 the form of its tags followed."""
    [task] = own_tasks(tmp_path, {"train.txt": NER}, "tagging")
    cases = {"IOB2 PER_B 0": "IOB2", "IO PER": "IOB1", "bare": "IOB1"}
    for stored, scheme in cases.items():
        task.stored = {"labels": task.labels, "scheme": stored}
        del task.scheme  # found already
        assert task.scheme == scheme


def test_underscore_is_a_tag_like_any_other(tmp_path):
    """Universal Dependencies have it."""
    text = "dog _\ncat N\n" * 10 + "\n"
    keys = {"scheme": "plain", "max_seq_length": 12}
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging", **keys)
    scorer = predicted(task, "dev", ["_", "N"] * 5)
    assert dict(scorer.get_results())["accuracy"] == 50.0
    found = scorer.details()
    assert found["classes"]["_"]["recall"] == found["classes"]["N"]["recall"] == 50.0
    assert found["confusion"]["labels"] == ["(cut off)", "N", "_"]


def test_class_without_training_examples(tmp_path):
    other = "dog B-NEW\ncat B-LOC\n\n"
    files = {"train.txt": NER, "dev.txt": other, "test.txt": other}
    [task] = own_tasks(tmp_path, files, "tagging")
    assert task.labels == ["O", "S-LOC", "S-PER"]
    assert any("NEW" in remark for remark in task.remarks["dev"])
    for split in ("dev", "test"):
        scorer = predicted(task, split, ["O", "S-LOC"])
        results = dict(scorer.get_results())
        assert (results["precision"], results["recall"]) == (100.0, 50.0)
        assert scorer.details()["classes"]["NEW"]["support"] == 1
        lines, _ = written(task, split, scorer, tmp_path)
        assert lines.startswith("dog I-NEW O\ncat I-LOC I-LOC\n")


@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_text_without_tags_is_labelled(tmp_path, form):
    files = {"train.txt": NER, "test.txt": "dog\nran\n\ncàt\n"}
    if form == "jsonl":
        rows = [{"words": ["dog", "ran"]}, {"words": ["càt"]}]
        files["test.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
        del files["test.txt"]
    [task] = own_tasks(tmp_path, files, "tagging")
    preprocessing.features(task.config, [task], "test", False, only=task)
    scorer = predicted(task, "test", ["S-PER", "O"], ["S-LOC"])
    lines, rows = written(task, "test", scorer, tmp_path)
    assert lines == "dog I-PER\nran O\n\ncàt I-LOC\n\n"
    expected = {"eid": 1, "words": ["càt"], "tags": ["I-LOC"], "probabilities": [1.0]}
    assert rows[1] == expected


def test_plain_tags(tmp_path):
    text = "the DET\ndog NOUN\nran B-SIDE\n\n"
    with pytest.raises(UserError, match='"scheme": "plain"'):
        own_tasks(tmp_path, {"train.txt": text}, "tagging")
    files = {"train.txt": text, "test.txt": "dog\n"}
    [task] = own_tasks(tmp_path, files, "tagging", scheme="plain")
    assert task.labels == ["B-SIDE", "DET", "NOUN"] and task.main_metric == "accuracy"
    scorer = predicted(task, "dev", ["DET", "NOUN", "NOUN"])
    assert dict(scorer.get_results())["accuracy"] == pytest.approx(200 / 3)
    found = scorer.details()
    assert found["classes"]["NOUN"]["precision"] == 50.0
    assert found["confusion"]["matrix"] == [[0, 0, 1], [0, 1, 0], [0, 0, 1]]
    lines, _ = written(task, "dev", scorer, tmp_path)
    assert lines == "the DET DET\ndog NOUN NOUN\nran B-SIDE NOUN\n\n"
    lines, _ = written(task, "test", predicted(task, "test", ["NOUN"]), tmp_path)
    assert lines == "dog NOUN\n\n"
