# SPDX-License-Identifier: Apache-2.0
"""The encoder and the preprocessor of TensorFlow Hub's text API as SavedModels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from electra_tf.export.signatures import (
    NAMES,
    PROBES,
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
    truncate,
)
from electra_tf.text import packing

ENCODER_OUTPUTS = ("sequence_output", "pooled_output", "default")


def encoder(source: ExportedModel) -> Servable:
    """The discriminator's encoder (of a masked language model: its only one).

    `model(inputs, training=False)` takes a dict of int32 [B, L] and returns
    sequence_output [B, L, H], pooled_output and default [B, H] (the vector of [CLS]:
    ELECTRA has no trained pooler), encoder_outputs (a list, every layer's [B, L, H]).
    """
    network = source.pretrainer.electra

    def encode(inputs, training=False):
        seed = None
        if training:
            seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
        return answer(checked(inputs, source.shape), seed)

    @tf.function(autograph=False)  # that all call, each in its way
    def answer(inputs, seed):
        output = network(*inputs, seed)
        sequence = tf.cast(output.sequence_output, tf.float32)
        layers = [tf.cast(x, tf.float32) for x in output.all_layer_outputs]
        pooled = sequence[:, 0]
        return {
            "sequence_output": sequence,
            "pooled_output": pooled,
            "default": pooled,
            "encoder_outputs": layers,
        }

    root = reusable_root(network.variables)
    root.__call__ = tf.function(encode, autograph=False)
    for training in (False, True):
        root.__call__.get_concrete_function(encoder_specs(), training=training)

    def last_layer(inputs):  # a signature cannot return a list
        outputs = answer(inputs, None)
        return {name: outputs[name] for name in ENCODER_OUTPUTS}

    last_layer = computed(source, last_layer)

    @tf.function(autograph=False, input_signature=list(encoder_specs().values()))
    def serve(input_word_ids, input_mask, input_type_ids):
        inputs = (input_word_ids, input_mask, input_type_ids)
        inputs = dict(zip(NAMES, inputs, strict=True))
        return last_layer(checked(inputs, source.shape))

    inputs = probe_ids(source)
    sequence = np.asarray(
        tf.cast(network(*inputs.values()).sequence_output, tf.float32)
    )
    expected = {"sequence_output": sequence, "pooled_output": sequence[:, 0]}
    return Servable(
        root,
        {"serving_default": serve},
        [Check("serving_default", inputs, expected)],
        {"preprocessor": "the preprocessor exported beside it"},
    )


def preprocessor(source: ExportedModel) -> Servable:
    """From texts to the encoder's inputs.

    `model(text)` packs string [B]; `model.tokenize(text)` gives a RaggedTensor int32
    [B, (tokens)] and `model.bert_pack_inputs([first, second], seq_length=)` packs one
    or two of those.  Loading it needs `import tensorflow_text`.
    """
    vocab = source.vocab
    tokenizer = source.tf_tokenizer()
    default_length = source.max_seq_length

    def pack_segments(segments, seq_length=default_length):
        with tf.control_dependencies(_requirements(segments, seq_length, len(vocab))):
            seq_length = tf.identity(seq_length)
            segments = [_of_unknown_rows(segment) for segment in segments]
            kept = truncate(segments, seq_length)
        return dict(zip(NAMES, pack(kept, vocab, seq_length), strict=True))

    root = reusable_root()
    tokens = tf.RaggedTensorSpec([None, None], tf.int32)
    length = tf.TensorSpec([], tf.int32, name="seq_length")

    root.tokenize = tf.train.Checkpoint()
    root.tokenize.__call__ = tf.function(
        tokenizer.tokenize, autograph=False, input_signature=[TEXT]
    )
    root.tokenize.get_special_tokens_dict = tf.function(
        lambda: {
            "vocab_size": tf.constant(len(vocab)),
            "padding_id": tf.constant(vocab.pad_id),
            "start_of_sequence_id": tf.constant(vocab.cls_id),
            "end_of_segment_id": tf.constant(vocab.sep_id),
            "mask_id": tf.constant(vocab.mask_id),
        },
        autograph=False,
        input_signature=[],
    )
    root.bert_pack_inputs = tf.train.Checkpoint()
    root.bert_pack_inputs.__call__ = tf.function(pack_segments, autograph=False)
    for count in (1, 2):
        root.bert_pack_inputs.__call__.get_concrete_function([tokens] * count, length)

    @tf.function(autograph=False, input_signature=[TEXT])
    def preprocess(text):
        tokens = root.tokenize.__call__(tf.ensure_shape(text, [None]))
        return root.bert_pack_inputs.__call__([tokens], tf.constant(default_length))

    root.__call__ = preprocess
    expected = dict(
        zip(NAMES, python_pack(source, PROBES, default_length), strict=True)
    )
    return Servable(
        root,
        {"serving_default": preprocess},
        [Check("serving_default", {"text": encoded(PROBES)}, expected)],
        {"seq_length": default_length},
    )


def _of_unknown_rows(segment: tf.RaggedTensor) -> tf.RaggedTensor:
    """The same, of which a graph does not know the rows before it runs.

    Else segments of different batch sizes fail in TensorFlow's words as a loaded graph
    is made, before anything in it can say what is wrong.
    """
    splits = tf.raw_ops.PlaceholderWithDefault(input=segment.row_splits, shape=[None])
    return tf.RaggedTensor.from_row_splits(segment.values, splits, validate=False)


def _requirements(segments, seq_length, vocab_size: int) -> list[tf.Operation]:
    """What `bert_pack_inputs` refuses: unknown ids, no room, different batch sizes."""
    least = 1 + len(segments)  # [CLS], and a [SEP] for each segment
    found = [in_range("a token id", s.flat_values, vocab_size) for s in segments]
    what = f"seq_length must be at least {least}; it is"
    found.append(require(seq_length >= least, what, seq_length))
    if len(segments) == 2:
        rows = [segment.nrows() for segment in segments]
        what = "segments of different batch sizes:"
        found.append(require(rows[0] == rows[1], what, *rows))
    return found


def python_pack(source: ExportedModel, texts, length: int) -> packing.PackedTexts:
    """Packs texts in Python, to `length`."""
    tokenizer = source.tokenizer()
    ids = [tokenizer.encode(text)[: length - 2] for text in texts]
    return packing.pack(source.vocab, ids, length)


def python_tokens(
    source: ExportedModel, text: str, network: Callable
) -> tuple[list[int], list[tuple[int, int]], tf.Tensor]:
    """A text's tokens, their offsets, and the outputs of a network for each, [N, ...].

    Args:
      network: from EncoderInputs to [B, L, ...]; it reads window by window.
    """
    ids, offsets = source.tokenizer().encode_with_offsets(text)
    size, values = source.max_seq_length - 2, []
    for first in range(0, max(1, len(ids)), size):
        window = packing.pack(source.vocab, [ids[first : first + size]])
        values.append(network(EncoderInputs(*map(tf.constant, window)))[0, 1:-1])
    return ids, offsets, tf.concat(values, 0)
