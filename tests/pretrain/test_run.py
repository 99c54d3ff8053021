# SPDX-License-Identifier: Apache-2.0
"""Runs in phases, with evaluations: what each does; interruptions change nothing."""

import functools
import json
import os
import shutil
import signal

import numpy as np
import pytest

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.pretrain.pretrain_data import RunData
from electra_tf.pretrain.run import check_data
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE, create_strategy
from electra_tf.train.reporting import EVALUATIONS
from tests.helpers.forked_runs import (
    digest,
    kill_in_save,
    metrics_of,
    pretrain,
    signal_at,
)
from tests.helpers.runs import NO_DROPOUT, tiny, write_tiny_data
from tests.helpers.workers import train
from tests.train.test_loop import Trained

SWITCH, STEPS = 20, 40
PHASES = [
    {"num_train_steps": SWITCH, "max_seq_length": 16, "train_batch_size": 16},
    {
        "num_train_steps": STEPS - SWITCH,
        "max_seq_length": 32,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "num_warmup_steps": 6,
        "mask_prob": 0.3,
        "temperature": 2.0,
        "temperature_start": 4.0,
    },
]
HPARAMS = tiny(
    phases=PHASES, num_train_steps=STEPS, save_checkpoints_steps=15, num_eval_steps=2
)
WATCHED = HPARAMS | {"eval_every_steps": 10}


@pytest.fixture(scope="module")
def two_lengths(tiny_data, tmp_path_factory):
    """A data directory with data of 16 and of 32 tokens."""
    data = write_tiny_data(tmp_path_factory.mktemp("two") / "data", 60, 16)
    (data / "pretrain_tfrecords").rename(data / "pretrain_tfrecords_16")
    records = data / "pretrain_tfrecords_32"
    shutil.copytree(tiny_data / "pretrain_tfrecords", records)
    return data


def finish(data, model, hparams, *flags, code=0, **kwargs):
    run = pretrain(data, model, hparams, *flags, **kwargs).wait()
    assert run.returncode == code, run
    assert "Traceback" not in run.stderr
    return run


def kill_at_evaluation(first=0):
    """kill -9 at the first evaluation from that step on, when its step is saved."""
    from electra_tf.pretrain.run import PeriodicEvaluation

    evaluate = PeriodicEvaluation.__call__

    def killed(self, step):
        if step >= first:
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluate(self, step)

    PeriodicEvaluation.__call__ = killed


@pytest.fixture(scope="module")
def straight(two_lengths):
    """A run in phases that nothing happens to: its directory and what it printed."""
    run = finish(two_lengths, "straight", WATCHED)
    return two_lengths / "models" / "straight", run.stdout


def rows(folder, name):
    return [json.loads(line) for line in (folder / name).open()]


@pytest.mark.thorough
def test_one_run_one_directory_one_counter(straight):
    folder, printed = straight
    found = metrics_of(folder)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert Checkpoints(folder).steps() == [10, 15, 20, 30, 40]
    # Each phase has its own warm-up and its own way down.
    rates = [row["learning_rate"] for row in found]
    first = [2e-3 * (1 - k / 20) * min(1, k / 4) for k in range(20)]
    second = [1e-3 * (1 - k / 20) * min(1, k / 6) for k in range(20)]
    np.testing.assert_allclose(rates, first + second, rtol=1e-5, atol=1e-9)
    assert "Phase 1: steps 0 to 20, 16 x 16 tokens" in printed
    assert "Phase 2: steps 20 to 40, 8 x 32 tokens" in printed
    assert "Data: 60 examples; 0.00 of 5.33 epochs done" in printed
    assert "Data: 100 examples; 0.00 of 1.60 epochs done" in printed
    assert [row["step"] for row in rows(folder, EVALUATIONS)] == [10, 20, 30, 40]


def assert_same_run(folder, straight):
    assert digest(folder, STEPS) == digest(straight[0], STEPS)
    assert rows(folder, EVALUATIONS) == rows(straight[0], EVALUATIONS)


@pytest.mark.thorough
def test_a_run_stopped_in_its_second_phase_ends_as_if_it_was_not(two_lengths, straight):
    """The data of its first phase are not needed any more."""
    stopped = functools.partial(signal_at, 34)
    loops = WATCHED | {"iterations_per_loop": 3}
    finish(two_lengths, "cut", loops, before=stopped, code=42)
    hidden = two_lengths / "pretrain_tfrecords_16"
    moved = hidden.rename(two_lengths / "moved")
    run = finish(two_lengths, "cut", WATCHED)
    moved.rename(hidden)
    assert "Continuing from" in run.stdout and "Phase 1: " not in run.stdout
    assert_same_run(two_lengths / "models" / "cut", straight)


