# SPDX-License-Identifier: Apache-2.0
"""ELECTRA that also tells whether a text was corrupted at all.

The sentence-level objective among the negative results of the ELECTRA paper (appendix
H): a share of the inputs stays intact, and a head at [CLS] says which those are.
As with tokens, samples that are the original corrupt nothing.

Shapes: B batch, L length.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from electra_tf.config.objectives import SENTENCE_HEAD
from electra_tf.pretrain import metric_sums, metrics
from electra_tf.pretrain.discriminator import discriminator_head
from electra_tf.pretrain.generator import weighted_mean
from electra_tf.pretrain.objectives import Electra


class Sentences(NamedTuple):
    """What the head at [CLS] says of each sequence of a batch."""

    logits: tf.Tensor  # float32 [B], log odds that it was corrupted
    labels: tf.Tensor  # float32 [B], 1 where it was
    losses: tf.Tensor  # float32 [B]
    loss: tf.Tensor  # scalar: mean over the sequences of the global batch


def judged(logits: tf.Tensor, is_replaced: tf.Tensor, total) -> Sentences:
    """Binary cross-entropy of "was any token replaced?".

    Args:
      logits: float32 [B].
      is_replaced: bool [B, L].
      total: sequences of the global batch; None: those of this one.
    """
    labels = tf.cast(tf.reduce_any(is_replaced, axis=1), tf.float32)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = weighted_mean(losses, tf.ones_like(losses), total)
    return Sentences(logits, labels, losses, loss)


class ElectraSentence(Electra):
    """Replaced token detection, and a verdict on the whole input."""

    name = "electra_sentence"
    model = "an ELECTRA with a sentence objective"
    description = (
        "ELECTRA with a sentence-level objective: a generator replaced tokens of most "
        "texts, the model learned which tokens and in which texts"
    )
    masks_evenly = False
    metrics = (*Electra.metrics, *metrics.SENTENCE_METRICS)

    def heads(self, config, dtype):
        return [
            *super().heads(config, dtype),
            discriminator_head(config, dtype, SENTENCE_HEAD),
        ]

    def filled_positions(self, inputs):
        positions = inputs.masked_lm_positions
        if inputs.is_intact is None:
            return positions
        return tf.where(inputs.is_intact > 0, 0, positions)

    def loss_weight(self, inputs):
        """Tokens and sequences, float32 [2]."""
        rows = tf.cast(tf.shape(inputs.input_ids)[0], tf.float32)
        return tf.stack([super().loss_weight(inputs), rows])

    def judge(self, model, hidden, text, total):
        tokens, rows = (None, None) if total is None else tf.unstack(total)
        found = super().judge(model, hidden, text, tokens)
        logits = model.sentence_predictions(hidden[:, :1])[:, 0]
        return found._replace(sentences=judged(logits, text.is_replaced, rows))

    def total_loss(self, generated, discriminated):
        loss = super().total_loss(generated, discriminated)
        return loss + self.settings.sentence_weight * discriminated.sentences.loss

    def sums(self, output, batch):
        sentences = output.discriminated.sentences
        return super().sums(output, batch) | metric_sums.sentence_sums(sentences)
