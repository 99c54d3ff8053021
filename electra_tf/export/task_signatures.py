# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned tasks as SavedModels: from texts to labels, numbers, tags and answers.

For question answering a text is read through the windows of `finetune.qa`, and spans
are chosen by the rules of `finetune.qa_answers`.

Shapes: B texts or questions, C labels, T words of the longest text, W windows of all
texts, K spans of a window, L length of packed ids.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from electra_tf.export import signatures
from electra_tf.export.finetuned_task import ExportedTask
from electra_tf.export.signatures import PROBES, Check, EncoderInputs, Servable
from electra_tf.finetune import qa, qa_answers
from electra_tf.finetune.qa_answers import Answers, decode
from electra_tf.finetune.registry import table_of
from electra_tf.text import tokenization
from electra_tf.text.tf_tokenization import TokensInText, tokenize_with_offsets

_NEAR_TIE = 1e-4
_NOTHING = qa_answers.Answer(qa_answers.NO_SPAN, 0.0, 0.0)
# Outputs of a head that predicts the end from the start.
_JOINT = ("start_top_index", "start_top_log_probs")
_JOINT += ("end_top_index", "end_top_log_probs")
_QUESTIONS = ("who wrote the book ?", "", "where does the fox jump ?")
_CONTEXTS = (
    "the book was written by a doctor . " * 30,
    "nothing is asked here",
    "the quick brown fox jumps over the lazy dog .",
)


def text_classifier(task: ExportedTask) -> Servable:
    """A class, or a number, for each text or pair of texts.

    `serving_default`: text (and text_b, if the task has pairs) string [B] -> label
    string [B], probability float32 [B], labels string [B, C], probabilities float32
    [B, C]; where a text has several classes, these two alone, each probability by
    itself; of a regression value float32 [B]. Long texts are cut as in training.
    `ids`: the encoder's inputs -> logits and probabilities [B, C], or value [B].
    """
    source, facts = task.source, task.facts
    tokenizer = source.tf_tokenizer()
    names = tf.constant(list(facts.labels), tf.string)
    shares = tf.nn.sigmoid if facts.kind == "multilabel" else tf.nn.softmax

    def numbers(inputs: EncoderInputs) -> tf.Tensor:
        outputs = task.outputs(inputs)
        return outputs["logits"] if facts.labels else outputs["predictions"][:, None]

    def answer(values: tf.Tensor) -> dict[str, tf.Tensor]:
        if not facts.labels:
            share = tf.clip_by_value(values[:, 0], 0.0, 1.0)
            return {"value": facts.lowest + share * (facts.highest - facts.lowest)}
        probs = shares(values)
        every = tf.broadcast_to(names, tf.shape(probs))
        found = {"labels": every, "probabilities": probs}
        if facts.kind == "multilabel":
            return found
        best = tf.gather(names, tf.argmax(values, axis=-1))
        return found | {"label": best, "probability": tf.reduce_max(probs, axis=-1)}

    def of_texts(*texts):
        texts = [tf.ensure_shape(text, [None]) for text in texts]
        texts = signatures.of_same_rows("text and text_b", *texts)
        segments = [tokenizer.tokenize(text) for text in texts]
        segments = signatures.truncate(segments, source.max_seq_length)
        width = max(1, len(facts.labels))
        return answer(signatures.map_rows(numbers, segments, source.vocab, width))

    def of_ids(inputs: EncoderInputs) -> dict[str, tf.Tensor]:
        values = numbers(inputs)
        if not facts.labels:
            return answer(values)
        return {"logits": values, "probabilities": shares(values)}

    texts = {"text": PROBES, "text_b": PROBES[::-1]}
    texts = dict(list(texts.items())[: facts.num_texts])
    specs = [tf.TensorSpec([None], tf.string, name=name) for name in texts]
    of_texts = tf.function(of_texts, autograph=False, input_signature=specs)
    expected = _labels_in_python(task, list(zip(*texts.values(), strict=True)))
    return _servable(task, of_texts, of_ids, texts, expected, "label")


