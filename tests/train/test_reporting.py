# SPDX-License-Identifier: Apache-2.0
"""Progress lines, metrics.jsonl, TensorBoard events, curves and results."""

import io
import json
import re

import numpy as np
import pytest

from electra_tf import console
from electra_tf.console import Console, Progress
from electra_tf.pretrain.metrics import ALL_METRICS
from electra_tf.train import reporting
from electra_tf.train.curves import plot_curves, smooth
from electra_tf.train.reporting import Journal, Report, read_metrics

METRICS = {
    "loss": 12.34567,
    "masked_lm_loss": 6.1,
    "disc_loss": 0.125,
    "disc_recall": 0.93,
}


SHOWN = {metric.name: metric.short for metric in ALL_METRICS if metric.short}


class Clock:
    """time.monotonic under the test's control."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_line(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    progress = Progress(Console(stream), 10000, 1000, 32, 100, SHOWN)
    clock.now += 30  # the graph is built
    progress.update(1001, METRICS)
    clock.now += 99.5
    progress.update(1200, METRICS)
    first, second = stream.getvalue().splitlines()
    shown = " - loss 12.3 gen 6.10 disc 0.125 recall 0.930"
    assert first == "1001/10000" + shown
    # 199 steps in 99.5 s; the building of the graph does not count.
    assert second == "1200/10000 64 seq/s ETA 1:13:20" + shown


def test_lines_without_a_terminal_come_at_intervals(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    progress = Progress(Console(stream), 1000, 0, 8, 100, SHOWN)
    for step in range(1, 1001):
        clock.now += 0.01 if step < 500 else 1.0
        progress.update(step, METRICS)
    steps = [int(line.split("/")[0]) for line in stream.getvalue().splitlines()]
    assert steps[:5] == [1, 100, 200, 300, 400]
    assert steps[-1] == 1000
    # Once steps are slow, there is a line each minute.
    assert max(np.diff(steps[steps.index(500) :])) <= 62


def test_a_terminal_line_is_rewritten_and_fits(monkeypatch):
    clock, stream = Clock(monkeypatch), Terminal()
    console = Console(stream)
    monkeypatch.setattr(Console, "width", 80)
    progress = Progress(console, 100_000, 0, 128, 100, SHOWN)
    for step in (1, 20_000, 40_000):
        clock.now += 5000
        progress.update(step, METRICS)
    console.log("a message")
    progress.update(40_001, METRICS)
    progress.close()
    lines = stream.getvalue().split("\n")
    assert len(lines) == 3
    # The message has a line of its own.
    assert lines[0].split("\r")[-1] == "a message"
    shown = [text for text in re.split(r"\r *", lines[0]) if text]
    assert len(shown) == 4 and all(len(text) < 80 for text in shown)
    assert re.fullmatch(r"40001/100000 \d+ seq/s ETA .* recall 0\.930", lines[1])


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


def report(directory, start, metrics, stream=None, total=9, every=1):
    console = Console(stream or io.StringIO())
    known = {"metrics": ALL_METRICS, "batch_size": 2, "every": every}
    result = Report(directory, console, start=start, total=total, **known)
    while start < total:
        result.add(start + 1, metrics)
        start += len(metrics["loss"])
    result.close()


def test_lines_in_a_file_are_at_multiples_of_log_steps(tmp_path):
    stream, metrics = io.StringIO(), {k: np.full(7, v) for k, v in METRICS.items()}
    report(tmp_path, 0, metrics, stream, total=70, every=20)
    steps = [int(line.split("/")[0]) for line in stream.getvalue().splitlines()]
    assert steps[1:] == [20, 40, 60, 70]


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
        ("generator/loss", 6.1),
        ("discriminator/recall", 0.93),
        ("training/learning_rate", 1e-4),
    ):
        found = [(e.step, e.value) for e in shown.Scalars(tag)]
        assert [step for step, _ in found][:4] == [1, 2, 3, 4]  # each once
        assert [v for _, v in found][:3] == pytest.approx([value, 2 * value, value])


def test_smooth_is_a_mean_of_neighbours():
    values = np.array([1.0, 2.0, np.nan, 4.0, 6.0])
    np.testing.assert_allclose(smooth(values, 3), [1.5, 1.5, 3.0, 5.0, 5.0])


def test_curves_and_marks_of_switches(tmp_path):
    import matplotlib.image

    path, picture = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
    rows = ({"step": s, "learning_rate": 1e-4} | METRICS for s in range(1, 2001))
    write(path, [{**row, "disc_loss": row["step"] ** -0.5} for row in rows])

    def near(colour):
        pixels = matplotlib.image.imread(picture)[..., :3]
        return (np.abs(pixels - np.array(colour) / 255).max(-1) < 0.05).sum()

    marks = []
    for switches in ((), (1000,), (1000, 3000)):
        assert plot_curves(path, picture, "A run", ALL_METRICS, switches) == 0
        # Generator and discriminator.
        assert near((0xC0, 0x58, 0x2B)) > 50 and near((0x2B, 0x6C, 0xB0)) > 50
        marks.append(near((0x8A, 0x94, 0xA3)))
    # A switch in the future is not marked.
    assert marks[0] + 50 < marks[1] == marks[2]


def test_damaged_lines_are_counted_and_left_out(tmp_path):
    path, picture = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
    path.write_text("")
    plot_curves(path, picture, "A run", [])
    assert not picture.exists()
    rows = [json.dumps({"step": s, "loss": 1.0}) for s in range(1, 6)]
    rows[2] = rows[2][:9]
    path.write_text("\n".join(rows) + "\n")
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 4, 5]
    assert plot_curves(path, picture, "A run", ALL_METRICS) == 1


def test_results_are_text_and_json(tmp_path):
    path = tmp_path / "mask_0.15" / "unsup_0.25.txt"
    reporting.write_results(path, {"loss": 2.5, "disc_auc": 0.75}, 100, note="x")
    assert path.read_text() == "disc_auc = 0.75\nglobal_step = 100\nloss = 2.5\n"
    assert json.loads(path.with_suffix(".json").read_text()) == {
        "global_step": 100,
        "metrics": {"loss": 2.5, "disc_auc": 0.75},
        "note": "x",
    }
