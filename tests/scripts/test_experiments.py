# SPDX-License-Identifier: Apache-2.0
"""Experiments: equal compute, one run survives a kill, mistakes end it at once."""

import json
import os
import signal
import statistics
import sys
import threading
import time

import blimp
import finetuned
import jobs
import numpy as np
import pytest
import report
import scales
from comparisons import COMPARISONS
from report import RANDOM, Row, Variant

from electra_tf.config.objectives import OBJECTIVES
from electra_tf.console import Console
from electra_tf.errors import EXIT_CONFIG, EXIT_PREEMPTED
from tests.helpers import forked_runs
from tests.helpers.process_tree import children_of, is_alive
from tests.helpers.runs import ROOT, check_ok, run_script, tiny, write_tiny_data

pytestmark = pytest.mark.thorough
DROPOUT = {"intermediate_size": 16, "hidden_dropout_prob": 0.25}
TINY_RUN = tiny(vocab_size=300, num_train_steps=6, overrides=DROPOUT)
TINY_TUNING = {"num_train_epochs": 0.05, "max_seq_length": 32, "jit_compile": False}


def run(name, output, *flags):
    return run_script("experiments/run.py", name, f"--output-dir={output}", *flags)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """As small and base need it, as far as planning goes."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "vocab.txt").write_text("".join(f"token{i}\n" for i in range(30522)))
    for name in ("pretrain_tfrecords", "finetuning_data/cola"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_variants_have_equal_compute(comparison, tmp_path, data_dir):
    scales = COMPARISONS[comparison].recipes
    for scale in scales or ("pocket", "base", "small"):
        flags = [] if scale == "pocket" else [f"--data-dir={data_dir}"]
        flags += ["--pairs=pairs.jsonl"] if scales else []
        flags += [f"--scale={scale}", "--seeds=2", "--dry-run"]
        done = check_ok(run(comparison, tmp_path / "out", *flags))
        lines = done.stdout.splitlines()
        names, amounts = zip(*(line.rsplit(": ", 1) for line in lines), strict=True)
        keys = [name.split()[0] for name in names]
        assert len(set(keys)) == len(keys)
        flops = [float(amount.split()[-2]) for amount in amounts]
        assert (min(flops) == 0) == (not scales)  # random weights
        parts = {round(16 * value / max(flops), 1) for value in flops}
        assert parts <= {0, 1.0, 2.0, 4.0, 8.0, 16.0}, (comparison, parts)
        assert not (tmp_path / "out").exists()


def small_runs(folder, **changes):
    """Flags: two variants, two seeds, a small text."""
    (folder / "corpus").mkdir()
    novel = (ROOT / "examples/corpus/secret_garden.txt").read_text()
    (folder / "corpus" / "text.txt").write_text(novel[:60_000])
    return [
        f"--corpus={folder / 'corpus'}",
        "--seeds=2",
        "--only=BERT,Random weights",
        f"--hparams={json.dumps(TINY_RUN | changes)}",
        f"--finetuning-hparams={json.dumps(TINY_TUNING)}",
    ]


def wait_for(condition):
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def files_of(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def listed(output):
    return json.loads((output / "runs.json").read_text())["runs"]


def test_finished_runs_survive_a_kill(tmp_path):
    output, flags = tmp_path / "out", small_runs(tmp_path)
    plan = run("objectives", output, *flags, "--dry-run").stdout.splitlines()
    keys = [line.split()[0] for line in plan]
    # Killed after one run has finished and the next was started.
    script = ("experiments/run.py", "objectives", f"--output-dir={output}", *flags)
    first = forked_runs.Run(tmp_path / "logs", *script).process
    wait_for(lambda: (output / "logs" / f"{keys[1]}.log").exists())
    children = children_of(first.pid)
    first.kill()
    wait_for(lambda: not any(map(is_alive, children)))
    assert [key for key, row in listed(output).items() if row["scores"]] == keys[:1]
    before = files_of(output / "runs" / keys[0])
    check_ok(run("objectives", output, *flags, "--workers=2"), "4/4 runs")
    assert files_of(output / "runs" / keys[0]) == before
    check_results(output, keys)
    # Another experiment in the same place shares runs; one of other settings may not.
    other = run("efficiency", output, *flags, "--dry-run")
    assert keys[0] in other.stdout
    other = run("objectives", output, *flags, "--trials=2")
    assert other.returncode == 2 and "trials is 1 there, 2 here" in other.stderr


def test_blimp(tmp_path):
    """Words by a seed, all of their tokens, and the parts of the sets."""
    small_runs(tmp_path)
    sets = sorted(blimp.TUNING) + [f"other{i}" for i in range(47)]
    rows = [{"good": "the garden", "bad": f"garden the {i}", "set": i} for i in sets]
    pairs, output = tmp_path / "pairs.jsonl", tmp_path / "out"
    pairs.write_text("\n".join(map(json.dumps, rows)))
    flags = [f"--corpus={tmp_path / 'corpus'}", f"--pairs={pairs}", "--words=5000"]
    flags += ["--seeds=1", "--only=Multi-choice", f"--hparams={json.dumps(TINY_RUN)}"]
    printed = check_ok(run("blimp", output, *flags), "1/1 runs").stdout
    assert "5,0" in printed and "words of 1 files, seed 1" in printed
    text, held_out = (
        (output / "data" / name / "text.txt").read_text()
        for name in ("text", "heldout_text")
    )
    assert 5000 <= len(text.split()) < 6500 and len(held_out.split()) >= 1000
    assert not {*text.splitlines()} & {*held_out.splitlines()} - {""}
    assert "100.0 % of its tokens used" in (output / "logs/data.log").read_text()
    [(key, row)] = listed(output).items()
    found = json.loads((output / "runs" / key / "pairs.json").read_text())["sets"]
    scores = row["scores"]
    for part, names in (("tuning", sets[:20]), ("others", sets[20:]), ("all", sets)):
        mean = statistics.fmean(found[name]["accuracy"] for name in names)
        assert scores[part] == pytest.approx(mean)
    assert 0 < scores["held-out loss"] < 100
    table = (output / "blimp.md").read_text()
    assert "| tuning | others | all | held-out loss | paper |" in table
    other = run("blimp", output, *flags, "--text-seed=2")
    assert other.returncode == 2 and "text_seed is 1 there, 2 here" in other.stderr


def test_sentences_become_lines():
    text = """"Well?" said\nhe. 'No.'\n\n \nMr. X. came, i.e. Mr. y did."""
    lines = """"Well?" said he.|'No.'|Mr.|X. came, i.e.|Mr. y did."""
    assert blimp.by_sentence(text).split("\n") == lines.split("|")


def check_results(output, keys):
    """The list has the scores of the runs; their tables are tested below."""
    runs = listed(output)
    scores = [runs[key]["scores"]["marks"] for key in keys]
    table = (output / "objectives.md").read_text()
    assert "| BERT |" in table and "| Random weights | 0 | 0 |" in table
    state = json.loads((output / "runs" / keys[0] / "model/config.json").read_text())
    assert state["num_train_steps"] == runs[keys[0]]["hparams"]["num_train_steps"]
    assert state["seed"] == 1
    for key, score in zip(keys, scores, strict=True):
        path = output / "runs" / key / "marks_results" / "marks_results.json"
        results = json.loads(path.read_text())
        assert results["trials"][0]["scores"]["marks"]["f1"] == score
        shape = results["settings"]["model_hparam_overrides"]
        assert shape["hidden_size"] == 32
        # Random weights are fine-tuned as all others are.
        assert "hidden_dropout_prob" not in shape


# Tables of fine-tuned models.


def test_undefined_scores_are_left_out_of_means():
    """A correlation with a constant is null in the results."""
    sides = finetuned.PRETRAINED, finetuned.RANDOM
    results = {
        (task, sides[0]): {metric: [79.0 + number, None, 81.0 + number]}
        for number, (task, metric) in enumerate(scales.GLUE.items())
    }
    assert finetuned.glue_table(results)[-1] == "| **GLUE** | | **83.50** | |"
    results["sts", sides[0]]["spearman"] = [None]
    lines = finetuned.glue_table(results)
    assert "| sts | spearman | - | 0 |" in lines
    assert not any("GLUE" in line for line in lines)
    known, unknown = [11.0, None, 13.0], [None, None]
    for first, second, cells in (
        (known, [6.0, 8.0], "12.00 ± 1.00 | 7.00 ± 1.00 | +5.00 | +3.5"),
        (known, unknown, "12.00 ± 1.00 | - | - | "),
        (unknown, known, "- | 12.00 ± 1.00 | - | "),
    ):
        pairs = zip(sides, (first, second), strict=True)
        found = {("sts", side): {"pearson": value} for side, value in pairs}
        row = f"| sts | pearson | {cells} |"
        assert finetuned.random_table(found)[-1] == row


# Tables and fitness of measures, on numbers worked out by hand; the task of marks.

ELECTRA = Row(
    Variant("ELECTRA", paper=85.0, x=2.0, line="a"), 1000, 2e12, {"m": [60.0, 62.0]}
)
BERT = Row(Variant("BERT", x=1.0, line="a"), 1500, 2e12, {"m": [58.0, 62.0]})
NOTHING = Row(RANDOM, 0, 0.0, {"m": [50.0, 51.0]})


def test_fitness_compares_spread_of_seeds_with_what_training_brings():
    # Variances 2 and 8, one degree of freedom each; random weights have 0.5.
    expected = pytest.approx((5**0.5, 61 - 50.5, True))
    assert report.fitness([BERT, ELECTRA, NOTHING], "m") == expected
    wide = NOTHING._replace(scores={"m": [40.0, 60.0]})
    spread, _, is_fit = report.fitness([ELECTRA, wide], "m")
    assert spread == pytest.approx(200**0.5) and not is_fit
    lower = NOTHING._replace(scores={"m": [90.0, 91.0]})
    assert not report.fitness([ELECTRA, lower], "m")[2]
    one = ELECTRA._replace(scores={"m": [60.0]})
    assert report.fitness([one, NOTHING], "m") is None


def test_undefined_scores_are_left_out_of_all_measures():
    found = {"a": {"m": 1.0, "n": 2.0}, "b": {"m": None, "n": 3.0}, "c": {"m": 5.0}}
    scores, left_out = report.defined(found, ["m", "n"])
    assert scores == {"m": [1.0], "n": [2.0]} and left_out == ["b"]


def test_table():
    two = [r._replace(scores=r.scores | {"n": [1.0, 3.0]}) for r in (ELECTRA, BERT)]
    lines = report.table(two, ["m", "n"])
    assert lines[0] == "|  | FLOPs | steps | seeds | m | n | mean | paper |"
    # Standard errors: 1.414 / sqrt(2); of the means 30.5 and 32.5, too.
    scores = "2 | 61.00 ± 1.00 | 2.00 ± 1.00 | 31.50 ± 1.00"
    assert lines[2] == f"| ELECTRA | 2e+12 | 1,000 | {scores} | 85.0 |"


def test_words_carry_the_mark_that_follows_them():
    line = '"Yes, Watson\'s here;" he said. 42 -- Why?!'
    words = "yes watson's here he said why".split()
    tags = ["B-comma", "O", "B-stop", "O", "B-stop", "B-stop"]
    assert scales.tagged(line) == list(zip(words, tags, strict=True))


def test_splits_of_the_marks_task_do_not_overlap(tmp_path):
    scales.write_marks(tmp_path, ROOT / "examples")
    parts = {}
    for split in ("train", "tuning", "test"):
        text = (tmp_path / f"marks_{split}.txt").read_text().strip()
        parts[split] = set(text.split("\n\n"))
    assert len(parts["train"]) == scales.PASSAGES["train"]
    assert not parts["train"] & parts["test"] and not parts["train"] & parts["tuning"]
    assert not parts["tuning"] & parts["test"]


@pytest.mark.parametrize(
    ("program", "hparam", "name", "metric"),
    [
        ("contrast", "objective", "contrast", "contrastive_loss"),
        ("ingredients", "block", "post_norm", "disc_loss"),
    ],
)
def test_an_idea_outside_of_the_package(tmp_path, program, hparam, name, metric):
    """It is trained, evaluated and exported by its script, and refused elsewhere."""
    write_tiny_data(tmp_path)
    hparams = tiny(num_train_steps=3, log_steps=1)
    place = hparams["model_hparam_overrides"] if hparam == "block" else hparams
    place[hparam] = name
    flags = [f"--data-dir={tmp_path}", "--model-name=m"]
    for more in ({}, {"do_train": False, "do_eval": True}):
        given = f"--hparams={json.dumps(hparams | more)}"
        done = run_script(
            f"experiments/{program}.py", "pretrain", *flags, given, env={}
        )
        check_ok(done)
    rows = map(json.loads, (tmp_path / "models/m/metrics.jsonl").open())
    losses = [row[metric] for row in rows]
    assert len(losses) == 3 and min(losses) > 0
    assert f"{metric} = " in done.stdout
    place = [f"--output-dir={tmp_path / 'out'}", "--format=saved_model"]
    check_ok(run_script(f"experiments/{program}.py", "export", *flags, *place, env={}))
    elsewhere = run_script("run_pretraining.py", *flags, given)
    assert elsewhere.returncode == EXIT_CONFIG and hparam in elsewhere.stderr


def test_views_of_one_sequence_find_each_other(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "contrast", None)  # which the import sets
    from contrast import contrast

    one = np.eye(6, dtype=np.float32)
    assert contrast(np.concatenate([one, 3 * one])).numpy().max() < 1e-6
    other = np.roll(one, 1, axis=0)
    assert contrast(np.concatenate([one, other])).numpy().min() > 10


# Commands, several at a time.

SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
print("begun", flush=True)
time.sleep(60)
"""


def test_a_signal_ends_all_commands_and_starts_no_other(tmp_path):
    command = [sys.executable, "-c", SAVES]
    every = [jobs.Commands(f"run {k}", [command], tmp_path / f"{k}.log") for k in "123"]

    def stop():
        logs = [job.log for job in every[:2]]
        while not all(log.is_file() and log.read_text() for log in logs):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    code = jobs.run_commands(every, 2, Console(silent=True))
    assert code == EXIT_PREEMPTED and not every[2].log.exists()


def test_log_is_not_written_through_a_link(tmp_path):
    other, log = tmp_path / "other", tmp_path / "run.log"
    other.write_text("precious")
    # The second appends to the log of the first.
    swap = "import os; os.remove({!r}); os.symlink({!r}, {!r})"
    swap = swap.format(str(log), str(other), str(log))
    commands = [sys.executable, "-c", swap], [sys.executable, "-c", "print(1)"]
    log.symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        job = jobs.Commands("run", commands, log)
        jobs.run_commands([job], 1, Console(silent=True))
    assert other.read_text() == "precious"
