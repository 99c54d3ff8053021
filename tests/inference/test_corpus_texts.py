# SPDX-License-Identifier: Apache-2.0
"""A corpus is scored by one model from beginning to end, in a bucket as well."""

import json
import shutil
from pathlib import Path

import pytest

from electra_tf import paths
from electra_tf.errors import UserError
from electra_tf.inference import corpus_run
from electra_tf.inference.corpus_texts import Scores
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.stored_tensors import of_checkpoint
from tests.helpers import memory_bucket
from tests.helpers.exporting import shared_source, write_run

OPTIONS = {"encoding_errors": "strict", "text_key": "text", "method": None}
OPTIONS |= {"overlap": 0, "tokens": False}


@pytest.fixture
def memory(tmp_path, monkeypatch):
    return memory_bucket.empty(tmp_path, monkeypatch)


def another_machine():
    """Its cache is empty."""
    shutil.rmtree(paths.cache_root())
    shutil.rmtree(Path(paths.cache_root()).with_name("versions"))
    memory_bucket.forget_answers()


def test_the_checkpoint_of_a_run_that_trains_on(tmp_path, memory):
    """All workers take that of the beginning, and so does a command that goes on."""
    data = tmp_path / "data"
    write_run(data, shared_source("electric"), layers=2)
    memory.put(f"{data}/", "bucket/data/", recursive=True)
    options = OPTIONS | {"model": memory_bucket.place("data/models/tiny")}
    job = Scores(options)
    assert job.options["model"] == f"{options['model']}/model.ckpt-7"
    state = {"settings": {"options": job.options}}
    (tmp_path / corpus_run.STATE_FILE).write_text(json.dumps(state))

    checkpoints = Checkpoints(data / "models/tiny", log=lambda line: None)
    stored = of_checkpoint(checkpoints.prefix(7))
    weights = {name: stored.get(name) for name in stored.shapes}
    checkpoints.save(8, weights)
    memory.put(f"{data}/", "bucket/data/", recursive=True)
    another_machine()
    assert corpus_run._begun_with(str(tmp_path), options) == job.options
    again = Scores(job.options)
    assert (again.options, again.model) == (job.options, job.model)

    for name in memory.glob("bucket/data/models/tiny/model.ckpt-7*"):
        memory.rm_file(name)
    another_machine()
    with pytest.raises(UserError, match="was begun with .* not there any more") as e:
        corpus_run._begun_with(str(tmp_path), options)
    assert "memory://bucket/data/models/tiny/model.ckpt-7" in paths.shown(str(e.value))
