# SPDX-License-Identifier: Apache-2.0
"""Experiments: equal compute, one run survives a kill, mistakes end it at once."""

import json
import statistics
import time

import pytest
from comparisons import COMPARISONS

from tests.helpers import forked_runs
from tests.helpers.process_tree import children_of, is_alive
from tests.helpers.runs import ROOT, run_script

pytestmark = pytest.mark.thorough
TINY = {
    "model_hparam_overrides": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.25,
    },
    "embedding_size": 16,
    "vocab_size": 300,
    "max_seq_length": 32,
    "train_batch_size": 4,
    "num_train_steps": 6,
    "jit_compile": False,
}
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
    scales = [["pocket"], ["base", f"--data-dir={data_dir}"]]
    scales += [["small", f"--data-dir={data_dir}"]]
    for scale, *flags in scales:
        flags += [f"--scale={scale}", "--seeds=2", "--dry-run"]
        done = run(comparison, tmp_path / "out", *flags)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        names, amounts = zip(*(line.rsplit(": ", 1) for line in lines), strict=True)
        keys = [name.split()[0] for name in names]
        assert len(set(keys)) == len(keys)
        flops = [float(amount.split()[-2]) for amount in amounts]
        assert min(flops) == 0  # random weights
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
        f"--hparams={json.dumps(TINY | changes)}",
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
    last = run("objectives", output, *flags, "--workers=2")
    assert last.returncode == 0, last.stdout + last.stderr
    assert "4/4 runs" in last.stdout
    assert files_of(output / "runs" / keys[0]) == before
    check_results(output, keys)
    # Another experiment in the same place shares runs; one of other settings may not.
    other = run("efficiency", output, *flags, "--dry-run")
    assert keys[0] in other.stdout
    other = run("objectives", output, *flags, "--trials=2")
    assert other.returncode == 2 and "trials is 1 there, 2 here" in other.stderr


def check_results(output, keys):
    """Table and list have the scores of the runs."""
    runs = listed(output)
    scores = [runs[key]["scores"]["marks"] for key in keys]
    table = (output / "objectives.md").read_text()
    mean = statistics.fmean(scores[0::2])
    error = statistics.stdev(scores[0::2]) / 2**0.5
    spread = max(statistics.stdev(scores[0::2]), statistics.stdev(scores[1::2]))
    gain = mean - statistics.fmean(scores[1::2])
    of_measure = f"seeds {spread:.2f}, the best variant against random weights"
    assert f"{of_measure} {gain:+.2f}" in table
    # Models of this size are all of chance: mostly nothing can be reported of them.
    assert (f"{mean:.2f} ± {error:.2f}" in table) == (spread < gain / 3)
    assert "| BERT |" in table and "| Random weights | 0 | 0 |" in table
    state = json.loads((output / "runs" / keys[0] / "model/config.json").read_text())
    assert state["num_train_steps"] == runs[keys[0]]["hparams"]["num_train_steps"]
    assert state["seed"] == 1
    for key, score in zip(keys, scores, strict=True):
        path = output / "runs" / key / "marks_results" / "marks_results.json"
        results = json.loads(path.read_text())
        assert results["trials"][0]["scores"]["marks"]["f1"] == score
        shape = results["settings"]["model_hparam_overrides"]
        assert shape["hidden_size"] == 16
        # Random weights are fine-tuned as all others are.
        assert "hidden_dropout_prob" not in shape


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    flags = [*small_runs(tmp_path, learning_rate=1e30), "--seeds=1", "--workers=2"]
    done = run("objectives", tmp_path / "out", *flags)
    assert done.returncode == 70, done.stdout
    assert "BERT, seed 1 ended with code 70: error: diverged" in done.stdout
    assert "Random weights, seed 1 is finished" in done.stdout
