# SPDX-License-Identifier: Apache-2.0
"""Runs in phases: what each phase does, and that interruptions change nothing."""

import functools
import json
import shutil
import signal
import struct

import numpy as np
import pytest

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import Console
from electra_tf.data.permutation import batch_indices
from electra_tf.errors import UserError
from electra_tf.pretrain.run import check_data, has_learned
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE, create_strategy
from electra_tf.train.reporting import EVALUATIONS, SAMPLES
from tests.helpers.forked_runs import (
    digest,
    kill_in_save,
    metrics_of,
    pretrain,
    signal_at,
)
from tests.helpers.runs import tiny, write_tiny_data
from tests.train.test_evaluation import kill_at_evaluation
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
    },
]
HPARAMS = tiny(
    phases=PHASES, num_train_steps=STEPS, save_checkpoints_steps=15, num_eval_steps=2
)
WATCHED = HPARAMS | {"eval_every_steps": 10, "sample_steps": 5}


@pytest.fixture(scope="module")
def two_lengths(tiny_data, tmp_path_factory):
    """A data directory with data of 16 and of 32 tokens."""
    data = write_tiny_data(tmp_path_factory.mktemp("two") / "data", 60, 16)
    (data / "pretrain_tfrecords").rename(data / "pretrain_tfrecords_16")
    records = data / "pretrain_tfrecords_32"
    shutil.copytree(tiny_data / "pretrain_tfrecords", records)
    return data


def test_data_that_were_learned_are_known_however_they_are_written(two_lengths):
    """Metrics of text that a run has read, in any phase, say little of other text."""
    short, long = (two_lengths / f"pretrain_tfrecords_{n}" for n in (16, 32))
    data = [{"pretrain_tfrecords": f"{place}/*"} for place in (short, long)]
    phases = [part | own for part, own in zip(PHASES, data, strict=True)]
    hparams = HPARAMS | {"phases": phases}
    config = PretrainingConfig.from_hparams(str(two_lengths), "m", hparams)
    (two_lengths / "alias").symlink_to(short)
    for place in (f"{long}/pretrain_data*", [f"{two_lengths}/alias/*0-of-2"]):
        assert has_learned(config, place)
    held_out = shutil.copytree(long, two_lengths / "held_out")
    assert not has_learned(config, f"{held_out}/*")


def finish(data, model, hparams, *flags, code=0, **kwargs):
    run = pretrain(data, model, hparams, *flags, **kwargs).wait()
    assert run.returncode == code, run
    assert "Traceback" not in run.stderr
    return run


@pytest.fixture(scope="module")
def straight(two_lengths):
    """A run in phases that nothing happens to: its directory and what it printed."""
    run = finish(two_lengths, "straight", WATCHED)
    return two_lengths / "models" / "straight", run.stdout


def rows(folder, name):
    return [json.loads(line) for line in (folder / name).open()]


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
    assert [row["step"] for row in rows(folder, SAMPLES)] == list(range(5, 41, 5))
    lengths = [max(map(len, row["passages"])) for row in rows(folder, SAMPLES)]
    assert max(lengths[:4]) <= 14 < max(lengths[4:]) <= 30


