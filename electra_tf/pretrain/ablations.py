# SPDX-License-Identifier: Apache-2.0
"""The objectives between BERT and ELECTRA, by which the paper explains the difference.

Section 3.5 and Table 5 of the ELECTRA paper.

Shapes: B batch, L length, N masked positions, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from electra_tf.config.objectives import TOKEN_HEAD
from electra_tf.pretrain import masking, metric_sums, metrics
from electra_tf.pretrain.discriminator import discriminator_head
from electra_tf.pretrain.generator import weighted_mean
from electra_tf.pretrain.masked_lm_generator import masked_lm_head
from electra_tf.pretrain.objectives import Electra, Objective


class Electra15(Electra):
    """ELECTRA whose loss counts the masked positions only, or as many of another draw.

    The paper's footnote to section 3.5 has the other draw; where the discriminator
    learned from unmasked positions alone, all its labels would be "original".
    """

    name = "electra_15"
    model = "an ELECTRA 15 %"
    description = (
        "ELECTRA 15 %: as ELECTRA, but it learned from as many tokens as are masked"
    )
    # Its odds are those of the positions that it learned from: no log-probability.
    scoring = None

    def positions(self, inputs):
        if self.settings.electra_15_positions == "other":
            return inputs.other_weights
        length = tf.shape(inputs.input_ids)[1]
        masked = masking.positions_mask(inputs.masked_lm_positions, length)
        return tf.cast(masked, tf.float32)


class TokenPredictions(NamedTuple):
    """What the main network predicts of the original text, at M positions of a row."""

    per_token_loss: tf.Tensor  # float32 [B, M]
    predictions: tf.Tensor  # int32 [B, M]
    targets: tf.Tensor  # int32 [B, M]
    is_replaced: tf.Tensor  # bool [B, M]: it read another token there
    weights: tf.Tensor  # float32 [B, M], 1 at the positions that count
    loss: tf.Tensor  # scalar: mean over them
    probs: tf.Tensor | None = None  # float32 [B, L], that a token is not copied


class ReplaceMLM(Objective):
    """Masked language modeling whose input has samples in place of [MASK]."""

    name = "replace_mlm"
    model = "a Replace MLM"
    description = (
        "Replace MLM: a masked language model that read a generator's samples in place "
        "of [MASK]"
    )
    metrics = (*Objective.metrics, metrics.SAMPLED_ACCURACY, *metrics.TOKEN_METRICS)

    def heads(self, config, dtype):
        return [masked_lm_head(config, self.settings.embedding_size, TOKEN_HEAD, dtype)]

    def discriminate(self, model, text, seed, weights):
        inputs, states = text.inputs, text.states(model.electra, seed)
        positions, targets = inputs.masked_lm_positions, inputs.masked_lm_ids
        hidden = masking.gather_positions(states, positions)
        head = model.token_predictions
        table = model.electra.embeddings.table("word_embeddings")
        logits = head.logits(head(hidden), table)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return TokenPredictions(
            losses,
            tf.argmax(logits, axis=-1, output_type=tf.int32),
            targets,
            masking.gather_positions(text.is_replaced, positions),
            inputs.masked_lm_weights,
            weighted_mean(losses, inputs.masked_lm_weights, weights.discriminator),
        )

    def loss_weight(self, inputs):
        return tf.reduce_sum(inputs.masked_lm_weights)

    def sums(self, output, batch):
        sums = super().sums(output, batch) | metric_sums.sampled_sums(output, batch)
        return sums | metric_sums.token_sums(output.discriminated)


class AllTokensMLM(ReplaceMLM):
    """Predicts every token of the original text, most of them by copying.

    The head that tells replaced tokens elsewhere says here how likely a token is not
    simply to be copied, 1 - D: p(v) = D 1[v = corrupted token] + (1 - D) softmax_v.
    """

    name = "all_tokens_mlm"
    model = "an All-Tokens MLM"
    description = (
        "All-Tokens MLM: a language model that read a text with a generator's samples "
        "in it and predicted every token of the original, by copying or anew"
    )

    def heads(self, config, dtype):
        return [*super().heads(config, dtype), discriminator_head(config, dtype)]

    def discriminate(self, model, text, seed, weights):
        states = text.states(model.electra, seed)
        head, targets = model.token_predictions, text.inputs.input_ids
        table = model.electra.embeddings.table("word_embeddings")
        hidden = head(states)  # [B, L, E]
        normalizer, best = head.log_normalizer(
            hidden, table, self.settings.cloze_chunk_size
        )
        new_logits = model.discriminator_predictions(states)

        def log_p(ids):
            log_softmax = head.scores(hidden, ids, table) - normalizer
            return log_with_copying(new_logits, log_softmax, ids == text.ids)

        losses, counted = -log_p(targets), self.positions(text.inputs)
        copies = log_p(text.ids) >= log_p(best)
        return TokenPredictions(
            losses,
            tf.where(copies, text.ids, best),
            targets,
            targets != text.ids,
            counted,
            weighted_mean(losses, counted, weights.discriminator),
            tf.sigmoid(new_logits),
        )

    def loss_weight(self, inputs):
        return Objective.loss_weight(self, inputs)


def log_with_copying(
    new_logits: tf.Tensor, log_softmax: tf.Tensor, is_copy: tf.Tensor
) -> tf.Tensor:
    """log p of tokens where a token is copied with probability sigmoid(-new_logits).

    Args:
      log_softmax: log-probability of the tokens if they are not copied.
      is_copy: bool, whether the token is the one that would be copied.

    Returns float32 of the shape of all three.
    """
    log_copied = tf.math.log_sigmoid(-new_logits)
    log_new = tf.math.log_sigmoid(new_logits) + log_softmax
    return log_new + tf.where(is_copy, tf.nn.softplus(log_copied - log_new), 0.0)
