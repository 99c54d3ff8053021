# SPDX-License-Identifier: Apache-2.0
"""The example server over HTTP: REST format of TensorFlow Serving, load, mistakes."""

import asyncio
import base64
import concurrent.futures
import json
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.inference.pretrained_model import PretrainedModel
from tests.helpers.exporting import NAMES, shared_export, shared_source
from tests.helpers.runs import ROOT

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

SERVING = ROOT / "examples" / "serving"
sys.path.append(str(SERVING))

TEXTS = ["the doctor opened the giraffe", "a good film!", "", "read it . " * 30]
IDS = {"input_word_ids": [2, 7, 3], "input_mask": [1, 1, 1], "input_type_ids": [0] * 3}


@pytest.fixture(scope="module")
def source():
    return shared_source()


@pytest.fixture(scope="module")
def exports():
    return {what: shared_export("electra", what) for what in ("encoder", "detector")}


@pytest.fixture(scope="module")
def server(exports, tmp_path_factory):
    """The address of a server in another process."""
    names = ("encoder", "detector")
    flags = [f"--model={name}={exports[name].parent}" for name in names]
    flags.append("--intra-op-threads=1")
    process = subprocess.Popen(
        [sys.executable, str(SERVING / "server.py"), "--port=0", *flags],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path_factory.mktemp("elsewhere"),
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving encoder, detector on http://127.0.0.1:"), line
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def expected(source):
    config = PretrainingConfig(vocab_size=97, max_seq_length=source.max_seq_length)
    return PretrainedModel(config, source.vocab, source.pretrainer).detect(TEXTS)


def same(row, tokens):
    count = len(tokens)
    assert row["num_tokens"] == count
    assert row["tokens"][:count] == [t.text for t in tokens]
    assert row["starts"][:count] == [t.start for t in tokens]
    assert row["probabilities"][:count] == pytest.approx(
        [t.probability for t in tokens], abs=1e-5
    )


def predict(client, model, expect=200, **body):
    answer = client.post(f"/v1/models/{model}:predict", json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


def test_rows(client, expected):
    rows = predict(client, "detector", instances=TEXTS)["predictions"]
    for row, tokens in zip(rows, expected, strict=True):
        same(row, tokens)
    named = predict(client, "detector", instances=[{"text": t} for t in TEXTS])
    coded = [{"b64": base64.b64encode(t.encode()).decode()} for t in TEXTS]
    assert named["predictions"] == rows
    assert predict(client, "detector", instances=coded)["predictions"] == rows
    assert predict(client, "detector", instances=[])["predictions"] == []


def test_columns(client):
    rows = predict(client, "detector", instances=TEXTS)["predictions"]
    for inputs in (TEXTS, {"text": TEXTS}):
        columns = predict(client, "detector", inputs=inputs)["outputs"]
        assert columns["tokens"] == [row["tokens"] for row in rows]
        assert columns["num_tokens"] == [row["num_tokens"] for row in rows]


def test_ids(client, source):
    rows = predict(client, "encoder", instances=[IDS, IDS])["predictions"]
    inputs = [np.array([IDS[name]]) for name in NAMES]
    sequence = source.pretrainer.electra(*inputs).sequence_output
    assert np.allclose(rows[1]["sequence_output"], sequence[0], atol=1e-5)
    columns = {name: [IDS[name]] for name in NAMES}
    found = predict(client, "detector", signature_name="ids", inputs=columns)
    assert np.shape(found["outputs"]["logits"]) == (1, 3)


def test_status_and_metadata(client):
    state = client.get("/v1/models/detector").json()["model_version_status"][0]
    assert state["version"] == "1" and state["state"] == "AVAILABLE"
    content = client.get("/v1/models/detector/versions/1/metadata").json()
    assert content["model_spec"]["name"] == "detector"
    signatures = content["metadata"]["signature_def"]["signature_def"]
    text = signatures["serving_default"]["inputs"]["text"]
    assert (
        text["dtype"] == "DT_STRING" and text["tensor_shape"]["dim"][0]["size"] == "-1"
    )
    assert signatures["ids"]["outputs"]["logits"]["dtype"] == "DT_FLOAT"


BAD = [
    ("detector", {"instances": [1]}, "text must be strings"),
    ("detector", {"instances": "text"}, "must be a list"),
    ("detector", {"instances": [["nested"]]}, "rank 2 instead of 1"),
    ("detector", {"instances": ["a"], "inputs": ["a"]}, "either"),
    ("detector", {"instances": [{"b64": "?"}]}, "not base64"),
    ("detector", {"instances": ["a"], "signature_name": "x"}, "none of ids, serving"),
    ("detector", {"instances": [{"txt": "a"}]}, "['text']"),
    ("encoder", {"instances": [[1, 2]]}, "name the inputs"),
    ("encoder", {"instances": [IDS | {"input_mask": [1]}]}, "shape of input_word_ids"),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, -1, 3]}]}, "from 0 to"),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, 97, 3]}]}, "from 0 to"),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, 0.5, 3]}]}, "be int32"),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, 2**40, 3]}]}, "range of"),
    ("encoder", {"instances": [IDS, {k: v[:2] for k, v in IDS.items()}]}, "unlike"),
    ("encoder", {"inputs": {"input_word_ids": [[1]]}}, "the inputs are"),
]


