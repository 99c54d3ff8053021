# SPDX-License-Identifier: Apache-2.0
"""Versioned SavedModels on disk, and JSON in TensorFlow Serving's predict format."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 - registers the ops that read text
from tensorflow.core.framework import types_pb2


class BadRequest(Exception):
    """A request that cannot be answered; its text says why."""


class Request(NamedTuple):
    """A predict request as arrays."""

    signature: str
    inputs: dict[str, np.ndarray]
    as_rows: bool  # "instances" were given rather than "inputs"


class ServedModel:
    """One version of a model, loaded.

    Args:
      name: as it stands in the URL.
      directory: of the SavedModel; with a manifest.json, its files are checked first.
    """

    def __init__(self, name: str, directory: Path):
        self.name = name
        self.directory = directory
        self.version = directory.name if directory.name.isdecimal() else "1"
        verify(directory)
        self._loaded = tf.saved_model.load(str(directory))
        self.signatures = dict(self._loaded.signatures)
        for signature in self.signatures:
            self._warm_up(signature)

    def specs(self, signature: str) -> dict[str, tf.TensorSpec]:
        """What a signature takes, by name."""
        return self.signatures[signature].structured_input_signature[1]

    def run(self, signature: str, inputs: dict[str, np.ndarray]) -> dict:
        """The outputs of a signature as arrays; BadRequest for what it refuses."""
        specs = self.specs(signature)
        tensors = {k: tf.constant(v, specs[k].dtype) for k, v in inputs.items()}
        try:
            outputs = self.signatures[signature](**tensors)
        except tf.errors.InvalidArgumentError as error:
            raise BadRequest(reason(error.message)) from None
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    def parse(self, body: bytes) -> Request:
        """Reads a predict request, in rows or in columns; BadRequest if it is none."""
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise BadRequest("the body must be a JSON object")
        signature = content.get("signature_name", "serving_default")
        if signature not in self.signatures:
            names = ", ".join(sorted(self.signatures))
            raise BadRequest(f"signature_name {signature!r} is none of {names}")
        given = [name for name in ("instances", "inputs") if name in content]
        if len(given) != 1:
            raise BadRequest('give either "instances" (rows) or "inputs" (columns)')
        specs = self.specs(signature)
        columns = content[given[0]]
        if given[0] == "instances":
            columns = _columns(columns, specs)
        elif not (isinstance(columns, dict) and set(columns) - {"b64"}):
            columns = {_only(specs): columns}
        if set(columns) != set(specs):
            raise BadRequest(f"the inputs are {sorted(columns)}, not {sorted(specs)}")
        inputs = {
            name: array(name, columns[name], spec) for name, spec in specs.items()
        }
        if len({x.shape[0] for x in inputs.values()}) > 1:
            raise BadRequest("the inputs have different numbers of rows")
        return Request(signature, inputs, given[0] == "instances")

    def metadata(self) -> dict[str, Any]:
        """What TensorFlow Serving says about a model's signatures."""
        definitions = {
            name: {
                "inputs": {k: _tensor_info(v) for k, v in self.specs(name).items()},
                "outputs": {
                    k: _tensor_info(v) for k, v in f.structured_outputs.items()
                },
                "method_name": "tensorflow/serving/predict",
            }
            for name, f in self.signatures.items()
        }
        spec = {"name": self.name, "signature_name": "", "version": self.version}
        return {
            "model_spec": spec,
            "metadata": {"signature_def": {"signature_def": definitions}},
        }

    def _warm_up(self, signature: str) -> None:
        """One call, so that the first request does not wait for TensorFlow's graphs."""
        inputs = {}
        for name, spec in self.specs(signature).items():
            fill = b"warm up" if spec.dtype == tf.string else 0
            dtype = object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
            inputs[name] = np.full([d or 1 for d in spec.shape], fill, dtype)
        try:
            self.run(signature, inputs)
        except BadRequest:
            pass


def load(name: str, base: Path) -> ServedModel:
    """The newest version of a model: `base/<integer>/`, or `base` itself."""
    if (base / "saved_model.pb").exists():
        return ServedModel(name, base)
    versions = [p for p in base.iterdir() if p.name.isdecimal()]
    if not versions:
        raise FileNotFoundError(f"{base} has no SavedModel and no numbered version")
    return ServedModel(name, max(versions, key=lambda p: int(p.name)))


