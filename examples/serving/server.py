# SPDX-License-Identifier: Apache-2.0
"""Serves exports over HTTP as TensorFlow Serving does, for trying them out.

python3 examples/serving/server.py --model detector=exports/detector --port 8501
curl -d '{"instances": ["The chef ate the meal."]}' \
    http://localhost:8501/v1/models/detector:predict

An ONNX file (--model encoder=onnx/encoder.onnx) answers for ids. Needs tensorflow and
tensorflow_text, for ONNX onnxruntime; not electra_tf. For users, take TensorFlow
Serving: docs/serving.md.
"""

import argparse
import base64
import http.server
import json
import os
import re
import signal
import threading
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


import tensorflow as tf  # noqa: E402 - after the variable
import tensorflow_text  # noqa: E402, F401 - registers the ops that read text
from google.protobuf.json_format import MessageToDict  # noqa: E402
from tensorflow.core.protobuf import saved_model_pb2  # noqa: E402

MAX_BODY_BYTES = 64 * 2**10  # A long text holds the model for a second or two.


class Refused(Exception):
    """A request without an answer: the HTTP status and why."""


class Model:
    """The newest version of a SavedModel: `base/<integer>/`, or `base` itself."""

    def __init__(self, base: Path):
        versions = [p for p in base.iterdir() if p.name.isdecimal()]
        if versions:
            base = max(versions, key=lambda p: int(p.name))
        self.version = base.name if versions else "1"
        self._loaded = tf.saved_model.load(str(base))  # holds the variables
        self.signatures = self._loaded.signatures
        self._definition = (base / "saved_model.pb").read_bytes()
        self._one_at_a_time = threading.Lock()

    def metadata(self, name: str) -> dict:
        """The signatures, as TensorFlow Serving gives them."""
        [graph] = saved_model_pb2.SavedModel.FromString(self._definition).meta_graphs
        names = "always_print_fields_with_no_presence", "preserving_proto_field_name"
        options = dict.fromkeys(names, True)
        plain = {k: MessageToDict(v, **options) for k, v in graph.signature_def.items()}
        spec = {"name": name, "signature_name": "", "version": self.version}
        signatures = {"signature_def": {"signature_def": plain}}
        return {"model_spec": spec, "metadata": signatures}

    def predict(self, body: bytes) -> dict:
        """The answer to a request; raises Refused."""
        try:
            content = json.loads(body)
            [kind] = {"instances", "inputs"} & content.keys()
        except (ValueError, AttributeError):
            reason = 'give a JSON object with "instances" (rows) or "inputs"'
            raise Refused(400, reason) from None
        name = content.get("signature_name", "serving_default")
        if name not in self.signatures:
            names = ", ".join(sorted(self.signatures))
            raise Refused(400, f"signature_name {name!r:.50}: there are {names}")
        signature = self.signatures[name]
        specs = signature.structured_input_signature[1]
        try:
            given = _columns(content[kind], specs, kind == "instances")
            inputs = {k: _tensor(k, given[k], spec) for k, spec in specs.items()}
            with self._one_at_a_time:
                outputs = signature(**inputs)
        except tf.errors.InvalidArgumentError as error:
            raise Refused(400, _reason(error.message)) from None
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            reason = f"the inputs must be {sorted(specs)}: {error!r:.200}"
            raise Refused(400, reason) from None
        columns = {name: _plain(x.numpy()) for name, x in outputs.items()}
        [*_, one] = columns.values()
        if kind == "inputs":
            return {"outputs": one if len(columns) == 1 else columns}
        if len(columns) == 1:
            return {"predictions": one}
        rows = zip(*columns.values(), strict=True)
        return {"predictions": [dict(zip(columns, r, strict=True)) for r in rows]}