def _labels_in_python(task: ExportedTask, asked: list) -> dict[str, np.ndarray]:
    """The outputs for texts or pairs, by the predictions of the model in Python."""
    labels, rows = task.facts.labels, task.predictor.predict(asked)
    if not labels:
        return {"value": np.array([row["value"] for row in rows])}
    shares = np.array([[row["probabilities"][x] for x in labels] for row in rows])
    names = np.tile(signatures.encoded(labels), (len(rows), 1))
    found = {"labels": names, "probabilities": shares}
    if task.facts.kind == "multilabel":
        return found
    best = signatures.encoded([row["label"] for row in rows])
    return found | {"label": best, "probability": shares.max(axis=1)}


def tagger(task: ExportedTask) -> Servable:
    """A label for each word of a text.

    `serving_default`: text string [B] -> words string [B, T] (as they stand in the
    text; punctuation is a word), starts and ends int32 [B, T] (characters), labels
    string [B, T] and their probabilities float32 [B, T], num_words int32 [B].
    `ids`: the encoder's inputs -> logits and probabilities float32 [B, L, C]; a word's
    are those of its first token.

    Segment ids are 1 throughout, as in training; `ids` sets them itself.
    """
    source, facts = task.source, task.facts
    tokenizer, size = source.tf_tokenizer(), source.max_seq_length - 2
    names = tf.constant(list(facts.labels), tf.string)
    begins = tf.constant([not token.startswith("##") for token in source.vocab.tokens])

    def logits(inputs: EncoderInputs) -> tf.Tensor:
        return task.outputs(inputs._replace(type_ids=inputs.mask))["logits"]

    @tf.function(autograph=False, input_signature=[signatures.TEXT])
    def of_texts(text):
        tokens = tokenize_with_offsets(tokenizer, tf.ensure_shape(text, [None]))
        windows = signatures.windows_of(tokens.ids, size)
        width = len(facts.labels)
        flat = signatures.map_windows(logits, windows, source.vocab, width=width)
        first = tokens.ids.with_flat_values(tf.gather(begins, tokens.ids.flat_values))
        # A word ends where its last piece does.
        piece = tf.cumsum(tf.cast(first.flat_values, tf.int32)) - 1
        count = tf.reduce_sum(tf.cast(first.flat_values, tf.int32))
        ends = tf.math.unsorted_segment_max(tokens.ends.flat_values, piece, count)
        starts = tf.ragged.boolean_mask(tokens.starts, first)
        ends = starts.with_flat_values(ends)
        words = _characters(
            text, starts.value_rowids(), starts.flat_values, ends.flat_values
        )
        probs = tf.boolean_mask(tf.nn.softmax(flat), first.flat_values)
        best = tf.gather(names, tf.argmax(probs, axis=-1))
        return {
            "words": starts.with_flat_values(words).to_tensor(""),
            "starts": starts.to_tensor(signatures.NO_OFFSET),
            "ends": ends.to_tensor(signatures.NO_OFFSET),
            "labels": starts.with_flat_values(best).to_tensor(""),
            "probabilities": starts.with_flat_values(
                tf.reduce_max(probs, axis=-1)
            ).to_tensor(),
            "num_words": tf.cast(starts.row_lengths(), tf.int32),
        }

    def of_ids(inputs: EncoderInputs) -> dict[str, tf.Tensor]:
        values = logits(inputs)
        return {"logits": values, "probabilities": tf.nn.softmax(values)}

    expected = _tags_in_python(task, logits)
    return _servable(task, of_texts, of_ids, {"text": PROBES}, expected, "labels")


def _characters(text, row, start, end) -> tf.Tensor:
    """text[row][start:end] of each."""
    chars = tf.strings.unicode_decode(text, "UTF-8", errors="ignore")
    first = tf.cast(tf.gather(chars.row_starts(), row), tf.int32)
    places = tf.ragged.range(first + start, first + end)
    return tf.strings.unicode_encode(tf.gather(chars.flat_values, places), "UTF-8")


def _servable(task, of_texts, ids_answer, texts, expected, best) -> Servable:
    """A SavedModel with a check: `texts` by name and the expected outputs.

    In half precision labels change with the order of the operations, so the check
    leaves out `best`, the output with the best labels.
    """
    if task.source.facts["precision"] != "float32":
        expected.pop(best, None)
    inputs = {name: signatures.encoded(values) for name, values in texts.items()}
    checks = [Check("serving_default", inputs, expected)]
    facts = {"labels": list(task.facts.labels)} | table_of(task.facts, task.config)
    return signatures.servable(
        task.source, task.variables, of_texts, ids_answer, checks, facts
    )


