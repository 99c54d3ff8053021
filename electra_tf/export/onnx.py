# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX, for onnxruntime: ids in, numbers out, any batch and length.

The graph is written node by node: an encoder and its heads are few kinds of nodes, and
the converter from TensorFlow's graphs (tf2onnx) looks for a maintainer. Inputs and
outputs are those of the signature `ids` of the SavedModels, whose checks each file has
to pass in onnxruntime.

Shapes: B batch, L length, H hidden width, N masked positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.errors import UserError
from electra_tf.export import finetuned, saved_models
from electra_tf.export.exported import Check
from electra_tf.export.formats import ExportRequest
from electra_tf.export.inputs import NAMES
from electra_tf.interop import networks, sources, verification
from electra_tf.interop.networks import ENCODER
from electra_tf.interop.stored_model import (
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    StoredModel,
)
from electra_tf.storage.new_folder import new_folder, require_room
from electra_tf.text.vocabulary import write_settings, write_tokens

WHAT = ("encoder", "detector", "generator")
OPSET = 20  # the first with Gelu
POSITIONS = "masked_lm_positions"
# Type of the weights -> allowed difference, relative beyond 1; None: only measured.
TOLERANCE = {"float32": 1e-4, "int8": None}
_EPSILON = 1e-12
_MASKED_SCORE = -10000.0
_CARD = """\
# {name}: {what} as ONNX

{what}.onnx takes the ids of packed texts, of any number and length up to {length}:

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{what}.onnx")
ids = np.array([[{cls_id}, {sep_id}]], np.int32)  # [CLS] text [SEP], by vocab.txt
batch = {{"input_word_ids": ids, "input_mask": ids * 0 + 1, "input_type_ids": ids * 0}}
{more}names = [output.name for output in session.get_outputs()]
found = dict(zip(names, session.run(None, batch)))
```

`manifest.json` holds the checksums and how far the outputs are from the model's.
"""


class Graph:
    """Nodes and weights of a network, named after what they are.

    Args:
      tensors: the weights by the original's names.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], act: str):
        self.tensors, self.act = tensors, act
        self.nodes: list = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes):
        """Adds a node with one output; returns the output's name."""
        from onnx import helper

        output = output or f"{kind}_{len(self.nodes)}"
        node = helper.make_node(kind, list(inputs), [output], output, **attributes)
        self.nodes.append(node)
        return output

    def constant(self, value, dtype=np.int64) -> str:
        """A constant array; returns its name."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.array(value, dtype)
        return name

    def weight(self, name: str) -> str:
        """A weight of the network; returns its name."""
        self.constants[name] = np.asarray(self.tensors[name], np.float32)
        return name

    def dense(self, x: str, name: str) -> str:
        """x times kernel plus bias."""
        product = self.op("MatMul", x, self.weight(f"{name}/kernel"))
        return self.op("Add", product, self.weight(f"{name}/bias"))

    def norm(self, x: str, name: str) -> str:
        """Layer normalisation over the last axis."""
        gamma, beta = (self.weight(f"{name}/{part}") for part in ("gamma", "beta"))
        return self.op("LayerNormalization", x, gamma, beta, epsilon=_EPSILON)

    def activation(self, x: str) -> str:
        """The network's `hidden_act`."""
        if self.act in ("gelu", "gelu_tanh"):
            approximate = "tanh" if self.act == "gelu_tanh" else "none"
            return self.op("Gelu", x, approximate=approximate)
        kinds = {"relu": "Relu", "tanh": "Tanh", "linear": "Identity"}
        return self.op(kinds[self.act], x)


def encode(graph: Graph, shape: ModelConfig) -> str:
    """Adds the encoder of the weights `electra/...`; returns its states [B, L, H]."""
    op, constant, weight = graph.op, graph.constant, graph.weight
    ids, mask, types = NAMES
    embeddings = f"{ENCODER}embeddings/"
    words = op("Gather", weight(f"{embeddings}word_embeddings"), ids)
    segments = op("Gather", weight(f"{embeddings}token_type_embeddings"), types)
    length = op("Shape", ids, start=1, end=2)
    table = weight(f"{embeddings}position_embeddings")
    positions = op("Slice", table, constant([0]), length, constant([0]))
    x = op("Add", op("Add", words, segments), positions)
    x = graph.norm(x, f"{embeddings}LayerNorm")
    if f"{ENCODER}embeddings_project/kernel" in graph.tensors:
        x = graph.dense(x, f"{ENCODER}embeddings_project")
    visible = op("Cast", op("Unsqueeze", mask, constant([1, 2])), to=1)
    hidden = op("Sub", constant(1, np.float32), visible)
    bias = op("Mul", hidden, constant(_MASKED_SCORE, np.float32))
    for i in range(shape.num_hidden_layers):
        layer = f"{ENCODER}encoder/layer_{i}/"
        attended = _attend(graph, x, bias, shape, f"{layer}attention/")
        wide = graph.activation(graph.dense(attended, f"{layer}intermediate/dense"))
        x = op("Add", graph.dense(wide, f"{layer}output/dense"), attended)
        x = graph.norm(x, f"{layer}output/LayerNorm")
    return x