def test_a_run_that_is_interrupted_anywhere_ends_as_if_it_was_not(
    two_lengths, straight
):
    """Before the switch, in the save at it, in the evaluation at it, and after it."""
    folder = two_lengths / "models" / "cut"
    loops = WATCHED | {"iterations_per_loop": 3}
    for fault, steps in (
        (functools.partial(signal_at, 8, signal.SIGKILL), [0]),
        (functools.partial(kill_in_save, 3, 3), [0, 10, 15]),
        (kill_at_evaluation, [0, 10, 15, 20]),
    ):
        run = pretrain(two_lengths, "cut", loops, before=fault).wait()
        assert run.returncode == -signal.SIGKILL, run
        assert Checkpoints(folder, read_only=True).newest_intact().step == steps[-1]
    # It is of the phase that made the checkpoint, as is the one that was cut off.
    finish(two_lengths, "cut", WATCHED | {"do_train": False, "do_eval": True})
    results = json.loads((folder / "results" / "unsup_results.json").read_text())
    expected = rows(straight[0], EVALUATIONS)[1]
    assert results["metrics"] | {"step": results["global_step"]} == expected
    stopped = functools.partial(signal_at, 34)
    run = finish(two_lengths, "cut", loops, before=stopped, code=42)
    assert "Continuing from" in run.stdout and "Phase 1: " not in run.stdout
    # What belongs to a phase that is over is not needed any more.
    hidden = two_lengths / "pretrain_tfrecords_16"
    moved = hidden.rename(two_lengths / "moved")
    finish(two_lengths, "cut", WATCHED)
    moved.rename(hidden)
    assert digest(folder, STEPS) == digest(straight[0], STEPS)
    for name in (EVALUATIONS, SAMPLES):
        assert rows(folder, name) == rows(straight[0], name)


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
    one, two = metrics_of(straight[0]), metrics_of(models / "two")
    names = ("learning_rate", "masked_lm_loss")
    for mine, theirs in zip(two[:1], one[:1], strict=True):
        assert [mine[n] for n in names] == pytest.approx(
            [theirs[n] for n in names], 0.1
        )
    assert rows(models / "two", SAMPLES)[0].keys() == {"step", "passages"}


@pytest.mark.thorough
def test_phases_that_are_alike_are_one_run(tiny_data):
    """Batches, masking, dropout, optimizer: the second goes on where the first was."""
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
    odd = [PHASES[0], PHASES[1] | {"train_batch_size": 10}]
    odd = HPARAMS | {"phases": odd, "train_batch_size": 10}
    env = {CPU_DEVICES_VARIABLE: "2"}
    run = finish(two_lengths, "missing", odd, "--dry-run", code=2, env=env)
    assert "train_batch_size 10 does not divide by 4" in run.stderr


@pytest.mark.thorough
def test_a_phase_that_is_over_needs_not_fit_the_devices(two_lengths):
    """An allocation may have fewer; the batch of what is over cannot be changed."""
    odd = [PHASES[0] | {"train_batch_size": 15}, PHASES[1]]
    hparams = HPARAMS | {"phases": odd, "num_train_steps": STEPS}
    env = {CPU_DEVICES_VARIABLE: "2"}
    run = finish(two_lengths, "fewer", hparams, code=2, env=env)
    assert "train_batch_size 15 does not divide by 2" in run.stderr
    assert not (two_lengths / "models" / "fewer" / "metrics.jsonl").exists()
    stopped = functools.partial(signal_at, SWITCH + 2)
    finish(two_lengths, "fewer", hparams, before=stopped, code=42)
    dry = finish(two_lengths, "fewer", hparams, "--dry-run", env=env).stdout
    assert "this command would continue at step" in dry
    run = finish(two_lengths, "fewer", hparams, env=env)
    assert "Devices: 2 x CPU" in run.stdout
    assert metrics_of(two_lengths / "models" / "fewer")[-1]["step"] == STEPS


def refused(data, hparams, *words):
    config = PretrainingConfig.from_hparams(str(data), "m", hparams)
    with pytest.raises(UserError) as caught:
        vocab = Vocabulary.load(config.vocab_file)
        placement = create_strategy(config)
        check_data(config, vocab, placement, 0, Console(silent=True))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_dry_run_shows_each_phase_to_come(two_lengths, straight):
    dry = finish(two_lengths, "straight", WATCHED, "--dry-run").stdout
    assert "Phase 1: " not in dry
    assert "this command would do nothing: 40 of 40 steps are made" in dry
    dry = finish(two_lengths, "dry", HPARAMS, "--dry-run").stdout
    for text in ("Phase 1: steps 0 to 20, 16 x 16", "Phase 2: steps 20 to 40, 8 x 32"):
        assert text in dry
    assert "pretrain_tfrecords_16/" in dry and "pretrain_tfrecords_32/" in dry
    assert not (two_lengths / "models" / "dry").exists()


