# SPDX-License-Identifier: Apache-2.0
"""Shared by all served models: inputs, their checks in the graph, batches.

Inputs are ids of packed texts or raw texts. Without the checks an id of -1 or a mask of
another length gives a number, and on a GPU an id beyond the vocabulary.

Shapes: B batch, W windows, L length; N tokens in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.finetune.model import FinetuningModel
from electra_tf.inference.pretrained_model import PretrainedModel
from electra_tf.interop import verification
from electra_tf.pretrain.pretraining import ElectraPretrainer
from electra_tf.text.tf_tokenization import TFTokenizer
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

# The names of TensorFlow Hub's text API.
NAMES = ("input_word_ids", "input_mask", "input_type_ids")
TEXT = tf.TensorSpec([None], tf.string, name="text")


class EncoderInputs(NamedTuple):
    """Packed texts, int32 [B, L] each."""

    ids: tf.Tensor
    mask: tf.Tensor  # 1 at tokens, 0 at padding
    type_ids: tf.Tensor


def encoder_specs() -> dict[str, tf.TensorSpec]:
    """The signature of an encoder: int32 [B, L] by name."""
    return {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in NAMES}


def checked(
    ids: tf.Tensor, mask: tf.Tensor, type_ids: tf.Tensor, shape: ModelConfig
) -> EncoderInputs:
    """The same tensors; reading them raises InvalidArgument for invalid values.

    Args:
      shape: of the encoder that they are for.
    """
    # A signature states its ranks, but callers are not bound to them.
    inputs = [tf.ensure_shape(x, [None, None]) for x in (ids, mask, type_ids)]
    (rows, length), most = tf.unstack(tf.shape(ids)), shape.max_position_embeddings
    found = [
        require(
            (length >= 1) & (length <= most),
            f"this model reads from 1 to {most} tokens; input_word_ids has",
            length,
        )
    ]
    for name, x in zip(NAMES[1:], inputs[1:], strict=True):
        same = tf.reduce_all(tf.shape(x) == tf.stack([rows, length]))
        what = f"{name} must have the shape of input_word_ids; the two are"
        found.append(require(same, what, tf.shape(x), rows, length))
    sizes = shape.vocab_size, 2, shape.type_vocab_size
    with tf.control_dependencies(found + list(map(in_range, NAMES, inputs, sizes))):
        return EncoderInputs(*map(tf.identity, inputs))


def require(condition: tf.Tensor, *message) -> tf.Operation:
    """An op that raises InvalidArgument with `message` unless `condition` holds."""
    return tf.debugging.Assert(condition, list(message), summarize=10)


def in_range(name: str, ids: tf.Tensor, size: tf.Tensor | int) -> tf.Operation:
    """An op that raises InvalidArgument unless 0 <= ids < size."""
    fits = tf.reduce_all((ids >= 0) & (ids < size))
    low, high = tf.reduce_min(ids), tf.reduce_max(ids)
    limit = f"{name} must be from 0 to"
    return require(fits, limit, size - 1, "; the lowest and the highest are", low, high)


def of_same_rows(names: str, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """The same tensors; reading them raises InvalidArgument for other rows."""
    rows = [tf.shape(x)[0] for x in tensors]
    same = tf.reduce_all(tf.stack(rows) == rows[0])
    with tf.control_dependencies([require(same, f"{names} have rows:", *rows)]):
        return [tf.identity(x) for x in tensors]


# Texts of every kind of character, on which each export is compared with the model.
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "Café crème, 50 % off! Ελληνικός; русский …",
    "中文語 한국어 かな \U0001f680\ufe0f [MASK] ﬁ ß",
    "",
    "one two three four five six seven eight nine ten " * 12,
)
# Where a padded row has no token.
NO_OFFSET = -1


class ExportedModel(NamedTuple):
    """A model to export, with the tokenizer that it was trained with."""

    name: str
    vocab: Vocabulary
    tokenizer_config: TokenizerConfig
    max_seq_length: int
    pretrainer: ElectraPretrainer | FinetuningModel
    facts: dict[str, Any]  # for the manifest: step, data, ...
    jit_compile: bool = False  # XLA compiles the signatures for ids

    @property
    def objective(self) -> str:
        """The training objective."""
        if isinstance(self.pretrainer, ElectraPretrainer):
            return self.pretrainer.hparams.objective
        return "fine-tuned"

    @property
    def shape(self) -> ModelConfig:
        """The config of its encoder."""
        return self.pretrainer.model_config

    def tokenizer(self) -> Tokenizer:
        """The tokenizer in Python."""
        return Tokenizer(self.vocab, *self.tokenizer_config)

    def in_python(self) -> PretrainedModel:
        """The model in Python; exports are compared with its answers."""
        config = PretrainingConfig(max_seq_length=self.max_seq_length)
        settings = self.tokenizer_config, self.name
        return PretrainedModel(config, self.vocab, self.pretrainer, *settings)

    def tf_tokenizer(self) -> TFTokenizer:
        """The tokenizer as TensorFlow ops."""
        return TFTokenizer(self.vocab, *self.tokenizer_config)


class Check(NamedTuple):
    """Inputs of a signature and the model's own outputs for them."""

    signature: str
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]  # the outputs that are compared


