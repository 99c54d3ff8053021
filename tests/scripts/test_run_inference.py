# SPDX-License-Identifier: Apache-2.0
"""run_inference.py as its users run it: detect, report."""

import json
import shutil
from html.parser import HTMLParser

import pytest

from tests.helpers.runs import TINY, pretrain, run_script

STEPS = TINY | {"num_train_steps": 3, "eval_batch_size": 4, "temperature": 1.25}
PASSAGES = ["w1 w2 w3 w4 w5 w6 w7 w8", "<w9> & w10"]


@pytest.fixture(scope="module")
def data(tiny_data):
    done = pretrain(tiny_data, "inference", STEPS)
    assert done.returncode == 0, done.stderr
    done = pretrain(
        tiny_data, "inference", STEPS | {"do_train": False, "do_eval": True}
    )
    assert done.returncode == 0, done.stderr
    return tiny_data


def infer(data, command, *flags, text="", model="inference", env=None):
    """Runs a command on the trained model, with `text` as its standard input."""
    where = ["--data-dir", str(data), "--model-name", model]
    return run_script("run_inference.py", command, *where, *flags, text=text, env=env)


def refused(run, code, text):
    assert run.returncode == code, run.stderr
    assert run.stderr.startswith("error: ") and text in run.stderr
    assert len(run.stderr.splitlines()) <= 3


def test_detect_reads_standard_input_and_writes_json_lines(data):
    text = f"{PASSAGES[0]}\n\n  {PASSAGES[1]}  \n"
    run = infer(data, "detect", "--format", "jsonl", text=text, env={})
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""  # TensorFlow's notices say nothing here
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [row["text"] for row in rows] == PASSAGES
    for row in rows:
        for token in row["tokens"]:
            assert row["text"][token["start"] : token["end"]] == token["token"]


def test_detect_in_the_terminal(data, tmp_path):
    (tmp_path / "in.txt").write_text(f"{PASSAGES[0]}\n" * 3)
    flags = ("--input", str(tmp_path / "in.txt"), "--corrupt", "--max-passages", "2")
    run = infer(data, "detect", *flags, env={"FORCE_COLOR": "1"})
    assert run.returncode == 0, run.stderr
    legend, first, second, summary = filter(None, run.stdout.splitlines())
    assert "replaced, caught" in legend and "\x1b[" in first
    assert "drawn at temperature 1.25" in legend
    assert first != second  # other positions are masked in the next passage
    assert "replaced tokens are among the" in summary
    assert "Stopped after 2 passages: --max-passages." in run.stderr


def test_detect_writes_html(data, tmp_path):
    page = tmp_path / "page.html"
    flags = ("--format", "html", "--output", str(page), "--threshold", "0.0")
    run = infer(data, "detect", *flags, text="<script>w1</script>\n")
    assert run.returncode == 0 and run.stdout == "", run.stderr
    tags = tags_of(page.read_text())
    assert "script" not in tags and tags.count("p") == 2


def tags_of(page):
    found = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            del attrs
            found.append(tag)

    Tags().feed(page)
    return found


def test_report(data, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(PASSAGES))
    run = infer(data, "report", "--input", str(tmp_path / "in.txt"))
    assert run.returncode == 0, run.stderr
    path = data / "models" / "inference" / "report.html"
    assert f"Written to {path}" in run.stdout
    page = path.read_text()
    results = json.loads((path.parent / "results/unsup_results.json").read_text())
    assert f"{results['metrics']['disc_auc']:.4f}" in page
    assert "data:image/png;base64," in page
    assert "drawn at temperature 1.25" in page
    assert tags_of(page).count("p") >= 2 + len(PASSAGES)

    # A metric of a loss that was not finite is stored as null.
    copied = shutil.copytree(path.parent, data / "models" / "other" / "inference")
    results["metrics"]["disc_auc"] = None
    (copied / "results/unsup_results.json").write_text(json.dumps(results))
    run = run_script("run_inference.py", "report", "--model", str(copied))
    assert run.returncode == 0, run.stderr
    page = (copied / "report.html").read_text()
    assert "<td>disc_auc</td><td>not a number</td>" in page
    names = "--model-name=inference,other/inference"
    run = run_script("run_inference.py", "report", f"--data-dir={data}", names)
    assert run.returncode == 0, run.stderr
    page = (data / "models" / "comparison.html").read_text()
    assert "<td>inference</td><td>other/inference</td>" in page


