# SPDX-License-Identifier: Apache-2.0
"""Spans and answers of a served model, through the windows of `qa.QATask`.

The rules are those of `qa_answers`, by which trials predict and are scored.

Shapes: B questions, W windows of all their texts, K spans of a window, L length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from electra_tf.finetune import qa_answers
from electra_tf.finetune.task import Task
from electra_tf.model.layers import gather_positions, gelu
from electra_tf.text import tf_tokenization
from electra_tf.text.tf_tokenization import characters
from electra_tf.text.tokenization import PackedTexts

# Added to the logits of positions that cannot be part of an answer, as in the original.
_IMPOSSIBLE_POSITION = -1000.0
_NEVER = -1e9
# Outputs of a head that predicts the end from the start.
_JOINT = ("start_top_index", "start_top_log_probs")
_JOINT += ("end_top_index", "end_top_log_probs")


class Windows(NamedTuple):
    """The windows on the texts of a batch, in order; [W] each."""

    row: tf.Tensor  # int32, the question
    first: tf.Tensor  # int32, the first token, of all the batch's
    length: tf.Tensor  # int32
    offset: tf.Tensor  # int32, where they begin in the packed sequence


def head_outputs(head, dense, hidden, features, training) -> dict[str, tf.Tensor]:
    """The outputs of a `qa.SpanHead`; arguments as of `Head.outputs`."""
    possible = tf.cast(features["input_mask"] * features["segment_ids"], tf.float32)
    possible += tf.one_hot(0, tf.shape(possible)[1])
    penalty = _IMPOSSIBLE_POSITION * (1.0 - possible)  # [B, L]
    start_logits = _scores(dense["dense"], hidden) + penalty
    starts = features["start_positions"][:, None] if training else None
    ends = _ends(head, dense, hidden, start_logits, penalty, starts)
    if head.answerable_classifier:
        answerable = _answerable(head, dense, hidden, start_logits)
    else:
        answerable = tf.zeros(tf.shape(hidden)[:1])
    return {"start_logits": start_logits, "answerable_logit": answerable} | ends


def _ends(head, dense, hidden, start_logits, penalty, right_starts):
    """End logits, and the best starts and ends by log-probability."""
    batch, beam = tf.shape(hidden)[0], head.beam_size
    found = {
        "start_top_log_probs": tf.zeros([batch, beam]),
        "start_top_index": tf.zeros([batch, beam], tf.int32),
        "end_top_log_probs": tf.zeros([batch, beam, beam]),
        "end_top_index": tf.zeros([batch, beam, beam], tf.int32),
        "end_logits": tf.zeros_like(start_logits),
    }
    if not head.joint_prediction:
        return found | {"end_logits": _scores(dense["dense_1"], hidden) + penalty}
    top = tf.math.top_k(tf.nn.log_softmax(start_logits), beam)
    found["start_top_log_probs"], found["start_top_index"] = top
    if right_starts is not None:
        logits = ends_given(dense, hidden, right_starts)[:, 0] + penalty
        return found | {"end_logits": logits}
    logits = ends_given(dense, hidden, top.indices) + penalty[:, None]
    top = tf.math.top_k(tf.nn.log_softmax(logits), beam)
    found["end_top_log_probs"], found["end_top_index"] = top
    return found


def ends_given(dense, hidden, starts):
    """Scores of each end [B, S, L] given the starts [B, S].

    The hidden layer sees (start, end) side by side; its product is the sum of two, so
    no [B, S, L, 2H] is made, and one start at a time no [B, S, L, 512] either.
    """
    layer, width = dense["qa_hidden"], hidden.shape[-1]
    kernel = tf.cast(layer.kernel.value, hidden.dtype)
    bias = tf.cast(layer.bias.value, hidden.dtype)
    states = gather_positions(hidden, starts)  # [B, S, H]
    of_start = tf.matmul(states, kernel[:width]) + bias
    of_end = tf.matmul(hidden, kernel[width:])  # [B, L, 512]

    def scores(one_start):  # [B, 512]
        return _scores(dense["dense_1"], gelu(one_start[:, None] + of_end))

    if starts.shape[1] == 1:
        return scores(of_start[:, 0])[:, None]
    by_start = tf.transpose(of_start, [1, 0, 2])
    found = tf.map_fn(scores, by_start, fn_output_signature=tf.float32)
    return tf.transpose(found, [1, 0, 2])


def _answerable(head, dense, hidden, start_logits):
    *_, last = dense.values()
    state = hidden[:, 0]
    if head.answerable_uses_start_logits:
        weights = tf.cast(tf.nn.softmax(start_logits), hidden.dtype)
        expected = tf.matmul(weights[:, None], hidden)[:, 0]
        state = gelu(dense["dense_2"](tf.concat([state, expected], -1)))
    return tf.cast(last(state)[:, 0], tf.float32)


def _scores(layer, states):
    """A dense layer of width 1 on [B, L, D]: float32 [B, L]."""
    flat = tf.reshape(states, [-1, states.shape[-1]])
    return tf.cast(tf.reshape(layer(flat), tf.shape(states)[:-1]), tf.float32)


def answers(task: Task, tokenizer, compute, question: tf.Tensor, context: tf.Tensor):
    """The best answer to each question in its text; args as of `Head.answer_texts`.

    Returns: answer string, start and end int32 (characters of context; -1 and "" where
    no span is possible), score float32 (of start and end, which ranks answers) and
    probability float32 (of start times end, in its window; 1 where no span is
    possible); of a task with questions that have no answer also null_odds float32 and
    has_answer bool (null_odds up to qa_na_threshold). [B] each.
    """
    config = task.config
    both = "question and context"
    question, context = tf_tokenization.of_same_rows(both, question, context)
    query = tokenizer.tokenize(question)[:, : config.max_query_length]
    document = tokenizer.tokenize_with_offsets(context)
    windows = windows_on(document.ids, query, config)
    places = tf.ragged.range(windows.first, windows.first + windows.length)
    count = _beam(config) ** 2
    values = tf_tokenization.map_rows(
        lambda inputs: _window_values(compute(inputs), config),
        [tf.gather(query, windows.row), tf.gather(document.ids.flat_values, places)],
        *(tokenizer.vocab, 4 * count + 1),
        least_length=_beam(config),
    )
    *spans, null = tf.split(values, [count] * 4 + [1], axis=1)
    found = _best(spans, windows, document, context, config)
    if not task.is_v2:
        return found
    rows = tf.shape(context)[0]
    lowest = tf.math.unsorted_segment_min(null[:, 0], windows.row, rows)
    odds = lowest if config.answerable_classifier else lowest - found["score"]
    is_read = document.ids.row_lengths() > 0
    odds = tf.where(is_read, odds, qa_answers.SURELY_NONE)
    return found | {"null_odds": odds, "has_answer": odds <= config.qa_na_threshold}


def outputs(config, compute, inputs: PackedTexts) -> dict[str, tf.Tensor]:
    """The head's outputs that mean something without labels.

    The joint head takes the best of `beam_size` tokens: shorter rows are padded to as
    many for it.
    """
    length, names = tf.shape(inputs.input_ids)[1], ["start_logits"]
    if config.joint_prediction:
        more = [[0, 0], [0, tf.maximum(_beam(config) - length, 0)]]
        inputs = PackedTexts(*(tf.pad(x, more) for x in inputs))
        names += _JOINT
    else:
        names.append("end_logits")
    if config.answerable_classifier:
        names.append("answerable_logit")
    found = compute(inputs)
    kept = {name: found[name] for name in names}
    return kept | {"start_logits": kept["start_logits"][:, :length]}


def windows_on(document: tf.RaggedTensor, query: tf.RaggedTensor, config) -> Windows:
    """The windows of `QATask`: as long as fits beside the question, a stride apart."""
    total = tf.cast(document.row_lengths(), tf.int32)
    room = config.max_seq_length - tf.cast(query.row_lengths(), tf.int32) - 3
    stride = tf.minimum(room, config.doc_stride)
    more = -(-tf.maximum(total - room, 0) // stride)
    counts = tf.where(total > 0, 1 + more, 0)
    row = tf.repeat(tf.range(tf.size(counts)), counts)
    before = tf.cumsum(counts, exclusive=True)
    number = tf.range(tf.size(row)) - tf.gather(before, row)
    start = number * tf.gather(stride, row)
    length = tf.minimum(tf.gather(total, row) - start, tf.gather(room, row))
    first = tf.cast(tf.gather(document.row_starts(), row), tf.int32) + start
    offset = tf.cast(tf.gather(query.row_lengths(), row), tf.int32) + 2
    return Windows(row, first, length, offset)


def _beam(config) -> int:
    """The number of starts of a window, and of ends of each start."""
    return config.beam_size if config.joint_prediction else config.n_best_size


def _window_values(outputs: Mapping[str, tf.Tensor], config) -> tf.Tensor:
    """The spans of windows and how little these answer: float32 [W, 4 K + 1].

    Spans are of the best starts with their (joint), or with the best, ends: score (of
    start and end together), probability, start and end (tokens of the packed window).
    """
    if config.joint_prediction:
        best_starts = outputs["start_top_log_probs"], outputs["start_top_index"]
        best_ends = outputs["end_top_log_probs"], outputs["end_top_index"]
        log_total = 0.0
    else:
        starts, ends = outputs["start_logits"], outputs["end_logits"]
        # Sequences may be shorter than that.
        more = [[0, 0], [0, tf.maximum(config.n_best_size - tf.shape(starts)[1], 0)]]
        starts, ends = (tf.pad(x, more, constant_values=_NEVER) for x in (starts, ends))
        best_starts = tf.math.top_k(starts, config.n_best_size)
        best_ends = (x[:, None] for x in tf.math.top_k(ends, config.n_best_size))
        log_total = tf.reduce_logsumexp(starts, 1) + tf.reduce_logsumexp(ends, 1)
        log_total = log_total[:, None, None]
    start_score, start = (x[:, :, None] for x in best_starts)
    end_score, end = best_ends
    score = start_score + end_score
    spans = (
        tf.broadcast_to(tf.cast(x, tf.float32), tf.shape(score))
        for x in (score, tf.exp(score - log_total), start, end)
    )
    values = [tf.reshape(x, [-1, _beam(config) ** 2]) for x in spans]
    if config.answerable_classifier:
        null = outputs["answerable_logit"]
    else:
        null = outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
    return tf.concat([*values, null[:, None]], 1)


def _best(spans, windows: Windows, document, context, config) -> dict[str, tf.Tensor]:
    """The best possible span for each question, as characters of its text.

    Args:
      spans: scores, probabilities, starts and ends of `_window_values`, [W, K] each.
    """
    scores, probabilities, *places = spans
    rows, tokens = tf.shape(context)[0], tf.size(document.ids.flat_values)
    first, length = windows.first[:, None], windows.length[:, None]
    start, end = (tf.cast(x, tf.int32) - windows.offset[:, None] for x in places)
    possible = (start >= 0) & (end < length) & (end >= start)
    possible &= end - start < config.max_answer_length
    start_there = tf.clip_by_value(start, 0, length - 1)
    possible &= _shows_most(windows, start_there, tokens)
    # The first of the highest, in the order of windows and spans.
    score = tf.reshape(tf.where(possible, scores, scores.dtype.min), [-1])
    row = tf.repeat(windows.row, tf.shape(scores)[1])
    highest = tf.math.unsorted_segment_max(score, row, rows)
    is_best = tf.reshape(possible, [-1]) & (score == tf.gather(highest, row))
    count = tf.size(score)
    place = tf.where(is_best, tf.range(count), count)
    place = tf.minimum(tf.math.unsorted_segment_min(place, row, rows), count)

    def taken(values, otherwise):  # for rows without a span
        values = tf.reshape(values, [-1])
        values = tf.concat([values, tf.cast([otherwise], values.dtype)], 0)
        return tf.gather(values, place)

    def offsets(values, token):
        values = tf.concat([values, [tf_tokenization.NO_OFFSET]], 0)
        return tf.gather(values, taken(first + token, tokens))

    start = offsets(document.starts.flat_values, start)
    end = offsets(document.ends.flat_values, end)
    cut = tf.maximum(start, 0), tf.maximum(end, 0)
    return {
        "answer": characters(context, tf.range(rows), *cut),
        "start": start,
        "end": end,
        "score": taken(scores, 0.0),
        "probability": taken(probabilities, 1.0),  # as the only candidate's
    }


def _shows_most(windows: Windows, place: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Whether no other window shows more around a token; bool [W, K].

    Args:
      place: the token, int32 [W, K], in its window.
      tokens: how many the batch has.
    """
    inside = tf.ragged.range(windows.length)
    window = tf.cast(inside.value_rowids(), tf.int32)
    length = tf.gather(windows.length, window)
    here = inside.flat_values
    around = 100 * tf.minimum(here, length - 1 - here) + length
    token = tf.gather(windows.first, window) + here
    most = tf.math.unsorted_segment_max(around, token, tokens)
    is_most = around == tf.gather(most, token)
    number = tf.where(is_most, window, tf.size(windows.row))
    at = tf.math.unsorted_segment_min(number, token, tokens)
    at = tf.gather(at, windows.first[:, None] + place)
    return at == tf.range(tf.size(windows.row))[:, None]
