# SPDX-License-Identifier: Apache-2.0
"""Serves SavedModels over HTTP as TensorFlow Serving does, for trying them out.

python3 examples/serving/server.py --model detector=exports/detector --port 8501
curl -d '{"instances": ["The chef ate the meal."]}' \
    http://localhost:8501/v1/models/detector:predict

Needs tensorflow and tensorflow_text, not electra_tf. For users, take TensorFlow
Serving: docs/serving.md.
"""

import argparse
import http.server
import json
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 - registers the ops that read text

MAX_BODY_BYTES = 64 * 2**10  # A long text holds the model for a second or two.
# What is raised for JSON of another form, and for ids that the model lacks.
WRONG_FORM = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
WRONG_FORM += (OverflowError, tf.errors.InvalidArgumentError)


class Handler(http.server.BaseHTTPRequestHandler):
    """GET / lists the models; POST /v1/models/NAME:predict answers for instances."""

    models: dict = {}
    timeout = 10  # seconds that a client may take for its request

    def do_GET(self):
        names = {name: sorted(m.signatures) for name, m in self.models.items()}
        self._answer(200, {"models": names})

    def do_POST(self):
        name = self.path.removeprefix("/v1/models/").removesuffix(":predict")
        length = self.headers.get("Content-Length", "")
        if name not in self.models:
            self._answer(404, {"error": f"{self.path} names no model; / lists them"})
        elif not (length.isdecimal() and len(length) < 16):
            self._answer(400, {"error": "Content-Length must be a number of bytes"})
        elif int(length) > MAX_BODY_BYTES:
            self._answer(413, {"error": f"the body exceeds {MAX_BODY_BYTES} bytes"})
        else:
            body = self.rfile.read(int(length))
            self._answer(*self._predict(self.models[name], body))

    def _predict(self, model, body: bytes) -> tuple[int, dict]:
        """The HTTP status and the content of the answer."""
        form = "a JSON object with instances, and signature_name if you like"
        try:
            content = json.loads(body)
            call = model.signatures[content.get("signature_name", "serving_default")]
            specs = call.structured_input_signature[1]
            form = f"instances with {', '.join(sorted(specs))}"
            rows = content["instances"]
            if len(specs) == 1:  # The values alone, or objects.
                rows = [r if isinstance(r, dict) else {[*specs][0]: r} for r in rows]
            inputs = {k: tensor([row[k] for row in rows], s) for k, s in specs.items()}
            outputs = call(**inputs)
        except WRONG_FORM as error:
            return 400, {"error": f"give {form}: {error!s:.500}"}
        columns = [plain(output.numpy().tolist()) for output in outputs.values()]
        rows = zip(*columns, strict=True)
        rows = [dict(zip(outputs, row, strict=True)) for row in rows]
        return 200, {"predictions": rows if len(columns) > 1 else columns[0]}

    def _answer(self, status: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def tensor(values: list, spec: tf.TensorSpec) -> tf.Tensor:
    """JSON values of all rows as a tensor of the type that the signature wants."""
    if spec.dtype == tf.string:
        texts = [value.encode("utf-8", "surrogatepass") for value in values]
        return tf.constant(texts, spec.dtype, [len(texts)])
    array = np.array(values or np.zeros([0] * len(spec.shape)))
    if (array != array.astype(np.int32)).any():
        raise ValueError("ids must be whole numbers, int32")
    return tf.constant(array, spec.dtype)


def plain(value):
    """An output as JSON values."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def main() -> None:
    """Loads the newest version of each model and serves them until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--port", type=int, default=8501, help="0 takes a free one")
    args = parser.parse_args()
    for name, _, base in (model.partition("=") for model in args.model):
        versions = [path for path in Path(base).glob("*") if path.name.isdecimal()]
        path = max(versions, key=lambda path: int(path.name), default=base)
        Handler.models[name] = tf.saved_model.load(str(path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    names, address = ", ".join(Handler.models), f"127.0.0.1:{server.server_port}"
    print(f"Serving {names} on http://{address}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
