# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX, for onnxruntime: ids in, numbers out, any batch and length.

The graph is written node by node: an encoder and its heads are few kinds of nodes, and
the converter from TensorFlow's graphs (tf2onnx) looks for a maintainer. Inputs and
outputs are those of the SavedModels' signature `ids`; each file has to pass its check
in onnxruntime.

Shapes: B batch, L length, H hidden width, N masked positions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.errors import UserError
from electra_tf.export import finetuned_task, saved_model
from electra_tf.export.finetuned_task import ExportedTask
from electra_tf.export.request import ExportRequest
from electra_tf.export.signatures import NAMES, Check
from electra_tf.finetune.model import IMPOSSIBLE_POSITION
from electra_tf.inference import finetuned
from electra_tf.interop import cards, checkpoint, networks, readers, verification
from electra_tf.interop.checkpoint import DISCRIMINATOR_HEAD, GENERATOR_HEAD
from electra_tf.interop.networks import ENCODER
from electra_tf.model.encoder import MASKED_SCORE
from electra_tf.model.transformer_layer import LAYER_NORM_EPSILON
from electra_tf.storage.atomic_folder import atomic_folder, require_room
from electra_tf.text.vocabulary import write_settings, write_tokens

POSITIONS = "masked_lm_positions"
OPSET = 20  # the first with Gelu
# Type of the weights -> allowed difference, relative beyond 1; None: only measured.
TOLERANCE = {"float32": 1e-4, "int8": None}


class Graph:
    """Nodes and weights of a network.

    Args:
      tensors: the weights by the original's names.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], act: str):
        self.tensors, self.act = tensors, act
        self.nodes: list = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes):
        """Adds a node with one output; returns the output's name."""
        name = output or f"{kind}_{len(self.nodes)}"
        return self.ops(kind, *inputs, outputs=[name], **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: list[str], **attributes):
        """Adds a node; returns the names of its outputs."""
        from onnx import helper

        node = helper.make_node(kind, list(inputs), outputs, outputs[0], **attributes)
        self.nodes.append(node)
        return outputs

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
        return self.op("LayerNormalization", x, gamma, beta, epsilon=LAYER_NORM_EPSILON)

    def squeeze(self, x: str, axis: int, output: str | None = None) -> str:
        """x without an axis of length 1."""
        return self.op("Squeeze", x, self.constant([axis]), output=output)

    def at_cls(self, hidden: str, output: str | None = None) -> str:
        """The states of the first position."""
        return self.op("Gather", hidden, self.constant(0), axis=1, output=output)

    def activation(self, x: str) -> str:
        """The network's `hidden_act`."""
        if self.act in ("gelu", "gelu_tanh"):
            approximate = "tanh" if self.act == "gelu_tanh" else "none"
            return self.op("Gelu", x, approximate=approximate)
        kinds = {"relu": "Relu", "tanh": "Tanh", "linear": "Identity"}
        return self.op(kinds[self.act], x)


def encode(graph: Graph, shape: ModelConfig, types: str = NAMES[2]) -> str:
    """Adds the encoder; returns its states [B, L, H].

    Args:
      types: the name of the segment ids.
    """
    op, constant, weight = graph.op, graph.constant, graph.weight
    ids, mask, _ = NAMES
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
    bias = op("Mul", hidden, constant(MASKED_SCORE, np.float32))
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


# Adds its nodes on the states [B, L, H]; returns the names of its outputs, as in the
# SavedModels' signature `ids`.
Head = Callable[[Graph, str], list[str]]


class Part(NamedTuple):
    """The content of a file."""

    tensors: Mapping[str, np.ndarray]  # by the original's names
    shape: ModelConfig
    head: Head
    check: Check  # a batch and the model's outputs by name
    types: str = NAMES[2]  # the input that segments are read from
    least_length: int = 2  # of the ids of a text


