# SPDX-License-Identifier: Apache-2.0
"""Models for LiteRT, formerly TensorFlow Lite: one text at a time, on small devices.

Ids in, numbers out, of one fixed length; such a file has no tokenizer. How much
float16 and int8 weights change the answers is measured on fixed texts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator

import tensorflow as tf

from electra_tf.export import saved_model
from electra_tf.export.parts import python_pack
from electra_tf.export.request import ExportRequest
from electra_tf.export.signatures import NAMES, PROBES, EncoderInputs, ExportedModel
from electra_tf.interop import verification
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.text.vocabulary import write_settings, write_tokens

ConcreteFunction = tf.types.experimental.ConcreteFunction
# Type of the weights -> allowed difference, relative beyond 1; None: only measured.
TOLERANCE = {"float32": 1e-4, "float16": 0.05, "int8": None}
WHAT = ("encoder", "detector")


def network_of(source: ExportedModel, what: str) -> ConcreteFunction:
    """The function to convert: int32 [1, max_seq_length] each in, float32 out.

    The encoder gives sequence_output [1, L, H]; the detector logits [1, L].
    """

    def compute(input_word_ids, input_mask, input_type_ids):
        inputs = EncoderInputs(input_word_ids, input_mask, input_type_ids)
        if what == "detector":
            return {"logits": source.pretrainer.replaced_logits(*inputs)}
        encoded = source.pretrainer.electra(*inputs)
        return {"sequence_output": encoded.sequence_output}

    length = source.max_seq_length
    specs = [tf.TensorSpec([1, length], tf.int32, name=name) for name in NAMES]
    function = tf.function(compute, autograph=False, input_signature=specs)
    return function.get_concrete_function()


def convert(network: ConcreteFunction, source: ExportedModel, precision: str) -> bytes:
    """A LiteRT model.

    Args:
      precision: of the weights, a key of TOLERANCE; int8 multiplies in int8 as well
        (activations are quantised as they come).
    """
    holder = tf.train.Checkpoint(v=[v.value for v in source.pretrainer.variables])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([network], holder)
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    with _quiet():
        return converter.convert()


def measure(
    model: bytes, network, source: ExportedModel, precision: str
) -> verification.Result:
    """How far a converted model is from the network, at the tokens of fixed texts.

    Raises `UserError` (65) beyond the tolerance.
    """
    with _quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tf.lite is deprecated.
        runner = _interpreter()(model_content=model).get_signature_runner()
    [name], gaps = network.structured_outputs, []
    packed = python_pack(source, PROBES, source.max_seq_length)
    for row in zip(*packed, strict=True):
        inputs = {key: x[None] for key, x in zip(NAMES, row, strict=True)}
        expected = network(**{k: tf.constant(v) for k, v in inputs.items()})[name]
        found, mask = runner(**inputs)[name], inputs["input_mask"]
        gaps.append(verification.difference(expected, found, mask, relative=True))
    reader, tolerance = f"LiteRT, {precision}", TOLERANCE[precision]
    result = verification.Result(name, reader, max(gaps), tolerance)
    verification.require([result])
    return result


def _interpreter() -> type:
    """LiteRT's own where it is installed, or the one that TensorFlow still has."""
    try:
        return importlib.import_module("ai_edge_litert.interpreter").Interpreter
    except ImportError:
        return tf.lite.Interpreter


def export_litert(request: ExportRequest) -> str:
    """A file for each part, and the vocabulary."""
    stored = request.read_model()
    source = saved_model.source_of(stored)
    kinds = saved_model.parts_of(source, request.what, "litert", WHAT)
    results = []
    with atomic_folder(request.output_dir) as folder:
        for what in kinds:
            network = network_of(source, what)
            model = convert(network, source, request.precision)
            results.append(measure(model, network, source, request.precision))
            (folder / f"{what}.tflite").write_bytes(model)
        vocab = write_tokens(folder / "vocab.txt", stored.vocab.tokens)
        write_settings(vocab, stored.tokenizer_config)
        facts = {"precision": request.precision, "seq_length": source.max_seq_length}
        what = request.what or "all"
        verification.write_manifest(folder, stored, "tflite", what, results, facts)
    verification.show(results, print)
    return request.output_dir


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the lines that the converter's C++ writes to standard error."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