def _attend(graph: Graph, x: str, bias: str, shape: ModelConfig, name: str) -> str:
    """Self-attention and its residual connection."""
    op, heads = graph.op, shape.num_attention_heads
    size = shape.hidden_size // heads
    apart = graph.constant([0, 0, heads, size])

    def projected(part, order):
        dense = graph.dense(x, f"{name}self/{part}")
        return op("Transpose", op("Reshape", dense, apart), perm=order)

    scale = graph.constant(size**-0.5, np.float32)
    query = op("Mul", projected("query", [0, 2, 1, 3]), scale)
    scores = op("MatMul", query, projected("key", [0, 2, 3, 1]))
    probabilities = op("Softmax", op("Add", scores, bias), axis=-1)
    context = op("MatMul", probabilities, projected("value", [0, 2, 1, 3]))
    context = op("Transpose", context, perm=[0, 2, 1, 3])
    flat = op("Reshape", context, graph.constant([0, 0, shape.hidden_size]))
    sum_ = op("Add", graph.dense(flat, f"{name}output/dense"), x)
    return graph.norm(sum_, f"{name}output/LayerNorm")


# --------------------------------------------------------------------------- heads
# Each adds the nodes on the states [B, L, H]; the names of the outputs are returned.

Head = Callable[[Graph, str], list[str]]


def _encoder(graph: Graph, hidden: str) -> list[str]:
    """The states, and that at [CLS] [B, H]."""
    graph.op("Identity", hidden, output="sequence_output")
    _at_cls(graph, hidden, "pooled_output")
    return ["sequence_output", "pooled_output"]


def _at_cls(graph: Graph, hidden: str, output: str | None = None) -> str:
    return graph.op("Gather", hidden, graph.constant(0), axis=1, output=output)


def _detector(graph: Graph, hidden: str) -> list[str]:
    """Logits of "replaced" and their probabilities [B, L]."""
    dense = graph.activation(graph.dense(hidden, f"{DISCRIMINATOR_HEAD}dense"))
    logits = graph.dense(dense, f"{DISCRIMINATOR_HEAD}dense_1")
    logits = graph.op("Squeeze", logits, graph.constant([2]), output="logits")
    return [logits, graph.op("Sigmoid", logits, output="probabilities")]


def _generator(graph: Graph, hidden: str) -> list[str]:
    """Scores of all tokens at the masked positions [B, N, V]."""
    op = graph.op
    places = op("Unsqueeze", POSITIONS, graph.constant([2]))
    places = op("Cast", places, to=7)
    states = op("GatherND", hidden, places, batch_dims=1)
    states = graph.activation(graph.dense(states, f"{GENERATOR_HEAD}dense"))
    states = graph.norm(states, f"{GENERATOR_HEAD}LayerNorm")
    table = op("Transpose", graph.weight(f"{ENCODER}embeddings/word_embeddings"))
    scores = op("MatMul", states, table)
    bias = graph.weight(f"{GENERATOR_HEAD}output_bias")
    return [op("Add", scores, bias, output="mlm_logits")]


def _head_of(task: finetuned.ExportedTask) -> Head:
    """The head of a classifier, a regression or a tagger."""
    facts, name = task.facts, f"task_specific/{task.facts.name}/dense"

    def labels(graph: Graph, hidden: str) -> list[str]:
        states = hidden if facts.kind == "tagging" else _at_cls(graph, hidden)
        logits = graph.op("Identity", graph.dense(states, name), output="logits")
        return [logits, graph.op("Softmax", logits, axis=-1, output="probabilities")]

    def number(graph: Graph, hidden: str) -> list[str]:
        op = graph.op
        share = graph.dense(_at_cls(graph, hidden), name)
        ends = (graph.constant(value, np.float32) for value in (0, 1))
        share = op("Clip", op("Squeeze", share, graph.constant([1])), *ends)
        width = graph.constant(facts.highest - facts.lowest, np.float32)
        lowest = graph.constant(facts.lowest, np.float32)
        return [op("Add", op("Mul", share, width), lowest, output="value")]

    return labels if facts.labels else number


# ------------------------------------------------------------------------- writing