def _tags_in_python(task: ExportedTask, logits) -> dict[str, np.ndarray]:
    """Words, offsets and tags of the probes, window by window."""
    source, names = task.source, task.facts.labels
    tokenizer, size = source.tokenizer(), source.max_seq_length - 2
    rows = []
    for text in PROBES:
        ids, offsets = tokenizer.encode_with_offsets(text)
        values = []
        for first in range(0, max(1, len(ids)), size):
            window = tokenization.pack(source.vocab, [ids[first : first + size]])
            values.append(logits(EncoderInputs(*map(tf.constant, window)))[0, 1:-1])
        shares = tf.nn.softmax(tf.concat(values, 0)).numpy()
        row = {"starts": [], "ends": [], "labels": [], "probabilities": []}
        for piece, (start, end), p in zip(ids, offsets, shares, strict=True):
            if source.vocab.tokens[piece].startswith("##"):
                row["ends"][-1] = end
                continue
            row["starts"].append(start)
            row["ends"].append(end)
            row["labels"].append(names[int(np.argmax(p))].encode())
            row["probabilities"].append(float(np.max(p)))
        spans = zip(row["starts"], row["ends"], strict=True)
        rows.append(row | {"words": [text[start:end].encode() for start, end in spans]})
    counts = [len(row["starts"]) for row in rows]
    return signatures.columns_of(rows) | {"num_words": np.array(counts)}


class _Windows(NamedTuple):
    """The windows on the texts of a batch, in order; [W] each."""

    row: tf.Tensor  # int32, the question
    first: tf.Tensor  # int32, the first token, of all the batch's
    length: tf.Tensor  # int32


class _Spans(NamedTuple):
    """Possible answers; [W, K] each, tokens of the packed window."""

    score: tf.Tensor  # of start and end together
    probability: tf.Tensor
    start: tf.Tensor
    end: tf.Tensor


def question_answering(task: ExportedTask) -> Servable:
    """The best answer to each question in its text.

    `serving_default`: question and context string [B] -> answer string [B], start and
    end int32 [B] (characters of context; -1 and "" where no span is possible), score
    float32 [B] (of start and end, which ranks answers) and probability float32 [B] (of
    start times end, in its window; 1 where no span is possible); of a task with
    questions that have no answer also null_odds float32 [B] and has_answer bool [B]
    (null_odds up to qa_na_threshold).
    `ids`: the encoder's inputs -> the head's outputs. The joint head takes the best of
    `beam_size` tokens: shorter rows are padded to as many for it.
    """
    source, config = task.source, task.config
    tokenizer = source.tf_tokenizer()
    has_null = _has_null(task)
    beam = _beam(config)
    count = beam * beam

    def network(inputs: EncoderInputs) -> tf.Tensor:
        outputs = task.outputs(inputs)
        spans = tf.concat([tf.cast(x, tf.float32) for x in _spans(outputs, config)], 1)
        return tf.concat([spans, _null_score(outputs, config)[:, None]], 1)

    texts = [tf.TensorSpec([None], tf.string, name=n) for n in ("question", "context")]

    @tf.function(autograph=False, input_signature=texts)
    def of_texts(question, context):
        question, context = (tf.ensure_shape(x, [None]) for x in (question, context))
        question, context = signatures.of_same_rows(
            "question and context", question, context
        )
        query = tokenizer.tokenize(question)[:, : config.max_query_length]
        rows = tf.shape(question)[0]
        document = tokenize_with_offsets(tokenizer, context)
        windows = windows_on(document.ids, query, config)
        queries = tf.gather(query, windows.row)
        places = tf.ragged.range(windows.first, windows.first + windows.length)
        parts = tf.gather(document.ids.flat_values, places)
        values = signatures.map_rows(
            network, [queries, parts], source.vocab, 4 * count + 1, least_length=beam
        )
        *spans, null = tf.split(values, [count] * 4 + [1], axis=1)
        offset = tf.cast(queries.row_lengths(), tf.int32) + 2
        best = _best(_Spans(*spans), windows, offset, document, rows, config)
        found = _in_text(best, document, context)
        if not has_null:
            return found
        lowest = tf.math.unsorted_segment_min(null[:, 0], windows.row, rows)
        odds = lowest if config.answerable_classifier else lowest - found["score"]
        surely_none = qa_answers.null_odds(config, [], _NOTHING)
        odds = tf.where(document.ids.row_lengths() > 0, odds, surely_none)
        has_answer = odds <= config.qa_na_threshold
        return found | {"null_odds": odds, "has_answer": has_answer}

    def of_ids(inputs: EncoderInputs) -> dict[str, tf.Tensor]:
        if not config.joint_prediction:
            return _named(task.outputs(inputs), config)
        length = tf.shape(inputs.ids)[1]
        more = [[0, 0], [0, tf.maximum(beam - length, 0)]]
        inputs = EncoderInputs(*(tf.pad(x, more) for x in inputs))
        found = _named(task.outputs(inputs), config)
        return found | {"start_logits": found["start_logits"][:, :length]}

    facts = {"qa_na_threshold": config.qa_na_threshold} if has_null else {}
    checks = _checks(task)
    return signatures.servable(source, task.variables, of_texts, of_ids, checks, facts)


