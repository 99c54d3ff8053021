# SPDX-License-Identifier: Apache-2.0
"""The parts of a pre-trained model as SavedModels.

Encoder and preprocessor have the interface of TensorFlow Hub's text API. Detector and
scorer read a text of any length in consecutive windows that do not overlap, as
`PretrainedModel.detect` does; the generator fills [MASK].

Shapes: B texts, T tokens of the longest, L length of packed ids, N masked positions,
V vocabulary, K best tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from electra_tf.export import signatures
from electra_tf.export.signatures import NAMES, PROBES, Check, Servable
from electra_tf.inference.pretrained_model import PretrainedModel
from electra_tf.text import tf_tokenization
from electra_tf.text.tf_tokenization import of_same_rows, pack
from electra_tf.text.tokenization import PackedTexts
from electra_tf.text.vocabulary import MASK

ENCODER_OUTPUTS = ("sequence_output", "pooled_output", "default")
TOP = 5
_MASKED_PROBES = (
    "The [MASK] brown fox [MASK].",
    "nothing is masked here",
    "",
    "[MASK]",
    "caf\u00e9 [MASK][MASK] \u4e2d[MASK]",
)


def encoder(source: PretrainedModel) -> Servable:
    """The discriminator's encoder (of a masked language model: its only one).

    `model(inputs, training=False)` takes a dict of int32 [B, L] and returns
    sequence_output [B, L, H], pooled_output and default [B, H] (the vector of [CLS]:
    ELECTRA has no trained pooler), encoder_outputs (a list, every layer's [B, L, H]).
    """
    network = source.encoder

    def encode(inputs, training=False):
        seed = None
        if training:
            seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
        tensors = (inputs[name] for name in NAMES)
        return answer(signatures.checked(*tensors, source.shape), seed)

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

    def last_layer(inputs):  # a signature cannot return a list
        outputs = answer(inputs, None)
        return {name: outputs[name] for name in ENCODER_OUTPUTS}

    root = signatures.reusable_root(network.variables)
    root.__call__ = tf.function(encode, autograph=False)
    for training in (False, True):
        root.__call__.get_concrete_function(
            signatures.encoder_specs(), training=training
        )
    inputs = signatures.probe_ids(source)
    output = network(*inputs.values()).sequence_output
    sequence = tf.cast(output, tf.float32).numpy()
    expected = {"sequence_output": sequence, "pooled_output": sequence[:, 0]}
    return Servable(
        root,
        {"serving_default": signatures.ids_signature(source, last_layer)},
        [Check("serving_default", inputs, expected)],
        {"preprocessor": "the preprocessor exported beside it"},
    )


def preprocessor(source: PretrainedModel) -> Servable:
    """From texts to the encoder's inputs.

    `model(text)` packs string [B]; `model.tokenize(text)` gives a RaggedTensor int32
    [B, (tokens)] and `model.bert_pack_inputs([first, second], seq_length=)` packs one
    or two of those.  Loading it needs `import tensorflow_text`.
    """
    vocab = source.vocab
    tokenizer = signatures.tf_tokenizer(source)
    default_length = source.max_seq_length

    def pack_segments(segments, seq_length=default_length):
        least = 1 + len(segments)  # [CLS], and a [SEP] for each segment
        what = f"seq_length must be at least {least}; it is"
        found = [
            signatures.in_range("a token id", s.flat_values, len(vocab))
            for s in segments
        ]
        found.append(tf_tokenization.require(seq_length >= least, what, seq_length))
        with tf.control_dependencies(found):
            kept = tf_tokenization.truncate(segments, tf.identity(seq_length))
        return dict(zip(NAMES, pack(kept, vocab, seq_length), strict=True))

    root = signatures.reusable_root()
    tokens = tf.RaggedTensorSpec([None, None], tf.int32)
    length = tf.TensorSpec([], tf.int32, name="seq_length")

    root.tokenize = tf.train.Checkpoint()
    root.tokenize.__call__ = tf.function(
        tokenizer.tokenize, autograph=False, input_signature=[signatures.TEXT]
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

    @tf.function(autograph=False, input_signature=[signatures.TEXT])
    def preprocess(text):
        tokens = root.tokenize.__call__(tf.ensure_shape(text, [None]))
        return root.bert_pack_inputs.__call__([tokens], tf.constant(default_length))

    root.__call__ = preprocess
    return Servable(
        root,
        {"serving_default": preprocess},
        [signatures.check_of_texts(preprocess, {"text": PROBES}, exact=True)],
        {"seq_length": default_length},
    )


def detector(source: PretrainedModel) -> Servable:
    """How much each token of a text looks replaced.

    `serving_default`: text string [B] -> tokens string [B, T] (as they stand in the
    text), starts and ends int32 [B, T] (characters; -1 where a row has no more tokens),
    probabilities float32 [B, T], num_tokens int32 [B].
    `ids`: the encoder's inputs -> logits and probabilities float32 [B, L].
    """
    pretrainer = source.pretrainer

    def ids_answer(inputs: PackedTexts) -> dict[str, tf.Tensor]:
        values = pretrainer.replaced_logits(*inputs)
        return {"logits": values, "probabilities": tf.sigmoid(values)}

    needs_generator = pretrainer.objective.needs_log_q
    others = pretrainer.generator.variables if needs_generator else []
    return _text_export(source, others, "probabilities", ids_answer)


def scorer(source: PretrainedModel) -> Servable:
    """Electric's pseudo-log-likelihood of each text, in one pass (section 2.4).

    `serving_default`: text string [B] -> score float32 [B], the sum of token_scores
    float32 [B, T] (-E(x)_t, an estimate of log p(x_t | the rest)); tokens, starts, ends
    and num_tokens as the detector's.
    `ids`: the encoder's inputs -> token_scores float32 [B, L], 0 at padding.
    """
    pretrainer = source.pretrainer

    def ids_answer(inputs: PackedTexts) -> dict[str, tf.Tensor]:
        scores = -pretrainer.replaced_logits(*inputs, net_only=True)
        return {"token_scores": scores * tf.cast(inputs.input_mask, tf.float32)}

    return _text_export(source, [], "token_scores", ids_answer, "score")


def _text_export(
    source: PretrainedModel,
    others: list,
    output: str,
    ids_answer: Callable[[PackedTexts], dict[str, tf.Tensor]],
    total: str | None = None,
) -> Servable:
    """A SavedModel with a signature for texts and one for ids.

    Args:
      others: its variables beside those of encoder and discriminator head.
      output: the name of the number of each token, of texts and of ids.
      ids_answer: the outputs for ids, of `output` float32 [B, L].
      total: the name of one more output: the sum over each text's tokens.
    """
    tokenizer, size = signatures.tf_tokenizer(source), source.max_seq_length - 2

    @tf.function(autograph=False, input_signature=[signatures.TEXT])
    def of_texts(text):
        tokens = tokenizer.tokenize_with_offsets(tf.ensure_shape(text, [None]))
        windows = tf_tokenization.windows_of(tokens.ids, size)
        flat = tf_tokenization.map_windows(
            lambda x: ids_answer(x)[output], windows, source.vocab
        )
        numbers = tokens.ids.with_flat_values(flat)
        found = {
            output: numbers.to_tensor(),
            "tokens": tokens.surfaces.to_tensor(""),
            "starts": tokens.starts.to_tensor(tf_tokenization.NO_OFFSET),
            "ends": tokens.ends.to_tensor(tf_tokenization.NO_OFFSET),
            "num_tokens": tf.cast(tokens.ids.row_lengths(), tf.int32),
        }
        return found | ({total: tf.reduce_sum(numbers, axis=1)} if total else {})

    check = signatures.check_of_texts(of_texts, {"text": PROBES}, exact=True)
    model = source.pretrainer
    variables = model.electra.variables + model.discriminator_predictions.variables
    parts = variables + others, of_texts, ids_answer, check, {"window": size}
    return signatures.servable(source, *parts)


def generator(source: PretrainedModel) -> Servable:
    """The generator, or a masked language model.

    `serving_default`: text string [B] with [MASK] in it -> tokens string and
    probabilities float32 [B, N, K] (the K best for each), num_masks int32 [B]. A text
    that is too long loses its end.
    `ids`: the encoder's inputs and masked_lm_positions int32 [B, N] -> mlm_logits
    float32 [B, N, V].
    """
    network = source.pretrainer.generator
    vocab = source.vocab
    tokenizer = signatures.tf_tokenizer(source)
    size = source.max_seq_length - 2
    root = signatures.reusable_root(network.variables)
    vocabulary = tf.constant(list(vocab.tokens))

    @tf.function(autograph=False, input_signature=[signatures.TEXT])
    def of_texts(text):
        text = tf.ensure_shape(text, [None])
        parts = tf.strings.split(text, MASK)  # [B, (parts)]
        tokens = tokenizer.tokenize(parts.flat_values)
        masks = tf.fill([tokens.nrows(), 1], vocab.mask_id)
        tokens = parts.with_flat_values(tf.concat([tokens, masks], axis=1))
        tokens = tokens.merge_dims(1, 2)[:, :-1][:, :size]  # [B, (tokens)]
        inputs = pack([tokens], vocab)
        places = places_of(vocab.mask_id, inputs.input_ids)
        logits = network.logits_at(*inputs, places.to_tensor())
        probs, ids = tf.math.top_k(tf.nn.softmax(logits), TOP)
        counts = places.row_lengths()
        real = tf.sequence_mask(counts, tf.shape(ids)[1])[:, :, None]
        return {
            "tokens": tf.where(real, tf.gather(vocabulary, ids), ""),
            "probabilities": tf.where(real, probs, 0.0),
            "num_masks": tf.cast(counts, tf.int32),
        }

    positions_spec = tf.TensorSpec([None, None], tf.int32, name="masked_lm_positions")

    @tf.function(
        autograph=False,
        input_signature=[*signatures.encoder_specs().values(), positions_spec],
    )
    def of_ids(input_word_ids, input_mask, input_type_ids, masked_lm_positions):
        inputs = (input_word_ids, input_mask, input_type_ids)
        inputs = signatures.checked(*inputs, source.shape)
        both = "masked_lm_positions and input_word_ids"
        positions, ids = of_same_rows(both, masked_lm_positions, inputs.input_ids)
        inside = signatures.in_range("masked_lm_positions", positions, tf.shape(ids)[1])
        with tf.control_dependencies([inside]):
            positions = tf.identity(positions)
        return {"mlm_logits": network.logits_at(*inputs, positions)}

    root.__call__ = of_texts
    root.ids = of_ids
    ids = signatures.probe_ids(source)
    places = np.array([[1, 0], [2, 3], [0, 5], [4, 1]], np.int32)
    places %= ids[NAMES[0]].shape[1]
    logits = network.logits_at(*map(tf.constant, [*ids.values(), places])).numpy()
    checks = [
        signatures.check_of_texts(of_texts, {"text": _MASKED_PROBES}, exact=False),
        Check("ids", ids | {"masked_lm_positions": places}, {"mlm_logits": logits}),
    ]
    return Servable(
        root, {"serving_default": of_texts, "ids": of_ids}, checks, {"top": TOP}
    )


def places_of(token_id: int, ids: tf.Tensor) -> tf.RaggedTensor:
    """The positions of a token in each row of ids [B, L]: int32 [B, (places)]."""
    rows, places = tf.unstack(tf.cast(tf.where(ids == token_id), tf.int32), axis=1)
    return tf.RaggedTensor.from_value_rowids(places, rows, nrows=tf.shape(ids)[0])
