# SPDX-License-Identifier: Apache-2.0
"""run_inference.py with files, pipes and flags as users give them."""

import fcntl
import gzip
import json
import os
import sys
import threading

import pytest

from tests.helpers import forked_runs
from tests.helpers.runs import TINY, pretrain, run_script

HPARAMS = TINY | {
    "num_train_steps": 2,
    "num_warmup_steps": 1,
    "electra_objective": False,
    "electric_objective": True,
}


@pytest.fixture(scope="module")
def model(tiny_data):
    done = pretrain(tiny_data, "files", HPARAMS)
    assert done.returncode == 0, done.stderr
    return tiny_data / "models" / "files"


def infer(command, *flags, **kwargs):
    return run_script("run_inference.py", command, *map(str, flags), **kwargs)


def refused(run, code, text):
    assert run.returncode == code, run.stderr
    assert run.stderr.startswith("error: ") and text in run.stderr
    assert len(run.stderr.splitlines()) <= 3 and run.stdout == ""


def close_input():
    os.close(0)
    sys.stdin = None


def close_output():
    os.close(1)
    sys.stdout = None


def test_pipes_and_compressed_files(model, tmp_path):
    pipes = [tmp_path / "in", tmp_path / "out"]
    for pipe in pipes:
        os.mkfifo(pipe)
    text, got = gzip.compress(b"w1 w2\nw3\n"), []
    ends = [
        threading.Thread(target=lambda: pipes[0].write_bytes(text)),
        threading.Thread(target=lambda: got.append(pipes[1].read_text())),
    ]
    for end in ends:
        end.start()
    run = infer("score", "--model", model, "--input", pipes[0], "--output", pipes[1])
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    for end in ends:
        end.join()
    rows = [json.loads(line) for line in got[0].splitlines()]
    assert [row["text"] for row in rows] == ["w1 w2", "w3"]
    assert all(pipe.is_fifo() for pipe in pipes) and len(os.listdir(tmp_path)) == 2


def test_lists_on_standard_input(model, tmp_path):
    # Half a pair of surrogates, which is no character.
    row = {"id": "u", "hypotheses": [{"text": "w1", "score": 0, "note": "\ud800"}]}
    out = tmp_path / "out"
    flags = ("--nbest", "-", "--weight", 1, "--output", out)
    run = infer("rerank", "--model", model, *flags, text=json.dumps(row))
    assert run.returncode == 0, run.stderr
    [hypothesis] = json.loads(out.read_text())["hypotheses"]
    assert hypothesis["note"] == "\ud800"


@pytest.mark.parametrize("command", ["detect", "score", "predict"])
def test_closed_standard_input(command, tmp_path):
    flags = ("--model", "/nowhere")
    run = forked_runs.Run(
        tmp_path, "run_inference.py", command, *flags, before=close_input
    )
    refused(run.wait(), 2, "standard input is closed; name a file")


def test_closed_standard_output(tmp_path):
    flags = ("score", "--model", "/nowhere", "--input", __file__)
    run = forked_runs.Run(tmp_path, "run_inference.py", *flags, before=close_output)
    refused(run.wait(), 73, "standard output is closed")


def test_an_output_that_another_process_writes(tmp_path):
    out = tmp_path / "out"
    flags = ("--model", "/nowhere", "--input", __file__, "--output", out)
    with open(f"{out}.partial", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("theirs")
        other.flush()
        refused(infer("score", *flags), 75, "another process is writing")
        assert open(f"{out}.partial").read() == "theirs"
    # It was killed: its rest is written over, and goes with ours.
    refused(infer("score", *flags), 2, "/nowhere")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("command", "flags", "code", "text"),
    [
        ("detect", ["--seed=3"], 1, "--seed is for --corrupt"),
        ("detect", ["--seed=9223372036854775808", "--corrupt"], 1, "seed"),
        ("detect", ["--corrupt", "--threshold=.3"], 1, "not --corrupt"),
        ("detect", ["--format=jsonl", "--threshold=.3"], 1, "marks nothing"),
        ("detect", ["--threshold=1.5"], 1, "a probability, from 0 to 1"),
        ("detect", ["--threshold=nan"], 1, "a probability, from 0 to 1"),
        ("detect", ["--max-passages=0"], 1, "max_passages"),
        ("detect", ["--input=/no/where"], 2, "--input /no/where does not exist"),
        ("detect", ["--input=/"], 2, "A directory goes with --output-dir"),
        ("report", ["--seed=3"], 1, "--seed is for --input"),
        ("report", ["--max-passages=3"], 1, "--max-passages is for --input"),
        ("report", ["--encoding-errors=replace"], 1, "is for --input"),
        ("report", [], 2, "report is on a run, and /nowhere is none"),
        ("predict", ["--output=/dev/null", "--resume"], 1, "needs a file as --output"),
    ],
)
def test_flags_without_effect_are_refused(command, flags, code, text):
    refused(infer(command, "--model", "/nowhere", *flags), code, text)
