# SPDX-License-Identifier: Apache-2.0
"""The example server over HTTP: TensorFlow Serving's format, mistakes, many clients."""

import base64
import concurrent.futures
import json
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.inference.pretrained_model import PretrainedModel
from tests.helpers.exporting import NAMES, shared_export, shared_source
from tests.helpers.runs import ROOT

httpx = pytest.importorskip("httpx")

TEXTS = ["the doctor opened the giraffe", "a good film!", "", "read it . " * 30]
IDS = {"input_word_ids": [2, 7, 3], "input_mask": [1, 1, 1], "input_type_ids": [0] * 3}


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    exports = {what: shared_export("electra", what) for what in ("encoder", "detector")}
    flags = [f"--model={name}={path.parent}" for name, path in exports.items()]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/serving/server.py"), "--port=0", *flags],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path_factory.mktemp("elsewhere"),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


@pytest.fixture(scope="module")
def server(process):
    """The address of a server in another process."""
    line = process.stdout.readline()
    assert line.startswith("Serving encoder, detector on http://127.0.0.1:"), line
    return line.split()[-1]


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def expected():
    source = shared_source()
    config = PretrainingConfig(vocab_size=97, max_seq_length=source.max_seq_length)
    return PretrainedModel(config, source.vocab, source.pretrainer).detect(TEXTS)


def same(row, tokens):
    count = len(tokens)
    assert row["num_tokens"] == count
    assert row["tokens"][:count] == [t.text for t in tokens]
    assert row["probabilities"][:count] == pytest.approx(
        [t.probability for t in tokens], abs=1e-5
    )


def predict(client, model, expect=200, **body):
    answer = client.post(f"/v1/models/{model}:predict", json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


def test_rows_and_columns(client, expected):
    rows = predict(client, "detector", instances=TEXTS)["predictions"]
    for row, tokens in zip(rows, expected, strict=True):
        same(row, tokens)
    named = predict(client, "detector", instances=[{"text": t} for t in TEXTS])
    coded = [{"b64": base64.b64encode(t.encode()).decode()} for t in TEXTS]
    assert named["predictions"] == rows
    assert predict(client, "detector", instances=coded)["predictions"] == rows
    assert predict(client, "detector", instances=[])["predictions"] == []
    for inputs in (TEXTS, {"text": TEXTS}):
        columns = predict(client, "detector", inputs=inputs)["outputs"]
        assert columns["tokens"] == [row["tokens"] for row in rows]
    rows = predict(client, "encoder", instances=[IDS, IDS])["predictions"]
    inputs = [np.array([IDS[name]]) for name in NAMES]
    sequence = shared_source().pretrainer.electra(*inputs).sequence_output
    assert np.allclose(rows[1]["sequence_output"], sequence[0], atol=1e-5)
    state = client.get("/v1/models/detector").json()["model_version_status"][0]
    assert state == {"version": "1", "state": "AVAILABLE"}


DEEP = [[[[[[["a"]]]]]]]
BAD = [
    ("detector", {"instances": [1]}, "text must be strings"),
    ("detector", {"instances": "text"}, "must be a list"),
    ("detector", {"instances": [["nested"]]}, "text must be strings"),
    ("detector", {"instances": DEEP}, "text must be strings"),
    ("detector", {"instances": ["a"], "inputs": ["a"]}, "give an object with"),
    ("detector", {"instances": [{"b64": "?"}]}, "base64"),
    ("detector", {"instances": [{"b64": 1}]}, "unlike"),
    ("detector", {"instances": ["a"], "signature_name": "x"}, "none of ids, serving"),
    ("detector", {"instances": ["a"], "signature_name": ["x"]}, "none of ids, serving"),
    ("detector", {"instances": [{"txt": "a"}]}, "['text']"),
    ("encoder", {"instances": [[1, 2]]}, "each of the instances"),
    ("encoder", {"instances": [IDS | {"input_mask": [1]}]}, "shape of input_word_ids"),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, -1, 3]}]}, "from 0 to"),
    (
        "encoder",
        {"instances": [IDS | {"input_word_ids": [2, 0.5, 3]}]},
        "whole numbers",
    ),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, True, 3]}]}, "whole"),
    (
        "encoder",
        {"instances": [IDS | {"input_word_ids": [2, 2**40, 3]}]},
        "beyond int32",
    ),
    ("encoder", {"instances": [IDS, {k: v[:2] for k, v in IDS.items()}]}, "unlike"),
    ("encoder", {"inputs": {"input_word_ids": [[1]]}}, "the inputs must be"),
    ("encoder", {"inputs": [IDS]}, "the inputs must be"),
]


@pytest.mark.parametrize(
    "model,body,message", BAD, ids=[str(i) for i in range(len(BAD))]
)
def test_bad_requests_are_refused_in_words(client, model, body, message):
    error = predict(client, model, 400, **body)["error"]
    assert message in error and "Traceback" not in error


def test_other_mistakes(client):
    url = "/v1/models/detector:predict"
    for content in (b"{", b"[]", b"1", b"null", b'{"instances": ' + b"[" * 50_000):
        assert client.post(url, content=content).status_code == 400
    assert client.get("/v1/models/detectr").status_code == 404
    assert "is no model" in predict(client, "none", 404, instances=[""])["error"]
    large = json.dumps({"instances": ["a" * 2**17]}).encode()
    assert client.post(url, content=large).status_code == 413
    assert client.post(url, content=iter([b"{}"])).status_code == 411
    assert client.get("/v1/models/detector").status_code == 200


def test_every_good_request_among_bad_ones_gets_its_own_answer(server, expected):
    url = f"{server}/v1/models/detector:predict"

    def one(number):
        first = number % len(TEXTS)
        texts = TEXTS[first:] + TEXTS[:first]
        with httpx.Client(timeout=60) as client:
            if number % 7 == 3:
                body = BAD[number % 10][1]
                return client.post(url, json=body).status_code == 400
            answer = client.post(url, json={"instances": texts})
        tokens = expected[first:] + expected[:first]
        for row, wanted in zip(answer.json()["predictions"], tokens, strict=True):
            same(row, wanted)
        return True

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert all(pool.map(one, range(100)))


def test_a_slow_client_does_not_keep_it_from_ending(process, server):
    port = int(server.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(
            b"POST /v1/models/detector:predict HTTP/1.1\r\nContent-Length: 9\r\n"
        )
        time.sleep(0.2)
        process.terminate()
        assert process.wait(8) == 0
