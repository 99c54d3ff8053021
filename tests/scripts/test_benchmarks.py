# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs to its end on tiny settings.

What they measure is looked at only for being there: no test depends on a time.
"""

import http.server
import json
import random
import re
import threading

import pytest

from tests.helpers.runs import ROOT, TINY, TINY_STEP, pretrain, run_script

BENCHMARKS = ROOT / "benchmarks"

STEP_FLAGS = (
    f"--hparams={json.dumps(TINY_STEP)}",
    "--batch-size=2",
    "--layers=1",
    "--steps=1",
    "--repeats=1",
    "--precision=float32",
)


def run(script: str, *flags: str):
    return run_script(f"benchmarks/{script}", *flags)


def printed(script: str, *flags: str) -> str:
    done = run(script, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cells(text: str, start: str) -> list[list[str]]:
    """The rows of Markdown tables whose first cell is `start`."""
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in row] for row in rows]
    return [row for row in rows if row[0] == start]


def test_every_benchmark_is_run_here():
    with open(__file__, encoding="utf-8") as f:
        text = f.read()
    others = ("compiled", "first_hour")
    paths = [ROOT / f"tests/scripts/test_benchmarks_{name}.py" for name in others]
    compiled = "".join(path.read_text("utf-8") for path in paths)
    parts = {"measurement.py", "preparation.py", "platforms.py", "variable_free.py"}
    # Of the scripts that start them.
    parts |= {"peer_torch.py", "serving_sides.py", "aot_program.py"}
    for path in BENCHMARKS.glob("*.py"):
        assert f'printed("{path.name}"' in text.replace("\n        ", "") or (
            path.name in parts or f'"{path.name}"' in compiled
        ), path.name


def test_build_dataset(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("the cat sat on the mat .\n" * 4000)
    vocab = tmp_path / "vocab.txt"
    special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    vocab.write_text(special + "the\ncat\nsat\non\nmat\n.\n")
    text = printed(
        "build_dataset.py",
        f"--corpus-dir={corpus}",
        f"--vocab-file={vocab}",
        "--megabytes=1",
        "--num-processes=1",
    )
    assert re.search(r"^local +1 +[\d.]+ +[\d.]+ +\d+ MB$", text, re.M), text
    assert "checksums" in text


def test_input_pipeline():
    text = printed(
        "input_pipeline.py", "--rounds=1", "--seconds=0.01", "--batch-size=8"
    )
    assert re.search(r"from step 1,000,000 +[\d,]+ +[\d.]+ s", text), text


@pytest.mark.parametrize("flag", ["--copy", "--nocopy"])
def test_remote_reading(flag):
    sizes = ("--examples=800", "--batch-size=8", "--seconds=0.5", "--delay=0.001")
    text = printed("remote_reading.py", flag, *sizes)
    found = re.search(r"([\d,]+) examples/s, .* ([\d,]+) requests/s", text)
    assert found and found[1] != "0", text
    assert (found[2] == "0") == (flag == "--copy"), text


@pytest.mark.slow  # Starts transformers twice.
def test_serving(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("onnxruntime")
    found = tmp_path / "all.json"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    hparams = {"embedding_size": 8, "model_hparam_overrides": sizes}
    text = printed(
        "serving.py",
        f"--hparams={json.dumps(hparams)}",
        "--what=encoder,detector,classifier,qa",
        *("--jit_compile", "--onnx"),
        "--batch-sizes=2",
        "--requests=4",
        "--rounds=1",
        f"--json={found}",
    )
    for what in ("encoder", "detector", "classifier", "qa"):
        theirs, *ours = cells(text, what)
        assert theirs[1:3] == ["2", "torch"]
        more = ["float32, XLA", "float32, onnxruntime"] * (what == "encoder")
        assert [row[2] for row in ours] == ["float32", *more]
        # The same numbers on both sides.
        assert all(float(row[-1]) < 1e-5 for row in ours), text
    (rounds,) = json.loads(found.read_text())["detector 2"]["float32"]
    assert len(rounds) == 4


@pytest.mark.thorough
def test_serving_texts_of_one_length():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    hparams = {"embedding_size": 8, "model_hparam_overrides": sizes}
    text = printed(
        "serving.py",
        f"--hparams={json.dumps(hparams)}",
        "--what=encoder",
        "--length=24",
        *("--batch-sizes=3", "--requests=2", "--rounds=1"),
    )
    theirs, ours = cells(text, "encoder")
    assert float(ours[-1]) < 1e-5, text


def test_serving_what_it_does_not_know():
    failed = run("serving.py", "--what=encoder,decoder")
    assert failed.returncode == 1 and "must be of encoder, detector" in failed.stderr


@pytest.mark.parametrize("flags", [(), ("--exported",)], ids=["step", "exported"])
def test_vocabulary_softmax(flags):
    sizes = ("--rows=5", "--columns=4", "--words=20", "--at_once=2,8", "--calls=2")
    text = printed("vocabulary_softmax.py", *sizes, *flags)
    for name in ("one product", "2", "8"):
        [row] = cells(text, name)
        assert float(row[1]) > 0


def load_flags(*flags):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    hparams = {"embedding_size": 8, "model_hparam_overrides": sizes}
    flags = (f"--hparams={json.dumps(hparams)}", "--malformed=0.3", *flags)
    return ("--clients=5", "--requests_per_client=8", *flags)


@pytest.mark.thorough
def test_serving_load(tmp_path):
    found = tmp_path / "all.json"
    text = printed("serving_load.py", *load_flags(f"--json={found}"))
    [row] = cells(text, "5")
    right, refused = int(row[1]), int(row[2])
    assert right + refused == 40 and right > 20 and refused > 5
    assert json.loads(found.read_text())["right answers"] == right


class Liar(http.server.BaseHTTPRequestHandler):
    """A server with the same answer to everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"predictions": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.thorough
