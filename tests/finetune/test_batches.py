# SPDX-License-Identifier: Apache-2.0
"""The lengths that batches are padded to."""

import numpy as np
import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune import batches

# Mostly short, like the sentences of CoLA; one long example.
SHORT = np.concatenate([np.full(5000, 9), np.full(20, 30), [61]])


def config(**hparams):
    return FinetuningConfig.from_hparams("D", "m", {"task_names": ["cola"], **hparams})


def training(lengths=SHORT, *, steps=1000, is_compiled=True, **hparams):
    return batches.training_buckets(
        config(**hparams), lengths, steps=steps, seed=1, is_compiled=is_compiled
    )


def test_compiled_run_has_two_lengths_if_worthwhile():
    assert training() == (24, 64)  # beam_size is 20: none is shorter than that
    assert training(steps=50) == (64,)
    assert training(np.full(100, 61)) == (64,)
    assert training(gradient_accumulation_steps=2) == (64,)


def test_run_without_xla_has_more_lengths():
    assert training(is_compiled=False) == (24, 40, 56, 64)
    assert batches.evaluation_buckets(config(), SHORT) == (24, 40, 56, 64)


def test_no_length_exceeds_max_seq_length():
    assert training(np.full(100, 99), max_seq_length=99)[-1] == 99
    assert training(np.full(9, 5), max_seq_length=12) == (12,)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [([], (128,)), ([64, 32], (32, 64, 128)), ([500, 32], (32, 128))],
)
def test_length_buckets_have_precedence(chosen, expected):
    assert training(length_buckets=chosen) == expected
    found = batches.evaluation_buckets(config(length_buckets=chosen), SHORT)
    assert found == expected