def model_of(part: Part) -> Any:
    """An ONNX model, checked by the library.

    Its inputs are those of the check, int32 [B, L] (masked positions [B, N]).
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = Graph(part.tensors, part.shape.hidden_act)
    outputs = part.head(graph, encode(graph, part.shape, part.types))

    def values(names, axes=None):
        for name in names:
            is_int = axes or name.endswith("_index")
            kind = TensorProto.INT32 if is_int else TensorProto.FLOAT
            shape = ["batch", "masks"] if name == POSITIONS else axes
            yield helper.make_tensor_value_info(name, kind, shape)

    inputs = [*values(part.check.inputs, ["batch", "length"])]
    arrays = [numpy_helper.from_array(a, name) for name, a in graph.constants.items()]
    ends = inputs, [*values(outputs)]
    made = helper.make_graph(graph.nodes, "electra", *ends, arrays)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(made, opset_imports=[opset], producer_name="electra_tf")
    model.ir_version = 10  # the one of opset 20, for older runtimes
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
    """Compares onnxruntime with the model; `UserError` (65) beyond the tolerance."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    mask, results = check.inputs[NAMES[1]], []
    for name, found in zip(names, session.run(None, check.inputs), strict=True):
        expected = check.expected[name]
        counts = mask if expected.shape[:2] == mask.shape else None
        if name.startswith(("start_top_", "end_top_")):
            counts = _clear_of_others(name, check.expected)
        gap = verification.difference(expected, found, counts, relative=True)
        quantity, reader = f"{path.stem}/{name}", f"onnxruntime, {precision}"
        results.append(verification.Result(quantity, reader, gap, TOLERANCE[precision]))
    verification.require(results)
    return results


