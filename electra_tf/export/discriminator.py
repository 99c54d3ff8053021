# SPDX-License-Identifier: Apache-2.0
"""The discriminator as SavedModels: detector and scorer, from texts to numbers.

Both read a text of any length in consecutive windows that do not overlap, as
`PretrainedModel.detect` does.

Shapes: B texts, T tokens of the longest, L length of packed ids.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export.encoder import kinds_of
from electra_tf.export.signatures import (
    NO_OFFSET,
    PROBES,
    TEXT,
    Check,
    EncoderInputs,
    ExportedModel,
    Servable,
    encoded,
    ids_check,
    map_windows,
    padded,
    servable,
    windows_of,
)
from electra_tf.text import packing
from electra_tf.text.tf_offsets import TokensInText, tokenize_with_offsets


def detector(source: ExportedModel) -> Servable:
    """How much each token of a text looks replaced.

    `serving_default`: text string [B] -> tokens string [B, T] (as they stand in the
    text), starts and ends int32 [B, T] (characters; -1 where a row has no more tokens),
    probabilities float32 [B, T], num_tokens int32 [B].
    `ids`: the encoder's inputs -> logits and probabilities float32 [B, L].
    """
    need_discriminator(source, "detector")
    pretrainer = source.pretrainer

    def logits(inputs: EncoderInputs) -> tf.Tensor:
        return pretrainer.replaced_logits(*inputs)

    def answer(tokens: TokensInText, flat: tf.Tensor) -> dict[str, tf.Tensor]:
        probs = tokens.ids.with_flat_values(tf.sigmoid(flat))
        return {"probabilities": probs.to_tensor()}

    def ids_answer(inputs: EncoderInputs) -> dict[str, tf.Tensor]:
        values = logits(inputs)
        return {"logits": values, "probabilities": tf.sigmoid(values)}

    variables = pretrainer.electra.variables
    variables += pretrainer.discriminator_predictions.variables
    if pretrainer.objective.needs_log_q:
        variables += [
            v
            for v in pretrainer.generator.variables
            if all(v is not other for other in variables)
        ]

    def to_numbers(values: np.ndarray) -> dict[str, np.ndarray]:
        return {"probabilities": 1 / (1 + np.exp(-values))}

    return _text_export(source, variables, logits, answer, ids_answer, to_numbers)


def scorer(source: ExportedModel) -> Servable:
    """Electric's pseudo-log-likelihood of each text, in one pass (section 2.4).

    `serving_default`: text string [B] -> score float32 [B], the sum of token_scores
    float32 [B, T] (-E(x)_t, an estimate of log p(x_t | the rest)); tokens, starts, ends
    and num_tokens as the detector's.
    `ids`: the encoder's inputs -> token_scores float32 [B, L], 0 at padding.
    """
    need_discriminator(source, "scorer")
    pretrainer = source.pretrainer
    if pretrainer.objective.scoring != "electric":
        raise UserError(
            f"{source.name} is {pretrainer.objective.model}: its discriminator tells "
            "replaced tokens but gives no likelihoods.\nA scorer needs a model trained "
            'with "electric_objective": true; this one has --what detector.'
        )

    def scores(inputs: EncoderInputs) -> tf.Tensor:
        return -pretrainer.replaced_logits(*inputs, net_only=True)

    def answer(tokens: TokensInText, flat: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tokens.ids.with_flat_values(flat)
        return {
            "score": tf.reduce_sum(values, axis=1),
            "token_scores": values.to_tensor(),
        }

    def ids_answer(inputs: EncoderInputs) -> dict[str, tf.Tensor]:
        return {"token_scores": scores(inputs) * tf.cast(inputs.mask, tf.float32)}

    def to_numbers(values: np.ndarray) -> dict[str, np.ndarray]:
        return {"token_scores": values}

    variables = pretrainer.electra.variables
    variables += pretrainer.discriminator_predictions.variables
    return _text_export(source, variables, scores, answer, ids_answer, to_numbers)


def need_discriminator(source: ExportedModel, what: str) -> None:
    """Raises UserError for a model that has no discriminator."""
    if source.pretrainer.discriminator_predictions is None:
        raise UserError(
            f"{source.name} has no discriminator: there is no {what} to export.\n"
            f"It has --what {', '.join(kinds_of(source))}."
        )


def _text_export(
    source: ExportedModel,
    variables: list,
    network: Callable[[EncoderInputs], tf.Tensor],
    answer: Callable[[TokensInText, tf.Tensor], dict[str, tf.Tensor]],
    ids_answer: Callable[[EncoderInputs], dict[str, tf.Tensor]],
    to_numbers: Callable[[np.ndarray], dict[str, np.ndarray]],
) -> Servable:
    """A SavedModel with a signature for texts and one for ids.

    Args:
      network: one number per token, float32 [B, L].
      answer: the outputs for texts, from their tokens and the network's numbers [N].
      ids_answer: the outputs for ids.
      to_numbers: the same from NumPy arrays, to check the first output.
    """
    tokenizer, size = source.tf_tokenizer(), source.max_seq_length - 2

    @tf.function(autograph=False, input_signature=[TEXT])
    def of_texts(text):
        tokens = tokenize_with_offsets(tokenizer, tf.ensure_shape(text, [None]))
        windows = windows_of(tokens.ids, size)
        flat = map_windows(network, windows, source.vocab)
        return answer(tokens, flat) | {
            "tokens": tokens.surfaces.to_tensor(""),
            "starts": tokens.starts.to_tensor(NO_OFFSET),
            "ends": tokens.ends.to_tensor(NO_OFFSET),
            "num_tokens": tf.cast(tokens.ids.row_lengths(), tf.int32),
        }

    texts = {"text": encoded(PROBES)}
    expected = _expected_of_texts(source, network, to_numbers)
    checks = [
        Check("serving_default", texts, expected),
        ids_check(source, ids_answer),
    ]
    return servable(source, variables, of_texts, ids_answer, checks, {"window": size})


def _expected_of_texts(source, network, to_numbers) -> dict[str, np.ndarray]:
    """Tokens, offsets and numbers of the probes, window by window in Python."""
    tokenizer, vocab = source.tokenizer(), source.vocab
    size = source.max_seq_length - 2
    rows = []
    for text in PROBES:
        ids, offsets = tokenizer.encode_with_offsets(text)
        values: list[float] = []
        for first in range(0, len(ids), size):
            window = packing.pack(vocab, [ids[first : first + size]])
            inputs = EncoderInputs(*map(tf.constant, window))
            values += network(inputs).numpy()[0, 1:-1].tolist()
        numbers = to_numbers(np.array(values, np.float32))
        rows.append(
            {
                "tokens": [text[start:end].encode() for start, end in offsets],
                "starts": [start for start, _ in offsets],
                "ends": [end for _, end in offsets],
                **{name: list(array) for name, array in numbers.items()},
            }
        )
    fills = {"tokens": b"", "starts": NO_OFFSET, "ends": NO_OFFSET}
    expected = {
        name: padded([row[name] for row in rows], fills.get(name, 0))
        for name in rows[0]
    }
    expected["num_tokens"] = np.array([len(row["tokens"]) for row in rows])
    return expected
