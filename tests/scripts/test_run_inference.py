# SPDX-License-Identifier: Apache-2.0
"""run_inference.py as its users run it: detect, score, pairs, rerank."""

import gzip
import json

import pytest

import electra_tf
from tests.helpers.runs import run_script

PASSAGES = ["w1 w2 w3 w4 w5 w6 w7 w8", "<w9> & w10"]


@pytest.fixture(scope="module")
def electra(pretrained):
    return pretrained("electra") / "models" / "electra"


@pytest.fixture(scope="module")
def electric(pretrained):
    return pretrained("electric") / "models" / "electric"


@pytest.fixture(scope="module")
def scorer(electric):
    return electra_tf.load(electric)


def infer(command, *flags, text="", code=0, env=None):
    """Runs a command; one that is refused has an error of at most three lines."""
    args = map(str, flags)
    run = run_script("run_inference.py", command, *args, text=text, env=env)
    assert run.returncode == code, run.stdout + run.stderr
    if code:
        assert run.stderr.startswith("error: ") and len(run.stderr.splitlines()) <= 3
    return run


def rows_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_detect_reads_standard_input_and_writes_json_lines(electra):
    where = ("--data-dir", electra.parents[1], "--model-name", "electra")
    text = f"{PASSAGES[0]}\n\n  {PASSAGES[1]}  \n"
    run = infer("detect", *where, "--format", "jsonl", text=text, env={})
    assert "Traceback" not in run.stderr
    rows = rows_of(run.stdout)
    assert [row["text"] for row in rows] == PASSAGES
    for row in rows:
        for token in row["tokens"]:
            assert row["text"][token["start"] : token["end"]] == token["token"]


# Scores.


def test_score_reads_records_and_writes_an_object_for_each(electric, scorer, tmp_path):
    texts = ["w1 w2\nw3 w4", "", "w9", "? !", "w5 " * 40, "W7 «w8»"]
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    run = infer("score", "--model", electric, "--input", path, "--text-key=body")
    rows = rows_of(run.stdout)
    assert [row["text"] for row in rows] == texts
    for row, expected in zip(rows, scorer.score_texts(texts), strict=True):
        assert row["score"] == pytest.approx(expected.score, abs=1e-4)
        assert row["num_tokens"] == expected.num_tokens
        assert row["num_unknown"] == expected.num_unknown
    *_, last = run.stderr.splitlines()  # after TensorFlow's notices
    assert last == "Texts without tokens that the model knows: 2."


def test_pairs(electric, scorer, tmp_path):
    texts = [f"w{i} w{i + 3} w7" for i in range(20)]
    scores = [scored.score for scored in scorer.score_texts(texts)]
    [worst, *_, best] = sorted(texts, key=dict(zip(texts, scores, strict=True)).get)
    rows = [{"good": best, "bad": worst, "set": "right"}]
    rows += [{"good": worst, "bad": best, "set": "wrong"}]
    path, output = tmp_path / "pairs.jsonl.gz", tmp_path / "pairs.json"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    run = infer("pairs", "--model", electric, "--input", path, "--output", output)
    found = json.loads(output.read_text())
    assert [row["accuracy"] for row in found["sets"].values()] == [100, 0]
    assert found["accuracy"] == 50
    assert "Accuracy 50.00 ± 0.00 %, the mean of 2 sets with 2 pairs." in run.stderr


# Re-ranking.


def lists_for(model):
    """Lists whose given scores prefer the wrong text, by less than the model's do."""
    rows = []
    for number in range(6):
        texts = [f"w{number} w{i} w7" for i in range(4)]
        scores = [s.score for s in model.score_texts(texts)]
        best = max(range(4), key=scores.__getitem__)
        # At weight 1 the totals are 0 for the best text and below for the others.
        gaps = [scores[best] - score for score in scores]
        given = [-s - 0.1 * (i + 1) * gaps[i] for i, s in enumerate(scores)]
        row = {"id": f"u{number}", "hypotheses": [], "speaker": "s"}
        for text, score in zip(texts, given, strict=True):
            row["hypotheses"].append({"text": text, "score": score, "n": len(rows)})
        rows.append(row | {"reference": texts[best]})
    one = {"id": "one", "hypotheses": [{"text": "", "score": 2}], "reference": "w1"}
    return [*rows, one]


def test_rerank_at_a_weight(electric, scorer, tmp_path):
    given = lists_for(scorer)
    path = tmp_path / "n.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in given))
    flags = ("--model", electric, "--nbest", path, "--weight", "1")
    run = infer("rerank", *flags)
    rows = rows_of(run.stdout)
    assert [row["id"] for row in rows] == [row["id"] for row in given]
    for row, old in zip(rows, given, strict=True):
        first = row["reference"] if row["id"] != "one" else ""
        assert row["hypotheses"][0]["text"] == first
        totals = [h["score"] + h["model_score"] for h in row["hypotheses"]]
        shown = [h["total"] for h in row["hypotheses"]]
        assert totals == pytest.approx(shown, abs=1e-5)
        assert totals == sorted(totals, reverse=True)
        kept = [{k: h[k] for k in old["hypotheses"][0]} for h in row["hypotheses"]]
        assert sorted(kept, key=str) == sorted(old["hypotheses"], key=str)
        assert row.get("speaker") == old.get("speaker")
    assert "Lists: 7; weight 1." in run.stderr
    assert "Texts without tokens that the model knows: 1." in run.stderr
    assert "Word error rate, of 19 words: " in run.stderr
    assert "5.26% (1) reranked; 5.26% (1) with the best of each list." in run.stderr


# Mistakes.


def test_output_does_not_replace_the_input(tmp_path):
    path, link = tmp_path / "in.txt", tmp_path / "link"
    path.write_text("w1 w2 w3\n")
    link.symlink_to(path)
    files = "--input", path, "--output", link
    run = infer("score", "--model", "/no", *files, code=1)
    assert "--input and --output are the same file" in run.stderr
    assert path.read_text() == "w1 w2 w3\n"
