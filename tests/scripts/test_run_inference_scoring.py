# SPDX-License-Identifier: Apache-2.0
"""run_inference.py score and rerank, as their users run them."""

import gzip
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import electra_tf
from electra_tf.inference.reranking import rank
from tests.helpers.runs import ROOT, TINY, pretrain, run_script, tiny

STEPS = TINY | {"num_train_steps": 2, "num_warmup_steps": 1}
ELECTRIC = {"electra_objective": False, "electric_objective": True}
TEXTS = ["w1 w2 w3 w4", "", "w9", "? !", "w5 " * 40, "W7 «w8»"]


@pytest.fixture(scope="module")
def runs(tiny_data):
    for name, hparams in {"scoring": ELECTRIC, "scoring_electra": {}}.items():
        done = pretrain(tiny_data, name, STEPS | hparams)
        assert done.returncode == 0, done.stderr
    return tiny_data / "models"


@pytest.fixture(scope="module")
def model(runs):
    return electra_tf.load(runs / "scoring")


def infer(command, *flags, text="", code=0):
    """Runs a command; stderr of a refused one is an error in at most three lines."""
    run = run_script("run_inference.py", command, *map(str, flags), text=text)
    assert run.returncode == code, run.stderr
    if code:
        assert run.stderr.startswith("error: ") and len(run.stderr.splitlines()) <= 3
    return run


def rows_of(run):
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_score_writes_an_object_for_each_line(runs, model):
    run = infer("score", "--model", runs / "scoring", text="\n".join(TEXTS) + "\n")
    rows = rows_of(run)
    assert [row["text"] for row in rows] == TEXTS
    for row, expected in zip(rows, model.score_texts(TEXTS), strict=True):
        assert row["score"] == pytest.approx(expected.score, abs=1e-4)
        assert row["num_tokens"] == expected.num_tokens
        assert row["num_unknown"] == expected.num_unknown
    assert run.stderr.splitlines() == [
        "Texts without tokens, which score 0: 1.",
        "Texts of unknown tokens only, whose scores say nothing about their words: 1.",
    ]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_score_reads_the_texts_of_records(runs, tmp_path, ending):
    """Not the syntax that they are stored in."""
    texts = ["w1 w2\nw3", "W7 w8"]
    rows, path = [{"body": text} for text in texts], tmp_path / f"in{ending}"
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(gzip.compress(lines) if ending == ".jsonl.gz" else lines)
    model = ("--model", runs / "scoring")
    read = infer("score", *model, "--input", path, "--text-key=body")
    assert [row["text"] for row in rows_of(read)] == texts
    if ending == ".jsonl":
        error = infer("score", *model, "--input", path, code=65).stderr
        assert "has no 'text'" in error
        flags = ("--input", path, "--text-key=body", "--format=jsonl")
        found = rows_of(infer("detect", *model, *flags))
        assert [row["text"] for row in found] == texts
    (tmp_path / "in.txt").write_text("w1")
    flags = ("--input", tmp_path / "in.txt", "--text-key=body")
    error = infer("score", *model, *flags, code=1).stderr
    assert "--text-key is for JSON Lines, Parquet and Arrow: without effect" in error


def test_score_tokens_of_a_file_into_a_file(runs, model, tmp_path):
    (tmp_path / "in.txt").write_bytes("\ufeffW7 «w8»\r\nw1".encode())
    where = ("--data-dir", runs.parent, "--model-name", "scoring")
    flags = ("--input", tmp_path / "in.txt", "--output", tmp_path / "new/out.jsonl")
    run = infer("score", *where, *flags, "--tokens", "--method", "two_tower")
    assert run.stdout == "" and os.listdir(tmp_path / "new") == ["out.jsonl"]
    rows = [
        json.loads(x) for x in (tmp_path / "new/out.jsonl").read_text().split("\n")[:-1]
    ]
    assert [row["text"] for row in rows] == ["W7 «w8»", "w1"]
    assert [t["token"] for t in rows[0]["tokens"]] == ["W7", "«", "w8", "»"]
    assert rows[0]["num_unknown"] == 2
    for row, tokens in zip(
        rows, model.score_tokens([r["text"] for r in rows], "two_tower"), strict=True
    ):
        assert row["score"] == pytest.approx(sum(t.score for t in tokens), abs=1e-4)
        for ours, expected in zip(row["tokens"], tokens, strict=True):
            assert row["text"][ours["start"] : ours["end"]] == ours["token"]
            assert ours["score"] == pytest.approx(expected.score, abs=1e-4)