@pytest.mark.thorough
def test_a_run_killed_around_the_switch_ends_as_if_it_was_not(two_lengths, straight):
    """Before the switch, in the save at it, and in the evaluation at it."""
    folder = two_lengths / "models" / "killed"
    loops = WATCHED | {"iterations_per_loop": 3}
    for fault, step in (
        (functools.partial(signal_at, 8, signal.SIGKILL), 0),
        (functools.partial(kill_in_save, 3, 3), 15),
        (kill_at_evaluation, 20),
    ):
        run = pretrain(two_lengths, "killed", loops, before=fault).wait()
        assert run.returncode == -signal.SIGKILL, run
        assert Checkpoints(folder, read_only=True).newest_intact().step == step
    # An evaluation now is of the first phase, as the one that was cut off.
    finish(two_lengths, "killed", WATCHED | {"do_train": False, "do_eval": True})
    results = json.loads((folder / "results" / "unsup_results.json").read_text())
    expected = rows(straight[0], EVALUATIONS)[1]
    assert results["metrics"] | {"step": results["global_step"]} == expected
    finish(two_lengths, "killed", WATCHED)
    assert_same_run(folder, straight)


@pytest.mark.thorough
def test_two_replicas(two_lengths, straight):
    env = {CPU_DEVICES_VARIABLE: "2"}
    finish(two_lengths, "two", WATCHED, env=env)
    at_switch = functools.partial(signal_at, SWITCH + 1, signal.SIGKILL)
    cut = pretrain(two_lengths, "two_cut", WATCHED, env=env, before=at_switch).wait()
    assert cut.returncode == -signal.SIGKILL
    finish(two_lengths, "two_cut", WATCHED, env=env)
    models = two_lengths / "models"
    assert digest(models / "two_cut", STEPS) == digest(models / "two", STEPS)
    # Each global batch is that of one replica; dropout is not.
    one, two = (metrics_of(folder)[0] for folder in (straight[0], models / "two"))
    assert two["masked_lm_loss"] == pytest.approx(one["masked_lm_loss"], 0.1)


@pytest.mark.thorough
def test_phases_of_the_same_settings_are_one_run(tiny_data):
    """Batches, masking, dropout, optimizer: the second continues the first."""
    hparams = tiny(schedule="constant", num_warmup_steps=0, save_checkpoints_steps=20)
    finish(tiny_data, "whole", hparams | {"num_train_steps": 12})
    parts = [{"num_train_steps": 5}, {"num_train_steps": 7}]
    finish(tiny_data, "parts", hparams | {"phases": parts})
    models = tiny_data / "models"
    assert digest(models / "parts", 12) == digest(models / "whole", 12)


def test_all_phases_are_checked_before_the_first_step(two_lengths):
    later = [PHASES[0], PHASES[1] | {"max_seq_length": 24}]
    lost = HPARAMS | {"phases": later, "max_seq_length": 24}
    run = finish(two_lengths, "missing", lost, code=2)
    assert "no file matches" in run.stderr and "tfrecords_24" in run.stderr
    assert not (two_lengths / "models" / "missing" / "metrics.jsonl").exists()
    short = str(two_lengths / "pretrain_tfrecords_16" / "*")
    refused(two_lengths, lost | {"pretrain_tfrecords": short}, "16 input_ids", "is 24")
    long = WATCHED | {"eval_tfrecords": str(two_lengths / "*_32" / "*")}
    refused(two_lengths, long, "32 input_ids", "max_seq_length is 16")


def refused(data, hparams, *expected):
    config = PretrainingConfig.from_hparams(str(data), "m", hparams)
    with pytest.raises(UserError) as caught:
        vocab = Vocabulary.load(config.vocab_file)
        placement = create_strategy(config)
        check_data(config, RunData(vocab), placement, 0, Console(silent=True))
    assert all(part in str(caught.value) for part in expected), caught.value


