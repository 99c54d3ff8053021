# SPDX-License-Identifier: Apache-2.0
"""Replaced token detection with a second task at the masked positions.

Corrective language modeling (COCO-LM, Meng et al., NeurIPS 2021) predicts the original
tokens, multi-word selection (TEAMS, Shen et al., ACL Findings 2021) chooses them among
a few. docs/recipes.md says what was taken from where.

Shapes: B batch, L length, N masked positions, K candidates, V vocabulary, H width.
"""

from __future__ import annotations

import tensorflow as tf

from electra_tf.config.objectives import CORRECTION_HEAD, SELECTION_HEAD
from electra_tf.pretrain import masking, metric_sums, metrics
from electra_tf.pretrain.ablations import TokenPredictions, log_with_copying
from electra_tf.pretrain.generator import weighted_mean
from electra_tf.pretrain.masked_lm_generator import masked_lm_head
from electra_tf.pretrain.objectives import Electra

_NEVER = -1e9  # the score of a candidate that is there twice


class TokenTask(Electra):
    """ELECTRA with a head that predicts the original tokens; one class a task."""

    head: str
    metrics = (*Electra.metrics, *metrics.TOKEN_METRICS)

    def heads(self, config, dtype):
        width = self.settings.embedding_size
        return [
            *super().heads(config, dtype),
            masked_lm_head(config, width, self.head, dtype),
        ]

    def loss_weight(self, inputs):
        """Tokens and masked positions, float32 [2]."""
        masked = tf.reduce_sum(inputs.masked_lm_weights)
        return tf.stack([super().loss_weight(inputs), masked])

    def judge(self, model, hidden, text, total):
        tokens, masked = (None, None) if total is None else tf.unstack(total)
        found = super().judge(model, hidden, text, tokens)
        inputs = text.inputs
        at = inputs.masked_lm_positions
        head = getattr(model, self.head)
        transformed = head(masking.gather_positions(hidden, at))  # [B, N, E]
        losses, predictions = self.predict(model, transformed, text, found.logits)
        tokens = TokenPredictions(
            losses,
            predictions,
            inputs.masked_lm_ids,
            masking.gather_positions(text.is_replaced, at),
            inputs.masked_lm_weights,
            weighted_mean(losses, inputs.masked_lm_weights, masked),
        )
        return found._replace(tokens=tokens)

    def predict(self, model, transformed, text, logits) -> tuple[tf.Tensor, tf.Tensor]:
        """Losses float32 [B, N] and predictions int32 [B, N] at the masked positions.

        Args:
          transformed: [B, N, E], what the head makes of the hidden states there.
          logits: float32 [B, L], log odds that each token was replaced.
        """
        raise NotImplementedError

    def total_loss(self, generated, discriminated):
        loss = super().total_loss(generated, discriminated)
        return loss + self.settings.token_weight * discriminated.tokens.loss

    def sums(self, output, batch):
        tokens = output.discriminated.tokens
        return super().sums(output, batch) | metric_sums.token_sums(tokens)


class CorrectiveLM(TokenTask):
    """p(v) = p_copy 1[v = token that is read] + (1 - p_copy) softmax_v.

    p_copy is the discriminator's probability that the token is the original; it learns
    from replaced token detection alone.
    """

    name = "corrective_lm"
    model = "a corrective language model"
    description = (
        "corrective language modeling (COCO-LM): a generator replaced tokens, the "
        "model learned which, and what stood there before"
    )
    head = CORRECTION_HEAD

    def predict(self, model, transformed, text, logits):
        table = model.electra.embeddings.table("word_embeddings")
        log_p = tf.nn.log_softmax(getattr(model, self.head).logits(transformed, table))
        at = text.inputs.masked_lm_positions
        read = masking.gather_positions(text.ids, at)
        new_logits = masking.gather_positions(tf.stop_gradient(logits), at)

        def log_p_of(ids):
            new = tf.gather(log_p, ids, batch_dims=2)
            return log_with_copying(new_logits, new, ids == read)

        best = tf.argmax(log_p, axis=-1, output_type=tf.int32)
        copies = log_p_of(read) >= log_p_of(best)
        losses = -log_p_of(text.inputs.masked_lm_ids)
        return losses, tf.where(copies, read, best)


class MultiChoice(TokenTask):
    """Which of K tokens stood there? The others are samples of the generator."""

    name = "multi_choice"
    model = "an ELECTRA with multi-word selection"
    description = (
        "ELECTRA with multi-word selection (TEAMS): a generator replaced tokens, the "
        "model learned which, and which of several tokens stood there before"
    )
    head = SELECTION_HEAD

    def predict(self, model, transformed, text, logits):
        del logits
        candidates = self.candidates(model.generator, text)
        table = model.electra.embeddings.table("word_embeddings")
        head = getattr(model, self.head)
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
        original, count = text.inputs.masked_lm_ids, self.settings.num_candidates
        uniform = text.inputs.sample_uniform
        drawn = [
            generator.sample(
                text.generated, (uniform + i / count) % 1.0, disallowed_ids=original
            )
            for i in range(1, count)
        ]
        return tf.stack([original, *drawn], axis=-1)