def test_serving_load_tells_wrong_answers():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    done = run("serving_load.py", *load_flags(f"--address={address}"))
    server.shutdown()
    server.server_close()
    assert done.returncode == 65, done.stderr
    assert "error: 40 requests were not answered as they should be" in done.stderr


@pytest.mark.thorough
def test_pretraining_step(tmp_path):
    found = tmp_path / "all.json"
    text = printed("pretraining_step.py", *STEP_FLAGS, "--jit=on", f"--json={found}")
    speed, memory = cells(text, "float32, jit on")
    assert all(cell != "" for cell in speed + memory)
    (result,) = json.loads(found.read_text())["float32, jit on"]
    assert len(result["seconds"]) == 1
    assert result["xla_buffers"] > 1000
    assert 0 < result["memory_start"] <= result["peak_first"]
    # A step of this size makes fewer operations than one large product a second.
    assert result["flops"] < 1e8 < min(result["rates"]["during"])


@pytest.mark.thorough
def test_electric_step():
    hparams = TINY_STEP | {"jit_compile": False}
    hparams["model_hparam_overrides"] = {
        **TINY_STEP["model_hparam_overrides"],
        "num_hidden_layers": 1,
    }
    text = printed(
        "electric_step.py",
        f"--hparams={json.dumps(hparams)}",
        "--batch-size=2",
        "--steps=1",
        "--repeats=1",
        "--noxla-buffers",
    )
    ((_, electra, *_),) = cells(text, "ELECTRA")
    ((_, ours, *_, loss),) = cells(text, "Electric, chunks")
    ((*_, direct_loss),) = cells(text, "Electric, direct")
    assert float(electra) > 0 and float(ours) > 0
    # The same step in both formulations, another one than ELECTRA's.
    assert float(loss) == pytest.approx(float(direct_loss), rel=1e-4)
    assert cells(text, "ELECTRA")[0][-1] != loss
    # 3 products, 2 operations, 2 x (16 - 2) positions, 8 x 300: 0.0004 GFLOP.
    assert "and 0.0 GFLOP at" in text
    assert re.search(r"^Time: .*: (reached|missed)\.$", text, re.M)
    assert re.search(r"^Memory: .*: (reached|missed)\.$", text, re.M)


