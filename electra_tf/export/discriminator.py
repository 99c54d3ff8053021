# SPDX-License-Identifier: Apache-2.0
"""The discriminator as SavedModels: detector and scorer, from texts to numbers.

Both read a text of any length in consecutive windows that do not overlap, as
`PretrainedModel.detect` does.

Shapes: B texts, T tokens of the longest, L length of packed ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from electra_tf.export.signatures import (
    NO_OFFSET,
    PROBES,
    TEXT,
    Check,
    EncoderInputs,
    ExportedModel,
    Servable,
    columns_of,
    encoded,
    ids_check,
    map_windows,
    servable,
    windows_of,
)
from electra_tf.inference.pretrained_model import TokenPrediction
from electra_tf.inference.scoring import TokenScore
from electra_tf.text.tf_tokenization import tokenize_with_offsets


def detector(source: ExportedModel) -> Servable:
    """How much each token of a text looks replaced.

    `serving_default`: text string [B] -> tokens string [B, T] (as they stand in the
    text), starts and ends int32 [B, T] (characters; -1 where a row has no more tokens),
    probabilities float32 [B, T], num_tokens int32 [B].
    `ids`: the encoder's inputs -> logits and probabilities float32 [B, L].
    """
    pretrainer = source.pretrainer

    def logits(inputs: EncoderInputs) -> tf.Tensor:
        return pretrainer.replaced_logits(*inputs)

    def answer(values: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": tf.sigmoid(values)}

    def ids_answer(inputs: EncoderInputs) -> dict[str, tf.Tensor]:
        values = logits(inputs)
        return {"logits": values} | answer(values)

    variables = pretrainer.electra.variables
    variables += pretrainer.discriminator_predictions.variables
    if pretrainer.objective.needs_log_q:
        variables += [
            v
            for v in pretrainer.generator.variables
            if all(v is not other for other in variables)
        ]

    rows = source.in_python().detect(PROBES)
    return _text_export(source, variables, logits, answer, ids_answer, rows)


def scorer(source: ExportedModel) -> Servable:
    """Electric's pseudo-log-likelihood of each text, in one pass (section 2.4).

    `serving_default`: text string [B] -> score float32 [B], the sum of token_scores
    float32 [B, T] (-E(x)_t, an estimate of log p(x_t | the rest)); tokens, starts, ends
    and num_tokens as the detector's.
    `ids`: the encoder's inputs -> token_scores float32 [B, L], 0 at padding.
    """
    pretrainer = source.pretrainer

    def scores(inputs: EncoderInputs) -> tf.Tensor:
        return -pretrainer.replaced_logits(*inputs, net_only=True)

    def answer(values: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"token_scores": values}

    def ids_answer(inputs: EncoderInputs) -> dict[str, tf.Tensor]:
        return {"token_scores": scores(inputs) * tf.cast(inputs.mask, tf.float32)}

    variables = pretrainer.electra.variables
    variables += pretrainer.discriminator_predictions.variables
    rows = [*source.in_python().score_tokens(PROBES)]
    return _text_export(source, variables, scores, answer, ids_answer, rows, "score")


def _text_export(
    source: ExportedModel,
    variables: list,
    network: Callable[[EncoderInputs], tf.Tensor],
    answer: Callable[[tf.Tensor], dict[str, tf.Tensor]],
    ids_answer: Callable[[EncoderInputs], dict[str, tf.Tensor]],
    rows: Sequence[Sequence[TokenPrediction | TokenScore]],
    total: str | None = None,
) -> Servable:
    """A SavedModel with a signature for texts and one for ids.

    Args:
      network: one number per token, float32 [B, L].
      answer: the outputs for the tokens of texts from the network's numbers [N].
      ids_answer: the outputs for ids.
      rows: the tokens of PROBES with their numbers, as Python has them.
      total: the name of one more output: the sum over each text's tokens.
    """
    tokenizer, size = source.tf_tokenizer(), source.max_seq_length - 2

    @tf.function(autograph=False, input_signature=[TEXT])
    def of_texts(text):
        tokens = tokenize_with_offsets(tokenizer, tf.ensure_shape(text, [None]))
        windows = windows_of(tokens.ids, size)
        flat = map_windows(network, windows, source.vocab)
        ragged = tokens.ids.with_flat_values
        sums = {total: tf.reduce_sum(ragged(flat), axis=1)} if total else {}
        found = {name: ragged(x).to_tensor() for name, x in answer(flat).items()}
        return (
            found
            | sums
            | {
                "tokens": tokens.surfaces.to_tensor(""),
                "starts": tokens.starts.to_tensor(NO_OFFSET),
                "ends": tokens.ends.to_tensor(NO_OFFSET),
                "num_tokens": tf.cast(tokens.ids.row_lengths(), tf.int32),
            }
        )

    [output] = answer(tf.zeros([1]))
    expected = columns_of(
        [
            {
                "tokens": [token[0].encode() for token in row],
                "starts": [token[1] for token in row],
                "ends": [token[2] for token in row],
                output: [token[3] for token in row],
            }
            for row in rows
        ]
    )
    expected["num_tokens"] = np.array([len(row) for row in rows])
    if total:
        expected[total] = expected[output].sum(axis=1)
    checks = [
        Check("serving_default", {"text": encoded(PROBES)}, expected),
        ids_check(source, ids_answer),
    ]
    return servable(source, variables, of_texts, ids_answer, checks, {"window": size})