@pytest.mark.parametrize("model,body,message", BAD, ids=[m for *_, m in BAD])
def test_bad_requests_are_refused_in_words(client, model, body, message):
    error = predict(client, model, 400, **body)["error"]
    assert message in error and "Traceback" not in error


def test_other_mistakes(client):
    assert client.post("/v1/models/detector:predict", content=b"{").status_code == 400
    deep = b'{"instances": ' + b"[" * 100_000
    assert client.post("/v1/models/detector:predict", content=deep).status_code == 400
    assert client.get("/v1/models/detector:predict").status_code in (404, 405)
    assert client.get("/v1/models/detectr").status_code == 404
    assert client.get("/v1/models/detector/versions/2").status_code == 404
    assert "not found" in predict(client, "none", 404, instances=[""])["error"]
    large = json.dumps({"instances": ["a" * (17 * 2**20)]}).encode()
    assert client.post("/v1/models/detector:predict", content=large).status_code == 413
    assert client.get("/v1/models/detector").status_code == 200


def test_load(server, expected):
    """Many clients at once, some of them wrong: each gets its own answer."""
    url = f"{server}/v1/models/detector:predict"

    def one(number):
        first = number % len(TEXTS)
        texts = TEXTS[first:] + TEXTS[:first]
        with httpx.Client(timeout=60) as client:
            if number % 7 == 3:
                row = IDS | {"input_word_ids": [2, -1, 3]}
                body = {"signature_name": "ids", "instances": [row]}
                return client.post(url, json=body).status_code == 400
            answer = client.post(url, json={"instances": texts}).json()
        tokens = expected[first:] + expected[:first]
        for row, wanted in zip(answer["predictions"], tokens, strict=True):
            same(row, wanted)
        return True

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert all(pool.map(one, range(150)))


class TestBatcher:
    def serve(self, requests, max_batch_size=8):
        """Runs requests that all come while the first one is being answered."""
        from batching import Batcher
        from models import BadRequest

        busy, sizes = threading.Event(), []

        def run(signature, inputs):
            x = inputs["x"]
            if not sizes:
                busy.wait(10)
            sizes.append(len(x))
            if (x < 0).any():
                raise BadRequest("negative")
            return {"y": x * 2}

        async def everything():
            batcher = Batcher(run, max_batch_size, max_waiting=20)
            loop = asyncio.get_running_loop()
            loop.call_later(0.2, busy.set)
            tasks = [batcher.submit("s", {"x": np.array(x)}) for x in requests]
            return await asyncio.gather(*tasks, return_exceptions=True)

        return asyncio.run(everything()), sizes

    def test_what_waits_goes_together(self):
        requests = [[i, i + 1] for i in range(7)]
        answers, sizes = self.serve(requests)
        assert sizes == [8, 6]
        for request, answer in zip(requests, answers, strict=True):
            assert answer["y"].tolist() == [2 * i for i in request]

    def test_a_bad_request_fails_alone(self):
        answers, _ = self.serve([[1], [2], [-1], [3]])
        assert [getattr(a, "args", None) or a["y"].tolist() for a in answers] == [
            [2],
            [4],
            ("negative",),
            [6],
        ]

    def test_rows_of_other_shapes_go_alone(self):
        answers, sizes = self.serve([[1], [[2, 2]], [[3, 3]], [4]])
        assert sizes == [2, 2]
        assert answers[2]["y"].tolist() == [[6, 6]]

    def test_too_many_are_turned_away(self):
        answers, _ = self.serve([[0] * 8, [0] * 8, [0] * 8, [0]])
        assert "16 rows are waiting" in str(answers[2])
        assert answers[3]["y"].tolist() == [0]


def test_damaged_models_are_not_served(exports, tmp_path):
    import models

    copy = tmp_path / "1"
    shutil.copytree(exports["detector"], copy)
    path = copy / "saved_model.pb"
    content = bytearray(path.read_bytes())
    content[1000] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match="saved_model.pb is damaged"):
        models.load("m", tmp_path)
