# SPDX-License-Identifier: Apache-2.0
"""run_inference.py with files, pipes and flags as users give them."""

import fcntl
import gzip
import json
import os
import sys

import pytest

from tests.helpers import forked_runs
from tests.helpers.pipes import drained, fed
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
    pipes, text = [tmp_path / "in", tmp_path / "out"], gzip.compress(b"w1 w2\nw3\n")
    flags = ("--model", model, "--input", pipes[0], "--output", pipes[1])
    with fed(pipes[0], text), drained(pipes[1]) as got:
        run = infer("score", *flags)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    rows = [json.loads(line) for line in got[0].splitlines()]
    assert [row["text"] for row in rows] == ["w1 w2", "w3"]
    assert all(pipe.is_fifo() for pipe in pipes) and len(os.listdir(tmp_path)) == 2


def test_a_report_into_a_pipe(model, tmp_path):
    with drained(tmp_path / "pipe") as got:
        run = infer("report", "--model", model, "--output", tmp_path / "pipe")
    assert run.returncode == 0, run.stderr
    assert got[0].startswith("<!") and (tmp_path / "pipe").is_fifo()


def test_lists_on_standard_input(model, tmp_path):
    # Half a pair of surrogates, which is no character.
    row = {"id": "u", "hypotheses": [{"text": "w1 \ud800", "score": 0}]}
    out, text = tmp_path / "out", json.dumps(row)
    flags = ("--model", model, "--nbest", "-", "--weight", 1, "--output", out)
    run = infer("rerank", *flags, text=gzip.compress(text.encode()))
    assert run.returncode == 0, run.stderr
    [hypothesis] = json.loads(out.read_text())["hypotheses"]
    assert hypothesis["text"] == "w1 \ud800"
    run = infer("rerank", *flags, "--best", text=text)
    assert run.returncode == 0 and out.read_text() == "u w1 ?\n", run.stderr
    refused(infer("rerank", *flags), 2, "standard input holds no lists")


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


def test_a_device_is_read_and_written():
    flags = ("--model", "/nowhere", "--input", "/dev/null", "--output", "/dev/null")
    refused(infer("score", *flags), 2, "/nowhere")


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
        ("report", ["--model-name=A,B", "--seed=3"], 1, "the report on one run"),
        ("report", [], 2, "report is on a run, and /nowhere is none"),
        ("predict", ["--output=/dev/null", "--resume"], 1, "needs a file as --output"),
    ],
)
def test_flags_without_effect_are_refused(command, flags, code, text):
    refused(infer(command, "--model", "/nowhere", *flags), code, text)