class Servable(NamedTuple):
    """The content of a SavedModel."""

    root: tf.train.Checkpoint
    signatures: dict[str, Any]
    checks: list[Check]  # the last is of the signature for ids
    facts: dict[str, Any]  # for the manifest


def reusable_root(variables=()) -> tf.train.Checkpoint:
    """An empty root with the attributes of TensorFlow Hub's reusable SavedModels.

    It holds the variables themselves, each once: through Keras's objects each would be
    stored twice.
    """
    variables = {id(v): v for v in variables}.values()
    values = [v.value for v in variables]
    trainable = [v.value for v in variables if v.trainable]
    return tf.train.Checkpoint(
        variables=values, trainable_variables=trainable, regularization_losses=[]
    )


def computed(source: ExportedModel, function: Callable) -> Callable:
    """A function of checked ids, compiled if the export asks for it.

    The checks stay outside, since XLA omits assertions.
    """
    if not source.jit_compile:
        return function
    return tf.function(function, jit_compile=True, autograph=False)


def ids_signature(
    source: ExportedModel, answer: Callable[[EncoderInputs], dict[str, tf.Tensor]]
) -> Callable:
    """A tf.function for the encoder's inputs, which are checked before `answer`."""
    answer = computed(source, answer)

    @tf.function(autograph=False, input_signature=list(encoder_specs().values()))
    def of_ids(input_word_ids, input_mask, input_type_ids):
        inputs = input_word_ids, input_mask, input_type_ids
        return answer(checked(*inputs, source.shape))

    return of_ids


def servable(
    source: ExportedModel,
    variables: Sequence,
    of_texts: Callable,
    ids_answer: Callable[[EncoderInputs], dict[str, tf.Tensor]],
    checks: list[Check],
    facts: dict[str, Any],
) -> Servable:
    """A SavedModel with the signatures `serving_default`, for texts, and `ids`.

    Args:
      of_texts: the tf.function for texts.
      ids_answer: the outputs for the encoder's inputs.
      checks: of `serving_default`.
    """
    ids = probe_ids(source)
    expected = ids_answer(EncoderInputs(*map(tf.constant, ids.values())))
    # Rounding may change the order of the best.
    expected = {k: v.numpy() for k, v in expected.items() if "_top_" not in k}
    root = reusable_root(variables)
    root.__call__ = of_texts
    root.ids = ids_signature(source, ids_answer)
    signatures = {"serving_default": of_texts, "ids": root.ids}
    return Servable(root, signatures, [*checks, Check("ids", ids, expected)], facts)


def probe_ids(source: ExportedModel) -> dict[str, np.ndarray]:
    """A fixed batch of ids: rows of different lengths, two segments, padding."""
    batch = verification.fixed_batch(source.shape, source.vocab.pad_id)
    return dict(zip(NAMES, batch.values(), strict=True))


def encoded(texts: Sequence[str]) -> np.ndarray:
    """Texts as bytes, as a signature takes them."""
    return np.array([text.encode() for text in texts])


def columns_of(rows: Sequence[dict[str, list]]) -> dict[str, np.ndarray]:
    """The values of texts' tokens by name, [B, T], padded as an export pads them."""
    width = max(len(values) for row in rows for values in row.values())
    fills = {"starts": NO_OFFSET, "ends": NO_OFFSET}
    found: dict[str, np.ndarray] = {}
    for name in rows[0]:
        is_text = any(isinstance(x, bytes) for row in rows for x in row[name])
        fill = fills.get(name, b"" if is_text else 0)
        padded = [row[name] + [fill] * (width - len(row[name])) for row in rows]
        found[name] = np.array(padded)
    return found


# Rows that go through the network together: enough for full speed, few enough that
# sorting by length saves padding and a long text needs little memory.
ROWS_PER_STEP = 16


def pack(
    segments: Sequence[tf.RaggedTensor],
    vocab: Vocabulary,
    length: tf.Tensor | int | None = None,
) -> EncoderInputs:
    """[CLS] first segment [SEP] (second segment [SEP]), padded.

    As in `text.tokenization.join`, a second segment without tokens is none.

    Args:
      segments: one or two RaggedTensors int32 [B, (tokens)] that fit.
      length: of the result; None: of the longest row.
    """
    rows = segments[0].nrows()
    parts = [tf.fill([rows, 1], vocab.cls_id)]
    types = [tf.zeros([rows, 1], tf.int32)]
    counts = zip(segments, _ends(segments), strict=True)
    for number, (segment, count) in enumerate(counts):
        ends = tf.fill(tf.reduce_sum(count)[None], vocab.sep_id)
        ends = tf.RaggedTensor.from_row_lengths(ends, count, validate=False)
        part = tf.concat([segment, ends], axis=1)
        parts.append(part)
        types.append(tf.fill(tf.shape(part.flat_values), number))
        types[-1] = part.with_flat_values(types[-1])
    ids, types = tf.concat(parts, axis=1), tf.concat(types, axis=1)
    shape = None if length is None else tf.stack([-1, length])
    mask = ids.with_flat_values(tf.ones_like(ids.flat_values))
    return EncoderInputs(
        ids.to_tensor(vocab.pad_id, shape=shape),
        mask.to_tensor(0, shape=shape),
        types.to_tensor(0, shape=shape),
    )


