# SPDX-License-Identifier: Apache-2.0
"""Objectives whose main network predicts the tokens of the original text.

Replace MLM and All-Tokens MLM lie between BERT and ELECTRA (section 3.5 and Table 5 of
the ELECTRA paper). Corrective language modeling (COCO-LM, Meng et al., NeurIPS 2021)
and multi-word selection (TEAMS, Shen et al., ACL Findings 2021) are replaced token
detection with a second task at the masked positions; docs/objectives.md says what was
taken from where.

Shapes: B batch, L length, N masked positions, K candidates, V vocabulary, H width.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from electra_tf.config.objectives import CORRECTION_HEAD, SELECTION_HEAD
from electra_tf.model.layers import gather_positions
from electra_tf.pretrain import metrics
from electra_tf.pretrain.generators import weighted_mean
from electra_tf.pretrain.objectives import Electra, Losses, Objective, count

_NEVER = -1e9  # the score of a repeated candidate


class TokenPredictions(NamedTuple):
    """The main network's predictions of the original text, at M positions of a row."""

    per_token_loss: tf.Tensor  # float32 [B, M]
    predictions: tf.Tensor  # int32 [B, M]
    targets: tf.Tensor  # int32 [B, M]
    is_replaced: tf.Tensor  # bool [B, M]: it read another token there
    weights: tf.Tensor  # float32 [B, M], 1 at the positions that count
    loss: tf.Tensor  # scalar: mean over them
    probs: tf.Tensor | None = None  # float32 [B, L], that a token is not copied

    @classmethod
    def at_masked(cls, text, losses, predictions, total) -> TokenPredictions:
        """Of a CorruptedText; `total` weight of the global batch, None: of this one."""
        ids, weights = text.inputs.masked_lm_ids, text.inputs.masked_lm_weights
        positions = text.inputs.masked_lm_positions
        is_replaced = gather_positions(text.is_replaced, positions)
        loss = weighted_mean(losses, weights, total)
        return cls(losses, predictions, ids, is_replaced, weights, loss)

    def sums(self) -> dict[str, tf.Tensor]:
        """The sums that TOKEN_METRICS need."""
        right = self.predictions == self.targets
        replaced = tf.cast(self.is_replaced, tf.float32) * self.weights
        return {
            "token_loss": tf.reduce_sum(self.per_token_loss * self.weights),
            "predicted_tokens": tf.reduce_sum(self.weights),
            "token_correct": count(right, self.weights),
            "predicted_replaced": tf.reduce_sum(replaced),
            "replaced_correct": count(right, replaced),
        }


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


class ReplaceMLM(Objective):
    """Masked language modeling whose input has samples in place of [MASK]."""

    model = "a Replace MLM"
    description = (
        "Replace MLM: a masked language model that read a generator's samples in place "
        "of [MASK]"
    )
    metrics = (*Objective.metrics, metrics.SAMPLED_ACCURACY, *metrics.TOKEN_METRICS)

    def loss(self, model, text, seed, weights):
        found = self.predict(model, text, text.states(model.electra, seed), weights)
        loss = self.config.gen_weight * text.generated.loss
        loss += self.config.disc_weight * found.loss
        return Losses(loss, text.sums() | found.sums(), found)

    def predict(self, model, text, states, weights) -> TokenPredictions:
        """What the main network predicts from its hidden states [B, L, H]."""
        inputs = text.inputs
        positions, targets = inputs.masked_lm_positions, inputs.masked_lm_ids
        hidden = gather_positions(states, positions)
        head = model.token_predictions
        table = model.electra.embeddings.table("word_embeddings")
        logits = head.logits(head(hidden), table)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return TokenPredictions.at_masked(text, losses, best, weights.masked)


class AllTokensMLM(ReplaceMLM):
    """Predicts every token of the original text, most of them by copying.

    The head that tells replaced tokens elsewhere says here how likely a token is not
    simply to be copied, 1 - D: p(v) = D 1[v = corrupted token] + (1 - D) softmax_v.
    """

    model = "an All-Tokens MLM"
    description = (
        "All-Tokens MLM: a language model that read a text with a generator's samples "
        "in it and predicted every token of the original, by copying or anew"
    )

    def predict(self, model, text, states, weights):
        head, targets = model.token_predictions, text.inputs.input_ids
        table = model.electra.embeddings.table("word_embeddings")
        hidden = head(states)  # [B, L, E]
        normalizer, best = head.log_normalizer(hidden, table)
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
            weighted_mean(losses, counted, weights.tokens),
            tf.sigmoid(new_logits),
        )


