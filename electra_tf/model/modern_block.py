# SPDX-License-Identifier: Apache-2.0
"""ModernBERT's block: pre-norm, rotary positions, local attention, a gated layer.

As in arXiv 2412.13663 and transformers' ModernBertModel. It has no biases. Layer i
attends to all tokens if i is a multiple of `global_every`, else to those at most
`local_window // 2` away; the two kinds have different bases of the rotary positions.
Layer 0 has no norm before its attention, as that of the embeddings precedes it.

The weights of a layer, H hidden and I intermediate_size:

    attention/LayerNorm/gamma        [H]     not of layer 0
    attention/self/{query,key,value}/kernel [H, H]
    attention/output/dense/kernel    [H, H]
    intermediate/LayerNorm/gamma     [H]
    intermediate/dense/kernel        [H, I]  the half that is activated
    intermediate/gate/kernel         [H, I]
    output/dense/kernel              [I, H]

Kernels are apart where other programs have one for all: optimizers that see matrices
need it so, and the gradient of tf.split makes XLA slow (`attention.swap_heads`).
"""

from __future__ import annotations

import math

import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.model.attention import attend, attend_locally, rotated, swap_heads
from electra_tf.model.blocks import Block
from electra_tf.model.dropout import dropout, fold_in


class ModernBlock(Block):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, index: int, *args, **kwargs):
        super().__init__(config, index, *args, **kwargs)
        self.is_first, self.is_global = index == 0, index % config.global_every == 0
        self.variant = self.is_first, self.is_global
        first = {} if self.is_first else {"layer_norm": self._norm()}
        own = {"self_attention": self._self_attention()}
        own["output_layer"] = self._output()
        self.attention = self._scope("attention", **first, **own)
        width = config.intermediate_size
        parts = {name: self._dense(name, width) for name in ("dense", "gate")}
        parts = {"layer_norm": self._norm()} | parts
        self.intermediate = self._scope("intermediate", **parts)
        self.output_layer = self._output()

    def _output(self):
        dense = self._dense(stddev=self.config.output_range)
        return self._scope("output", dense=dense)

    def call(
        self, x: tf.Tensor, score_bias: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """As `BertBlock.call`."""
        rate, wide = self.config.hidden_dropout_prob, self.intermediate
        normal = x if self.is_first else self.attention.layer_norm(x)
        context = self._attend(normal, score_bias, fold_in(seed, 0))
        context = self.attention.output_layer.dense(context)
        x += dropout(context, rate, fold_in(seed, 1))
        normal = wide.layer_norm(x)
        gated = self.activation(wide.dense(normal)) * wide.gate(normal)
        return x + self.output_layer.dense(dropout(gated, rate, fold_in(seed, 2)))

    def _attend(self, x, score_bias, seed) -> tf.Tensor:
        """Self-attention: [B * L, H]."""
        config, own = self.config, self.attention.self_attention
        length = score_bias.shape[-1] or tf.shape(score_bias)[-1]
        parts = [self._heads(p, x, length) for p in (own.query, own.key, own.value)]
        theta = config.global_rope_theta if self.is_global else config.local_rope_theta
        query, key = (rotated(part, theta) for part in parts[:2])
        query *= tf.cast(1 / math.sqrt(self.head_size), query.dtype)
        given = query, key, parts[2], score_bias
        rate = config.attention_probs_dropout_prob
        if self.is_global:
            context = attend(*given, rate, seed)
        else:
            reach = config.local_window // 2
            context = attend_locally(*given, reach, self.direction, rate, seed)
        return tf.reshape(swap_heads(context), [-1, config.hidden_size])
