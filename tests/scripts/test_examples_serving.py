# SPDX-License-Identifier: Apache-2.0
"""The example server over HTTP: TensorFlow Serving's format, mistakes, many clients."""

import base64
import concurrent.futures
import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.inference.pretrained_model import PretrainedModel
from tests.helpers.exporting import NAMES, shared_export, shared_source
from tests.helpers.forked_runs import Run
from tests.helpers.runs import ROOT

httpx = pytest.importorskip("httpx")

TEXTS = ["the doctor opened the giraffe", "a good film!", "", "read it . " * 30]
IDS = {"input_word_ids": [2, 7, 3], "input_mask": [1, 1, 1], "input_type_ids": [0] * 3}


SCRIPT = str(ROOT / "examples/serving/server.py")
# The same with all the time that a client may want.
PATIENT = f"""
import runpy, sys
sys.argv[0] = {SCRIPT!r}
of_script = runpy.run_path(sys.argv[0])
of_script["Handler"].timeout = 600
of_script["main"]()
"""


@contextlib.contextmanager
def serving(folder, *script, what=("encoder", "detector")):
    """A server in another process: (the process, its address)."""
    exports = {name: shared_export("electra", name) for name in what}
    flags = [f"--model={name}={path.parent}" for name, path in exports.items()]
    process = subprocess.Popen(
        [sys.executable, *script, "--port=0", *flags],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        line = process.stdout.readline()
        names = ", ".join(what)
        assert line.startswith(f"Serving {names} on http://127.0.0.1:"), line
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.wait(20)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server in another process."""
    with serving(tmp_path_factory.mktemp("elsewhere"), SCRIPT) as (_, address):
        yield address


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


def test_ctrl_c_and_a_taken_port_end_it_in_words():
    path = shared_export("electra", "detector").parent
    command = [sys.executable, SERVING / "server.py", f"--model=detector={path}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A test run that a shell started in the background would hand on "ignored".
    listens = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    first = subprocess.Popen([*command, "--port=0"], preexec_fn=listens, **pipes)
    try:
        port = first.stdout.readline().strip().rpartition(":")[2]
        second = subprocess.run(
            [*command, f"--port={port}"], capture_output=True, text=True, check=False
        )
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=20)
    finally:
        first.kill()
    assert second.returncode == 1 and "Traceback" not in second.stderr
    assert f"cannot serve on 127.0.0.1, port {port}" in second.stderr
    assert first.returncode == 0 and "Traceback" not in said, said


@pytest.mark.parametrize("model", ["detector", "=exports"])
def test_a_model_without_a_name_or_a_directory_is_not_sought_elsewhere(model, tmp_path):
    (tmp_path / "1").mkdir()  # what "" as a directory would find
    done = subprocess.run(
        [sys.executable, SERVING / "server.py", f"--model={model}", "--port=0"],
        **{"capture_output": True, "text": True, "check": False, "cwd": tmp_path},
    )
    assert done.returncode == 2 and "NAME=DIRECTORY" in done.stderr.splitlines()[-1]


def interrupt_loading():
    def load(path):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    tf.saved_model.load = load


def test_ctrl_c_while_it_loads_is_no_error(tmp_path):
    path = shared_export("electra", "detector").parent
    flags = (f"--model=detector={path}", "--port=0")
    server = Path("examples", "serving", "server.py")
    done = Run(tmp_path, server, *flags, before=interrupt_loading).wait(60)
    assert (done.returncode, done.stdout) == (0, "") and "Traceback" not in done.stderr


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


def address_of(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def test_a_slow_client_does_not_keep_it_from_ending(tmp_path):
    patient = ("-c", PATIENT)
    with (
        serving(tmp_path, *patient, what=["detector"]) as (process, address),
        socket.create_connection(
            ("127.0.0.1", int(address.rpartition(":")[2]))
        ) as slow,
    ):
        slow.sendall(
            b"POST /v1/models/detector:predict HTTP/1.1\r\nContent-Length: 9\r\n"
        )
        time.sleep(0.2)
        process.terminate()
        assert process.wait(300) == 0


# What TensorFlow Serving and KServe are told.

SERVING = ROOT / "examples" / "serving"


def stand_in(signatures):
    """TensorFlow Serving's gRPC side with one SavedModel: (server, its port)."""
    apis = "tensorflow_serving.apis"
    stubs = pytest.importorskip(f"{apis}.prediction_service_pb2_grpc")
    messages = pytest.importorskip(f"{apis}.predict_pb2")

    class Service(stubs.PredictionServiceServicer):
        def Predict(self, request, context):
            if request.model_spec.name != "detector":
                context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
            signature = signatures[request.model_spec.signature_name]
            inputs = {k: tf.make_ndarray(v) for k, v in request.inputs.items()}
            found = signature(**{k: tf.constant(v) for k, v in inputs.items()})
            answer = messages.PredictResponse()
            for name, value in found.items():
                answer.outputs[name].CopyFrom(tf.make_tensor_proto(value.numpy()))
            return answer

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    stubs.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def test_grpc(expected):
    loaded = tf.saved_model.load(str(shared_export("electra", "detector")))
    server, port = stand_in(loaded.signatures)
    try:
        command = [sys.executable, SERVING / "grpc_client.py", f"127.0.0.1:{port}"]
        done = subprocess.run(
            [*command, "detector", *TEXTS], capture_output=True, text=True, check=False
        )
        lost = subprocess.run(
            [*command, "another", "a"], capture_output=True, text=True, check=False
        )
    finally:
        server.stop(None).wait()
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    columns = {name: json.loads(value) for name, value in lines.items()}
    for number, tokens in enumerate(expected):
        same({name: column[number] for name, column in columns.items()}, tokens)
    assert (lost.returncode, lost.stderr.splitlines()[-1:]) == (
        1,
        ["NOT_FOUND: no such model"],
    )


def test_tensorflow_serving_reads_its_configuration():
    config = "tensorflow_serving.config.model_server_config_pb2"
    config = pytest.importorskip(config).ModelServerConfig()
    text_format.Parse((SERVING / "models.config").read_text(), config)
    [model] = config.model_config_list.config
    assert (model.name, model.model_platform) == ("detector", "tensorflow")
    docker = (SERVING / "Dockerfile").read_text()
    # The message is in no Python package; its fields are in the server's sources.
    fields = {"max_batch_size", "batch_timeout_micros", "max_enqueued_batches"}
    fields |= {"num_batch_threads"}
    lines = (SERVING / "batching.config").read_text().splitlines()
    found = [re.fullmatch(r"(\w+) \{ value: [1-9]\d* \}", line)[1] for line in lines]
    assert set(found) == fields and len(found) == len(fields)
    for name in ("models.config", "batching.config"):
        assert f"examples/serving/{name}" in docker and f"/etc/serving/{name}" in docker
    assert f"COPY exports/detector {model.base_path}\n" in docker
    start = docker[docker.index("ENTRYPOINT ") :].replace("\\\n", "")
    command = json.loads(start.removeprefix("ENTRYPOINT "))
    assert command[0] == "tensorflow_model_server"
    assert all(re.fullmatch(r"--\w+(=\S+)?", flag) for flag in command[1:])


def test_kserve_gets_what_an_inference_service_needs():
    yaml = pytest.importorskip("yaml")
    service = yaml.safe_load((SERVING / "kserve.yaml").read_text())
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    assert service["kind"] == "InferenceService"
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", service["metadata"]["name"])
    [(kind, model)] = service["spec"]["predictor"].items()
    known = {"modelFormat", "runtime", "runtimeVersion", "storageUri", "args"}
    assert kind == "model" and set(model) == known | {"resources"}
    assert model["modelFormat"] == {"name": "tensorflow", "version": "2"}
    assert isinstance(model["runtimeVersion"], str)
    assert model["runtimeVersion"] in (SERVING / "Dockerfile").read_text()
    assert re.match(r"(pvc|s3|gs|https|hf)://\w", model["storageUri"])
    for amounts in model["resources"].values():
        assert set(amounts) == {"cpu", "memory"}
        assert all(isinstance(amount, str) for amount in amounts.values())


def test_old_servers_have_the_ops_that_read_text():
    """TensorFlow Serving 2.19 is built with tensorflow_text 2.12."""
    path = shared_export("electra", "detector") / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    [graph] = content.meta_graphs
    functions = graph.graph_def.library.function
    ops = {node.op for function in functions for node in function.node_def}
    of_text = ops - set(dir(tf.raw_ops))
    assert of_text == {"FastWordpieceTokenizeWithOffsets", "NormalizeUTF8"}