def _ends(segments: Sequence[tf.RaggedTensor]) -> list[tf.Tensor]:
    """The number of [SEP] after each segment in each row, [B]: 1, or 0 for none."""
    lengths = [segment.row_lengths() for segment in segments]
    others = [tf.minimum(one, 1) for one in lengths[1:]]
    return [tf.ones_like(lengths[0]), *others]


def truncate(
    segments: Sequence[tf.RaggedTensor], length: tf.Tensor | int
) -> list[tf.RaggedTensor]:
    """Shortens one or two segments, from the longer one's end.

    Args:
      length: tokens that `pack` may make of them.
    """
    first, *others = (segment.row_lengths() for segment in segments)
    room = tf.cast(length, first.dtype) - 1 - tf.add_n(_ends(segments))
    if not others:
        return [_heads(segments[0], tf.minimum(first, room))]
    keep_second = tf.minimum(others[0], tf.maximum(room // 2, room - first))
    keep_first = tf.minimum(first, room - keep_second)
    return [_heads(segments[0], keep_first), _heads(segments[1], keep_second)]


def _heads(ragged: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first `lengths[i]` values of row i."""
    starts = ragged.row_starts()
    places = tf.ragged.range(starts, starts + lengths)
    return places.with_flat_values(tf.gather(ragged.flat_values, places.flat_values))


def windows_of(tokens: tf.RaggedTensor, size: int) -> tf.RaggedTensor:
    """Cuts each row into consecutive windows of `size`: [B, (tokens)] -> [W, (<=size)].

    A row without tokens has no window; the tokens keep their order.
    """
    lengths = tokens.row_lengths()
    counts = -(-lengths // size)
    first = tf.cumsum(counts, exclusive=True)
    number = tf.range(tf.reduce_sum(counts)) - tf.repeat(first, counts)
    left = tf.repeat(lengths, counts) - number * size
    return tf.RaggedTensor.from_row_lengths(
        tokens.flat_values, tf.minimum(left, tf.cast(size, left.dtype))
    )


def _by_length(
    lengths: tf.Tensor, inner: Sequence[int], compute: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """The results of `compute` for rows of similar length, ROWS_PER_STEP at a time.

    Args:
      lengths: of the rows.
      inner: the shape of a result.
      compute: of the numbers of some rows, the longest first.

    Returns (all results, the rows' numbers in their order).
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    steps = -(-tf.size(order) // ROWS_PER_STEP)

    def step(i, results):
        rows = order[i * ROWS_PER_STEP : (i + 1) * ROWS_PER_STEP]
        return i + 1, results.write(i, compute(rows))

    results = tf.TensorArray(
        tf.float32, size=steps, infer_shape=False, element_shape=[None, *inner]
    )
    _, results = tf.while_loop(
        lambda i, _: i < steps, step, (0, results), parallel_iterations=1
    )
    return results.concat(), order


def map_windows(
    network: Callable[[EncoderInputs], tf.Tensor],
    windows: tf.RaggedTensor,
    vocab: Vocabulary,
    width: int | None = None,
) -> tf.Tensor:
    """The outputs of a network for each token in [CLS] window [SEP]: float32 [N].

    Args:
      network: from EncoderInputs to float32 [windows, L].
      windows: int32 [W, (tokens)].
      width: C, of a network that gives [windows, L, C]; the result is [N, C] then.
    """
    inner = [] if width is None else [width]

    def compute(rows):
        part = tf.gather(windows, rows)
        values = network(pack([part], vocab))[:, 1:]
        return tf.RaggedTensor.from_tensor(values, part.row_lengths()).flat_values

    results, order = _by_length(windows.row_lengths(), inner, compute)
    longest_first = tf.gather(windows, order).with_flat_values(results)
    return tf.gather(longest_first, tf.math.invert_permutation(order)).flat_values


def map_rows(
    network: Callable[[EncoderInputs], tf.Tensor],
    segments: Sequence[tf.RaggedTensor],
    vocab: Vocabulary,
    width: int,
    least_length: int = 1,
) -> tf.Tensor:
    """The outputs of a network for each packed row: float32 [B, width].

    Args:
      network: from EncoderInputs to float32 [rows, width].
      segments: one or two RaggedTensors int32 [B, (tokens)] that fit.
      least_length: to which shorter rows are padded.
    """
    lengths = [segment.row_lengths() for segment in segments]
    lengths = 1 + tf.add_n([*lengths, *_ends(segments)])

    def compute(rows):
        length = tf.maximum(tf.cast(lengths[rows[0]], tf.int32), least_length)
        return network(pack([tf.gather(s, rows) for s in segments], vocab, length))

    results, order = _by_length(lengths, [width], compute)
    return tf.gather(results, tf.math.invert_permutation(order))
