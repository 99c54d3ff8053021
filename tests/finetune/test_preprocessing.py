# SPDX-License-Identifier: Apache-2.0
"""Features on disk: when they are reused and rebuilt; what a run says of them."""

from pathlib import Path

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import preprocessing, trial
from electra_tf.finetune.results import TrialResult
from electra_tf.storage.manifest import verify_folder
from electra_tf.text.vocabulary import TokenizerConfig
from tests.helpers.own_task import own_tasks, write_files

FILES = {"train.csv": "a,b\ndog,x\ncat,y\n", "dev.csv": "a,b\nran,x\n"}
EDITED = {"dev.csv": "id,a,b\n7,the dog,y\n8,cat,x\n"}


def damaged(path):
    """Cut, empty and wrong content; None for a missing file."""
    content = path.read_bytes()
    yield content[: len(content) // 2]
    yield b""
    yield content[:-1] + bytes([content[-1] ^ 1])
    yield None


@pytest.mark.parametrize("name", ["input_ids.npy", "mine:eid.npy", "manifest.json"])
def test_damaged_features_are_rebuilt(tmp_path, name):
    before = dev_features(own_tasks(tmp_path, FILES))
    expected = {key: array.tolist() for key, array in before.items()}
    folder = Path(own_tasks(tmp_path, FILES)[0].config.preprocessed_data_dir)
    [path] = folder.glob(f"dev_*/{name}")
    for content in damaged(path):
        path.unlink() if content is None else path.write_bytes(content)
        found = dev_features(own_tasks(tmp_path, FILES))
        assert found.digest == before.digest
        assert {key: array.tolist() for key, array in found.items()} == expected
        assert verify_folder(path.parent)["examples"] == 1


def test_features_are_built_once_in_a_run(tmp_path):
    tasks = own_tasks(tmp_path, FILES, use_tfrecords_if_existing=False)
    first = dev_features(tasks)
    assert dev_features(tasks) is first
    again = own_tasks(tmp_path, FILES, use_tfrecords_if_existing=False)
    assert dev_features(again) is not first


def test_a_full_disk_leaves_nothing_and_the_next_run_works(tmp_path, monkeypatch):
    tasks = own_tasks(tmp_path, FILES)
    folder = Path(tasks[0].config.preprocessed_data_dir)

    def full(path, array):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(UserError) as caught:
        patch.setattr(np, "save", full)
        dev_features(tasks)
    assert caught.value.exit_code == 73 and "No space left" in str(caught.value)
    assert list(folder.iterdir()) == []
    assert len(dev_features(tasks)) == 1


def dev_features(tasks):
    return preprocessing.features(tasks[0].config, tasks, "dev", False)


def test_file_edited_during_a_run(tmp_path):
    """The run uses what it has read; the next one reads the file."""
    tasks = own_tasks(tmp_path, FILES)
    before = dev_features(tasks), preprocessing.data_facts(tasks[0].config, tasks)
    tasks[0].read("dev")
    write_files(tmp_path, EDITED)
    assert dev_features(tasks).digest == before[0].digest
    assert preprocessing.data_facts(tasks[0].config, tasks) == before[1]
    assert [e.text_a for e in tasks[0].read("dev")] == ["ran"]
    anew = own_tasks(tmp_path, FILES | EDITED)
    assert (
        len(dev_features(anew)) == 2 and dev_features(anew).digest != before[0].digest
    )
    assert preprocessing.data_facts(anew[0].config, anew) != before[1]


def test_features_depend_on_the_content_of_files_alone(tmp_path):
    before = dev_features(own_tasks(tmp_path, FILES))
    with_test = own_tasks(tmp_path, FILES | {"test.csv": "a\nran\n"})
    assert dev_features(with_test).digest == before.digest
    moved = {f"elsewhere/{name}": text for name, text in FILES.items()}
    found = dev_features(own_tasks(tmp_path, moved))
    assert found.digest == before.digest


@pytest.mark.parametrize(
    "changed",
    [
        {"max_seq_length": 10},
        {"words": ["the", "dog", "ran", "paris"]},
        {"text": TokenizerConfig(True, strip_accents=False)},
        {"files": FILES | {"dev.csv": "a,b\nran,y\n"}},
        {},
    ],
)
def test_features_are_rebuilt_for_all_that_they_depend_on(
    tmp_path, monkeypatch, changed
):
    before = dev_features(own_tasks(tmp_path, FILES))
    [path] = (tmp_path / "models/m/finetuning_tfrecords").glob("*/dev_*/input_ids.npy")
    written = path.stat().st_mtime_ns
    assert dev_features(own_tasks(tmp_path, FILES)).digest == before.digest
    assert path.stat().st_mtime_ns == written
    if not changed:  # but the program
        monkeypatch.setattr(preprocessing, "FORMAT", preprocessing.FORMAT + 1)
    tasks = own_tasks(tmp_path, **{"files": FILES} | changed)
    assert dev_features(tasks).digest != before.digest


def test_predictions_for_another_test_set_do_not_count(tmp_path):
    test = {"test.csv": "a\nran\n"}
    tasks = own_tasks(tmp_path, FILES | test, write_test_outputs=True)
    (tmp_path / "written").write_text("")
    made = TrialResult(1, 42, {}, [], 1, {}, test_outputs=[str(tmp_path / "written")])
    known = made._replace(test_data=trial._test_data(tasks))
    assert list(known.test_data["mine"]) == ["test"]
    config = tasks[0].config
    assert not trial.lacks_test_outputs(config, known, tasks)
    test = {"test.csv": "a\nthe dog\n"}
    tasks = own_tasks(tmp_path, FILES | test, write_test_outputs=True)
    assert trial.lacks_test_outputs(config, known, tasks)
    missing = known._replace(test_outputs=[str(tmp_path / "no file")])
    assert trial.lacks_test_outputs(config, missing, tasks)


def printed(tasks):
    found = map(preprocessing.summary_of_classes, tasks)
    return "\n".join(line for lines in found for line in lines)


def test_warnings_for_mistyped_classes(tmp_path):
    rows = ["the dog,positive"] * 5 + ["the cat,negative"] * 4 + ["dog,positve"]
    tasks = own_tasks(tmp_path, {"train.csv": "\n".join(["a,b", *rows])})
    text = printed(tasks)
    assert "Classes of mine: positive 5, negative 4, positve 1" in text
    assert "one or two examples: 'positve' (1); mistyped?" in text
    assert text.count("Warning") == 2 and "the dev set is the training set" in text


def test_spans_are_counted_by_class(tmp_path):
    lines = "the B-PER\ndog I-PER\ncat O\n\ndog B-LOC\ncat B-PER\n\n" * 3
    tasks = own_tasks(
        tmp_path, {"train.txt": lines, "dev.txt": f"{lines}\n"}, "tagging"
    )
    assert printed(tasks) == "Classes of mine: PER 6, LOC 3"


def test_training_set_without_spans(tmp_path):
    files = {"train.txt": "the O\ndog O\n", "dev.txt": "the O\n"}
    assert "all tags are O" in printed(own_tasks(tmp_path, files, "tagging"))


@pytest.mark.parametrize(
    ("kind", "text", "cut", "kept"),
    [
        ("classification", "a\tb\n" + "dog " * 40 + "\tx\nthe xyz\ty\n", 26, 16 + 4),
        ("tagging", "dog O\n" * 40 + "\nthe O\nxyz B-X\n", 26, 16 + 4),
    ],
)
def test_shares_of_lost_and_unknown_tokens(tmp_path, kind, text, cut, kept):
    name = "train.tsv" if kind == "classification" else "train.txt"
    for _ in range(2):  # built, then read
        tasks = own_tasks(tmp_path, {name: text}, kind)
        store = preprocessing.features(tasks[0].config, tasks, "train", True)
        [line, *_] = preprocessing.summary(store, "training", tasks)
        assert line == (
            "Features: 2 of training; the longest has 16 tokens, "
            f"{cut / (cut + kept):.1%} of them cut off, {1 / kept:.1%} of them [UNK]"
        )