@pytest.mark.thorough
def test_unread_position_embeddings_only_decay(two_lengths):
    """As in the original: no gradient comes to their rows, but the decay does.

    Its tf.slice has a gradient with zeros, so its optimizer's moments of these rows
    stay 0, and what is left of the update is the decay: w <- w (1 - rate * decay).
    """
    run = Trained(two_lengths, phases=PHASES, num_train_steps=STEPS)
    weights = run.state.weights()
    [name] = [name for name in weights if name.endswith("position_embeddings")]
    before = weights[name].numpy()
    assert before.shape[0] == 32
    run.config = run.config.phase_at(0).config
    run.run(5)
    after, values = weights[name].numpy(), run.values()
    rates = [2e-3 * (1 - k / SWITCH) * min(1, k / 4) for k in range(5)]
    kept = np.prod([1 - rate * run.config.weight_decay_rate for rate in rates])
    assert kept < 1 - 3e-5
    np.testing.assert_allclose(after[16:], before[16:] * kept, rtol=1e-6)
    for slot in ("adam_m", "adam_v"):
        moment = values[f"{name}/{slot}"]
        assert not moment[16:].any() and moment[:16].any()


# Evaluations in a run.


@pytest.mark.thorough
def test_an_evaluation_equals_do_eval_and_does_not_change_the_run(tiny_data):
    hparams = tiny(num_train_steps=10)
    models = tiny_data / "models"
    finish(tiny_data, "not_evaluated", hparams)

    at_times = hparams | {"eval_every_steps": 5}
    at_end = functools.partial(kill_at_evaluation, 10)
    run = pretrain(tiny_data, "evaluated", at_times, before=at_end).wait()
    assert run.returncode == -signal.SIGKILL
    assert "Evaluation at step 5: loss " in run.stdout
    run = finish(tiny_data, "evaluated", at_times)
    assert "Evaluation at step 10: loss " in run.stdout

    found = rows(models / "evaluated", EVALUATIONS)
    assert [row["step"] for row in found] == [5, 10]
    assert digest(models / "evaluated", 10)  # both are there
    assert metrics_of(models / "evaluated") == metrics_of(models / "not_evaluated")
    assert os.listdir(models / "evaluated" / "tensorboard" / "eval")

    evaluate = hparams | {"do_train": False, "do_eval": True}
    finish(tiny_data, "evaluated", evaluate)
    path = models / "evaluated" / "results" / "unsup_results.json"
    results = json.loads(path.read_text())
    assert results["metrics"] | {"step": 10} == found[-1]


def test_missing_evaluation_data_are_found_before_the_first_step(tiny_data):
    hparams = tiny(eval_every_steps=5, eval_tfrecords=str(tiny_data / "nothing*"))
    run = pretrain(tiny_data, "no_data_to_evaluate", hparams).wait()
    assert run.returncode == 2 and "no file matches" in run.stderr
    folder = tiny_data / "models" / "no_data_to_evaluate"
    assert not (folder / "metrics.jsonl").exists()


# On several workers.

ON_WORKERS = {
    "phases": {
        "phases": [
            {"num_train_steps": 8, "max_seq_length": 16, "train_batch_size": 16},
            {"num_train_steps": 6, "max_seq_length": 32},
        ],
        "eval_every_steps": 4,
    },
    "two_stage": {
        "objective": "two_stage",
        "embedding_size": 32,
        "generator_hidden_size": 1.0,
        "stage_one_steps": 8,
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param("phases", marks=pytest.mark.slow), "two_stage"]
)
def test_run_of_two_workers_is_that_of_one(two_lengths, name):
    """To rounding; and after one was killed past the switch, to the bit."""
    data, models = two_lengths, two_lengths / "models"
    usual = tiny(overrides=NO_DROPOUT, num_train_steps=14, num_eval_steps=2)
    hparams = usual | ON_WORKERS[name]
    if name == "two_stage":
        hparams |= {"pretrain_tfrecords": str(data / "pretrain_tfrecords_32" / "*")}
    alone = pretrain(data, f"{name}_alone", hparams).wait()
    assert alone.returncode == 0, alone
    for model, faults, codes in (
        ("workers", {}, [0, 0]),
        ("killed", {0: (10, signal.SIGKILL)}, [-signal.SIGKILL, 69]),
        ("killed", {}, [0, 0]),
    ):
        before = {k: functools.partial(signal_at, *v) for k, v in faults.items()}
        ended = train(data, f"{name}_{model}", hparams, before=before, seconds=300)
        assert [e.returncode for e in ended] == codes, ended
    folder = models / f"{name}_workers"
    one, two = metrics_of(models / f"{name}_alone"), metrics_of(folder)
    assert [row["step"] for row in two] == list(range(1, 15))
    for mine, row in zip(two, one, strict=True):
        assert mine == pytest.approx(row, rel=1e-3, abs=1e-4)
    assert digest(models / f"{name}_killed", 14) == digest(folder, 14)
    if name == "phases":
        found = rows(folder, EVALUATIONS)
        assert rows(models / f"{name}_killed", EVALUATIONS) == found
        assert [row["step"] for row in found] == [4, 8, 12]
