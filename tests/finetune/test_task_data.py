# SPDX-License-Identifier: Apache-2.0
"""Tasks and their data: own tasks, features on disk, files to submit."""

import json
import threading
import zipfile

import numpy as np
import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import batches, preprocessing
from electra_tf.finetune.registry import make_tasks
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL

WORDS = ["the", "dog", "cat", "sat", "ran", "paris", "##s", "?", ".", "who"]


@pytest.fixture
def data(tmp_path):
    tokens = [*SPECIAL, *WORDS]
    (tmp_path / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens))
    return tmp_path


def write(data, path, text):
    path = data / "finetuning_data" / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def tasks_of(data, *names, **hparams):
    short = {"max_seq_length": 12, "max_query_length": 5, "beam_size": 5}
    hparams = {"task_names": list(names)} | short | hparams
    config = FinetuningConfig.from_hparams(str(data), "m", hparams)
    return make_tasks(config, Vocabulary.load(data / "vocab.txt"))


def refused(function, *expected):
    with pytest.raises(UserError) as caught:
        function()
    message = str(caught.value)
    for word in expected:
        assert word in message, message
    assert message.count("\n") <= 2


def test_skipped_examples_are_listed_with_the_features(data):
    text = "x\t1\t\tthe dog\nx\t7\t\tthe cat\nx\t0\nx\t0\t\tran\n"
    write(data, "cola/train.tsv", text)
    tasks = tasks_of(data, "cola", on_bad_example="skip")
    for _ in range(2):  # built, then read
        store = preprocessing.features(tasks[0].config, tasks, "train", True)
        assert [line.partition(": ")[2] for line in store.skipped] == [
            "unknown label '7'; there are 0, 1",
            "2 columns instead of 4 or more",
        ]
        assert store["cola:eid"].tolist() == [0, 3]


def test_missing_split_and_wrong_name(data):
    [task] = tasks_of(data, "rte")
    refused(lambda: task.examples("dev"), "rte/dev.tsv", "does not exist")
    refused(lambda: tasks_of(data, "squad1"), "did you mean", "squad")


def test_byte_order_mark_is_ignored(data):
    write(
        data, "mrpc/train.tsv", "\ufeffQuality\ta\tb\tc\td\n1\t1\t2\tthe dog\tthe cat\n"
    )
    [task] = tasks_of(data, "mrpc", double_unordered=False)
    assert task.examples("train")[0][:4] == (0, "the dog", "the cat", "1")
    write(data, "cola/train.tsv", "\ufeffx\t1\t\tthe dog\n")
    [task] = tasks_of(data, "cola")
    assert task.examples("train")[0].text_a == "the dog"


def test_word_without_tokens_keeps_its_place(data):
    text = "the X B-NP\n\u200b X I-NP\ndog X I-NP\n\n"
    write(data, "chunk/train.txt", text)
    write(data, "chunk/dev.txt", text)
    [task] = tasks_of(data, "chunk")
    [example] = task.examples("train")
    [features] = task.featurize(example, True)
    assert features["labeled_positions"] == [1, 2, 2]
    assert len(features["labels"]) == 3


def test_line_with_other_columns_is_named(data):
    lines = ["the X B-NP", "10 000 X I-NP", "dog X I-NP", "", "the X B-NP", ""]
    write(data, "chunk/train.txt", "\n".join(lines))
    refused(lambda: tasks_of(data, "chunk"), "line 2", "columns")
    [task] = tasks_of(data, "chunk", on_bad_example="skip")
    assert [example.words for example in task.read("train")] == [["the"]]
    # Between tabs a word may have a blank in it, and everywhere a no-break space.
    for text in (
        "\n".join(lines).replace("10 000", "10\u00a0000"),
        "\n".join(lines).replace(" ", "\t").replace("10\t", "10 "),
    ):
        write(data, "chunk/train.txt", text)
        [task] = tasks_of(data, "chunk")
        first, second = task.read("train")
        assert (len(first.words), second.words) == (3, ["the"])


def test_long_texts_are_truncated(data):
    write(data, "rte/train.tsv", f"h\n0\t{'the ' * 40}\tdog ran ran\tentailment\n")
    [task] = tasks_of(data, "rte")
    [features] = task.featurize(task.examples("train")[0], True)
    assert len(features["input_ids"]) == 12
    assert sum(features["segment_ids"]) == 4  # dog ran ran [SEP]


# Tasks of one's own.


def own(kind, **keys):
    files = {"train": "train.csv", "dev": "dev.csv"}
    return {"mine": {"type": kind, **files, **keys}}


def test_several_metrics_at_once(data):
    """The first is the main one; mrpc and qqp have accuracy, as in the original."""
    for split in ("train", "dev"):
        (data / f"{split}.csv").write_text("text,kind\nthe dog,yes\nthe cat,no\n")
    keys = {"text_a": "text", "label": "kind", "metric": ["mcc", "f1"]}
    tasks = tasks_of(
        data, "mine", "mrpc", "qqp", "sst", tasks=own("classification", **keys)
    )
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


def test_task_in_a_module(data, monkeypatch):
    code = """
from electra_tf.finetune.classification import InputExample, TextTask

class Reviews(TextTask):
    labels = ("neg", "pos")

    def __init__(self, config, tokenizer):
        super().__init__("reviews", config, tokenizer)

    def path(self, split):
        import pathlib
        return pathlib.Path(self.config.data_dir) / f"{split}.txt"

    def examples(self, split):
        lines = enumerate(self.required(split).read_text().splitlines())
        cells = [(i, *line.partition(" ")[::2]) for i, line in lines]
        return [InputExample(i, text, None, label) for i, label, text in cells]
"""
    (data / "their_tasks.py").write_text(code)
    (data / "train.txt").write_text("pos the dog\nneg the cat\n")
    monkeypatch.syspath_prepend(data)
    [task] = tasks_of(data, "their_tasks:Reviews")
    store = preprocessing.features(task.config, [task], "train", True)
    assert store["reviews:label_ids"].tolist() == [1, 0]
    refused(lambda: task.examples("dev"), "reviews needs", "dev.txt")