@pytest.mark.thorough
def test_later_phases_of_a_begun_run_may_be_changed(two_lengths):
    stopped = functools.partial(signal_at, 24)
    loops = HPARAMS | {"iterations_per_loop": 3}
    finish(two_lengths, "changed", loops, before=stopped, code=42)
    other = [PHASES[0] | {"train_batch_size": 8}, PHASES[1]]
    run = finish(two_lengths, "changed", HPARAMS | {"phases": other}, code=2)
    assert "phase 1 of this run" in run.stderr and "train_batch_size 16" in run.stderr
    shorter = [PHASES[0], PHASES[1] | {"num_train_steps": 8}]
    shorter = HPARAMS | {"phases": shorter, "num_train_steps": 28}
    run = finish(two_lengths, "changed", shorter)
    assert "Changed since step 2" in run.stdout and "phases [" in run.stdout
    assert metrics_of(two_lengths / "models" / "changed")[-1]["step"] == 28


def test_positions_that_are_not_read_only_decay(tiny_data, two_lengths):
    """As in the original: no gradient comes to their rows, but the decay does.

    Its tf.slice has a gradient with zeros, so its optimizer's moments of these rows
    stay 0, and what is left of the update is the decay: w <- w (1 - rate * decay).
    """
    run = Trained(two_lengths, phases=PHASES, num_train_steps=STEPS)
    (table,) = (
        v for v in run.state.weights().items() if v[0].endswith("position_embeddings")
    )
    name, before = table[0], table[1].numpy()
    assert before.shape[0] == 32
    run.config = run.config.phase_at(0).config
    run.run(5)
    after, values = table[1].numpy(), run.values()
    rates = [2e-3 * (1 - k / SWITCH) * min(1, k / 4) for k in range(5)]
    kept = np.prod([1 - rate * run.config.weight_decay_rate for rate in rates])
    assert kept < 1 - 3e-5
    np.testing.assert_allclose(after[16:], before[16:] * kept, rtol=1e-6)
    for slot in ("adam_m", "adam_v"):
        moment = values[f"{name}/{slot}"]
        assert not moment[16:].any() and moment[:16].any()


def damage(folder, numbers):
    """Changes a byte of the examples with these numbers; how many there are."""
    number = 0
    for shard in sorted(folder.glob("*.tfrecord*")):
        content, place = bytearray(shard.read_bytes()), 0
        while place < len(content):
            (size,) = struct.unpack_from("<Q", content, place)
            if number in numbers:
                content[place + 12 + size // 2] ^= 1
            place, number = place + size + 16, number + 1
        shard.write_bytes(content)
    return number


@pytest.mark.thorough
def test_a_phase_goes_on_in_the_data_where_the_one_before_ended(tmp_path):
    """With other batch sizes too: 2 of 4 and 3 of 16 examples are the first 56."""
    data = write_tiny_data(tmp_path / "data", 100)
    order = batch_indices(0, 100, 100, PretrainingConfig.seed)
    bad = set(order[56:].tolist())
    assert damage(data / "pretrain_tfrecords", bad) == 100
    phases = [
        {"num_train_steps": 2, "train_batch_size": 4},
        {"num_train_steps": 3, "train_batch_size": 16},
    ]
    hparams = tiny(phases=phases)
    del hparams["num_train_steps"], hparams["train_batch_size"]
    finish(data, "in_order", hparams)
    smaller = [phases[0], {"num_train_steps": 4, "train_batch_size": 8}]
    run = finish(data, "in_order", hparams | {"phases": smaller})
    assert "from the beginning: examples 24 to 48 are read again" in run.stdout
    phases[1]["num_train_steps"] = 4
    run = finish(data, "too_far", hparams, code=65)
    assert "damaged" in run.stderr