def windows_on(document: tf.RaggedTensor, query: tf.RaggedTensor, config) -> _Windows:
    """The windows of `QATask`: as long as fits beside the question, a stride apart.

    Raises `UserError` where a long question leaves no room for any.
    """
    qa.check_window(config)
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
    return _Windows(row, first, length)


def _beam(config) -> int:
    """The number of starts of a window, and of ends of each start."""
    return config.beam_size if config.joint_prediction else config.n_best_size


def _spans(outputs: dict[str, tf.Tensor], config) -> _Spans:
    """The spans of the best starts with their (joint), or with the best, ends."""
    if config.joint_prediction:
        best_starts = outputs["start_top_log_probs"], outputs["start_top_index"]
        best_ends = outputs["end_top_log_probs"], outputs["end_top_index"]
        log_total = 0.0
    else:
        starts, ends = outputs["start_logits"], outputs["end_logits"]
        best_starts = tf.math.top_k(starts, config.n_best_size)
        best_ends = (x[:, None] for x in tf.math.top_k(ends, config.n_best_size))
        log_total = tf.reduce_logsumexp(starts, 1) + tf.reduce_logsumexp(ends, 1)
        log_total = log_total[:, None, None]
    start_score, start = (x[:, :, None] for x in best_starts)
    end_score, end = best_ends
    score = start_score + end_score
    spans = score, tf.exp(score - log_total), start, end
    spans = (tf.broadcast_to(x, tf.shape(score)) for x in spans)
    return _Spans(*(tf.reshape(x, [-1, _beam(config) ** 2]) for x in spans))


def _null_score(outputs: dict[str, tf.Tensor], config) -> tf.Tensor:
    """[W]: how little a window answers the question."""
    if config.answerable_classifier:
        return outputs["answerable_logit"]
    return outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]


def _best(spans, windows, offset, document, rows, config):
    """(span [B]: token where it starts, where it ends, score, probability)."""
    first = windows.first[:, None]
    start = tf.cast(spans.start, tf.int32) - offset[:, None]
    end = tf.cast(spans.end, tf.int32) - offset[:, None]
    length = windows.length[:, None]
    inside = (start >= 0) & (end < length) & (end >= start)
    inside &= end - start < config.max_answer_length
    tokens = tf.size(document.ids.flat_values)
    start_there = tf.clip_by_value(start, 0, length - 1)
    possible = inside & _shows_most(windows, start_there, tokens)
    score = tf.where(possible, spans.score, spans.score.dtype.min)
    # The first of the highest, in the order of windows and spans.
    score = tf.reshape(score, [-1])
    row = tf.repeat(windows.row, tf.shape(spans.score)[1])
    highest = tf.math.unsorted_segment_max(score, row, rows)
    is_best = tf.reshape(possible, [-1]) & (score == tf.gather(highest, row))
    place = tf.where(is_best, tf.range(tf.size(score)), tf.size(score))
    place = tf.math.unsorted_segment_min(place, row, rows)
    place = tf.minimum(place, tf.size(score))
    found = place < tf.size(score)

    def taken(values):  # one more at the end, for rows without a span
        flat = tf.reshape(values, [-1])
        return tf.gather(tf.concat([flat, tf.zeros([1], flat.dtype)], 0), place)

    return (
        found,
        taken(first + start),
        taken(first + end),
        taken(spans.score),
        tf.where(found, taken(spans.probability), 1.0),  # as the only candidate's
    )


