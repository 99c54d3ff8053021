# SPDX-License-Identifier: Apache-2.0
"""Classifiers, regressions and taggers as SavedModels, from texts to labels.

Shapes: B texts, C labels, W words of the longest text, L length of packed ids.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from electra_tf.export.finetuned_task import ExportedTask
from electra_tf.export.signatures import (
    NO_OFFSET,
    PROBES,
    TEXT,
    Check,
    EncoderInputs,
    Servable,
    columns_of,
    encoded,
    map_rows,
    map_windows,
    of_same_rows,
    servable,
    truncate,
    windows_of,
)
from electra_tf.finetune.registry import table_of
from electra_tf.text import tokenization
from electra_tf.text.tf_tokenization import tokenize_with_offsets


def text_classifier(task: ExportedTask) -> Servable:
    """A class, or a number, for each text or pair of texts.

    `serving_default`: text (and text_b, if the task has pairs) string [B] -> label
    string [B], probability float32 [B], labels string [B, C], probabilities float32
    [B, C]; where a text has several classes, these two alone, each probability by
    itself; of a regression value float32 [B]. What is too long is cut as in training.
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
        best = tf.argmax(values, axis=-1)
        if facts.kind == "multilabel":
            names_of = tf.broadcast_to(names, tf.shape(probs))
            return {"labels": names_of, "probabilities": probs}
        return {
            "label": tf.gather(names, best),
            "probability": tf.reduce_max(probs, axis=-1),
            "labels": tf.broadcast_to(names, tf.shape(probs)),
            "probabilities": probs,
        }

    def of_texts(*texts):
        texts = [tf.ensure_shape(text, [None]) for text in texts]
        texts = of_same_rows("text and text_b", *texts)
        segments = [tokenizer.tokenize(text) for text in texts]
        segments = truncate(segments, source.max_seq_length)
        width = max(1, len(facts.labels))
        return answer(map_rows(numbers, segments, source.vocab, width))

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
    names = np.tile(encoded(labels), (len(rows), 1))
    found = {"labels": names, "probabilities": shares}
    if task.facts.kind == "multilabel":
        return found
    best = encoded([row["label"] for row in rows])
    return found | {"label": best, "probability": shares.max(axis=1)}


def tagger(task: ExportedTask) -> Servable:
    """A label for each word of a text.

    `serving_default`: text string [B] -> words string [B, W] (as they stand in the
    text; punctuation is a word), starts and ends int32 [B, W] (characters), labels
    string [B, W] and their probabilities float32 [B, W], num_words int32 [B].
    `ids`: the encoder's inputs -> logits and probabilities float32 [B, L, C]; a word's
    are those of its first token.

    Segment ids are 1 throughout, as in training; `ids` sees to that itself.
    """
    source, facts = task.source, task.facts
    tokenizer, size = source.tf_tokenizer(), source.max_seq_length - 2
    names = tf.constant(list(facts.labels), tf.string)
    begins = tf.constant([not token.startswith("##") for token in source.vocab.tokens])

    def logits(inputs: EncoderInputs) -> tf.Tensor:
        return task.outputs(inputs._replace(type_ids=inputs.mask))["logits"]

    @tf.function(autograph=False, input_signature=[TEXT])
    def of_texts(text):
        tokens = tokenize_with_offsets(tokenizer, tf.ensure_shape(text, [None]))
        windows = windows_of(tokens.ids, size)
        width = len(facts.labels)
        flat = map_windows(logits, windows, source.vocab, width=width)
        first = tokens.ids.with_flat_values(tf.gather(begins, tokens.ids.flat_values))
        # A word ends where its last piece does.
        piece = tf.cumsum(tf.cast(first.flat_values, tf.int32)) - 1
        count = tf.reduce_sum(tf.cast(first.flat_values, tf.int32))
        ends = tf.math.unsorted_segment_max(tokens.ends.flat_values, piece, count)
        starts = tf.ragged.boolean_mask(tokens.starts, first)
        ends = starts.with_flat_values(ends)
        probs = tf.boolean_mask(tf.nn.softmax(flat), first.flat_values)
        best = tf.gather(names, tf.argmax(probs, axis=-1))
        return {
            "words": _surfaces(text, starts, ends).to_tensor(""),
            "starts": starts.to_tensor(NO_OFFSET),
            "ends": ends.to_tensor(NO_OFFSET),
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


def _surfaces(text, starts, ends) -> tf.RaggedTensor:
    """text[start:end] of each word."""
    chars = tf.strings.unicode_decode(text, "UTF-8", errors="ignore")
    row = tf.gather(chars.row_starts(), starts.value_rowids())
    row = tf.cast(row, tf.int32)
    places = tf.ragged.range(row + starts.flat_values, row + ends.flat_values)
    inside = tf.gather(chars.flat_values, places)
    return starts.with_flat_values(tf.strings.unicode_encode(inside, "UTF-8"))


def _servable(task, of_texts, ids_answer, texts, expected, best) -> Servable:
    """A SavedModel that was asked `texts`, by name, and must say what is expected.

    In half precision labels change with the order of the operations: there `best`, the
    output that names the best ones, is left out.
    """
    if task.source.facts["precision"] != "float32":
        expected.pop(best, None)
    inputs = {name: encoded(values) for name, values in texts.items()}
    checks = [Check("serving_default", inputs, expected)]
    facts = {"labels": list(task.facts.labels)} | table_of(task.facts, task.config)
    return servable(task.source, task.variables, of_texts, ids_answer, checks, facts)


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
    return columns_of(rows) | {"num_words": np.array(counts)}