class TokenTask(Electra):
    """ELECTRA with a head that predicts the original tokens; one class a task."""

    token_head: str
    metrics = (*Electra.metrics, *metrics.TOKEN_METRICS)

    def loss(self, model, text, seed, weights):
        hidden = text.states(model.electra, seed)
        loss, sums, found = self.detect(model, text, hidden, weights)
        head = getattr(model, self.token_head)
        at_masked = gather_positions(hidden, text.inputs.masked_lm_positions)
        transformed = head(at_masked)  # [B, N, E]
        predicted = self.predict(model, head, transformed, text, found.logits)
        tokens = TokenPredictions.at_masked(text, *predicted, weights.masked)
        loss += self.config.token_weight * tokens.loss
        return Losses(loss, sums | tokens.sums(), found)

    def predict(
        self, model, head, transformed, text, logits
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Losses float32 [B, N] and predictions int32 [B, N] at the masked positions.

        Args:
          head: MaskedLMHead.
          transformed: [B, N, E], what it makes of the hidden states there.
          logits: float32 [B, L], log odds that each token was replaced.
        """
        raise NotImplementedError


class CorrectiveLM(TokenTask):
    """p(v) = p_copy 1[v = token that is read] + (1 - p_copy) softmax_v.

    p_copy is the discriminator's probability that the token is the original; it learns
    from replaced token detection alone.
    """

    model = "a corrective language model"
    description = (
        "corrective language modeling (COCO-LM): a generator replaced tokens, the "
        "model learned which, and what stood there before"
    )
    token_head = CORRECTION_HEAD

    def predict(self, model, head, transformed, text, logits):
        table = model.electra.embeddings.table("word_embeddings")
        log_p = tf.nn.log_softmax(head.logits(transformed, table))
        at = text.inputs.masked_lm_positions
        read = gather_positions(text.ids, at)
        new_logits = gather_positions(tf.stop_gradient(logits), at)

        def log_p_of(ids):
            new = tf.gather(log_p, ids, batch_dims=2)
            return log_with_copying(new_logits, new, ids == read)

        best = tf.argmax(log_p, axis=-1, output_type=tf.int32)
        copies = log_p_of(read) >= log_p_of(best)
        losses = -log_p_of(text.inputs.masked_lm_ids)
        return losses, tf.where(copies, read, best)


class MultiChoice(TokenTask):
    """Which of K tokens stood there? The others are samples of the generator."""

    model = "an ELECTRA with multi-word selection"
    description = (
        "ELECTRA with multi-word selection (TEAMS): a generator replaced tokens, the "
        "model learned which, and which of several tokens stood there before"
    )
    token_head = SELECTION_HEAD

    def predict(self, model, head, transformed, text, logits):
        candidates = self.candidates(model.generator, text)
        table = model.electra.embeddings.table("word_embeddings")
        scores = head.scores(transformed[:, :, None], candidates, table)  # [B, N, K]
        same = candidates[..., :, None] == candidates[..., None, :]
        earlier = tf.linalg.band_part(tf.cast(same, tf.int32), -1, 0)
        # Each is the same as itself.
        scores += tf.where(tf.reduce_sum(earlier, -1) > 1, _NEVER, 0.0)
        losses = -tf.nn.log_softmax(scores)[..., 0]
        chosen = tf.argmax(scores, axis=-1, output_type=tf.int32)
        return losses, tf.gather(candidates, chosen, batch_dims=2)

    def candidates(self, generator, text) -> tf.Tensor:
        """The original token, then samples that are not: int32 [B, N, K].

        Systematic sampling: the uniform number of the position, moved by 1 / K each
        time, so that few are drawn twice.
        """
        original, count = text.inputs.masked_lm_ids, self.config.num_candidates
        draw, uniform = generator.sample, text.inputs.sample_uniform
        drawn = [
            draw(
                text.generated, (uniform + i / count) % 1.0, text.temperature, original
            )
            for i in range(1, count)
        ]
        return tf.stack([original, *drawn], axis=-1)