def _clear_of_others(name: str, expected: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which of the best starts or ends no rounding can put in another order."""

    def clear(log_probs):
        gaps = -np.diff(log_probs, axis=-1, prepend=np.inf, append=log_probs[..., -1:])
        return np.minimum(gaps[..., :-1], gaps[..., 1:]) > 1e-3

    starts = clear(expected["start_top_log_probs"])
    if name.startswith("start"):
        return starts
    return starts[..., None] & clear(expected["end_top_log_probs"])


def export_onnx(request: ExportRequest) -> str:
    """A file for each part, or for one task, with the vocabulary and a card."""
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f'--format onnx needs the package {package}: pip install -e ".[onnx]"'
            )
    facts: dict[str, Any] = {"precision": request.precision, "opset": OPSET}
    if request.what in (None, *WHAT):
        stored = request.read_model()
        parts = _parts(stored, request.what)
    else:
        task = finetuned_task.task_of(request)
        parts = {request.what.replace(":", "."): _part_of_task(task)}
        stored = readers.read(task.folder, task.config.vocab_file)
        settings = finetuned.settings_of(task.facts, task.config)
        facts |= {"labels": list(task.facts.labels), "task": settings}
    results = []
    with atomic_folder(request.output_dir) as folder:
        for what, part in parts.items():
            require_room(folder, part.tensors)
            path = folder / f"{what}.onnx"
            write(model_of(part), path, request.precision)
            results += measure(path, part.check, request.precision)
        vocab = write_tokens(folder / "vocab.txt", stored.vocab.tokens)
        write_settings(vocab, stored.tokenizer_config)
        cards.write(folder, _card(stored, parts, facts))
        what = request.what or "all"
        verification.write_manifest(folder, stored, "onnx", what, results, facts)
    verification.show(results, print)
    return request.output_dir


def _card(
    stored: checkpoint.StoredModel, parts: Mapping[str, Part], facts: Mapping[str, Any]
) -> str:
    what, part = next(iter(parts.items()))
    more = f'batch["{POSITIONS}"] = ids[:, :1] * 0\n' if what == "generator" else ""
    is_qa = "has_impossible" in facts.get("task", {})
    cls, sep = stored.vocab.cls_id, stored.vocab.sep_id
    meaning = "labels" if facts.get("labels") else "settings" if is_qa else None
    return cards.fill(
        "onnx",
        "card",
        name=stored.name,
        what=what,
        length=part.shape.max_position_embeddings,
        ids=f"[{cls}] + [{sep}] * {part.least_length - 1}",
        more=more,
        meaning=cards.fill("onnx", meaning) if meaning else "",
    )


def _parts(stored: checkpoint.StoredModel, what: str | None) -> dict[str, Part]:
    """The parts of a pre-trained model to write."""
    source = saved_model.source_of(stored)
    others = ["detector"] if source.pretrainer.objective.needs_log_q else []
    if not networks.is_representable(stored):
        others.append("generator")
    known = [kind for kind in WHAT if kind not in others]
    found = {}
    for kind in saved_model.parts_of(source, what, "onnx", known):
        name = {"detector": "discriminator", "scorer": "discriminator"}.get(kind, kind)
        network = networks.split(stored, name)[name]
        check = saved_model.WHAT[kind](source).checks[-1]
        found[kind] = Part(network.tensors, network.shape, WHAT[kind], check)
    return found


def _part_of_task(task: ExportedTask) -> Part:
    served = saved_model.TASKS[task.facts.kind](task)
    check = served.checks[-1]
    # With the order of the best, which a SavedModel's own check leaves out.
    found = served.signatures[check.signature](**check.inputs)
    expected = {name: np.asarray(value) for name, value in found.items()}
    return Part(
        {v.path: np.asarray(v) for v in task.variables},
        task.config.model_config(),
        of_task(task),
        check._replace(expected=expected),
        # Taggers are trained with segment 1 throughout.
        NAMES[1 if task.facts.kind == "tagging" else 2],
        task.config.beam_size if task.facts.kind == "qa" else 2,
    )


def encoder(graph: Graph, hidden: str) -> list[str]:
    """The states, and that at [CLS] [B, H]."""
    graph.op("Identity", hidden, output="sequence_output")
    graph.at_cls(hidden, "pooled_output")
    return ["sequence_output", "pooled_output"]


def _energies(graph: Graph, hidden: str) -> str:
    dense = graph.activation(graph.dense(hidden, f"{DISCRIMINATOR_HEAD}dense"))
    return graph.squeeze(graph.dense(dense, f"{DISCRIMINATOR_HEAD}dense_1"), 2)


def detector(graph: Graph, hidden: str) -> list[str]:
    """Logits of "replaced" and their probabilities [B, L]."""
    logits = graph.op("Identity", _energies(graph, hidden), output="logits")
    return [logits, graph.op("Sigmoid", logits, output="probabilities")]


def scorer(graph: Graph, hidden: str) -> list[str]:
    """Electric's scores of the tokens [B, L], 0 at padding."""
    real = graph.op("Cast", NAMES[1], to=1)
    scores = graph.op("Neg", _energies(graph, hidden))
    return [graph.op("Mul", scores, real, output="token_scores")]


def generator(graph: Graph, hidden: str) -> list[str]:
    """Scores of all tokens at the masked positions [B, N, V]."""
    states = _states_at(graph, hidden, POSITIONS)
    states = graph.activation(graph.dense(states, f"{GENERATOR_HEAD}dense"))
    states = graph.norm(states, f"{GENERATOR_HEAD}LayerNorm")
    table = graph.weight(f"{ENCODER}embeddings/word_embeddings")
    scores = graph.op("MatMul", states, graph.op("Transpose", table))
    bias = graph.weight(f"{GENERATOR_HEAD}output_bias")
    return [graph.op("Add", scores, bias, output="mlm_logits")]


def _states_at(graph: Graph, hidden: str, positions: str) -> str:
    """The states [B, N, H] at positions [B, N]."""
    places = graph.op("Unsqueeze", positions, graph.constant([2]))
    places = graph.op("Cast", places, to=7)
    return graph.op("GatherND", hidden, places, batch_dims=1)


WHAT = {
    "encoder": encoder,
    "detector": detector,
    "generator": generator,
    "scorer": scorer,
}


def of_task(task: ExportedTask) -> Head:
    """The head of a classifier, a regression, a tagger or of question answering."""
    facts, scope = task.facts, f"task_specific/{task.facts.name}/dense"

    def labels(graph: Graph, hidden: str) -> list[str]:
        op = graph.op
        states = hidden if facts.kind == "tagging" else graph.at_cls(hidden)
        logits = op("Identity", graph.dense(states, scope), output="logits")
        if facts.kind == "multilabel":
            return [logits, op("Sigmoid", logits, output="probabilities")]
        return [logits, op("Softmax", logits, axis=-1, output="probabilities")]

    def number(graph: Graph, hidden: str) -> list[str]:
        op = graph.op
        share = graph.squeeze(graph.dense(graph.at_cls(hidden), scope), 1)
        ends = (graph.constant(value, np.float32) for value in (0, 1))
        share = op("Clip", share, *ends)
        width = graph.constant(facts.highest - facts.lowest, np.float32)
        lowest = graph.constant(facts.lowest, np.float32)
        return [op("Add", op("Mul", share, width), lowest, output="value")]

    def spans(graph: Graph, hidden: str) -> list[str]:
        """The outputs of `heads.QuestionAnsweringHead` without training."""
        op, penalty = graph.op, _penalty(graph)
        # Layers are named in the order in which they are made.
        layers = iter(f"{scope}{n}" for n in ("", "_1", "_2", "_3"))
        starts = graph.squeeze(graph.dense(hidden, next(layers)), 2)
        starts = op("Add", starts, penalty, output="start_logits")
        end, names = next(layers), [starts]
        if task.config.joint_prediction:
            hidden_layer = f"task_specific/{facts.name}/qa_hidden"
            beam = hidden, starts, penalty, task.config.beam_size
            names += _beams(graph, *beam, hidden_layer, end)
        else:
            ends = graph.squeeze(graph.dense(hidden, end), 2)
            names.append(op("Add", ends, penalty, output="end_logits"))
        if task.config.answerable_classifier:
            state = graph.at_cls(hidden)
            if task.config.answerable_uses_start_logits:
                shares = op("Softmax", starts)
                shares = op("Unsqueeze", shares, graph.constant([1]))
                expected = graph.squeeze(op("MatMul", shares, hidden), 1)
                both = op("Concat", state, expected, axis=-1)
                state = op("Gelu", graph.dense(both, next(layers)))
            logit = graph.dense(state, next(layers))
            names.append(graph.squeeze(logit, 1, "answerable_logit"))
        return names

    if facts.kind == "qa":
        return spans
    return labels if facts.labels else number


def _penalty(graph: Graph) -> str:
    """The penalty that keeps answers out of question and padding [B, L]."""
    op, constant = graph.op, graph.constant
    in_text = op("Cast", op("Mul", NAMES[1], NAMES[2]), to=1)
    length = op("Shape", NAMES[0], start=1, end=2)
    cls = op("OneHot", constant([0]), length, constant([0, 1], np.float32))
    outside = op("Sub", constant(1, np.float32), op("Add", in_text, cls))
    return op("Mul", outside, constant(IMPOSSIBLE_POSITION, np.float32))


def _beams(graph, hidden, starts, penalty, count, hidden_layer, end) -> list[str]:
    """The best starts and for each the best ends, with their log-probabilities."""
    op, constant = graph.op, graph.constant

    def best(logits: str, which: str) -> list[str]:
        names = [f"{which}_top_index", f"{which}_top_log_probs"]
        log_probs, size = op("LogSoftmax", logits, axis=-1), constant([count])
        _, where = graph.ops(
            "TopK", log_probs, size, outputs=[names[1], f"{which}_TopK"]
        )
        op("Cast", where, to=6, output=names[0])
        return names

    names = best(starts, "start")
    states = _states_at(graph, hidden, names[0])
    # The layer sees start and end side by side: its product is a sum of two.
    kernel, halves = graph.weight(f"{hidden_layer}/kernel"), ["OfStart", "OfEnd"]
    graph.ops("Split", kernel, outputs=halves, axis=0, num_outputs=2)
    of_start = op("MatMul", states, halves[0])
    of_start = op("Add", of_start, graph.weight(f"{hidden_layer}/bias"))
    of_start = op("Unsqueeze", of_start, constant([2]))
    of_end = op("Unsqueeze", op("MatMul", hidden, halves[1]), constant([1]))
    pairs = op("Gelu", op("Add", of_start, of_end))
    scores = graph.squeeze(graph.dense(pairs, end), 3)
    return names + best(
        op("Add", scores, op("Unsqueeze", penalty, constant([1]))), "end"
    )
