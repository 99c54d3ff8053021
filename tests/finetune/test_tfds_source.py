# SPDX-License-Identifier: Apache-2.0
"""GLUE and SQuAD from tensorflow_datasets are what they are from files.

The data sets are prepared by tensorflow_datasets' own builders, from rows made here.
"""

import json

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import preprocessing
from electra_tf.finetune.task_names import make_tasks, originals_with_data
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL
from tests.helpers.tiny_finetuning import finetune

tfds = pytest.importorskip("tensorflow_datasets")

WORDS = ["the", "dog", "cat", "sat", "ran", "paris", "in", "?", "who"]
# Words of the sentences, and of the questions' texts.
A, B = "the dog sat", "the cat ran"


def prepare(directory, name, splits):
    """Writes rows as the data set `name`; its storage order is not theirs."""
    builder = tfds.builder(name, data_dir=str(directory), try_gcs=False)
    builder._split_generators = lambda dl_manager: {
        split: list(enumerate(rows)) for split, rows in splits.items()
    }
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    # Where the builder's code lies, for checksums of downloads: not needed here, and
    # finding it needs a package that is not always there.
    type(builder).code_path = None
    builder.download_and_prepare(download_config=config)


def glue(texts, labels):
    """A row per label; `texts` are the names of the columns."""
    values = dict(zip(texts, (A, B), strict=False))
    return [
        values | {texts[0]: f"{A} {'ran ' * i}".strip(), "label": label, "idx": i}
        for i, label in enumerate(labels)
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    vocab = [*SPECIAL, *WORDS]
    (directory / "vocab.txt").write_text("".join(f"{t}\n" for t in vocab))
    pair = ("sentence1", "sentence2")
    prepared = {
        "glue/cola": (("sentence",), [0, 1, 1, 0], "train validation"),
        "glue/mrpc": (pair, [1, 0, 0, 1], "train validation"),
        "glue/stsb": (pair, [0.0, 2.5, 5.0], "train validation"),
        "glue/rte": (pair, [0, 1, 1, 0], "train validation"),
        "glue/mnli": (
            ("premise", "hypothesis"),
            [0, 1, 2, 0],
            "train validation_matched validation_mismatched",
        ),
    }
    for name, (texts, labels, splits) in prepared.items():
        rows = glue(texts, labels)
        found = {split: rows for split in splits.split()}
        if name == "glue/rte":
            found["test"] = [row | {"label": -1} for row in rows]
        prepare(directory / "tfds", name, found)
    write_files(directory / "finetuning_data")
    questions = [question(f"q{i}", i) for i in range(3)]
    prepare(
        directory / "tfds",
        "squad/v1.1",
        {"train": questions[:2], "validation": questions[:2]},
    )
    prepare(
        directory / "tfds",
        "squad/v2.0",
        {
            split: [
                q
                | {
                    "is_impossible": not q["answers"]["text"],
                    "plausible_answers": {"text": [], "answer_start": []},
                }
                for q in questions
            ]
            for split in ("train", "validation")
        },
    )
    return directory


def test_what_is_prepared_is_there(data, tmp_path):
    hparams = {"data_source": "tfds", "tfds_data_dir": str(data / "tfds")}
    names = ["cola", "mrpc", "sts", "mnli", "rte", "squad", "squadv1"]
    for folder in (data, tmp_path):  # What lies in files is nothing to it.
        config = FinetuningConfig.from_hparams(str(folder), "m", hparams)
        assert originals_with_data(config) == names


def question(name, number):
    """Question 0 has a text of its own, question 2 no answer."""
    text = f"{A} in {B}" if number else f"{A} the cat"
    answers = {"text": ["cat"], "answer_start": [text.index("cat")]}
    return {
        "id": name,
        "title": "t",
        "context": text,
        "question": "who ran ?",
        "answers": answers if number < 2 else {"text": [], "answer_start": []},
    }


def write_files(directory):
    """The same rows in the files of GLUE's download."""
    names = {"mnli": ["entailment", "neutral", "contradiction"]}
    names["rte"] = ["entailment", "not_entailment"]
    lines = {
        "cola": lambda i, a, b, label: f"x\t{label}\t\t{a}",
        "mrpc": lambda i, a, b, label: f"{label}\t1\t2\t{a}\t{b}",
        "sts": lambda i, a, b, label: "\t".join(["x"] * 7 + [a, b, str(label)]),
        "rte": lambda i, a, b, label: f"{i}\t{a}\t{b}\t{names['rte'][label]}",
        "mnli": lambda i, a, b, label: "\t".join(
            ["x"] * 8 + [a, b, names["mnli"][label]]
        ),
    }
    labels = {"cola": [0, 1, 1, 0], "mrpc": [1, 0, 0, 1], "sts": [0.0, 2.5, 5.0]}
    labels |= {"rte": [0, 1, 1, 0], "mnli": [0, 1, 2, 0]}
    for name, line in lines.items():
        text = "" if name == "cola" else "header\n"
        for i, label in enumerate(labels[name]):
            text += line(i, f"{A} {'ran ' * i}".strip(), B, label) + "\n"
        (directory / name).mkdir(parents=True)
        files = ["train", "dev"]
        if name == "mnli":
            files = ["train", "dev_matched", "dev_mismatched"]
        for file in files:
            (directory / name / f"{file}.tsv").write_text(text)


def tasks_of(data, name, source, **hparams):
    hparams |= {"task_names": [name], "data_source": source, "max_seq_length": 24}
    hparams["max_query_length"] = 12
    if source == "tfds":
        hparams.setdefault("tfds_data_dir", str(data / "tfds"))
    config = FinetuningConfig.from_hparams(str(data), "m", hparams)
    return config, make_tasks(config, Vocabulary.load(data / "vocab.txt"))


@pytest.mark.parametrize("name", ["cola", "mrpc", "sts", "rte", "mnli"])
def test_glue_is_the_same_from_either_source(data, name):
    found = []
    for source in ("files", "tfds"):
        config, [task] = tasks_of(data, name, source)
        splits = ["train", *task.splits("dev")]
        examples = {split: task.examples(split) for split in splits}
        store = preprocessing.features(config, [task], "train", True)
        found.append((examples, {k: v.tolist() for k, v in store.items()}))
    assert found[0] == found[1]
    assert len(found[0][0]["train"]) >= 3


def test_test_sets_have_no_labels(data):
    _, [task] = tasks_of(data, "rte", "tfds")
    assert [e.eid for e in task.examples("test")] == [0, 1, 2, 3]
    assert task.splits("test") == ["test"]


def test_squad(data):
    _, [task] = tasks_of(data, "squad", "tfds")
    examples = task.examples("train")
    assert {e.question_id: e.is_impossible for e in examples} == {
        "q0": False,
        "q1": False,
        "q2": True,
    }
    assert {e.answer for e in examples if not e.is_impossible} == {"cat"}
    # Questions on one text stand together, on the same words.
    with_text = {e.question_id: e.words for e in examples}
    assert with_text["q1"] is with_text["q2"] is not with_text["q0"]
    assert task.answers("dev") == {"q0": ["cat"], "q1": ["cat"], "q2": []}
    _, [task] = tasks_of(data, "squadv1", "tfds")
    assert len(task.examples("train")) == 2
    assert task.splits("test") == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qnli", ["qnli", "tfds build glue/qnli", "tfds_data_dir"]),
        ("chunk", ["chunk does not come from", "cola", "squadv1"]),
    ],
)
def test_what_is_not_prepared_is_named(data, name, words):
    with pytest.raises(UserError) as caught:
        _, [task] = tasks_of(data, name, "tfds")
        task.examples("train")
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).count("\n") <= 2


def test_other_data_make_other_features(data, tmp_path):
    config, [task] = tasks_of(data, "cola", "tfds")
    before = task.data_hash("train")
    assert before == task.data_hash("train") != task.data_hash("dev")
    rows = glue(("sentence",), [1, 1, 1, 0])
    prepare(tmp_path, "glue/cola", {"train": rows, "validation": rows})
    _, [task] = tasks_of(data, "cola", "tfds", tfds_data_dir=str(tmp_path))
    assert task.data_hash("train") != before


def test_a_run_on_prepared_data(data):
    given = {"task_names": ["cola"], "num_train_epochs": 1.0, "data_source": "tfds"}
    given |= {"tfds_data_dir": str(data / "tfds")}
    run = finetune(data, "m", given)
    assert run.returncode == 0, run.stdout + run.stderr
    stored = json.loads((data / "models/m/results/cola_results.json").read_text())
    assert "mcc" in stored["trials"][0]["scores"]["cola"]