def test_towers_alone_of_a_shape_of_their_own_are_read(tiny_data):
    """Its heads are in no weight: the model has to be the one that was trained."""
    shape = {"num_attention_heads": 4, "intermediate_size": 48}
    hparams = tiny(
        objective="two_tower",
        generator_hidden_size=1.0,
        num_train_steps=1,
        num_warmup_steps=0,
        overrides=shape,
    )
    done = pretrain(tiny_data, "towers", hparams)
    assert done.returncode == 0, done.stderr
    found = pretrain(
        tiny_data, "towers", hparams | {"do_train": False, "do_eval": True}
    )
    assert found.returncode == 0, found.stderr
    model = electra_tf.load(tiny_data / "models" / "towers")
    assert vars(model.config.generator_config()).items() >= shape.items()
    [score] = model.score_texts(["w1 w2"], "two_tower")
    assert score.num_tokens == 2


def test_score_stops_quietly_when_nobody_reads(runs):
    command = [sys.executable, str(ROOT / "run_inference.py"), "score", "--model"]
    with subprocess.Popen(
        [*command, str(runs / "scoring")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        process.stdin.write(b"w1 w2\n" * 2000)
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_another_model_says_what_it_offers(runs):
    electra = runs / "scoring_electra"
    run = infer("score", "--model", electra, text="w1\n", code=2)
    assert "is an ELECTRA" in run.stderr and "mask_each (" in run.stderr


def test_score_refuses_in_words(runs, tmp_path):
    model = ("--model", runs / "scoring")
    run = infer("score", *model, text=b"w1\nw2 \xe9\n", code=65)
    assert "standard input: byte 0xe9 at offset 6 is not UTF-8" in run.stderr
    run = infer("score", *model, "--encoding-errors", "replace", text=b"w1 w2 \xe9\n")
    assert rows_of(run)[0]["num_tokens"] == 2
    run = infer("score", *model, "--data-dir", "x", code=1)
    assert "--model alone" in run.stderr
    assert "--model alone" in infer("score", "--data-dir", "x", code=1).stderr
    (tmp_path / "file").write_text("")
    output = ("--output", tmp_path / "file" / "out")
    assert "cannot write" in infer("score", *model, *output, code=73).stderr


# Re-ranking.


def write_lists(path, model, references=True):
    """Lists whose given scores prefer the wrong text, by less than the model knows."""
    rows = []
    for number in range(6):
        texts = [f"w{number} w{i} w7" for i in range(4)]
        scores = [s.score for s in model.score_texts(texts)]
        best = max(range(4), key=scores.__getitem__)
        # At weight 1 the totals are 0 for the best text and below for the others.
        given = [-s - (i != best) * (0.5 + 0.1 * i) for i, s in enumerate(scores)]
        row = {"id": f"u{number}", "hypotheses": [], "speaker": "s"}
        for text, score in zip(texts, given, strict=True):
            row["hypotheses"].append({"text": text, "score": score, "n": len(rows)})
        if references:
            row["reference"] = texts[best]
        rows.append(row)
    rows.append({"id": "one", "hypotheses": [{"text": "", "score": 2}]})
    if references:
        rows[-1]["reference"] = "w1"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return rows


def test_rerank_at_a_weight(runs, model, tmp_path):
    given = write_lists(tmp_path / "n.jsonl", model)
    flags = ("--model", runs / "scoring", "--nbest", tmp_path / "n.jsonl")
    run = infer("rerank", *flags, "--weight", "1")
    rows = rows_of(run)
    assert [row["id"] for row in rows] == [row["id"] for row in given]
    for row, old in zip(rows, given, strict=True):
        assert row["hypotheses"][0]["text"] == (
            row["reference"] if row["id"] != "one" else ""
        )
        totals = [h["score"] + h["model_score"] for h in row["hypotheses"]]
        assert totals == pytest.approx(
            [h["total"] for h in row["hypotheses"]], abs=1e-5
        )
        assert totals == sorted(totals, reverse=True)
        kept = [{k: h[k] for k in old["hypotheses"][0]} for h in row["hypotheses"]]
        assert sorted(kept, key=str) == sorted(old["hypotheses"], key=str)
        assert row.get("speaker") == old.get("speaker")
    assert "Lists: 7, with one hypothesis only: 1; weight 1." in run.stderr
    assert "Texts without tokens, which score 0: 1." in run.stderr
    assert "(1 of 19 words)" not in run.stderr and "1, 1 of 19 words)" in run.stderr


def test_rerank_finds_the_weight(runs, model, tmp_path):
    rows = write_lists(tmp_path / "n.jsonl", model)
    flags = ("--model", runs / "scoring", "--nbest", tmp_path / "n.jsonl", "--best")
    run = infer("rerank", *flags, "--tune")
    weight = float(run.stderr.split("weight ")[1].split(",")[0])
    assert "found: the errors are the same from" in run.stderr
    assert "1, 1 of 19 words)" in run.stderr
    for row, line in zip(rows[:-1], run.stdout.splitlines(), strict=False):
        texts = [hypothesis["text"] for hypothesis in row["hypotheses"]]
        scores = [s.score for s in model.score_texts(texts)]
        given = [hypothesis["score"] for hypothesis in row["hypotheses"]]
        assert line == f"{row['id']} {rank(given, scores, weight, texts)[0].text}"
    assert run.stdout.splitlines()[-1] == "one"


def test_rerank_in_kaldi_form(runs, model, tmp_path):
    texts = ["w1 w2", "w3 w4"]
    scores = [s.score for s in model.score_texts(texts)]
    (tmp_path / "text").write_text(f"a-1 {texts[0]}\na-2 {texts[1]}\n")
    # Half of each cost in each file; the second wins by 0.2 at weight 1.
    costs = [scores[0] / 2 + 0.1, scores[1] / 2]
    for name in ("ac", "lm"):
        (tmp_path / name).write_text(f"a-1 {costs[0]}\na-2 {costs[1]}\n")
    (tmp_path / "ref").write_text("a w3 w4\n")
    flags = ("--nbest", tmp_path / "text", "--references", tmp_path / "ref")
    flags += ("--costs", f"{tmp_path}/ac,{tmp_path}/lm", "--best", "--weight", "1")
    run = infer("rerank", "--model", runs / "scoring", *flags)
    assert run.stdout == "a w3 w4\n"
    assert "0.00% reranked" in run.stderr


def test_rerank_refuses_in_words(runs, model, tmp_path):
    rows = write_lists(tmp_path / "n.jsonl", model, references=False)
    where = ("--model", runs / "scoring")
    flags = (*where, "--nbest", tmp_path / "n.jsonl")
    assert "needs --nbest" in infer("rerank", *where, code=1).stderr
    assert "--weight or --tune" in infer("rerank", *flags, code=1).stderr
    run = infer("rerank", *flags, "--weight", "nan", code=1)
    assert "at least 0" in run.stderr
    run = infer("rerank", *flags, "--tune", code=2)
    assert "'u0' has no reference, nor have 6 others" in run.stderr
    del rows[2]["id"]
    rows[4]["hypotheses"][1]["score"] = float("nan")
    (tmp_path / "n.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    run = infer("rerank", *flags, "--weight", "1", code=65)
    assert 'line 3: "id" is missing' in run.stderr
    rows[2]["id"] = "u2"
    (tmp_path / "n.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    run = infer("rerank", *flags, "--weight", "1", code=65)
    assert "line 5: hypothesis 2 of 'u4' has the score nan" in run.stderr
