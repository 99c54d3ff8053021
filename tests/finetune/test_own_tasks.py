# SPDX-License-Identifier: Apache-2.0
"""Tasks of one's own: labels, scales, tags; the labels of a trained model."""

import importlib
import json
import linecache
import math
import sys

import pytest

from electra_tf.errors import UserError
from electra_tf.export import litert, onnx, saved_model
from electra_tf.finetune import inputs, preprocessing
from electra_tf.finetune.registry import check_description
from electra_tf.finetune.task import HeadSpec, write_facts
from electra_tf.interop import networks
from electra_tf.text.tokenization import Tokenizer
from tests.helpers.own_task import own_tasks, write_files

CLASSES = "a,b\nthe dog,pos\nthe cat,neg\nran,pos\n"


def refused(function, *expected):
    with pytest.raises(UserError) as caught:
        function()
    message = str(caught.value)
    for word in expected:
        assert word in message, message
    assert message.count("\n") <= 2 and len(message) < 700


def test_spaces_around_a_label_are_ignored(tmp_path):
    text = "a,b\nthe dog,pos \nthe cat, neg\nran,pos\n"
    [task] = own_tasks(tmp_path, {"train.csv": text})
    assert task.labels == ("neg", "pos")


def test_trained_model_determines_the_labels(tmp_path):
    files = {"train.csv": CLASSES, "dev.csv": CLASSES}
    write_facts(tmp_path / "trial", own_tasks(tmp_path, files))
    renamed = CLASSES.replace("neg", "zzz")
    write_files(tmp_path, {"train.csv": renamed})
    [task] = own_tasks(tmp_path, files, trained=tmp_path / "trial")
    assert task.labels == ("neg", "pos")
    files["dev.csv"] = renamed
    [task] = own_tasks(tmp_path, files, trained=tmp_path / "trial")
    refused(lambda: task.read("dev"), "dev.csv, line 3", "'zzz'", "neg, pos")
    two = {"text_b": "a"}
    refused(
        lambda: own_tasks(tmp_path, files, trained=tmp_path / "trial", **two),
        *("num_texts is 1 there, 2 here", "tasks.json"),
    )


def test_trained_model_determines_the_tags(tmp_path):
    lines = "the O\ndog B-PER\n\ncat B-LOC\n\n"
    files = {"train.txt": lines, "dev.txt": lines}
    write_facts(tmp_path / "trial", own_tasks(tmp_path, files, "tagging"))
    files["dev.txt"] = lines.replace("LOC", "PLACE")
    refused(
        lambda: own_tasks(tmp_path, files, "tagging", trained=tmp_path / "trial"),
        *("dev.txt", "'PLACE'", "LOC", "PER"),
    )
    del files["dev.txt"]
    files["train.txt"] = lines.replace("LOC", "AAA")
    files["dev.txt"] = lines
    [task] = own_tasks(tmp_path, files, "tagging", trained=tmp_path / "trial")
    assert task.labels == ["O", "S-LOC", "S-PER"]


def test_a_dev_score_outside_the_scale(tmp_path):
    files = {"train.tsv": "a\tb\ndog\t1\ncat\t2\n"}
    files["dev.tsv"] = "a\tb\ndog\t0.5\ncat\t5\n"
    for choice in ("stop", "skip"):
        words = "dev.tsv", "from 0.5 to 5", '"lowest": 0.5, "highest": 5'
        more = {"on_bad_example": choice}
        refused(lambda m=more: own_tasks(tmp_path, files, "regression", **m), *words)
    scale = {"lowest": 0, "highest": 10}
    [task] = own_tasks(tmp_path, files, "regression", **scale)
    targets = [next(task.featurize(e, False))["targets"] for e in task.read("dev")]
    assert targets == [0.05, 0.5]


def test_words_without_tokens_beyond_max_seq_length(tmp_path):
    words = ["\u200b"] * 40
    text = json.dumps({"words": words, "tags": ["O"] * 39 + ["B-X"]}) + "\n"
    tasks = own_tasks(tmp_path, {"train.jsonl": text}, "tagging", max_seq_length=24)
    store = preprocessing.features(tasks[0].config, tasks, "train", True)
    assert store["mine:labels_mask"].sum() == 24


