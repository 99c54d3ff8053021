# SPDX-License-Identifier: Apache-2.0
"""Tasks: their data and features, bad examples, the labels of a trained model."""

import inspect
import json
import math

import numpy as np
import pytest

from electra_tf.finetune import batches, inputs, preprocessing
from electra_tf.finetune.classification import TextTask
from electra_tf.finetune.multilabel import FlagsHead
from electra_tf.finetune.task import write_tasks
from tests.helpers.own_task import own_tasks, with_answer, write_files
from tests.helpers.runs import refused

WORDS = ["the", "dog", "cat", "sat", "ran", "paris", "##s", "?", ".", "who"]


def tasks_of(folder, *names, files=None, words=WORDS, **hparams):
    """The original's tasks, on files below finetuning_data."""
    files = {f"finetuning_data/{name}": text for name, text in (files or {}).items()}
    short = {"max_seq_length": 12, "max_query_length": 5, "words": words}
    return own_tasks(folder, files, task_names=[*names], **short | hparams)


def test_skipped_examples_are_listed_with_the_features(tmp_path):
    text = "x\t1\t\tthe dog\nx\t7\t\tthe cat\nx\t0\nx\t0\t\tran\n"
    files = {"cola/train.tsv": text}
    tasks = tasks_of(tmp_path, "cola", files=files, on_bad_example="skip")
    for _ in range(2):  # built, then read
        store = preprocessing.features(tasks[0].config, tasks, "train", True)
        assert [line.partition(": ")[2] for line in store.skipped] == [
            "unknown label '7'; there are 0, 1",
            "2 columns instead of 4 or more",
        ]
        assert store["cola:eid"].tolist() == [0, 3]


def test_word_without_tokens_keeps_its_place(tmp_path):
    text = "the X B-NP\n\u200b X I-NP\ndog X I-NP\n\n"
    files = dict.fromkeys(("chunk/train.txt", "chunk/dev.txt"), text)
    [task] = tasks_of(tmp_path, "chunk", files=files)
    [example] = task.examples("train")
    [features] = task.featurize(example, True)
    assert features["labeled_positions"] == [1, 2, 2]
    assert len(features["labels"]) == 3


# Tasks of one's own.


def test_several_metrics_at_once(tmp_path):
    """The first is the main one; mrpc and qqp have accuracy, as in the original."""
    files = {"train.csv": "a,b\nthe dog,yes\nthe cat,no\n"}
    more = {"task_names": ["mine", "mrpc", "qqp", "sst"], "metric": ["mcc", "f1"]}
    tasks = own_tasks(tmp_path, files, **more)
    found = []
    for task in tasks:
        scorer = task.scorer("dev")
        for label, prediction in ((1, 1), (0, 1), (1, 1), (1, 0)):
            scorer.update({"label_ids": label, "predictions": prediction, "loss": 1.0})
        found.append(dict(scorer.get_results()))
        assert task.main_metric == next(iter(found[-1]))
    both = ["accuracy", "f1", "loss"]
    names = [["mcc", "f1", "loss"], both, both, ["accuracy", "loss"]]
    assert [list(results) for results in found] == names
    assert found[1]["f1"] == pytest.approx(200 / 3) and found[1]["accuracy"] == 50.0


def test_an_error_in_the_description_is_never_skipped(tmp_path):
    files = {"train.csv": "a,b\ndog,yes\na cat\nran,no"}
    more = {"on_bad_example": "skip", "keys": {"text_a": "aa"}}
    refused(lambda: own_tasks(tmp_path, files, **more), "train.csv", "'aa'", "a, b")
    [task] = own_tasks(tmp_path, files, on_bad_example="skip")
    assert task.labels == ("no", "yes") and "line 3" in "".join(task.skipped["train"])


# Features and batches.


def cola(folder, count=10, **more):
    lines = [f"x\t{i % 2}\t\t{'dog ' * (i % 5 + 1)}\n" for i in range(count)]
    files = {"cola/train.tsv": "".join(lines)}
    return tasks_of(folder, "cola", files=files, **more)


