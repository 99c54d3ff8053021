# SPDX-License-Identifier: Apache-2.0
"""A training run goes on when the reader of its output has gone."""

import os

import pytest

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.forked_runs import pretrain
from tests.helpers.runs import tiny


def close_reader_of_output():
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)


@pytest.mark.thorough
def test_a_closed_pipe_does_not_end_a_run(tiny_data):
    hparams = tiny(num_train_steps=8, log_steps=1)
    run = pretrain(tiny_data, "piped", hparams, before=close_reader_of_output).wait()
    assert run.returncode == 0 and run.stderr == "", run.stderr
    directory = tiny_data / "models" / "piped"
    assert Checkpoints(directory, read_only=True).newest_intact().step == 8