def test_features_depend_on_strip_accents(tmp_path):
    digests = []
    for strip in (True, False):
        [task] = own_tasks(tmp_path, {"train.csv": CLASSES})
        vocab = task.tokenizer.vocab
        task.tokenizer = Tokenizer(vocab, True, strip)
        store = preprocessing.features(task.config, [task], "train", True)
        facts = preprocessing.data_facts(task.config, [task])
        digests.append((store.digest, facts["mine"]["train"]))
    assert digests[0][0] != digests[1][0] and digests[0][1] != digests[1][1]


def test_f1_of_three_classes_of_which_two_are_seen(tmp_path):
    text = "a,b\ndog,x\ncat,y\nran,z\n"
    [task] = own_tasks(tmp_path, {"train.csv": text}, metric="f1")
    scorer = task.scorer("dev")
    for label, prediction in ((0, 0), (0, 1), (1, 1), (1, 1)):
        scorer.update({"label_ids": label, "predictions": prediction, "loss": 0.0})
    # The mean of 2/3 and 4/5; of the second class alone it would be 80.
    assert dict(scorer.get_results())["f1"] == pytest.approx(100 * (2 / 3 + 4 / 5) / 2)
    found = scorer.details()
    assert found["classes"]["x"] == pytest.approx(
        {"precision": 100.0, "recall": 50.0, "f1": 200 / 3, "support": 2}
    )
    assert found["confusion"] == {"labels": ["x", "y"], "matrix": [[1, 1], [0, 2]]}


def test_one_prediction_is_not_degenerate(tmp_path):
    [task] = own_tasks(tmp_path, {"train.csv": CLASSES})
    scorer = task.scorer("dev")
    for several in (False, True):
        scorer.update({"label_ids": 0, "predictions": 0, "loss": 0.0})
        assert (len(scorer) > 1 and scorer.is_degenerate) == several


def test_long_fields(tmp_path):
    text = CLASSES + '"' + "dog " * 50_000 + '",pos\n'
    [task] = own_tasks(tmp_path, {"train.csv": text})
    assert len(task.read("train")[-1].text_a) == 200_000


def test_features_depend_on_the_code_of_a_class(tmp_path, monkeypatch):
    code = """
from electra_tf.finetune.classification import InputExample, TextTask

class Mine(TextTask):
    labels = ("x", "y")

    def __init__(self, config, tokenizer):
        super().__init__("mine", config, tokenizer)

    def path(self, split): ...
    def examples(self, split): ...
"""
    monkeypatch.syspath_prepend(tmp_path)
    [task] = own_tasks(tmp_path, {"train.csv": CLASSES})

    def settings(text):
        (tmp_path / "task_of_a_class.py").write_text(text)
        sys.modules.pop("task_of_a_class", None)
        importlib.invalidate_caches()
        linecache.clearcache()
        module = importlib.import_module("task_of_a_class")
        mine = module.Mine(task.config, task.tokenizer)
        return json.dumps(mine.feature_settings(), sort_keys=True)

    first = settings(code)
    assert settings(code + "# changed\n") != first
    fixed = code.replace("    labels", '    version = "1"\n    labels')
    assert settings(fixed) == settings(fixed + "# changed\n") != first
    assert settings(fixed.replace('"1"', '"2"')) != settings(fixed)