def model_of(
    tensors: Mapping[str, np.ndarray], shape: ModelConfig, head: Head, inputs
) -> Any:
    """An ONNX model, checked by the library.

    Args:
      inputs: names of the inputs, int32 [B, L] (masked positions [B, N]).
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = Graph(tensors, shape.hidden_act)
    outputs = head(graph, encode(graph, shape))
    axes = {name: ["batch", "length"] for name in inputs} | {
        POSITIONS: ["batch", "masks"]
    }
    made = helper.make_graph(
        graph.nodes,
        "electra",
        [
            helper.make_tensor_value_info(name, TensorProto.INT32, axes[name])
            for name in inputs
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, name) for name, a in graph.constants.items()],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(made, opset_imports=[opset], producer_name="electra_tf")
    model.ir_version = 10  # what opset 20 came with, for older runtimes
    model = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(model)
    return model


def write(model, path: Path, precision: str) -> None:
    """Writes a model; int8 quantises its weights, activations as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx.save_model(model, path)
    if precision == "int8":
        whole = path.with_suffix(".float32")
        path.rename(whole)
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8)
        whole.unlink()


def measure(path: Path, check: Check, precision: str) -> list[verification.Result]:
    """How far onnxruntime is from what the model says; `UserError` (65) if too far."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, check.inputs), strict=True))
    mask = check.inputs["input_mask"]
    results = []
    for name in names:
        expected = check.expected[name]
        by_token = expected.shape[:2] == mask.shape and name != "mlm_logits"
        gap = verification.difference(
            expected, found[name], mask if by_token else None, relative=True
        )
        quantity, reader = f"{path.stem}/{name}", f"onnxruntime, {precision}"
        results.append(verification.Result(quantity, reader, gap, TOLERANCE[precision]))
    verification.require(results)
    return results


def export_onnx(request: ExportRequest) -> str:
    """A file for each part, or for one task, with the vocabulary and a card."""
    for package in ("onnx", "onnxruntime"):
        _need(package)
    parts: dict[str, tuple]
    if request.what in (None, *WHAT):
        stored = request.read_model()
        parts = _parts(stored, request.what)
    else:
        stored, parts = _task(request)
    results = []
    with new_folder(request.output_dir) as folder:
        for what, (tensors, shape, head, check) in parts.items():
            require_room(folder, tensors)
            path = folder / f"{what}.onnx"
            write(model_of(tensors, shape, head, check.inputs), path, request.precision)
            results += measure(path, check, request.precision)
        write_settings(
            write_tokens(folder / "vocab.txt", stored.vocab.tokens),
            stored.tokenizer_config,
        )
        (folder / "README.md").write_text(_card(stored, parts), encoding="utf-8")
        facts = {"precision": request.precision, "opset": OPSET}
        what = request.what or "all"
        verification.write_manifest(folder, stored, "onnx", what, results, facts)
    verification.show(results, print)
    return request.output_dir


def _card(stored: StoredModel, parts) -> str:
    what = next(iter(parts))
    more = f'batch["{POSITIONS}"] = ids[:, :1] * 0\n' if what == "generator" else ""
    return _CARD.format(
        name=stored.name,
        what=what,
        length=stored.config.model_config().max_position_embeddings,
        cls_id=stored.vocab.cls_id,
        sep_id=stored.vocab.sep_id,
        more=more,
    )


def _parts(stored: StoredModel, what: str | None) -> dict[str, tuple]:
    """Of each part (weights, shape, head, what the model says to a batch)."""
    source = saved_models.source_of(stored)
    there = [kind for kind in saved_models.kinds_of(source) if kind in WHAT]
    if stored.config.objective == "electric":
        there.remove("detector")  # It needs log q of the noise, which is no network.
    if not networks.is_representable(stored):
        there = [kind for kind in there if kind != "generator"]
    if what not in (None, *there):
        raise UserError(
            f"{stored.origin} has no {what} that can be written as ONNX; it has "
            f"{', '.join(there)}."
        )
    found = {}
    heads = {"encoder": _encoder, "detector": _detector, "generator": _generator}
    for kind in [what] if what else there:
        name = "discriminator" if kind == "detector" else kind
        network = networks.split(stored, name)[name]
        check = _ids_check(saved_models.servable_of(source, kind))
        found[kind] = network.tensors, network.shape, heads[kind], check
    return found


def _task(request: ExportRequest) -> tuple[StoredModel, dict[str, tuple]]:
    """(the encoder with its facts, the part of `_parts`) of a fine-tuned model."""
    folder = finetuned.trial_dir_of(request)
    task = finetuned.read_task(folder, request.what)
    if task.facts.kind == "qa":
        raise UserError(
            f"{request.what}: question answering is not written as ONNX, whose graph "
            "would lack the windows on long texts.\n--format saved_model has it."
        )
    stored = sources.read(folder, task.config.vocab_file)
    tensors = {v.path: np.asarray(v) for v in task.variables}
    check = _ids_check(saved_models.TASKS[task.facts.kind](task))
    shape = task.config.model_config()
    name = request.what.replace(":", ".")
    return stored, {name: (tensors, shape, _head_of(task), check)}


def _ids_check(servable) -> Check:
    return next(check for check in servable.checks if NAMES[0] in check.inputs)


def _need(package: str) -> None:
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise UserError(
            f'--format onnx needs the package {package}: pip install -e ".[onnx]"'
        )