class OnnxModel(Model):
    """A file of ONNX, whose only signature takes ids."""

    def __init__(self, path: Path):
        import onnxruntime

        self.version = "1"
        self.signatures = {"serving_default": self}
        self._session = onnxruntime.InferenceSession(path)
        specs = {
            one.name: tf.TensorSpec([None] * len(one.shape), tf.int32)
            for one in self._session.get_inputs()
        }
        self.structured_input_signature = (), specs
        self._one_at_a_time = threading.Lock()

    def metadata(self, name: str) -> dict:
        """The name and version alone."""
        spec = {"name": name, "signature_name": "", "version": self.version}
        return {"model_spec": spec}

    def __call__(self, **inputs) -> dict:
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        names = [one.name for one in self._session.get_outputs()]
        try:
            outputs = self._session.run(None, arrays)
        except Exception as error:  # onnxruntime has a class for each status
            raise ValueError(str(error)) from None
        return dict(zip(names, map(tf.constant, outputs), strict=True))


def _columns(values, specs, are_rows: bool) -> dict:
    """Name of an input -> its values, of all rows."""
    is_plain = not isinstance(values, dict)
    if are_rows:
        is_plain = not (values and values[0] and set(values[0]) <= set(specs))
    if len(specs) == 1 and is_plain:
        return {next(iter(specs)): values}
    if are_rows:
        return {name: [row[name] for row in values] for name in specs}
    return values


def _tensor(name: str, value, spec: tf.TensorSpec) -> tf.Tensor:
    """A JSON value as a tensor of the type and rank that the signature wants."""
    if spec.dtype == tf.string:
        return tf.constant([_bytes(text) for text in value], tf.string, [len(value)])
    array = np.array(value, spec.dtype.as_numpy_dtype)
    if not np.array_equal(array, np.array(value)):
        raise ValueError(f"{name} must be whole numbers")
    return tf.constant(array if array.size else array.reshape([0] * len(spec.shape)))


def _bytes(text) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    return base64.b64decode(text["b64"], validate=True)


def _plain(array: np.ndarray) -> list:
    if array.dtype == object:
        array = np.vectorize(lambda x: x.decode("utf-8", "replace"), "O")(array)
    return array.tolist()


def _reason(message: str) -> str:
    """The part of TensorFlow's error that is about the input."""
    lines = [line.strip() for line in message.splitlines()]
    noise = ("Graph execution", "Detected at", "<stack", "[[{{", "(")
    return " ".join(x for x in lines if x and not x.startswith(noise)) or message


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /, /v1/models/NAME and its /metadata; POST /v1/models/NAME:predict."""

    models: dict[str, Model] = {}
    timeout = 10  # seconds that a client may take for its request

    def do_GET(self):
        self._answer(self._get)

    def do_POST(self):
        self._answer(lambda: self._named(":predict").predict(self._body()))

    def _get(self) -> dict:
        if self.path == "/":
            rows = (
                {"name": k, "version": m.version, "signatures": sorted(m.signatures)}
                for k, m in self.models.items()
            )
            return {"models": list(rows)}
        if self.path.endswith("/metadata"):
            return self._named("/metadata").metadata(self.path.split("/")[3])
        status = {"version": self._named("").version, "state": "AVAILABLE"}
        return {"model_version_status": [status]}

    def _named(self, suffix: str) -> Model:
        match = re.fullmatch(rf"/v1/models/([^/:]+){suffix}", self.path)
        if not match or match[1] not in self.models:
            raise Refused(404, f"{self.path} does not name a model; / lists them")
        return self.models[match[1]]

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length", 0))
        if length > MAX_BODY_BYTES:
            raise Refused(413, f"the body exceeds {MAX_BODY_BYTES} bytes")
        return self.rfile.read(length)

    def _answer(self, work) -> None:
        try:
            status, content = 200, work()
        except Refused as refused:
            status, reason = refused.args
            content = {"error": reason}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Loads the models and serves them until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501, help="0 takes a free one")
    args = parser.parse_args()
    for model in args.model:
        name, _, directory = model.partition("=")
        try:
            kind = OnnxModel if directory.endswith(".onnx") else Model
            Handler.models[name] = kind(Path(directory))
        except OSError as error:
            parser.error(f"--model {model}: {error}")
    server = http.server.ThreadingHTTPServer((args.host, args.port), Handler)
    names, port = ", ".join(Handler.models), server.server_address[1]
    print(f"Serving {names} on http://{args.host}:{port}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    server.serve_forever()


if __name__ == "__main__":
    main()
