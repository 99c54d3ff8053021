# SPDX-License-Identifier: Apache-2.0
"""Serves SavedModels over HTTP as TensorFlow Serving does, for trying them out.

python3 examples/serving/server.py --model detector=exports/detector --port 8501
curl -d '{"instances": ["The chef ate the meal."]}' \
    http://localhost:8501/v1/models/detector:predict

Needs tensorflow and tensorflow_text; not electra_tf. Each request is checked, then run
by itself; nothing is shared between requests but the model. For users, take TensorFlow
Serving: docs/serving.md.
"""

import argparse
import base64
import contextlib
import http.server
import json
import os
import re
import signal
import tempfile
import threading
from pathlib import Path

import numpy as np

# What fails is raised; errors that C++ prints are of no consequence, such as no GPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_NOTICE = re.compile(
    rb"[IW]\d{4} |WARNING: All log messages before absl|.*cuInit: .*ERROR \(303\)"
)


@contextlib.contextmanager
def _without_notices():
    """Passes on what C++ writes to standard error, except its notices."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            lines.seek(0)
            os.write(2, b"".join(x for x in lines if not _NOTICE.match(x)))


with _without_notices():
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - registers the ops that read text
    from google.protobuf.json_format import MessageToDict
    from tensorflow.core.protobuf import saved_model_pb2

    tf.config.list_physical_devices()

MAX_BODY_BYTES = 64 * 2**10  # A long text holds the model for a second or two.
MAX_WAITING = 16  # requests for one model
SECONDS_TO_SEND = 10  # that a client may take for its request


class Refused(Exception):
    """A request that is not answered: the HTTP status and why."""


class Model:
    """The newest version of a SavedModel: `base/<integer>/`, or `base` itself."""

    def __init__(self, base: Path):
        versions = [p for p in base.iterdir() if p.name.isdecimal()]
        if not (base / "saved_model.pb").exists():
            if not versions:
                raise ValueError(f"there is no SavedModel in {base}")
            base = max(versions, key=lambda p: int(p.name))
        self.version = base.name if base.name.isdecimal() else "1"
        self._loaded = tf.saved_model.load(str(base))  # holds the variables
        self.signatures = dict(self._loaded.signatures)
        self._definition = (base / "saved_model.pb").read_bytes()
        self._room = threading.Semaphore(MAX_WAITING)
        self._one_at_a_time = threading.Lock()

    def metadata(self, name: str) -> dict:
        """The signatures, as TensorFlow Serving gives them."""
        [graph] = saved_model_pb2.SavedModel.FromString(self._definition).meta_graphs
        names = "always_print_fields_with_no_presence", "preserving_proto_field_name"
        options = dict.fromkeys(names, True)
        plain = {k: MessageToDict(v, **options) for k, v in graph.signature_def.items()}
        spec = {"name": name, "signature_name": "", "version": self.version}
        signatures = {"signature_def": plain}
        return {"model_spec": spec, "metadata": {"signature_def": signatures}}

    def predict(self, body: bytes) -> dict:
        """The answer to a request; raises Refused."""
        signature, inputs, as_rows = self._read(body)
        if not self._room.acquire(blocking=False):
            raise Refused(503, "too many requests are waiting; try again later")
        try:
            with self._one_at_a_time:
                outputs = self.signatures[signature](**inputs)
        except tf.errors.InvalidArgumentError as error:
            raise Refused(400, _reason(error.message)) from None
        finally:
            self._room.release()
        columns = {name: _plain(x.numpy()) for name, x in outputs.items()}
        if not as_rows:
            whole = next(iter(columns.values())) if len(columns) == 1 else columns
            return {"outputs": whole}
        if len(columns) == 1:
            return {"predictions": next(iter(columns.values()))}
        rows = zip(*columns.values(), strict=True)
        return {"predictions": [dict(zip(columns, r, strict=True)) for r in rows]}

    def _read(self, body: bytes) -> tuple[str, dict[str, tf.Tensor], bool]:
        """(signature, inputs, whether they came as rows)"""
        try:
            content = json.loads(body)
        except ValueError as error:
            raise Refused(400, f"the body is not JSON: {error}") from None
        content = content if isinstance(content, dict) else {}
        given = [name for name in ("instances", "inputs") if name in content]
        if len(given) != 1:
            raise Refused(400, 'give an object with "instances" (rows) or "inputs"')
        name = content.get("signature_name", "serving_default")
        if not isinstance(name, str) or name not in self.signatures:
            names = ", ".join(sorted(self.signatures))
            raise Refused(400, f"signature_name {name!r:.50} is none of {names}")
        specs = self.signatures[name].structured_input_signature[1]
        columns = content[given[0]]
        if given[0] == "instances":
            columns = _columns(columns, specs)
        elif len(specs) == 1 and not isinstance(columns, dict):
            columns = {next(iter(specs)): columns}
        if not isinstance(columns, dict) or set(columns) != set(specs):
            raise Refused(400, f"the inputs must be {sorted(specs)}")
        inputs = {key: _tensor(key, columns[key], spec) for key, spec in specs.items()}
        if len({len(x) for x in inputs.values()}) > 1:
            raise Refused(400, "the inputs have different numbers of rows")
        return name, inputs, given[0] == "instances"


def _columns(rows, specs) -> dict[str, list]:
    if not isinstance(rows, list):
        raise Refused(400, "instances must be a list")
    if len(specs) == 1 and not any(
        isinstance(r, dict) and "b64" not in r for r in rows
    ):
        return {next(iter(specs)): rows}
    if not all(isinstance(row, dict) and set(row) == set(specs) for row in rows):
        raise Refused(400, f"each of the instances must have {sorted(specs)}")
    return {name: [row[name] for row in rows] for name in specs}


def _tensor(name: str, value, spec: tf.TensorSpec) -> tf.Tensor:
    """A JSON value as a tensor of the type and rank that the signature wants."""
    rank, of_text = len(spec.shape), spec.dtype == tf.string
    _check(name, value, rank, of_text)
    try:
        if of_text:
            return tf.constant(
                [_bytes(text) for text in value], tf.string, [len(value)]
            )
        found = np.array(value, spec.dtype.as_numpy_dtype)
        return tf.constant(found.reshape([0] * rank) if not found.size else found)
    except (ValueError, OverflowError, TypeError) as error:
        reason = f"rows of unlike lengths, or beyond {spec.dtype.name} ({error})"
        raise Refused(400, f"{name}: {reason:.200}") from None


def _check(name: str, value, depth: int, of_text: bool) -> None:
    """Refuses what is not lists in lists, `depth` deep, of texts or of numbers."""
    if depth:
        if not isinstance(value, list):
            raise Refused(400, f"{name} must be lists, {depth} deeper")
        for element in value:
            _check(name, element, depth - 1, of_text)
    elif of_text and not isinstance(value, str) and set(_keys(value)) != {"b64"}:
        raise Refused(400, f"{name} must be strings")
    elif not of_text and type(value) is not int:
        raise Refused(400, f"{name} must be whole numbers")


def _keys(value):
    return value if isinstance(value, dict) else ()


def _bytes(text) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    return base64.b64decode(text["b64"], validate=True)


def _plain(array: np.ndarray):
    def text(x):
        return (
            [text(e) for e in x]
            if isinstance(x, list)
            else x.decode("utf-8", "replace")
        )

    return text(array.tolist()) if array.dtype == object else array.tolist()


def _reason(message: str) -> str:
    """The part of TensorFlow's error that is about the input."""
    lines = [line.strip() for line in message.splitlines()]
    noise = ("Graph execution", "Detected at", "<stack", "[[{{", "(")
    return " ".join(x for x in lines if x and not x.startswith(noise)) or message


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /, /v1/models/NAME and its /metadata; POST /v1/models/NAME:predict."""

    models: dict[str, Model] = {}
    protocol_version = "HTTP/1.1"
    timeout = SECONDS_TO_SEND

    def do_GET(self):
        self._answer(self._get)

    def do_POST(self):
        self._answer(self._post)

    def _get(self) -> dict:
        if self.path == "/":
            models = self.models.items()
            return {"models": [_listed(name, model) for name, model in models]}
        if self.path.endswith("/metadata"):
            name = self._named("/metadata")
            return self.models[name].metadata(name)
        return {"model_version_status": [_status(self.models[self._named("")])]}

    def _post(self) -> dict:
        return self.models[self._named(":predict")].predict(self._body())

    def _named(self, suffix: str) -> str:
        match = re.fullmatch(rf"/v1/models/([^/:]+){suffix}", self.path)
        if not match or match[1] not in self.models:
            raise Refused(404, f"{self.path} is no model here; / lists them")
        return match[1]

    def _answer(self, work) -> None:
        try:
            status, content = 200, work()
        except Refused as refused:
            (status, reason), self.close_connection = refused.args, True
            content = {"error": reason}
        except Exception as error:  # noqa: BLE001 - one request, not the server
            self.log_error("%s: %r", self.path, error)
            status, content = 500, {"error": "the server failed; its log says why"}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refused(411, "the request must say its Content-Length")
        if int(length) > MAX_BODY_BYTES:
            raise Refused(413, f"the body exceeds {MAX_BODY_BYTES} bytes")
        try:
            return self.rfile.read(int(length))
        except TimeoutError:
            raise Refused(408, f"the body took over {SECONDS_TO_SEND} s") from None

    def log_request(self, code="-", size="-"):
        del code, size  # Errors are logged, answers are not.


def _status(model: Model) -> dict:
    return {"version": model.version, "state": "AVAILABLE"}


def _listed(name: str, model: Model) -> dict:
    signatures = sorted(model.signatures)
    return {"name": name, "version": model.version, "signatures": signatures}


def main() -> None:
    """Loads the models and serves them until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME=DIRECTORY",
        help="a SavedModel, or a directory of numbered versions; repeatable",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501, help="0 takes a free one")
    args = parser.parse_args()
    for model in args.model:
        name, _, directory = model.partition("=")
        if not name or not directory:
            parser.error(f"--model {model}: this is to be NAME=DIRECTORY")
        try:
            with _without_notices():
                Handler.models[name] = Model(Path(directory))
        except (OSError, ValueError) as error:
            parser.error(f"--model {model}: {error}")
    try:
        server = http.server.ThreadingHTTPServer((args.host, args.port), Handler)
    except (OSError, OverflowError) as error:
        parser.exit(
            1,
            f"cannot serve on {args.host}, port {args.port}: {error}\n"
            "Give another --port; 0 takes a free one.\n",
        )
    server.block_on_close = False  # Slow clients do not keep it from ending.
    stop = threading.Thread(target=server.shutdown, daemon=True)
    signal.signal(signal.SIGTERM, lambda *_: stop.start())
    names, port = ", ".join(Handler.models), server.server_address[1]
    print(f"Serving {names} on http://{args.host}:{port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # There is nothing to save.
        main()