@pytest.mark.thorough
def test_scoring(tiny_data, tmp_path):
    kinds = {
        "timed_electric": {"electra_objective": False, "electric_objective": True},
        "timed_mlm": {"electra_objective": False},
    }
    for name, hparams in kinds.items():
        done = pretrain(tiny_data, name, TINY | {"num_train_steps": 1} | hparams)
        assert done.returncode == 0, done.stderr
    chance = random.Random(0)
    words = " ".join(f"w{chance.randrange(50)}" for _ in range(12 * 40)).split()
    lines = [" ".join(words[i : i + 12]) + "." for i in range(0, len(words), 12)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    models = ",".join(str(tiny_data / "models" / name) for name in kinds)
    text = printed(
        "scoring.py",
        f"--models={models}",
        f"--texts={tmp_path}/*.txt",
        "--sentences=20",
        "--fast-sentences=2",
        "--fast-tokens=8",
        "--rounds=1",
    )
    rows = cells(text, "timed_electric") + cells(text, "timed_mlm")
    assert [row[1] for row in rows] == ["electric", "two_tower", "mask_each"]
    for row in rows:
        shares = [float(cell.split("%")[0]) for cell in row[2:4]]
        assert all(0 <= share <= 100 for share in shares) and row[4] != ""
    assert "timed_electric in one pass" in text and "20 sentences of 12.0" in text
    text = printed(
        "scoring.py",
        f"--models={tiny_data}/models/timed_electric",
        f"--texts={tmp_path}/*.txt",
        *("--fast-sentences=2", "--fast-tokens=8", "--rounds=1"),
        *("--runner=local", "--corpus-texts=400"),
    )
    rows = cells(text, "timed_electric")
    assert [row[1:3] for row in rows] == [["local", "1"], ["local", "2"]]
    assert all(len(row) == 5 for row in rows)


def test_spoilt_sentences():
    """One word differs in the first copy, two neighbours in the second."""
    import scoring

    texts = ["The cat sat on the mat and the dog sat on a log."] * 3
    vocabulary = {"cat", "mat", "dog", "log", "the", "sat", "on"}
    real = texts[0].split()
    for seed in range(30):
        spoiler = scoring.Spoiler(texts, vocabulary, random.Random(seed))
        replaced = spoiler.replaced(texts[0]).split()
        (place,) = (i for i in range(len(real)) if replaced[i] != real[i])
        old, new = (x[place].strip(".").lower() for x in (real, replaced))
        assert {old, new} <= vocabulary
        # "the" occurs 9 times, "sat" and "on" 6 times, the others 3 times.
        counts = sorted((spoiler.counts[old], spoiler.counts[new]))
        assert counts in ([3, 3], [6, 6], [6, 9])
        swapped = spoiler.swapped(texts[0]).replace(".", "").split()
        places = [i for i in range(len(real)) if swapped[i] != real[i].strip(".")]
        assert len(places) == 2 and places[1] == places[0] + 1


@pytest.mark.thorough
def test_finetuning_step(tmp_path):
    found = tmp_path / "all.json"
    hparams = {
        "embedding_size": 8,
        "vocab_size": 300,
        "jit_compile": False,
        "model_hparam_overrides": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
    }
    text = printed(
        "finetuning_step.py",
        f"--hparams={json.dumps(hparams)}",
        "--kind=tagging",
        "--lengths=8,16",
        "--batch_size=2",
        "--steps=1",
        f"--json={found}",
    )
    (longer,), (shorter,) = cells(text, "16"), cells(text, "8")
    assert all(cell != "" for cell in longer + shorter)
    longer, shorter = json.loads(found.read_text())
    assert longer["flops"] > 2 * shorter["flops"] > 0
    assert len(shorter["seconds"]) == 1


@pytest.mark.parametrize(
    "what",
    [
        "saving",
        pytest.param("resuming", marks=pytest.mark.slow),
        pytest.param("stopping", marks=pytest.mark.slow),
    ],
)
def test_checkpointing(tmp_path, what):
    found = tmp_path / "all.json"
    shape = TINY_STEP["model_hparam_overrides"] | {"num_hidden_layers": 1}
    hparams = TINY_STEP | {"train_batch_size": 2, "model_hparam_overrides": shape}
    text = printed(
        "checkpointing.py",
        f"--hparams={json.dumps(hparams | {'jit_compile': False})}",
        f"--what={what}",
        "--rounds=1",
        "--steps=1",
        "--from-steps=2000",
        f"--json={found}",
    )
    if what == "saving":
        assert len(cells(text, "cost of a save")[0]) == 3
        (row,) = json.loads(found.read_text())["saving"]["rounds"]
        assert 0 < row["copy_s"] < row["beside_s"] and row["beside_steps"] > 0
    elif what == "resuming":
        for name in ("new run", "2,000"):
            checked, built, first = map(float, cells(text, name)[0][1:])
            assert 0 < checked < built < first
    else:
        saved, ended, whole = (
            float(cells(text, name)[0][1])
            for name in ("step to saved", "step to end", "SIGTERM to end")
        )
        assert 0 <= saved <= ended <= whole < 60


@pytest.mark.parametrize(
    "part",
    [
        pytest.param("given_samples", marks=pytest.mark.slow),
        pytest.param("no_optimizer", marks=pytest.mark.slow),
        "forward",
    ],
)
def test_parts_of_the_step(part):
    text = printed("pretraining_step.py", *STEP_FLAGS, "--jit=off", f"--part={part}")
    (speed, _) = cells(text, f"float32, jit off, {part}")
    assert (speed[-1] == "") == (part == "forward")
    first, last = re.search(r"loss ([\d.]+) to ([\d.]+)", text).groups()
    assert 20 < float(first) < 60 and 20 < float(last) < 60


@pytest.mark.thorough
def test_pytorch_makes_the_same_step():
    pytest.importorskip("torch")
    text = printed("pretraining_step.py", *STEP_FLAGS, "--jit=off", "--peer=torch")
    losses = re.findall(r"loss ([\d.]+) to", text)
    # ln(vocabulary) + 50 ln 2, from other random weights.
    assert [float(loss) for loss in losses] == pytest.approx([40.4, 40.4], abs=1)
    assert "times as fast as PyTorch" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--precision=float64"], "--precision float64: it is one of float32"),
        (["--part=backward"], "--part backward: it is one of step"),
        (["--dropout=high"], "--dropout takes numbers"),
        (['--hparams={"uniform_generator": true}'], "plain ELECTRA only"),
        (["--peer=torch", "--peer-python=false"], "cannot import torch"),
    ],
)
def test_wrong_flags(flags, message):
    done = run("pretraining_step.py", *flags)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert done.stdout == ""