def test_several_runs_are_compared(data, tmp_path):
    done = pretrain(data, "slower", STEPS | {"learning_rate": 1e-4})
    assert done.returncode == 0, done.stderr
    flags = "report", "--data-dir", str(data)
    run = run_script("run_inference.py", *flags, "--model-name", "inference,slower")
    assert run.returncode == 0, run.stderr
    page = (data / "models" / "comparison.html").read_text()
    assert "<th>learning_rate</th><td>0.002</td><td>0.0001</td>" in page
    assert page.count("<tr>") < 20 and "model_dir" not in page
    results = data / "models/inference/results/unsup_results.json"
    auc = json.loads(results.read_text())["metrics"]["disc_auc"]
    assert f"<th>disc_auc</th><td>{auc:.4f}</td><td></td>" in page
    assert "data:image/png;base64," in page

    out = str(tmp_path / "page.html")
    names = "--model-name", "inference,no_such", "--output", out
    refused(run_script("run_inference.py", *flags, *names), 2, "no_such holds no run")
    names = "--model-name", "inference,slower", "--model", str(data)
    refused(run_script("run_inference.py", *flags, *names), 1, "neither --model")


def test_mistakes_are_said_in_words(data, tmp_path):
    refused(infer(data, "detect", "--input", "/nowhere.txt"), 2, "/nowhere.txt")
    refused(
        infer(data, "detect", model="no_such", text="w1"), 2, "config.json not found"
    )
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"w1\nw2 \xe9\n")
    run = infer(data, "detect", "--input", str(latin))
    assert run.returncode == 65 and "Traceback" not in run.stderr
    assert f"{latin}" in run.stderr and "UTF-8" in run.stderr
    run = infer(data, "detect", "--output", str(latin / "out.txt"), text="w1")
    assert run.returncode == 73 and "Traceback" not in run.stderr
    assert "cannot write" in run.stderr


@pytest.mark.parametrize(
    ("command", "flags", "used_by"),
    [
        ("detect", ["--nbest", "x"], "--nbest is not used by detect but by rerank."),
        ("detect", ["--tokens"], "--tokens is not used by detect but by score."),
        (
            "report",
            ["--max_passages=3", "--method", "electric"],
            "by score and rerank.",
        ),
        ("score", ["--no-corrupt"], "--corrupt is not used by score but by detect."),
        ("rerank", ["--input", "x"], "but by detect, report, score and predict."),
    ],
)
def test_flags_of_other_commands_are_refused(command, flags, used_by):
    run = run_script("run_inference.py", command, "--model", "/nowhere", *flags)
    refused(run, 1, used_by)


@pytest.mark.parametrize("command", ["detect", "score", "predict"])
def test_what_is_read_is_not_replaced(data, tmp_path, command):
    path, link = tmp_path / "in.txt", tmp_path / "link"
    path.write_text("w1 w2 w3\n")
    link.symlink_to(path)
    model = str(data / "models" / "inference")
    files = "--input", str(path), "--output", str(link)
    run = run_script("run_inference.py", command, "--model", model, *files)
    refused(run, 1, "--input and --output are the same file")
    assert path.read_text() == "w1 w2 w3\n"


def test_a_report_is_on_a_run(data, tmp_path):
    model = data / "models" / "inference"
    for place in (model / "model.ckpt-0", tmp_path):
        run = run_script("run_inference.py", "report", "--model", str(place))
        refused(run, 2, "is none")


def test_command_is_needed(data):
    run = run_script("run_inference.py", "--data-dir", str(data), "--model-name", "m")
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert "detect" in run.stderr and "report" in run.stderr
    run = infer(data, "detekt")
    assert run.returncode == 1 and "detect" in run.stderr
