# SPDX-License-Identifier: Apache-2.0
"""Electric's generator: a two-tower cloze model (section 2.3 of the Electric paper).

Shapes: B batch, L length, N masked positions, E embedding width, V vocabulary.
"""

from __future__ import annotations

import tensorflow as tf

from electra_tf.model.dropout import fold_in
from electra_tf.model.encoder import TextEncoder
from electra_tf.model.serialization import serializable
from electra_tf.pretrain import masking
from electra_tf.pretrain.generator import (
    Cloze,
    Generator,
    GeneratorOutput,
    MaskedInputs,
    weighted_mean,
)
from electra_tf.pretrain.masked_lm_generator import masked_lm_output
from electra_tf.pretrain.masked_lm_head import masked_lm_head


@serializable
class TwoTowerGenerator(Generator):
    """Predicts each token from what is before it and what is after it.

    A left-to-right and a right-to-left transformer read the unmasked text; the state
    before position t of the first and after t of the second are concatenated, so
    the prediction at t does not see t and one pass scores every position.

    Positions 0 and L - 1 receive the other end's state, as in the original; they hold
    [CLS] and [SEP] or padding and are never predicted.

    Args:
      ltr, rtl: TextEncoders in the two directions.
      special_ids: (cls, sep, mask), never predicted.
      chunk_size: see `log_normalizer`.
    """

    scoring = "two_tower"

    def __init__(
        self,
        ltr: TextEncoder,
        rtl: TextEncoder,
        vocab_size: int,
        special_ids: tuple[int, int, int],
        chunk_size: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.ltr = ltr
        self.rtl = rtl
        self.special_ids = special_ids
        self.chunk_size = chunk_size
        self.head = masked_lm_head(
            ltr,
            ltr.embedding_size,
            vocab_size,
            "cloze_predictions",
            self.dtype_policy,
            ltr.hidden_size + rtl.hidden_size,
        )
        self.built = True

    @classmethod
    def create(cls, encoder, config, settings, dtype):
        own = settings.embedding_sharing == "untied"
        towers = [
            TextEncoder(
                config,
                config.hidden_size if own else encoder.embedding_size,
                embeddings=None if own else encoder.embeddings,
                direction=direction,
                name=f"generator_{direction}",
                dtype=dtype,
            )
            for direction in ("ltr", "rtl")
        ]
        for tower in towers:
            tower.build(None)
        return cls(
            *towers,
            config.vocab_size,
            settings.special_ids,
            settings.cloze_chunk_size,
            name="two_tower",
            dtype=dtype,
        )

    def towers(self, inputs: MaskedInputs, seed: tf.Tensor | None = None) -> tf.Tensor:
        """States before and after each position: [B, L, 2 H]."""
        text = inputs.input_ids, inputs.input_mask, inputs.segment_ids
        before = self.ltr(*text, fold_in(seed, 0)).sequence_output
        after = self.rtl(*text, fold_in(seed, 1)).sequence_output
        # ltr[t] saw t, so position t takes ltr[t - 1] and rtl[t + 1].
        return tf.concat([tf.roll(before, 1, axis=1), tf.roll(after, -1, axis=1)], -1)

    def call(
        self, inputs: MaskedInputs, seed: tf.Tensor | None = None, weight=None
    ) -> GeneratorOutput:
        hidden = self.head(self.towers(inputs, seed))  # [B, L, E]
        cloze = self._cloze(hidden, inputs, weight)
        at_masked = masking.gather_positions(hidden, inputs.masked_lm_positions)
        logits = self.head.logits(tf.stop_gradient(at_masked), self._table())
        mlm = masked_lm_output(logits, inputs, None)
        return mlm._replace(loss=cloze.loss, cloze=cloze)

    def log_q(self, generated, token_ids):
        cloze = generated.cloze
        scores = self.head.scores(cloze.hidden, token_ids, self._table())
        return scores - cloze.log_normalizer

    def logits_at(self, input_ids, input_mask, segment_ids, positions):
        text = MaskedInputs.unmasked(input_ids, input_mask, segment_ids)
        hidden = masking.gather_positions(self.towers(text), positions)
        return self.head.logits(self.head(hidden), self._table())

    def loss_weight(self, inputs):
        return tf.reduce_sum(self.candidate_weights(inputs))

    def candidate_weights(self, inputs: MaskedInputs) -> tf.Tensor:
        """1 at the positions the cloze loss counts, float32 [B, L]."""
        text = inputs.input_ids, inputs.input_mask
        return tf.cast(masking.candidates_mask(*text, self.special_ids), tf.float32)

    def _table(self) -> tf.Tensor:
        return self.ltr.embeddings.word_embeddings.value

    def _cloze(self, hidden, inputs, weight) -> Cloze:
        table = self._table()
        normalizer, predictions = self.head.log_normalizer(
            hidden, table, self.chunk_size
        )
        per_token = normalizer - self.head.scores(hidden, inputs.input_ids, table)
        weights = self.candidate_weights(inputs)
        return Cloze(
            hidden,
            normalizer,
            per_token,
            predictions,
            weights,
            weighted_mean(per_token, weights, weight),
        )