def test_features_depend_on_the_scale_of_the_training_scores(tmp_path):
    text = "a,b\nthe dog,0\nthe cat,{}\n"
    for highest in (4, 8):
        files = {"train.csv": text.format(highest), "dev.csv": text.format(2)}
        tasks = own_tasks(tmp_path, files, "regression")
        store = preprocessing.features(tasks[0].config, tasks, "dev", False)
        assert store["mine:targets"].tolist() == [0.0, 2 / highest]
        row = with_answer(tasks[0], {"logits": [0.25]})
        example = tasks[0].read("dev")[0]
        assert tasks[0].prediction(example, [row]) == {"value": highest / 4}


def test_batches_hold_every_example_once(tmp_path):
    tasks = cola(tmp_path)
    store = preprocessing.features(tasks[0].config, tasks, "train", True)

    def shuffled_batches(count, **options):
        dataset = batches.make_dataset(store, batch_size=4, seed=1, **options)
        return [{k: v.numpy() for k, v in b.items()} for b in dataset.take(count)]

    shuffled = shuffled_batches(5)
    later = shuffled_batches(3, start_step=2)
    seen = np.concatenate([b["cola:eid"] for b in shuffled])
    assert sorted(seen[:10]) == [*range(10)] and sorted(seen[10:]) == [*range(10)]
    for a, b in zip(shuffled[2:], later, strict=True):
        np.testing.assert_array_equal(a["cola:eid"], b["cola:eid"])
    for a, b in zip(shuffled, shuffled_batches(5, by_length=True), strict=True):
        lengths = b["input_mask"].sum(1).tolist()
        assert lengths == sorted(lengths)
        assert sorted(a["cola:eid"]) == sorted(b["cola:eid"])
    halves = shuffled_batches(4, num_replicas=2)
    np.testing.assert_array_equal(
        np.concatenate([b["cola:eid"] for b in halves]), seen[:8]
    )


# Files to submit.


def test_glue_files_have_the_official_form(tmp_path):
    files = {"rte/test.tsv": "h\n0\tdog\tcat\n1\tdog\tran\n"}
    [task] = tasks_of(tmp_path, "rte", files=files)
    scorer = task.scorer("test")
    for eid, prediction in ((1, 0), (0, 1)):
        row = {"eid": eid, "logits": [1 - prediction, prediction]}
        scorer.update(with_answer(task, row))
    paths = task.write_predictions("test", scorer, str(tmp_path / "out"))
    assert [path.rpartition("/")[2] for path in paths] == ["rte_test.jsonl", "RTE.tsv"]
    expected = "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    assert (tmp_path / "out" / "RTE.tsv").read_text() == expected
    rows = (tmp_path / "out" / "rte_test.jsonl").read_text().splitlines()
    assert json.loads(rows[1])["label"] == "entailment"


# Tasks of one's own, and of a trained model.

CLASSES = "a,b\nthe dog,pos\nthe cat,neg\nran,pos\n"


def test_trained_model_determines_the_labels(tmp_path):
    files = {"train.csv": CLASSES, "dev.csv": CLASSES}
    write_tasks(tmp_path / "trial", own_tasks(tmp_path, files))
    renamed = CLASSES.replace("neg", "zzz")
    write_files(tmp_path, {"train.csv": renamed})
    [task] = own_tasks(tmp_path, files, trained=tmp_path / "trial")
    assert task.labels == ("neg", "pos")
    # As version 0.1 wrote it.
    before = {"name": "mine", "kind": "classification", "labels": ["a", "b", "c"]}
    before |= {"num_texts": 1, "lowest": 0.0, "highest": 1.0, "has_impossible": False}
    (tmp_path / "before").mkdir()
    (tmp_path / "before/tasks.json").write_text(json.dumps([before]))
    [task] = own_tasks(
        tmp_path, files | {"dev.csv": "a,b\ndog,c\n"}, trained=tmp_path / "before"
    )
    assert task.labels == ("a", "b", "c")
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
    write_tasks(tmp_path / "trial", own_tasks(tmp_path, files, "tagging"))
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


