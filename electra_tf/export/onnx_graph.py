# SPDX-License-Identifier: Apache-2.0
"""The encoder as an ONNX graph, node by node, and what its heads are built with.

Shapes: B batch, L length, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.export.signatures import NAMES
from electra_tf.interop.networks import ENCODER
from electra_tf.model.encoder import MASKED_SCORE
from electra_tf.model.transformer_layer import LAYER_NORM_EPSILON


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