def test_task_class_that_cannot_be_loaded(data):
    for name, words in (
        ("electra_tf.finetune.task:X", "has no attribute 'X'"),
        ("no_such_module:Reviews", "on PYTHONPATH"),
        ("electra_tf.no_such:X", "on PYTHONPATH"),
        ("electra_tf.finetune.classification:truncate_pair", "not a class"),
    ):
        refused(lambda name=name: tasks_of(data, name), name, words)


def test_missing_column(data):
    path = data / "train.csv"
    path.write_text("text,kind\nthe dog,yes\na cat\nthe cat,no")

    def described(text, **more):
        description = own("classification", text_a=text, label="kind")
        return tasks_of(data, "mine", tasks=description, **more)

    # An error in the description is never skipped.
    for choice in ("stop", "skip"):
        refused(
            lambda choice=choice: described("texd", on_bad_example=choice),
            *(path.name, "'texd'", "text, kind"),
        )
    refused(lambda: described("text"), f"{path.name}, line 3", "1 cells")
    [task] = described("text", on_bad_example="skip")
    assert task.labels == ("no", "yes")


def test_all_examples_skipped(data):
    write(data, "cola/train.tsv", "x\tbad\t\ta dog\n")
    tasks = tasks_of(data, "cola", on_bad_example="skip")
    refused(
        lambda: preprocessing.features(tasks[0].config, tasks, "train", True),
        "cola",
        "no example of train",
    )


# Features and batches.


def cola(data, count=10):
    lines = [f"x\t{i % 2}\t\t{'dog ' * (i % 5 + 1)}\n" for i in range(count)]
    write(data, "cola/train.tsv", "".join(lines))
    return tasks_of(data, "cola")


def test_jobs_that_start_together_get_the_same_features(data):
    cola(data, 500)
    together, found = threading.Barrier(6), []

    def make():
        tasks = tasks_of(data, "cola")
        together.wait()
        store = preprocessing.features(tasks[0].config, tasks, "train", True)
        found.append({name: np.array(array) for name, array in store.items()})

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = data / "models" / "m" / "finetuning_tfrecords" / "cola_tfrecords"
    (kept,) = folder.iterdir()
    assert len(list(kept.iterdir())) == 1 + len(found[0])
    assert len(found) == 6
    for store in found:
        assert store.keys() == found[0].keys()
        assert all(np.array_equal(store[k], found[0][k]) for k in store)


def test_features_depend_on_the_scale_of_the_training_scores(data):
    lines = ["text,score", "the dog,0", "the cat,{}"]
    for highest in (4, 8):
        (data / "train.csv").write_text("\n".join(lines).format(highest))
        (data / "dev.csv").write_text("\n".join(lines).format(2))
        given = own("regression", text_a="text", label="score")
        tasks = tasks_of(data, "mine", tasks=given)
        store = preprocessing.features(tasks[0].config, tasks, "dev", False)
        assert store["mine:targets"].tolist() == [0.0, 2 / highest]
        assert tasks[0].answer({"predictions": 0.25}) == f"{highest / 4:.3f}"


def test_features_are_rebuilt_for_other_data_or_hparams(data):
    tasks = cola(data)
    config = tasks[0].config

    def digest(tasks):
        return preprocessing.features(tasks[0].config, tasks, "train", True).digest

    first = digest(tasks)
    folder = data / "models" / "m" / "finetuning_tfrecords" / "cola_tfrecords"
    [made] = folder.iterdir()
    before = (made / "input_ids.npy").stat().st_mtime_ns
    assert digest(tasks_of(data, "cola")) == first
    assert (made / "input_ids.npy").stat().st_mtime_ns == before
    assert digest(tasks_of(data, "cola", max_seq_length=10)) != first
    assert digest(cola(data, 11)) != first
    cola(data)
    tokens = (data / "vocab.txt").read_text().replace("paris", "london")
    (data / "vocab.txt").write_text(tokens)
    assert digest(tasks_of(data, "cola")) != first
    assert config.use_tfrecords_if_existing


def test_batches_hold_every_example_once(data):
    tasks = cola(data)
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


def test_glue_files_have_the_official_form(data):
    write(data, "rte/test.tsv", "h\n0\tdog\tcat\n1\tdog\tran\n")
    [task] = tasks_of(data, "rte")
    scorer = task.scorer("test")
    for eid, prediction in ((1, 0), (0, 1)):
        row = {"eid": eid, "predictions": prediction, "logits": [0.25, 0.5]}
        scorer.update(row)
    paths = task.write_predictions("test", scorer, str(data / "out"))
    assert [path.rpartition("/")[2] for path in paths] == [
        "rte_test.jsonl",
        "RTE.tsv",
        "RTE.zip",
    ]
    expected = "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    assert (data / "out" / "RTE.tsv").read_text() == expected
    with zipfile.ZipFile(data / "out" / "RTE.zip") as archive:
        assert archive.read("RTE.tsv").decode() == expected
    rows = (data / "out" / "rte_test.jsonl").read_text().splitlines()
    assert json.loads(rows[1])["label"] == "entailment"