def verify(directory: Path) -> None:
    """Raises ValueError unless the files are those that manifest.json lists."""
    path = directory / "manifest.json"
    if not path.exists():
        return
    for name, record in json.loads(path.read_text("utf-8"))["files"].items():
        with open(directory / name, "rb") as f:
            if hashlib.file_digest(f, "sha256").hexdigest() != record["sha256"]:
                raise ValueError(f"{directory / name} is damaged: export it again")


def array(name: str, value: Any, spec: tf.TensorSpec) -> np.ndarray:
    """A JSON value as an array of the type and rank that a signature wants."""
    if spec.dtype == tf.string:
        found = np.array(_encoded(name, value), object)
    else:
        try:
            found = np.array(value)
        except (ValueError, OverflowError):
            raise BadRequest(f"{name}: rows of unlike lengths") from None
        found = _numbers(name, found, spec.dtype.as_numpy_dtype)
    if found.size == 0 and found.ndim < len(spec.shape):
        found = found.reshape([0] * len(spec.shape))
    if found.ndim != len(spec.shape):
        raise BadRequest(f"{name} has rank {found.ndim} instead of {len(spec.shape)}")
    return found


def answer(request: Request, outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The response: rows for rows, columns for columns; a single output unnamed."""
    columns = {name: _json(name, value) for name, value in outputs.items()}
    if len(columns) == 1:
        (only,) = columns.values()
        return {"predictions" if request.as_rows else "outputs": only}
    if not request.as_rows:
        return {"outputs": columns}
    rows = zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def reason(message: str) -> str:
    """The part of TensorFlow's error that is about the input."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if not line.startswith(
            ("Graph execution", "Detected at", "<stack", "[[{{", "(")
        )
    ]
    return " ".join(telling or lines)


def _columns(rows: Any, specs: dict[str, tf.TensorSpec]) -> dict[str, list]:
    if not isinstance(rows, list):
        raise BadRequest("instances must be a list")
    named = [isinstance(row, dict) and set(row) != {"b64"} for row in rows]
    if not any(named):
        return {_only(specs): rows}
    if not all(named) or any(set(row) != set(specs) for row in rows):
        raise BadRequest(f"each of the instances must have {sorted(specs)}")
    return {name: [row[name] for row in rows] for name in specs}


def _only(specs: dict[str, tf.TensorSpec]) -> str:
    if len(specs) > 1:
        raise BadRequest(f"name the inputs: {sorted(specs)}")
    return next(iter(specs))


def _encoded(name: str, value: Any) -> Any:
    """Strings and {"b64": ...} as bytes, in the same nesting."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, list):
        return [_encoded(name, element) for element in value]
    if isinstance(value, dict) and set(value) == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (ValueError, TypeError):
            raise BadRequest(f"{name}: b64 is not base64") from None
    raise BadRequest(f"{name} must be strings")


def _numbers(name: str, found: np.ndarray, dtype) -> np.ndarray:
    wanted = np.dtype(dtype)
    kinds = "iu" if wanted.kind in "iu" else "iuf"
    if found.size and found.dtype.kind not in kinds:
        raise BadRequest(f"{name} must be {wanted.name}")
    converted = found.astype(wanted)
    if wanted.kind in "iu" and not np.array_equal(converted, found):
        raise BadRequest(f"{name} is beyond the range of {wanted.name}")
    return converted


def _json(name: str, value: np.ndarray) -> Any:
    if value.dtype != object:
        return value.tolist()

    def text(element):
        if isinstance(element, list):
            return [text(e) for e in element]
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(element).decode()}
        return element.decode("utf-8", "replace")

    return text(value.tolist())


def _tensor_info(spec: Any) -> dict[str, Any]:
    sizes = [{"size": str(-1 if d is None else d), "name": ""} for d in spec.shape]
    return {
        "dtype": types_pb2.DataType.Name(spec.dtype.as_datatype_enum),
        "tensor_shape": {"dim": sizes, "unknown_rank": False},
        "name": spec.name or "",
    }