def test_scores_are_learnt_on_the_given_scale(tmp_path):
    files = {"train.tsv": "a\tb\ndog\t1\ncat\t2\n"}
    files["dev.tsv"] = "a\tb\ndog\t0.5\ncat\t5\n"
    scale = {"lowest": 0, "highest": 10}
    [task] = own_tasks(tmp_path, files, "regression", **scale)
    targets = [next(task.featurize(e, False))["targets"] for e in task.read("dev")]
    assert targets == [0.05, 0.5]


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


def test_features_depend_on_the_code_of_a_class(tmp_path, monkeypatch):
    [task] = own_tasks(tmp_path, {"train.csv": CLASSES})

    class Mine(TextTask):
        labels = ("x", "y")

    def settings(source, version=None):
        monkeypatch.setattr(inspect, "getsource", lambda module: source)
        monkeypatch.setattr(Mine, "version", version)
        mine = Mine("mine", task.config, task.tokenizer)
        return json.dumps(mine.feature_settings(), sort_keys=True)

    first, fixed = settings("a"), settings("a", "1")
    assert len({first, settings("b"), fixed, settings("a", "2")}) == 4
    assert settings("b", "1") == fixed


def test_several_classes_for_a_text(tmp_path):
    rows = [
        {"a": "dog", "b": ["x", "y"]},
        {"a": "cat", "b": []},
        {"a": "ran", "b": "z"},
    ]
    files = {"train.jsonl": rows, "dev.tsv": "a\tb\ndog\tz, x\ncat\t\n"}
    files["test.tsv"] = "a\ndog\n"
    tasks = own_tasks(tmp_path, files, "multilabel")
    [task] = tasks
    assert task.labels == ("x", "y", "z") and task.head == FlagsHead(3)
    store = preprocessing.features(task.config, tasks, "train", True)
    flags = [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert store["mine:label_flags"].tolist() == flags
    assert [e.label for e in task.read("dev")] == [("z", "x"), ()]
    assert [e.label for e in task.read("test")] == [()]
    assert [[*task.classes_of(e)] for e in task.read("train")] == [
        ["x", "y"],
        [],
        ["z"],
    ]
    scorer = task.scorer("dev")
    for eid, logits in enumerate(([2.0, 1.0, -1.0], [-1.0, -1.0, -1.0])):
        gold = next(task.featurize(task.read("dev")[eid], False))["label_flags"]
        row = {"eid": eid, "label_flags": gold, "logits": logits, "loss": 0.5}
        scorer.update(with_answer(task, row))
    results = dict(scorer.get_results())
    assert results["f1"] == 50.0 and results["exact_match"] == 50.0
    assert scorer.details()["classes"]["z"]["recall"] == 0.0
    [path] = task.write_predictions("dev", scorer, str(tmp_path / "out"))
    first = json.loads(open(path).readline())
    assert first["labels"] == ["x", "y"] and first["correct"] == ["z", "x"]
    assert first["probabilities"]["z"] == pytest.approx(1 / (1 + math.e), rel=1e-5)


def test_column_of_the_text(tmp_path):
    files = {"train.csv": CLASSES}
    rows = {"a": "dog", "text": "no"}, {"a": None, "text": "no"}
    files["test.jsonl"] = rows
    [task] = own_tasks(tmp_path, files)
    refused(
        lambda: task.read("test"), "test.jsonl, line 2", "no value in column 'a' (null)"
    )
    # A file of new texts may have them in another column.
    write_files(tmp_path, {"new.jsonl": '{"text": "dog"}\n{"text": "cat"}\n'})
    new = inputs.Source.of(tmp_path / "new.jsonl")
    assert [one.fields["text"] for one in task.read_inputs(new)] == ["dog", "cat"]
    both = task.read_inputs(inputs.Source.of(tmp_path / "test.jsonl"))
    assert [one.fields["text"] for one in both] == ["dog", "no"]


# Bad examples and descriptions: the error names file and line.


def features(folder, files, task="mine", **hparams):
    """Features of the training set of a task on these files."""
    short = {"max_seq_length": 12, "max_query_length": 5, "task_names": [task]}
    tasks = own_tasks(folder, files, **short | hparams)
    return preprocessing.features(tasks[0].config, tasks, "train", True)


def refuses(folder, files, expected, **hparams):
    refused(lambda: features(folder, files, **hparams), *expected)


def described(ending, kind="classification", **keys):
    if kind not in ("tagging", "qa"):
        keys = {"text_a": "a", "label": "b"} | keys
    file = f"t.{ending}"
    return {"mine": {"type": kind, "train": file, "dev": file, **keys}}


STS = "h\n" + "0\t" * 7


@pytest.mark.parametrize(
    ("task", "file", "text", "words"),
    [
        ("cola", "train.tsv", "x\t1\t\tthe dog\nx\t1\n", ["line 2", "2 columns"]),
        ("cola", "train.tsv", "x\tyes\t\tthe dog\n", ["line 1", "'yes'", "0, 1"]),
        ("rte", "train.tsv", "h\n0\ta\tb\tmaybe\n", ["line 2", "'maybe'"]),
        ("sts", "train.tsv", f"{STS}a\tb\t6.5\n", ["line 2", "6.5"]),
        ("sts", "train.tsv", f"{STS}a\tb\tgood\n", ["line 2", "good"]),
        ("chunk", "train.txt", "the X B-NP\ndog\n\n", ["line 2", "not 3 columns"]),
        ("chunk", "train.txt", "the X B-NP\ndog X\n\n", ["line 2", "columns"]),
        ("squadv1", "train.json", "{]", ["JSON"]),
        ("newsqa", "train.jsonl", [{"context": 3}], []),
    ],
)
def test_line_of_a_built_in_task_is_named(tmp_path, task, file, text, words):
    refuses(
        tmp_path, {f"finetuning_data/{task}/{file}": text}, [file, *words], task=task
    )


GOOD = {"a": "dog", "b": "x"}, {"a": "cat", "b": "y"}
NER = {"words": ["cat"], "tags": ["B-PER"]}
SCORES = {"a": "cat", "b": 1}, {"a": "ran", "b": 2}


TAGGED = [
    (["dog"], "O"), ("dog", ["O"]), (["dog", "cat"], ["O"]), (["dog"], [1]),
    (["dog"], ["NOUN"]), (["dog"], ["X-PER"]), (["a", None], ["O", "O"]),
    (["a", ["b"]], ["O", "O"]), (["dog"], None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "good", "bad", "keys"),
    [
        *(("regression", SCORES, {"a": "dog", "b": score}, {})
          for score in (math.nan, "inf", "", "good")),
        ("regression", SCORES, {"a": "dog", "b": -1}, {"lowest": 0}),
        ("regression", SCORES, {"a": "dog", "b": 5}, {"highest": 4}),
        ("classification", GOOD, {"a": ["the", "dog"], "b": "x"}, {}),
        ("classification", GOOD, {"a": {"text": "dog"}, "b": "x"}, {}),
        ("classification", GOOD, {"a": "ran", "b": math.nan}, {}),
        ("multilabel", GOOD, {"a": "dog", "b": ["x", None]}, {}),
        ("multilabel", GOOD, {"a": "dog", "b": {"x": 1}}, {}),
        *(("tagging", [NER], {"words": x, "tags": y}, {}) for x, y in TAGGED),
        ("tagging", [NER], {"words": ["a"], "tags": [None]}, {"scheme": "plain"}),
    ],
)  # fmt: skip
def test_row_of_an_own_task_is_named_or_skipped(tmp_path, kind, good, bad, keys):
    files = {"t.jsonl": [*good, bad]}
    tasks, line = described("jsonl", kind, **keys), f"line {len(good) + 1}"
    refuses(tmp_path, files, [f"t.jsonl, {line}"], tasks=tasks)
    store = features(tmp_path, files, tasks=tasks, on_bad_example="skip")
    [left_out] = store.skipped
    assert len(store) == len(good) and line in left_out
    if kind == "regression" and not keys:
        assert store["mine:targets"].tolist() == [0.0, 1.0]


def test_unanswerable_questions_need_a_head_for_them(tmp_path):
    words = ["squad", "answerable_classifier", "joint_prediction"]
    refuses(tmp_path, {}, words, task="squad", answerable_classifier=False)
