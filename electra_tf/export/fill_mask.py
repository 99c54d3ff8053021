# SPDX-License-Identifier: Apache-2.0
"""The generator as a SavedModel: which tokens belong where [MASK] stands?

Shapes: B batch, L length, N masked positions, V vocabulary, K best tokens.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from electra_tf.export.signatures import (
    NAMES,
    TEXT,
    Check,
    EncoderInputs,
    ExportedModel,
    Servable,
    checked,
    computed,
    encoded,
    encoder_specs,
    in_range,
    pack,
    probe_ids,
    require,
    reusable_root,
)
from electra_tf.text.vocabulary import MASK

TOP = 5
_NEAR_TIE = 1e-6
_PROBES = (
    "The [MASK] brown fox [MASK].",
    "nothing is masked here",
    "",
    "[MASK]",
    "caf\u00e9 [MASK][MASK] \u4e2d[MASK]",
)


def generator(source: ExportedModel) -> Servable:
    """The generator, or what a masked language model is.

    `serving_default`: text string [B] with [MASK] in it -> tokens string and
    probabilities float32 [B, N, K] (the K best for each), num_masks int32 [B]. A text
    that is too long loses its end.
    `ids`: the encoder's inputs and masked_lm_positions int32 [B, N] -> mlm_logits
    float32 [B, N, V].
    """
    network = source.pretrainer.generator
    vocab = source.vocab
    tokenizer = source.tf_tokenizer()
    size = source.max_seq_length - 2
    root = reusable_root(network.variables)
    vocabulary = tf.constant(list(vocab.tokens))

    @tf.function(autograph=False, input_signature=[TEXT])
    def of_texts(text):
        text = tf.ensure_shape(text, [None])
        parts = tf.strings.split(text, MASK)  # [B, (parts)]
        tokens = tokenizer.tokenize(parts.flat_values)
        masks = tf.fill([tokens.nrows(), 1], vocab.mask_id)
        tokens = parts.with_flat_values(tf.concat([tokens, masks], axis=1))
        tokens = tokens.merge_dims(1, 2)[:, :-1][:, :size]  # [B, (tokens)]
        inputs = pack([tokens], vocab)
        places = places_of(vocab.mask_id, inputs.ids)
        logits = network.logits_at(*inputs, places.to_tensor())
        probs, ids = tf.math.top_k(tf.nn.softmax(logits), TOP)
        counts = places.row_lengths()
        real = tf.sequence_mask(counts, tf.shape(ids)[1])[:, :, None]
        return {
            "tokens": tf.where(real, tf.gather(vocabulary, ids), ""),
            "probabilities": tf.where(real, probs, 0.0),
            "num_masks": tf.cast(counts, tf.int32),
        }

    logits_at = computed(source, network.logits_at)
    positions_spec = tf.TensorSpec([None, None], tf.int32, name="masked_lm_positions")

    @tf.function(
        autograph=False, input_signature=[*encoder_specs().values(), positions_spec]
    )
    def of_ids(input_word_ids, input_mask, input_type_ids, masked_lm_positions):
        inputs = (input_word_ids, input_mask, input_type_ids)
        inputs = checked(dict(zip(NAMES, inputs, strict=True)), source.shape)
        shape = tf.shape(inputs.ids)
        rows = tf.shape(masked_lm_positions)[0]
        same = require(rows == shape[0], "masked_lm_positions has rows", rows, shape[0])
        inside = in_range("masked_lm_positions", masked_lm_positions, shape[1])
        with tf.control_dependencies([same, inside]):
            positions = tf.identity(masked_lm_positions)
        return {"mlm_logits": logits_at(*inputs, positions)}

    root.__call__ = of_texts
    root.ids = of_ids
    checks = _checks(source, network)
    return Servable(
        root, {"serving_default": of_texts, "ids": of_ids}, checks, {"top": TOP}
    )


def places_of(token_id: int, ids: tf.Tensor) -> tf.RaggedTensor:
    """Where a token stands in each row of ids [B, L]: int32 [B, (places)]."""
    rows, places = tf.unstack(tf.cast(tf.where(ids == token_id), tf.int32), axis=1)
    return tf.RaggedTensor.from_value_rowids(places, rows, nrows=tf.shape(ids)[0])


def _checks(source: ExportedModel, network) -> list[Check]:
    ids = probe_ids(source)
    inputs = EncoderInputs(*map(tf.constant, ids.values()))
    positions = (
        np.array([[1, 0], [2, 3], [0, 5], [4, 1]], np.int32) % ids[NAMES[0]].shape[1]
    )
    logits = np.asarray(network.logits_at(*inputs, tf.constant(positions)))
    return [
        Check(
            "serving_default",
            {"text": encoded(_PROBES)},
            _expected_of_texts(source),
        ),
        Check("ids", ids | {"masked_lm_positions": positions}, {"mlm_logits": logits}),
    ]


def _expected_of_texts(source: ExportedModel) -> dict[str, np.ndarray]:
    """The best tokens and their probabilities, as `fill_mask` has them in Python.

    The tokens are compared as well only where no two are as good as equal, which may
    change places.
    """
    rows = source.in_python().fill_mask(_PROBES, TOP + 1)
    shape = len(rows), max(map(len, rows)), TOP
    tokens, probs = np.full(shape, b"", object), np.zeros(shape)
    apart = source.facts.get("precision", "float32") == "float32"
    for row, guesses in enumerate(rows):
        for place, best in enumerate(guesses):
            shares = [guess.probability for guess in best]
            apart &= not (-np.diff(shares) < _NEAR_TIE).any()
            tokens[row, place] = [guess.token.encode() for guess in best[:TOP]]
            probs[row, place] = shares[:TOP]
    counts = np.array([len(row) for row in rows])
    found = {"probabilities": probs, "num_masks": counts}
    return found | ({"tokens": tokens} if apart else {})
