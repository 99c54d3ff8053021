# SPDX-License-Identifier: Apache-2.0
"""The example server over HTTP, and the files for TensorFlow Serving."""

import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.helpers.exporting import NAMES, shared_export, shared_source
from tests.helpers.runs import ROOT

pytestmark = pytest.mark.thorough
SERVING = ROOT / "examples" / "serving"
TEXTS = ["the doctor opened the giraffe", "a good film!", "", "read it . " * 30]
IDS = {"input_word_ids": [2, 7, 3], "input_mask": [1, 1, 1], "input_type_ids": [0] * 3}


@pytest.fixture(scope="module")
def server():
    """The address of a server in another process."""
    exports = {name: shared_export("electra", name) for name in ("encoder", "detector")}
    flags = [f"--model={name}={path.parent}" for name, path in exports.items()]
    command = [sys.executable, SERVING / "server.py", "--port=0", *flags]
    env = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **pipes, env=env, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving encoder, detector on http://127.0.0.1:"), line
        yield line.split()[-1]
        process.terminate()
    finally:
        process.kill()
        process.wait(20)


@pytest.fixture(scope="module")
def expected():
    return shared_source().detect(TEXTS)


def same(row, tokens):
    count = len(tokens)
    assert row["num_tokens"] == count
    assert row["tokens"][:count] == [t.text for t in tokens]
    assert row["probabilities"][:count] == pytest.approx(
        [t.probability for t in tokens], abs=1e-5
    )


def send(server, path, body=None):
    """(status, answer) of a POST of bytes, or a GET."""
    path = path if path.startswith("/") else f"/v1/models/{path}"
    request = urllib.request.Request(server + path, body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def predict(server, model, expect=200, **body):
    status, answer = send(server, f"{model}:predict", json.dumps(body).encode())
    assert status == expect, answer
    return answer


def test_instances(server, expected):
    rows = predict(server, "detector", instances=TEXTS)["predictions"]
    for row, tokens in zip(rows, expected, strict=True):
        same(row, tokens)
    for instances, answers in (([{"text": t} for t in TEXTS], rows), ([], [])):
        found = predict(server, "detector", instances=instances)
        assert found["predictions"] == answers
    rows = predict(server, "encoder", instances=[IDS, IDS])["predictions"]
    inputs = [np.array([IDS[name]]) for name in NAMES]
    sequence = shared_source().pretrainer.electra(*inputs).sequence_output
    assert np.allclose(rows[1]["sequence_output"], sequence[0], atol=1e-5)
    names = ["ids", "serving_default"]
    assert send(server, "/")[1]["models"]["detector"] == names


BAD = [
    ("detector", {"instances": [1]}, "give instances with text"),
    ("detector", {"inputs": ["a"]}, "give instances with text"),
    ("detector", {"instances": ["a"], "signature_name": "x"}, "'x'"),
    ("detector", {"instances": ["a"], "signature_name": []}, "signature_name if you"),
    ("detector", {"instances": [{"txt": "a"}]}, "give instances with text"),
    ("encoder", {"instances": [IDS | {"input_mask": [1]}]}, "shape of input_word_ids"),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, -1, 3]}]}, "from 0 to"),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, 0.5, 3]}]}, "int32"),
    ("encoder", {"instances": [IDS | {"input_word_ids": [2, 2**40, 3]}]}, "int32"),
    ("encoder", {"instances": [[2, 7, 3]]}, "give instances with input_mask"),
]


def test_bad_requests_are_refused(server):
    for model, body, message in BAD:
        error = predict(server, model, 400, **body)["error"]
        assert message in error and "Traceback" not in error
    for content in (b"{", b"[]", b"[" * 60_000, b'{"instances": [' + b"[" * 60_000):
        assert send(server, "detector:predict", content)[0] == 400
    assert send(server, "detectr:predict", b"{}")[0] == 404
    large = json.dumps({"instances": ["a" * 2**17]}).encode()
    assert send(server, "detector:predict", large)[0] == 413
    for length, status in (
        ("-1", 400),
        ("1e3", 400),
        ("9" * 5000, 400),
        ("99999", 413),
    ):
        connection = http.client.HTTPConnection(server.removeprefix("http://"))
        headers = {"Content-Length": length}
        connection.request("POST", "/v1/models/detector:predict", headers=headers)
        assert connection.getresponse().status == status


def test_old_servers_have_the_ops_that_read_text():
    """TensorFlow Serving 2.19 is built with tensorflow_text 2.12."""
    path = shared_export("electra", "detector") / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    [graph] = content.meta_graphs
    functions = graph.graph_def.library.function
    ops = {node.op for function in functions for node in function.node_def}
    of_text = ops - set(dir(tf.raw_ops))
    assert of_text == {"FastWordpieceTokenizeWithOffsets", "NormalizeUTF8"}