def test_several_classes_for_a_text(tmp_path):
    rows = [
        {"a": "dog", "b": ["x", "y"]},
        {"a": "cat", "b": []},
        {"a": "ran", "b": "z"},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    files = {"train.jsonl": lines, "dev.tsv": "a\tb\ndog\tz, x\ncat\t\n"}
    files["test.tsv"] = "a\ndog\n"
    keys = {"text_a": "a", "label": "b"}
    tasks = own_tasks(tmp_path, files, "multilabel", **keys)
    [task] = tasks
    assert task.labels == ("x", "y", "z") and task.head == HeadSpec("multilabel", 3)
    store = preprocessing.features(task.config, tasks, "train", True)
    flags = [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert store["mine:label_flags"].tolist() == flags
    assert [e.label for e in task.read("dev")] == [("z", "x"), ()]
    assert [e.label for e in task.read("test")] == [()]
    assert preprocessing.counts_of(task, 0, store) == {"x": 1, "y": 1, "z": 1}
    scorer = task.scorer("dev")
    for eid, logits in enumerate(([2.0, 1.0, -1.0], [-1.0, -1.0, -1.0])):
        gold = next(task.featurize(task.read("dev")[eid], False))["label_flags"]
        row = {"eid": eid, "label_flags": gold, "logits": logits, "loss": 0.5}
        scorer.update(row)
    results = dict(scorer.get_results())
    assert results["f1"] == 50.0 and results["exact_match"] == 50.0
    assert scorer.details()["classes"]["z"]["recall"] == 0.0
    [path] = task.write_predictions("dev", scorer, str(tmp_path / "out"))
    first = json.loads(open(path).readline())
    assert first["labels"] == ["x", "y"] and first["correct"] == ["z", "x"]
    assert first["probabilities"]["z"] == pytest.approx(1 / (1 + math.e), rel=1e-5)
    files["dev.tsv"] = "a\tb\ndog\tw\n"
    [task] = own_tasks(tmp_path, files, "multilabel", **keys)
    refused(lambda: task.read("dev"), "dev.tsv, line 2", "'w'", "x, y, z")


def test_column_of_the_text(tmp_path):
    files = {"train.csv": CLASSES}
    rows = {"a": "dog", "text": "no"}, {"a": None, "text": "no"}
    files["test.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    [task] = own_tasks(tmp_path, files)
    refused(
        lambda: task.read("test"), "test.jsonl, line 2", "no value in column 'a' (null)"
    )
    # A file of new texts may have them in another column, but in one only.
    write_files(tmp_path, {"new.jsonl": '{"text": "dog"}\n{"text": "cat"}\n'})
    new = inputs.Source.of(tmp_path / "new.jsonl")
    assert [one.fields["text"] for one in task.read_inputs(new)] == ["dog", "cat"]
    refused(
        lambda: list(task.read_inputs(inputs.Source.of(tmp_path / "test.jsonl"))),
        *("test.jsonl, line 2", "the text is in text, but in a on the lines before"),
    )


def test_one_class_or_none(tmp_path):
    files = {"train.tsv": "a\tb\ndog\tx\ncat\t\nran\tx\n"}
    keys = {"text_a": "a", "label": "b"}
    [task] = own_tasks(tmp_path, files, "multilabel", **keys)
    assert task.labels == ("x",) and task.head.num_labels == 1
    scorer = task.scorer("dev")
    for gold, logit in ((1.0, 2.0), (0.0, 1.0), (1.0, -1.0), (0.0, -2.0), (0.0, -2.0)):
        scorer.update({"label_flags": [gold], "logits": [logit], "loss": 0.0})
    found = dict(scorer.get_results())
    assert found["f1"] == found["f1_macro"] == 50.0 and found["exact_match"] == 60.0
    assert scorer.details()["classes"]["x"]["support"] == 2
    files["train.tsv"] = "a\tb\ndog\t\ncat\t\n"
    refused(lambda: own_tasks(tmp_path, files, "multilabel", **keys), "0 labels")


def test_names_of_parts_of_a_model_are_reserved():
    """--what of export_model.py would take the part for the task."""
    known = saved_model.WHAT, onnx.WHAT, litert.WHAT, networks.WHAT
    assert {name for names in known for name in names} == {*networks.PARTS}
    keys = {"type": "tagging", "train": "a.txt", "dev": "a.txt"}
    for name in networks.PARTS:
        refused(lambda n=name: check_description(n, keys), repr(name), "another name")
        check_description(f"my_{name}", keys)
