# SPDX-License-Identifier: Apache-2.0
"""Experiments: comparisons are planned, runs are made once, mistakes are told."""

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time

import pytest

from tests.helpers.process_tree import children_of, is_alive
from tests.helpers.runs import ROOT

COMPARISONS = sorted(
    path.stem
    for path in (ROOT / "experiments").glob("*.py")
    if "COMPARISON = Comparison(" in path.read_text()
)
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


def command(script, output, *flags):
    return [
        *(sys.executable, str(ROOT / "experiments" / f"{script}.py")),
        *(f"--output-dir={output}", *flags),
    ]


def run(script, output, *flags):
    return subprocess.run(
        command(script, output, *flags),
        capture_output=True,
        text=True,
        cwd=output.parent,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": ""},
        check=False,
    )


def listed(output):
    try:
        return json.loads((output / "runs.json").read_text())["runs"]
    except FileNotFoundError:
        return {}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """As small and base need it, as far as planning goes."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "vocab.txt").write_text("".join(f"token{i}\n" for i in range(30522)))
    for name in ("pretrain_tfrecords", "finetuning_data/cola"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("script", COMPARISONS)
def test_every_comparison_is_planned_at_equal_compute(script, tmp_path, data_dir):
    scales = [["pocket"], ["base", f"--data-dir={data_dir}"]]
    scales += [["small", f"--data-dir={data_dir}"]]
    for scale in scales:
        flags = [f"--scale={scale[0]}", *scale[1:], "--seeds=2", "--dry-run"]
        done = run(script, tmp_path / "out", *flags)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        names, amounts = zip(*(line.rsplit(": ", 1) for line in lines), strict=True)
        keys = [name.split()[0] for name in names]
        assert len(set(keys)) == len(keys)
        flops = [float(amount.split()[-2]) for amount in amounts]
        assert min(flops) == 0  # random weights
        parts = {round(16 * value / max(flops), 1) for value in flops}
        assert parts <= {0, 1.0, 2.0, 4.0, 8.0, 16.0}, (script, parts)
        assert not (tmp_path / "out").exists()


def test_runs_on_other_data_are_not_mixed(tmp_path, data_dir):
    """The path is the same; the files have been made anew."""
    settings = {"data_sha256": {f"sha256 of {data_dir}/vocab.txt": "0" * 64}}
    there = json.dumps({"settings": settings, "runs": {}})
    (tmp_path / "runs.json").write_text(there)
    flags = ["--scale=small", f"--data-dir={data_dir}", "--dry-run"]
    done = run("objectives", tmp_path, *flags)
    assert done.returncode == 2 and "holds runs of other settings" in done.stderr
    digest = hashlib.sha256((data_dir / "vocab.txt").read_bytes()).hexdigest()
    assert f"vocab.txt is {'0' * 64!r} there, {digest!r} here" in done.stderr
    assert (tmp_path / "runs.json").read_text() == there


@pytest.fixture
def flags(tmp_path):
    """Two variants, two seeds, a small text."""
    (tmp_path / "corpus").mkdir()
    novel = (ROOT / "examples/corpus/secret_garden.txt").read_text()
    (tmp_path / "corpus" / "text.txt").write_text(novel[:60_000])
    return [
        f"--corpus={tmp_path / 'corpus'}",
        "--seeds=2",
        "--only=BERT,Random weights",
        f"--hparams={json.dumps(TINY)}",
        f"--finetuning-hparams={json.dumps(TINY_TUNING)}",
    ]


def test_runs_are_made_once_whatever_ends_them(tmp_path, flags):
    output = tmp_path / "out"
    keys = [line.split()[0] for line in planned(output, flags)]

    # Killed when one run is finished and the next has begun.
    first = start(output, flags, tmp_path / "first")
    wait_for(lambda: (output / "logs" / f"{keys[1]}.log").exists(), first)
    children = children_of(first.pid)
    first.kill()
    first.wait()
    wait_for(lambda: not any(map(is_alive, children)))
    done = [key for key, row in listed(output).items() if row["scores"]]
    assert done == keys[:1] and children
    before = files_of(output / "runs" / keys[0])

    # Asked to stop in the third.
    second = start(output, flags, tmp_path / "second")
    third = output / "logs" / f"{keys[2]}.log"
    wait_for(lambda: third.exists() and "Config:" in third.read_text(), second)
    busy = run("objectives", output, *flags)
    assert busy.returncode == 75 and "another --output-dir" in busy.stderr
    second.send_signal(signal.SIGTERM)
    assert second.wait(120) == 42
    said = (tmp_path / "second").read_text()
    assert "BERT, seed 1 begins" not in said
    assert "Run the same command again to continue." in said

    last = run("objectives", output, *flags, "--workers=2")
    assert last.returncode == 0, last.stdout + last.stderr
    assert "BERT, seed 1 begins" not in last.stdout
    assert "Random weights, seed 1 begins" not in last.stdout
    assert "4/4 runs" in last.stdout
    assert files_of(output / "runs" / keys[0]) == before
    check_results(output, keys)

    again = run("objectives", output, *flags)
    assert again.returncode == 0 and "begins" not in again.stdout

    # Another experiment in the same place shares runs; one of other settings may not.
    other = run("efficiency", output, *flags, "--dry-run")
    assert keys[0] in other.stdout
    other = run("objectives", output, *flags, "--trials=2")
    assert other.returncode == 2 and "trials is 1 there, 2 here" in other.stderr
    changed = f"--hparams={json.dumps(TINY | {'learning_rate': 0.1})}"
    other = run("objectives", output, *flags, changed)
    assert "learning_rate is 0.0005 there, 0.1 here" in other.stderr
    assert other.stderr.count("\n") <= 3


def check_results(output, keys):
    """Table, picture and list say what the runs reached."""
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
    is_fit = spread < gain / 3
    assert ("not reported" in table) != is_fit
    assert (f"{mean:.2f} ± {error:.2f}" in table) == is_fit
    # A picture of fewer runs does not outlast the verdict on all of them.
    drawn = output / "objectives.png"
    assert drawn.exists() == is_fit
    assert not is_fit or drawn.read_bytes().startswith(b"\x89PNG")
    assert "| BERT |" in table and "| Random weights | 0 | 0 |" in table
    steps = runs[keys[0]]["hparams"]["num_train_steps"]
    state = json.loads((output / "runs" / keys[0] / "model/config.json").read_text())
    assert state["num_train_steps"] == steps and state["seed"] == 1
    dropouts = set()
    for key, score in zip(keys, scores, strict=True):
        path = output / "runs" / key / "marks_results" / "marks_results.json"
        results = json.loads(path.read_text())
        assert results["trials"][0]["scores"]["marks"]["f1"] == score
        shape = results["settings"]["model_hparam_overrides"]
        assert shape["hidden_size"] == 16
        dropouts.add(shape.get("hidden_dropout_prob"))
    assert dropouts == {None}  # Random weights are fine-tuned as all others are.


@pytest.mark.thorough
def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path, flags):
    wrong = TINY | {"learning_rate": 1e30}
    failing = [f"--hparams={json.dumps(wrong)}" if "--hp" in f else f for f in flags]
    done = run("objectives", tmp_path / "out", *failing, "--workers=2")
    assert done.returncode == 70, done.stdout
    assert "BERT, seed 1 ended with code 70: error: diverged" in done.stdout
    assert "Random weights, seed 2 is finished" in done.stdout
    assert "| BERT |" in (tmp_path / "out" / "objectives.md").read_text()


def planned(output, flags):
    done = run("objectives", output, *flags, "--dry-run")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def start(output, flags, log):
    with open(log, "wb") as f:
        return subprocess.Popen(
            command("objectives", output, *flags), stdout=f, stderr=f
        )


def wait_for(condition, process=None):
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, "it ended too early"
        time.sleep(0.05)


def files_of(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--scale=huge"], "pocket|small|base"),
        (["--seeds=0"], "seeds"),
        (["--corpus=nowhere"], "is not a directory"),
        (["--only=GPT"], "there is no variant 'GPT'"),
        (["--scale=small"], "needs --data-dir"),
        (["--scale=small", "--data-dir=."], "has no vocab.txt"),
        (["--data-dir=."], "has no finetuning_data/chunk"),
        (["--hparams={"], "hparams"),
        (['--hparams={"sed": 1}'], "sed"),
        (['--hparams={"seed": 7}'], "--hparams has seed, which each run has"),
        (['--finetuning-hparams={"num_trials": 2}'], "--trials says how many"),
        (['--finetuning-hparams={"do_eval": false}'], "has do_eval, which each run"),
        (['--finetuning-hparams={"results_txt": "x.txt"}'], "has results_txt, which"),
        (['--finetuning-hparams={"keep_all_models": true}'], "has keep_all_models"),
        (['--hparams={"do_train": false}'], "--hparams has do_train, which each run"),
        (['--finetuning-hparams={"learning_rat": 1}'], 'did you mean "learning_rate"'),
        (
            ['--finetuning-hparams={"model_hparam_overrides": {"hidden_size": 8}}'],
            "hidden_size, which each run has of its own: it is the pre-trained model's",
        ),
        (['--hparams={"model_hparam_overrides": 5}'], "model_hparam_overrides"),
        (['--hparams={"phases": [{"num_train_steps": 3}]}'], "follow from its FLOPs"),
        (['--finetuning-hparams={"max_seq_length": 256}'], "ELECTRA, seed 1: max_seq"),
        (["--scale=base", "--corpus=."], "--corpus is for --scale pocket"),
        (['--hparams={"objective": "mlm"}'], "ELECTRA and BERT are the same run"),
    ],
)
def test_mistakes(tmp_path, flags, text):
    done = run("objectives", tmp_path / "out", *flags)
    assert done.returncode in (1, 2) and text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "runs.json").exists()


def test_a_mistake_corrected_in_the_same_place(tmp_path):
    done = run("objectives", tmp_path / "out", f"--data-dir={tmp_path}")
    assert done.returncode == 2 and (tmp_path / "out").exists()
    planned(tmp_path / "out", [])


def test_places_that_are_not_experiments(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    done = run("objectives", tmp_path / "out", "--dry-run")
    assert done.returncode == 2 and "is not empty" in done.stderr
    (tmp_path / "out" / "runs.json").write_text("[")
    done = run("objectives", tmp_path / "out", "--dry-run")
    assert done.returncode == 65 and "is damaged" in done.stderr
