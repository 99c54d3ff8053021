# SPDX-License-Identifier: Apache-2.0
"""The manifest beside a task's features."""

import pytest

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune import preprocessing, trial
from electra_tf.finetune.results import TrialResult
from tests.helpers.own_task import own_tasks, write_files

FILES = {"train.csv": "a,b\ndog,x\ncat,y\n", "dev.csv": "a,b\nran,x\n"}
EDITED = {"dev.csv": "id,a,b\n7,the dog,y\n8,cat,x\n"}


@pytest.mark.parametrize("text", ["{}", "[]", ""])
def test_a_manifest_that_is_none_is_said_to_be(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="manifest.json") as error:
        preprocessing.read_skipped(tmp_path)
    assert error.value.exit_code == EXIT_DAMAGED


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
    # Trials that an earlier version began know their features by another name.
    assert dev_features(with_test).former_digest != dev_features(with_test).digest
    assert dev_features(without).former_digest == dev_features(without).digest


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
