# SPDX-License-Identifier: Apache-2.0
"""KerasHub's names for the weights of an encoder; its kernels are split by head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.interop.names import Entry

_EMBEDDINGS = (
    ("word_embeddings", "token_embedding/embeddings"),
    ("position_embeddings", "position_embedding/embeddings"),
    ("token_type_embeddings", "segment_embedding/embeddings"),
    ("LayerNorm/gamma", "embeddings_layer_norm/gamma"),
    ("LayerNorm/beta", "embeddings_layer_norm/beta"),
)
_PROJECT = "embeddings_project", "embeddings_projection"
_ATTENTION = ("query", "key", "value")
_DENSE = (
    ("intermediate/dense", "feedforward_intermediate_dense"),
    ("output/dense", "feedforward_output_dense"),
)
_NORMS = (
    ("attention/output/LayerNorm", "self_attention_layer_norm"),
    ("output/LayerNorm", "feedforward_layer_norm"),
)


def name_table(shape: ModelConfig) -> list[Entry]:
    """Every weight that an encoder of a shape can have."""
    table = [Entry(f"electra/embeddings/{o}", t) for o, t in _EMBEDDINGS]
    table += [
        Entry(f"electra/{_PROJECT[0]}/{name}", f"{_PROJECT[1]}/{name}")
        for name in ("kernel", "bias")
    ]
    width, heads = shape.hidden_size, shape.num_attention_heads
    each = width // heads
    for i in range(shape.num_hidden_layers):
        ours, theirs = f"electra/encoder/layer_{i}", f"transformer_layer_{i}"
        for name in _ATTENTION:
            here = f"{ours}/attention/self/{name}"
            there = f"{theirs}/self_attention_layer/{name}"
            table.append(
                _reshaped(here, there, "kernel", (width, heads, each), (width, width))
            )
            table.append(_reshaped(here, there, "bias", (heads, each), (width,)))
        here = f"{ours}/attention/output/dense"
        there = f"{theirs}/self_attention_layer/attention_output"
        table.append(
            _reshaped(here, there, "kernel", (heads, each, width), (width, width))
        )
        table.append(Entry(f"{here}/bias", f"{there}/bias"))
        for names, weights in (
            (_DENSE, ("kernel", "bias")),
            (_NORMS, ("gamma", "beta")),
        ):
            table += [
                Entry(f"{ours}/{o}/{w}", f"{theirs}/{t}/{w}")
                for o, t in names
                for w in weights
            ]
    return table


def _reshaped(here: str, there: str, weight: str, theirs, ours) -> Entry:
    return Entry(f"{here}/{weight}", f"{there}/{weight}", _to(theirs), _to(ours))


def _to(shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array.reshape(shape)
