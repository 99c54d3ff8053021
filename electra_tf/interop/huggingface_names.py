# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's names for the weights of a network.

Its kernels of dense layers are ours transposed.
"""

from __future__ import annotations

import numpy as np

from electra_tf.interop.names import Entry

_TABLES = (
    "electra/embeddings/word_embeddings",
    "electra/embeddings/position_embeddings",
    "electra/embeddings/token_type_embeddings",
)
_NORM, _DENSE = "norm", "dense"
_MODULES = (
    (_NORM, "electra/embeddings/LayerNorm", "electra.embeddings.LayerNorm"),
    (_DENSE, "electra/embeddings_project", "electra.embeddings_project"),
    (_DENSE, "discriminator_predictions/dense", "discriminator_predictions.dense"),
    (
        _DENSE,
        "discriminator_predictions/dense_1",
        "discriminator_predictions.dense_prediction",
    ),
    (_DENSE, "generator_predictions/dense", "generator_predictions.dense"),
    (_NORM, "generator_predictions/LayerNorm", "generator_predictions.LayerNorm"),
    (_DENSE, "classifier", "classifier"),
)
_LAYER_MODULES = (
    (_DENSE, "attention/self/query"),
    (_DENSE, "attention/self/key"),
    (_DENSE, "attention/self/value"),
    (_DENSE, "attention/output/dense"),
    (_NORM, "attention/output/LayerNorm"),
    (_DENSE, "intermediate/dense"),
    (_DENSE, "output/dense"),
    (_NORM, "output/LayerNorm"),
)
# The scores of the vocabulary are the word embeddings transposed, plus this bias.
_OUTPUT_BIAS = Entry("generator_predictions/output_bias", "generator_lm_head.bias")


def name_table(num_layers: int) -> list[Entry]:
    """Every weight that a network of `num_layers` can have."""
    modules = list(_MODULES)
    for i in range(num_layers):
        modules += [
            (
                kind,
                f"electra/encoder/layer_{i}/{name}",
                f"electra.encoder.layer.{i}.{name.replace('/', '.')}",
            )
            for kind, name in _LAYER_MODULES
        ]
    table = [Entry(name, name.replace("/", ".") + ".weight") for name in _TABLES]
    table.append(_OUTPUT_BIAS)
    for kind, ours, theirs in modules:
        if kind == _DENSE:
            table.append(
                Entry(f"{ours}/kernel", f"{theirs}.weight", np.transpose, np.transpose)
            )
            table.append(Entry(f"{ours}/bias", f"{theirs}.bias"))
        else:
            table.append(Entry(f"{ours}/gamma", f"{theirs}.weight"))
            table.append(Entry(f"{ours}/beta", f"{theirs}.bias"))
    return table
