# SPDX-License-Identifier: Apache-2.0
"""The manifest beside a task's features."""

import json
from pathlib import Path

import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import preprocessing, trial
from electra_tf.finetune.results import TrialResult
from electra_tf.storage.manifest import verify_folder
from tests.helpers.own_task import own_tasks, write_files

FILES = {"train.csv": "a,b\ndog,x\ncat,y\n", "dev.csv": "a,b\nran,x\n"}
EDITED = {"dev.csv": "id,a,b\n7,the dog,y\n8,cat,x\n"}


def damaged(path):
    """What an interrupted copy, a full disk or a bad one leaves of a file."""
    content = path.read_bytes()
    yield content[: len(content) // 2]
    yield b""
    yield content[:-1] + bytes([content[-1] ^ 1])
    yield None


@pytest.mark.parametrize("name", ["input_ids.npy", "mine:eid.npy", "manifest.json"])
def test_features_that_are_not_as_they_were_written_are_made_again(tmp_path, name):
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


def test_an_earlier_versions_features_without_a_list_of_files(tmp_path):
    folder = Path(own_tasks(tmp_path, FILES)[0].config.preprocessed_data_dir)
    dev_features(own_tasks(tmp_path, FILES))
    [path] = folder.glob("dev_*/manifest.json")
    path.write_text(json.dumps({"skipped": [], "examples": 1}))
    assert len(dev_features(own_tasks(tmp_path, FILES))) == 1
    assert "input_ids.npy" in json.loads(path.read_text())["files"]


def test_a_run_makes_features_once_where_it_uses_no_others(tmp_path):
    tasks = own_tasks(tmp_path, FILES, use_tfrecords_if_existing=False)
    first = dev_features(tasks)
    assert dev_features(tasks) is first
    again = own_tasks(tmp_path, FILES, use_tfrecords_if_existing=False)
    assert dev_features(again) is not first


def dev_features(tasks):
    return preprocessing.features(tasks[0].config, tasks, "dev", False)


def test_a_file_that_is_edited_while_a_run_works_with_it(tmp_path):
    """The run goes on with what it has read; the next one finds nothing of both."""
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


def test_an_edited_file_is_not_read_for_features_of_the_former_one(tmp_path):
    dev_features(own_tasks(tmp_path, FILES))
    tasks = own_tasks(tmp_path, FILES)
    dev_features(tasks)  # as they lie on disk, so that the file is not read
    write_files(tmp_path, EDITED)
    with pytest.raises(UserError, match="dev.csv has changed while this run"):
        tasks[0].read("dev")


def test_a_test_set_is_no_part_of_the_other_features(tmp_path):
    test = {"test.csv": "a\nran\n"}
    without = own_tasks(tmp_path, FILES)
    with_test = own_tasks(tmp_path, FILES | test)
    assert dev_features(without).digest == dev_features(with_test).digest


def test_a_file_that_is_moved_changes_no_features(tmp_path):
    """They are those of its content, whatever else it might be called."""
    before = dev_features(own_tasks(tmp_path, FILES))
    moved = {f"elsewhere/{name}": text for name, text in FILES.items()}
    found = dev_features(own_tasks(tmp_path, moved))
    assert found.digest == before.digest
    # Trials that an earlier version began know their features by another name.
    assert found.digest not in found.former_digests
    assert before.former_digests != found.former_digests
    write_files(tmp_path, {"elsewhere/dev.csv": EDITED["dev.csv"]})
    other = dev_features(
        own_tasks(tmp_path, {**moved, **{"elsewhere/dev.csv": EDITED["dev.csv"]}})
    )
    assert other.digest != before.digest


def test_predictions_on_another_test_set_do_not_count(tmp_path):
    test = {"test.csv": "a\nran\n"}
    tasks = own_tasks(tmp_path, FILES | test, write_test_outputs=True)
    (tmp_path / "written").write_text("")
    made = TrialResult(1, 42, {}, [], 1, {}, test_outputs=[str(tmp_path / "written")])
    known = made._replace(test_data=trial._test_data(tasks))
    assert list(known.test_data["mine"]) == ["test"]
    config = tasks[0].config
    for result in (made, known):  # An earlier version did not say what it was on.
        assert not trial.lacks_test_outputs(config, result, tasks)
    test = {"test.csv": "a\nthe dog\n"}
    tasks = own_tasks(tmp_path, FILES | test, write_test_outputs=True)
    assert trial.lacks_test_outputs(config, known, tasks)
    assert not trial.lacks_test_outputs(config, made, tasks)
    missing = known._replace(test_outputs=[str(tmp_path / "no file")])
    assert trial.lacks_test_outputs(config, missing, tasks)
