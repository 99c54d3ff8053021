# SPDX-License-Identifier: Apache-2.0
"""Progress lines, metrics.jsonl, TensorBoard events, curves and results."""

import io
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from electra_tf import console
from electra_tf.console import Console, Progress
from electra_tf.pretrain.metrics import ALL_METRICS
from electra_tf.train import reporting
from electra_tf.train.curves import plot_curves, smooth
from electra_tf.train.reporting import MetricsFile, Report, read_metrics

METRICS = {
    "loss": 12.34567,
    "masked_lm_loss": 6.1,
    "disc_loss": 0.125,
    "disc_accuracy": 0.93,
}


SHOWN = {metric.name: metric.short for metric in ALL_METRICS if metric.short}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (90061, "1 day, 1:01:01"),
        (200000, "2 days, 7:33:20"),
    ],
)
def test_duration(seconds, text):
    assert console.duration(seconds) == text


class Clock:
    """time.monotonic under the test's control."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_line_has_the_originals_form(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    progress = Progress(Console(stream), 10000, 1000, 32, 100, SHOWN)
    clock.now += 30  # the graph is built
    progress.update(1001, METRICS)
    clock.now += 99.5
    progress.update(1200, METRICS)
    first, second = stream.getvalue().splitlines()
    shown = " - loss: 12.35 gen: 6.100 disc: 0.1250 acc: 0.9300"
    assert first == "1001/10000 = 10.0%" + shown
    # 199 steps in 99.5 s; the building of the graph does not count.
    assert second == (
        "1200/10000 = 12.0%, SPS: 2.0, seq/s: 64, ELAP: 2:10, ETA: 1:13:20" + shown
    )


def test_lines_without_a_terminal_come_at_intervals(monkeypatch):
    clock, stream = Clock(monkeypatch), io.StringIO()
    progress = Progress(Console(stream), 1000, 0, 8, 100, SHOWN)
    for step in range(1, 1001):
        clock.now += 0.01 if step < 500 else 1.0
        progress.update(step, METRICS)
    steps = [int(line.split("/")[0]) for line in stream.getvalue().splitlines()]
    assert steps[:5] == [1, 100, 200, 300, 400]
    assert steps[-1] == 1000
    # Once steps are slow, no silence is longer than a minute or so.
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
    # The message does not share its line with what was left of the progress.
    assert lines[0].split("\r")[-1] == "a message"
    shown = [text for text in re.split(r"\r *", lines[0]) if text]
    assert len(shown) == 4 and all(len(text) < 80 for text in shown)
    assert re.fullmatch(r"40001/100000, \d+ seq/s, ETA .* acc 0\.930", lines[1])


def test_a_silent_console_writes_nothing():
    stream = Terminal()
    console = Console(stream, silent=True)
    console.heading("x")
    console.update("y")
    assert stream.getvalue() == ""


def write_steps(path, steps, start=0):
    file = MetricsFile(path, start)
    file.write([{"step": s, "loss": 1.0 / s, "x": float("nan")} for s in steps])
    file.sync()
    file.close()


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


@pytest.mark.parametrize(
    "torn", [b'{"step": 11, "lo', b"\0\0\0\0", b'{"step": 11}', b"[]\n", b"\xff\n\n"]
)
def test_a_torn_end_is_cut_off(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(1, 11))
    with open(path, "ab") as f:
        f.write(torn)
    write_steps(path, [11], start=10)
    assert steps_in(path) == list(range(1, 12))


def test_lines_longer_than_a_block_are_found(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": s, "text": "x" * 9000} for s in range(1, 6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_steps(path, [4], start=3)
    assert steps_in(path) == [1, 2, 3, 4]


def events_in(directory):
    events = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            events.append(tf.compat.v1.Event.FromString(record.numpy()))
    return events


def report(directory, start, metrics):
    result = Report(
        directory,
        Console(io.StringIO()),
        start=start,
        total=9,
        batch_size=2,
        every=1,
        metrics=ALL_METRICS,
    )
    result.add(start + 1, metrics)
    result.close()


def test_a_report_fills_metrics_and_tensorboard(tmp_path):
    metrics = {k: np.array([v, 2 * v, 4 * v]) for k, v in METRICS.items()}
    metrics["learning_rate"] = np.array([1e-4, 2e-4, np.inf])
    report(tmp_path, 0, metrics)
    report(tmp_path, 2, metrics)
    assert steps_in(tmp_path / "metrics.jsonl") == [1, 2, 3, 4, 5]
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["learning_rate"] is None and last["disc_loss"] == 0.5

    events = events_in(tmp_path / "tensorboard")
    assert events[0].file_version == "brain.Event:2"
    # The second file says that steps from 3 on are its own.
    starts = [e.step for e in events if e.session_log.status == 1]
    assert starts == [1, 3]
    tags = {v.tag: v.simple_value for v in events[2].summary.value}
    assert tags["generator/loss"] == pytest.approx(6.1)
    assert tags["discriminator/accuracy"] == pytest.approx(0.93)
    assert tags["training/learning_rate"] == pytest.approx(1e-4)


def test_tensorboard_shows_each_step_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing import event_accumulator

    metrics = {k: np.array([v] * 4) for k, v in METRICS.items()}
    report(tmp_path, 0, metrics)
    report(tmp_path, 2, metrics)
    found = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in found.Scalars("discriminator/loss")] == [1, 2, 3, 4, 5, 6]


def test_smooth_is_a_mean_of_neighbours():
    values = np.array([1.0, 2.0, np.nan, 4.0, 6.0])
    np.testing.assert_allclose(smooth(values, 3), [1.5, 1.5, 3.0, 5.0, 5.0])


@pytest.mark.parametrize("steps", [1, 3, 5000])
def test_curves_are_a_picture(tmp_path, steps):
    import matplotlib.image

    path, picture = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
    file = MetricsFile(path, 0)
    rows = ({"step": s, "learning_rate": 1e-4} | METRICS for s in range(1, steps + 1))
    file.write([{**row, "disc_loss": row["step"] ** -0.5} for row in rows])
    file.close()
    assert plot_curves(path, picture, "A run", ALL_METRICS) == 0
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape == (840, 1320, 4)
    # Both colours are there: generator and discriminator.
    for colour in ((0xC0, 0x58, 0x2B), (0x2B, 0x6C, 0xB0)):
        near = np.abs(pixels[..., :3] - np.array(colour) / 255).max(-1) < 0.05
        assert near.sum() > (50 if steps > 1 else 0)


def test_a_switch_is_marked(tmp_path):
    import matplotlib.image

    path, picture = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
    file = MetricsFile(path, 0)
    file.write([{"step": s, "loss": 1.0, "disc_loss": 1 / s} for s in range(1, 21)])
    file.close()
    marked = []
    for switches in ((), (10,), (10, 30)):
        plot_curves(path, picture, "A run", ALL_METRICS, switches)
        pixels = matplotlib.image.imread(picture)[..., :3]
        colour = np.array([0x8A, 0x94, 0xA3]) / 255
        marked.append((np.abs(pixels - colour).max(-1) < 0.05).sum())
    # What is to come is not.
    assert marked[0] + 50 < marked[1] == marked[2]


def test_lines_that_are_no_steps_are_left_out_and_missed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [json.dumps({"step": s, "loss": 1.0}) for s in range(1, 11)]
    rows[2] = '{"loss": 1.0}'
    rows[4] = rows[4][:9]
    rows[6] = "[7]"
    rows[8] = '{"step": 9, "loss": "much"}'
    path.write_text("\n".join(rows) + "\n")
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 4, 6, 8, 9, 10]
    assert plot_curves(path, tmp_path / "curves.png", "A run", ALL_METRICS) == 3


def test_curves_of_an_empty_run_are_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    plot_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", "A run", [])
    assert not (tmp_path / "curves.png").exists()


def test_results_beside_each_other(tmp_path):
    names = ("mask_0.15", "mask_0.25", "out.json")
    for step, name in enumerate(names):
        reporting.write_results(tmp_path / name, {"loss": 2.5}, step)
    for step, name in enumerate(names):
        assert f"global_step = {step}\n" in (tmp_path / name).read_text()
    found = json.loads((tmp_path / "mask_0.15.json").read_text())
    assert found["global_step"] == 0


def test_results_are_text_and_json(tmp_path):
    path = tmp_path / "results" / "unsup_results.txt"
    reporting.write_results(path, {"loss": 2.5, "disc_auc": 0.75}, 100, note="x")
    assert path.read_text() == "disc_auc = 0.75\nglobal_step = 100\nloss = 2.5\n"
    assert json.loads(path.with_suffix(".json").read_text()) == {
        "global_step": 100,
        "metrics": {"loss": 2.5, "disc_auc": 0.75},
        "note": "x",
    }
