# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl, TensorBoard events, curves and results."""

import io
import json

import numpy as np
import pytest

from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.pretrain.metrics import ALL_METRICS
from electra_tf.train.reporting import Journal, Report, curves_of, read_metrics

METRICS = {
    "loss": 12.34567,
    "masked_lm_loss": 6.1,
    "disc_loss": 0.125,
    "disc_recall": 0.93,
}


def write(path, rows, start=0):
    journal = Journal(path.parent, path.name, "", start, is_chief=True)
    journal.add(rows)
    journal.sync()
    journal.close()


def write_steps(path, steps, start=0):
    nan = float("nan")
    write(path, [{"step": s, "loss": 1.0 / s, "x": nan} for s in steps], start)


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_metrics_of_a_resumed_run_have_every_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(1, 2001))
    write_steps(path, range(1501, 1801), start=1500)
    assert steps_in(path) == list(range(1, 1801))
    write_steps(path, [], start=5000)
    assert steps_in(path) == list(range(1, 1801))
    write_steps(path, [1], start=0)
    assert steps_in(path) == [1]
    assert json.loads(path.read_text()) == {"step": 1, "loss": 1.0, "x": None}


@pytest.mark.parametrize("torn", [b'{"step": 11, "lo', b"\0\0\0\0", b'{"step": 11}'])
def test_a_torn_end_is_cut_off(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(1, 11))
    with open(path, "ab") as f:
        f.write(torn)
    write_steps(path, [11], start=10)
    assert steps_in(path) == list(range(1, 12))


def test_a_link_is_not_followed(tmp_path):
    path, other = tmp_path / "metrics.jsonl", tmp_path / "other"
    other.write_text("keep")
    path.symlink_to(other)
    with pytest.raises(UserError, match="metrics.jsonl: it is a symbolic link") as e:
        write_steps(path, [1])
    assert e.value.exit_code == 73 and other.read_text() == "keep"


def report(directory, start, metrics, stream=None, total=9, every=1):
    console = Console(stream or io.StringIO())
    known = {"metrics": ALL_METRICS, "batch_size": 2, "every": every}
    result = Report(directory, console, start=start, total=total, **known)
    while start < total:
        result.add(start + 1, metrics)
        start += len(metrics["loss"])
    result.close()


def test_a_report_writes_metrics_and_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing import event_accumulator

    metrics = {k: np.array([v, 2 * v, 4 * v]) for k, v in METRICS.items()}
    metrics["learning_rate"] = np.array([1e-4, 2e-4, np.inf])
    report(tmp_path, 0, metrics, total=3)
    report(tmp_path, 2, metrics, total=5)
    assert steps_in(tmp_path / "metrics.jsonl") == [1, 2, 3, 4, 5]
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["learning_rate"] is None and last["disc_loss"] == 0.5

    shown = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for tag, value in (
        ("training/masked_lm_loss", 6.1),
        ("training/disc_recall", 0.93),
        ("training/learning_rate", 1e-4),
    ):
        found = [(e.step, e.value) for e in shown.Scalars(tag)]
        assert [step for step, _ in found][:4] == [1, 2, 3, 4]  # each once
        assert [v for _, v in found][:3] == pytest.approx([value, 2 * value, value])


def test_damaged_lines_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert not curves_of(path, "A run", [])
    rows = [json.dumps({"step": s, "loss": 1.0}) for s in range(1, 6)]
    rows[2] = rows[2][:9]
    path.write_text("\n".join(rows) + "\n")
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 4, 5]
    assert curves_of(path, "A run", ALL_METRICS).startswith(b"\x89PNG")