def _shows_most(windows: _Windows, place: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
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


def _in_text(best, document: TokensInText, context) -> dict[str, tf.Tensor]:
    """The answer's characters."""
    found, first, last, score, probability = best

    def offsets(values, token):
        flat = tf.concat([values.flat_values, [0]], 0)
        return tf.gather(flat, tf.where(found, token, tf.size(flat) - 1))

    start, end = offsets(document.starts, first), offsets(document.ends, last)
    return {
        "answer": _characters(context, tf.range(tf.size(start)), start, end),
        "start": tf.where(found, start, signatures.NO_OFFSET),
        "end": tf.where(found, end, signatures.NO_OFFSET),
        "score": score,
        "probability": probability,
    }


def _named(outputs: dict[str, tf.Tensor], config) -> dict[str, tf.Tensor]:
    """The outputs that mean something without labels."""
    names = ["start_logits", *(_JOINT if config.joint_prediction else ["end_logits"])]
    if config.answerable_classifier:
        names.append("answerable_logit")
    return {name: outputs[name] for name in names}


def _has_null(task: ExportedTask) -> bool:
    """Whether it can answer that a question has no answer."""
    config = task.config
    return task.facts.has_impossible and (
        config.answerable_classifier or not config.joint_prediction
    )


def _score(answer: qa_answers.Answer) -> float:
    return answer.start_logit + answer.end_logit


def _check_of(pairs, expected: dict[str, np.ndarray]) -> Check:
    questions, contexts = map(signatures.encoded, zip(*pairs, strict=True))
    inputs = {"question": questions, "context": contexts}
    return Check("serving_default", inputs, expected)


def _checks(task: ExportedTask) -> list[Check]:
    config = task.config
    # In half precision answers change with the order of the operations.
    is_exact = task.source.facts["precision"] == "float32"
    pairs = list(zip(_QUESTIONS, _CONTEXTS, strict=True))
    found = [_in_python(task, *pair) for pair in pairs]
    scores = np.array([_score(answers.best) for answers in found], np.float32)
    checks = [_check_of(pairs, {"score": scores})]
    if _has_null(task):
        odds = np.array([answers.null_odds for answers in found], np.float32)
        checks[0].expected["null_odds"] = odds
        distance = abs(odds - config.qa_na_threshold)
        if is_exact and (distance >= _NEAR_TIE).all():
            checks[0].expected["has_answer"] = odds <= config.qa_na_threshold
    # Answers and their places are compared only if no other is nearly as good.
    clear = [
        (pair, best.text)
        for pair, (nbest, best, _) in zip(pairs, found, strict=True)
        if pair[1].count(best.text) == 1
        and all(_score(best) - _score(a) > _NEAR_TIE for a in nbest if a is not best)
    ]
    if clear and is_exact:
        starts = np.array([context.index(text) for (_, context), text in clear])
        lengths = np.array([len(text) for _, text in clear])
        texts = np.array([text.encode() for _, text in clear], object)
        expected = {"answer": texts, "start": starts, "end": starts + lengths}
        checks.append(_check_of([pair for pair, _ in clear], expected))
    return checks


def _in_python(task: ExportedTask, question: str, context: str) -> Answers:
    """The answers of `run_finetuning.py`, window by window."""
    reader = qa.QATask(task.facts.name, task.config, task.source.tokenizer())
    # The graph cuts answers by characters, whatever the trial does.
    reader.answer_text = "offsets"
    reader.is_v2 = _has_null(task)
    example = reader.input_example(0, {"question": question, "context": context})
    outputs = task.predictor.outputs(reader.featurize(example, False))
    return decode(reader, example, list(outputs))
