# SPDX-License-Identifier: Apache-2.0
"""Tagging of words in CoNLL files; labels are BIOES, scores count whole spans.

Plain tags, such as parts of speech, are labels as they are, scored word by word.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.finetune import conll, inputs, task
from electra_tf.finetune.conll import PLAIN, Sentence, Span, tags_of
from electra_tf.finetune.inputs import Source, shown
from electra_tf.storage.files import atomic_write

_CUT_OFF = "(cut off)"  # in confusion matrices
NO_TAG = "_"  # of a word beyond max_seq_length, where tags are plain


class TaggingExample(NamedTuple):
    """A sentence."""

    eid: int
    words: list[str]
    tags: list[str] | None  # BIOES or plain; None where there are none to read
    written: Sequence[str] = ()  # the tags as the file has them
    id: Any = None  # the user's own


def _num_words(row: dict[str, Any]) -> int:
    """The words of a sentence that were not cut off."""
    return int(np.sum(row["labels_mask"]).round())


class SpanScorer(task.Scorer):
    """Precision, recall and F1 of whole spans.

    Args:
      labels: the tags, by their numbers.
      examples: the right tags by example id, those of words that were cut off too;
        None: as the outputs have them.
      reading: tags -> spans; None: the original's.
    """

    def __init__(
        self,
        labels: Sequence[str],
        examples: dict[int, TaggingExample] | None = None,
        reading: Callable[[list[str]], list[Span]] | None = None,
    ):
        super().__init__()
        self.labels, self._examples = labels, examples
        self._reading = reading or spans_of

    def tags(self, row: dict[str, Any], name: str) -> list[str]:
        """The tags of one sentence, "labels" or "predictions"."""
        if name == "labels" and self._examples is not None:
            return self._examples[int(row["eid"])].tags or []
        return [self.labels[int(i)] for i in row[name][: _num_words(row)]]

    def _spans(self, name: str) -> set[tuple[int, int, int, str]]:
        """(sentence, first word, last word, class) of all spans."""
        tagged = enumerate(self.tags(row, name) for row in self.rows)
        return {(n, *span) for n, tags in tagged for span in self._reading(tags)}

    def get_results(self) -> list[tuple[str, float]]:
        """precision, recall, f1 and the loss per word."""
        found = task.scores(self._spans("predictions"), self._spans("labels"))
        words = sum(len(self.tags(row, "labels")) for row in self.rows)
        loss = sum(float(row["loss"]) for row in self.rows) / max(words, 1)
        return [*found.items(), ("loss", loss)]

    def details(self) -> dict[str, Any]:
        """Each class's precision, recall and F1 in percent, and its number of spans."""
        both = map(self._spans, ("predictions", "labels"))
        return {"classes": task.scores_by_class(*both)}


class PlainTagScorer(SpanScorer):
    """The share of words with the right tag; one that was cut off has none."""

    def _pairs(self) -> list[tuple[str, str | None]]:
        found: list[tuple[str, str | None]] = []
        for row in self.rows:
            theirs, ours = self.tags(row, "labels"), self.tags(row, "predictions")
            # None, since any text may be a right tag.
            found += itertools.zip_longest(theirs, ours[: len(theirs)])
        return found

    def get_results(self) -> list[tuple[str, float]]:
        """accuracy, and the loss per word."""
        pairs = self._pairs()
        right = sum(theirs == ours for theirs, ours in pairs)
        loss = sum(float(row["loss"]) for row in self.rows)
        count = max(len(pairs), 1)
        return [("accuracy", 100.0 * right / count), ("loss", loss / count)]

    def details(self) -> dict[str, Any]:
        """Each tag's precision, recall and F1, and which is taken for which."""
        pairs = ((gold, ours or _CUT_OFF) for gold, ours in self._pairs())
        return task.class_details(*zip(*pairs, strict=True))


@dataclasses.dataclass(frozen=True)
class TagHead(task.Head):
    """A label for each word, from its first wordpiece; the loss sums over words.

    Without dropout, as in the original.
    """

    kind = "tagging"
    reads = "words"

    num_labels: int
    label_smoothing: float = 0.0

    @staticmethod
    def read_inputs(source, settings):
        """Sentences as lists of words, or running text."""
        return conll.words(source, settings["words"], tuple(settings["identity"]))

    @classmethod
    def object_of(cls, one, most):
        """A list of words, or running text."""
        return {"text": one} if isinstance(one, str) else {"words": list(one)}

    @staticmethod
    def served_inputs(fields):
        """Words are parted by blanks."""
        return {"text": " ".join(fields.get("words", ()))} | fields

    @staticmethod
    def prediction(fields, row):
        """The tag of each word: that of the first word that the graph finds in it.

        As in `TaggingTask`, a word that the tokenizer drops gets the next word's tag.
        At the end it would be the tag of [SEP], which the graph does not return: it is
        "O", without a probability.
        """
        count = row["num_words"]
        labels = row["labels"][:count]
        shares = [*map(task.rounded, row["probabilities"][:count])]
        if "words" not in fields:
            found = {"tags": labels, "probabilities": shares}
            return {"words": row["words"][:count]} | found
        places, first = [], 0
        for word in fields["words"]:
            places.append(bisect.bisect_left(row["starts"][:count], first))
            first += len(word) + 1
        return {
            "tags": [labels[k] if k < count else "O" for k in places],
            "probabilities": [shares[k] if k < count else None for k in places],
        }

    @classmethod
    def stored(cls, labels, config):
        """One class per tag."""
        return cls(len(labels))

    def layers(self, width: int) -> dict[str, tuple[int, int]]:
        """The scores of each word."""
        return {"dense": (width, self.num_labels)}

    def outputs(self, dense, hidden, features, training, seed):
        """logits [B, W, C] and predictions [B, W] at labeled_positions, int32 [B, W].

        Without these, at all tokens.
        """
        import tensorflow as tf

        from electra_tf.model.layers import gather_positions

        if "labeled_positions" in features:
            hidden = gather_positions(hidden, features["labeled_positions"])
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])
        shape = tf.concat([tf.shape(hidden)[:2], [self.num_labels]], 0)
        logits = tf.reshape(tf.cast(dense["dense"](flat), tf.float32), shape)
        return {"logits": logits, "predictions": tf.argmax(logits, axis=-1)}

    def loss(self, outputs, features, training):
        """Needs labels int32 [B, W] and labels_mask float32 [B, W]."""
        import tensorflow as tf

        smoothing = self.label_smoothing * training
        losses = task.cross_entropy(features["labels"], outputs["logits"], smoothing)
        return tf.reduce_sum(losses * features["labels_mask"], axis=-1)

    def answer(self, task, outputs):
        """tags string, BIOES or plain, and probabilities float32; [B, W] each."""
        import tensorflow as tf

        shares = tf.nn.softmax(outputs["logits"])
        best = tf.gather(task.names, tf.argmax(shares, axis=-1))
        return {"tags": best, "probabilities": tf.reduce_max(shares, axis=-1)}

    def text_shapes(self, task):
        """text."""
        return {"text": [None]}

    def answer_texts(self, task, tokenizer, compute, text):
        """words and labels string [B, T], starts and ends int32, probabilities float32.

        Words are as they stand in the text, punctuation is one; starts and ends are
        characters. Also num_words int32 [B]. A long text is read in windows.
        """
        import tensorflow as tf

        from electra_tf.text import tf_tokenization
        from electra_tf.text.tf_tokenization import characters

        vocab = tokenizer.vocab
        begins = tf.logical_not(vocab.continuations)
        tokens = tokenizer.tokenize_with_offsets(text)
        windows = tf_tokenization.windows_of(tokens.ids, task.config.max_seq_length - 2)
        flat = tf_tokenization.map_windows(
            lambda x: self._logits(compute, x), windows, vocab, width=self.num_labels
        )
        first = tokens.ids.with_flat_values(tf.gather(begins, tokens.ids.flat_values))
        # A word ends where its last piece does.
        piece = tf.cumsum(tf.cast(first.flat_values, tf.int32)) - 1
        count = tf.reduce_sum(tf.cast(first.flat_values, tf.int32))
        ends = tf.math.unsorted_segment_max(tokens.ends.flat_values, piece, count)
        starts = tf.ragged.boolean_mask(tokens.starts, first)
        words = characters(text, starts.value_rowids(), starts.flat_values, ends)
        logits = tf.boolean_mask(flat, first.flat_values)
        answer = self.answer(task, {"logits": logits})

        def padded(values, fill=None):
            return starts.with_flat_values(values).to_tensor(fill)

        return {
            "words": padded(words, ""),
            "starts": padded(starts.flat_values, tf_tokenization.NO_OFFSET),
            "ends": padded(ends, tf_tokenization.NO_OFFSET),
            "labels": padded(answer["tags"], ""),
            "probabilities": padded(answer["probabilities"]),
            "num_words": tf.cast(starts.row_lengths(), tf.int32),
        }

    def _logits(self, compute, inputs):
        """Segment ids are 1 throughout, as in training."""
        return compute(inputs._replace(segment_ids=inputs.input_mask))["logits"]

    def answer_ids(self, task, compute, inputs):
        """logits and probabilities [B, L, C]; a word's are those of its first token."""
        import tensorflow as tf

        logits = self._logits(compute, inputs)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}


class TaggingTask(task.Task):
    """Tags for words, from lines of columns, or lists in JSON and Parquet.

    Attributes:
      is_plain: labels are the tags as they are, one per word.
      is_original: as the original: stop early in long sentences with tags (all words
        are counted, not the remaining ones); score no word that is cut off.
    """

    is_original = False

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.layout = functools.cache(self.layout_of)
        self.sentences = functools.cache(self._sentences)
        scheme = self.description.get("scheme")
        self._given = conll.scheme_named(scheme) if scheme else None
        self.is_plain = self._given == PLAIN

    @functools.cached_property
    def labels(self) -> list[str]:
        """Those that the model was trained for, else those of the data."""
        if self.stored:
            return [*self.stored["labels"]]
        # The original's labels are those of all splits.
        more = [s for s in ("dev", "test") if self.is_original and self.is_there(s)]
        examples = [e for split in ("train", *more) for e in self.read(split)]
        return sorted({tag for e in examples for tag in e.tags or ()})

    @property
    def main_metric(self) -> str:
        """F1 of spans, or the accuracy of plain tags."""
        return "accuracy" if self.is_plain else "f1"

    def check(self) -> None:
        """The tags are in one scheme; a model that is not trained knows all classes."""
        train, dev = self.path("train"), self.path("dev")
        is_read = not self.stored and train.is_file() and self.read("train")
        if is_read and not self.labels:
            raise UserError(f"{train} has words, but no tags.")
        if not (self.config.scores_dev and (self.stored or self.description)):
            return
        known = {_class_of(tag) for tag in self.labels}
        there = {_class_of(tag) for e in self.read("dev") for tag in e.tags or ()}
        for name in sorted(there - known):
            if self.stored:
                raise UserError(
                    f"{dev} has the class {shown(name)}, which the model was not "
                    f"trained for; it has {', '.join(sorted(known))}."
                )
            self.remark("dev", f"class {name} is missing in the training file", 0)

    @property
    def head(self) -> task.Head:
        """One class per tag."""
        return TagHead(len(self.labels), self.config.label_smoothing)

    @functools.cached_property
    def scheme(self) -> str | None:
        """That of the description, the model or the tags."""
        if self._given:
            return self._given
        if self.stored and (stored := self.stored.get("scheme")):
            return conll.stored_scheme(stored)
        split = "train" if self.path("train").is_file() else "dev"
        written = [one.tags for one in self.sentences(split) if one.tags]
        try:
            scheme = conll.scheme_of(written)
        except UserError as error:
            raise UserError(f"{self.path(split)} has {error}.") from None
        self.remark(split, f"tags are read as {scheme}", 0)
        return scheme

    def reading(self, tags: Sequence[str]) -> list[Span]:
        """The spans in tags."""
        return conll.spans_in(tags, self.is_original)

    # Reading.

    def examples(self, split: str) -> list[TaggingExample]:
        """All sentences whose words all have a tag, or that have no tags."""
        found: list[TaggingExample] = []
        for where, words, tags, identity in self.sentences(split):
            scheme, wrong = (tags and self.scheme) or "BIOES", ""
            marks = [conll.as_bioes(tag, scheme) for tag in tags or ()]
            if tags is not None and len(words) != len(tags):
                wrong = f"{len(words)} words, {len(marks)} tags"
            elif None in marks:
                tag = shown(tags[marks.index(None)])
                hint = '; "scheme": "plain" takes any tag' * bool(self.description)
                letters = conll.LETTERS[scheme]
                like = ", ".join(f"{letter}-PER" for letter in letters)
                wrong = f"the tag {tag} is not O, nor like {like}{hint}"
            if wrong:
                self.bad(split, where, wrong)
                continue
            if tags and not self.is_plain:
                marks = tags_of(self.reading(marks), len(tags))
            right = None if tags is None else marks
            found.append(TaggingExample(len(found), words, right, tags or (), identity))
        return found

    def _sentences(self, split: str) -> list[Sentence]:
        """All sentences of a file that can be used."""
        if self._has_lists(split):
            sentences = self._of_rows(split)
        else:
            path, bad = self.required(split), functools.partial(self.bad, split)
            layout, lines = self.layout(split), Source.of(path).lines
            sentences = conll.sentences_of(str(path), lines, layout, bad)
        if names := self.description.get("tag_names"):
            sentences = (x._replace(tags=_named(x.tags, names)) for x in sentences)
        return [*sentences]

    def _has_lists(self, split: str) -> bool:
        form = inputs.form_of(self.path(split))
        if form == "csv":
            raise UserError(
                f"{self.path(split)}: tagging reads no .csv, but lines of a word and "
                "its tag, with\na blank line between sentences, or lists in .jsonl."
            )
        return form in ("json", "jsonl", "parquet")

    def _of_rows(self, split: str) -> Iterator[Sentence]:
        usual, given = {"words": conll.WORDS, "tags": conll.TAGS}, self.description
        columns = [(given[k],) if k in given else usual[k] for k in usual]
        for where, row in inputs.records(self.source(split)):
            try:
                sentence = conll.sentence_of(where, row, columns, self.identity)
                if sentence.tags is None and split != "test":
                    raise ValueError(f"no list of tags; there are {', '.join(row)}")
                yield sentence
            except ValueError as error:
                self.bad(split, where, str(error))

    def layout_of(self, split: str) -> conll.Layout:
        """The columns of a file; the description names some."""
        lines = [*Source.of(self.required(split)).lines]
        is_test, width = split == "test", conll.width_of(lines)
        tagged = self._tagged_width() if is_test else None
        has_tags = not is_test or width >= (tagged or 2)
        if tagged and width not in (1, tagged - 1, tagged):
            raise UserError(
                f"{self.path(split)} has {width} columns, the training file {tagged}.\n"
                "A test set has the same ones, or no tags."
            )
        named = self.description.get("words"), self.description.get("tags")
        named = (1, width) if self.is_original else named
        return conll.layout_of(str(self.path(split)), lines, *named, has_tags)

    def _tagged_width(self) -> int | None:
        """The columns of the training file, if it has any."""
        has_columns = self.path("train").is_file() and not self._has_lists("train")
        return self.layout("train").width if has_columns else None

    def settings(self) -> dict[str, Any]:
        """Also where a table has the words."""
        return super().settings() | {"words": self.description.get("words")}

    def input_example(self, number: int, fields: dict[str, Any]) -> TaggingExample:
        """Without tags; running text is cut into words and punctuation."""
        words = fields.get("words")
        words = self.tokenizer.words(fields["text"]) if words is None else words
        return TaggingExample(number, words, None, (), fields.get("id"))

    # Features and predictions.

    def feature_specs(self) -> tuple[task.FeatureSpec, ...]:
        """Places and tags of words."""
        shape = (self.config.max_seq_length,)
        of_words = {"labels": "int32", "labels_mask": "float32"}
        of_words["labeled_positions"] = "int32"
        found = (task.FeatureSpec(name, shape, kind) for name, kind in of_words.items())
        return *found, task.FeatureSpec("eid", (), "int32")

    def featurize(self, example: TaggingExample, is_training: bool):
        """[CLS] words [SEP]; a word is tagged at its first wordpiece."""
        vocab, length = self.tokenizer.vocab, self.config.max_seq_length
        pieces = [[vocab.cls_id], *map(self.tokenizer.encode, example.words)]
        pieces.append([vocab.sep_id])
        ids: list[int] = []
        positions: list[int] = []
        # Inputs without tags are tagged as far as they fit.
        is_frugal = self.is_original and example.tags is not None
        for number, word in enumerate(pieces):
            if (len(pieces) if is_frugal else 1) + len(ids) + 1 > length:
                self.num_cut += sum(map(len, pieces)) - min(len(ids) + 1, length)
                ids = [*ids[: length - 1], vocab.sep_id]
                break
            if 0 < number < len(pieces) - 1:
                positions.append(len(ids))
            ids += word
        # Words without a token take no room, so that there may be more of them.
        self.num_cut += sum(not word for word in pieces[1 + len(positions) : -1])
        self.num_cut += len(positions[length:])
        positions = positions[:length]
        index = {label: i for i, label in enumerate(self.labels)}
        outside = index.get("O", 0)  # for a class that only this data set has
        labels = [index.get(tag, outside) for tag in example.tags or ()]
        yield {
            "input_ids": ids,
            "segment_ids": [1] * len(ids),
            "labels": labels[:length],
            "labels_mask": [1.0] * len(positions),
            "labeled_positions": positions,
            "eid": example.eid,
        }

    def classes_of(self, example: TaggingExample) -> Iterable[str]:
        """Plain tags, or the class of each span."""
        tags = example.tags or ()
        return tags if self.is_plain else [t[2:] for t in tags if t[:2] in ("B-", "S-")]

    def scorer(self, split: str) -> task.Scorer:
        """By spans, or word by word where tags are plain."""
        if self.is_original:
            return SpanScorer(self.labels)
        examples = {e.eid: e for e in self.read(split)}
        kind = PlainTagScorer if self.is_plain else SpanScorer
        return kind(self.labels, examples, self.reading)

    def prediction(self, example, rows) -> dict[str, Any]:
        """Tags, in the scheme of the data, and the probability of each.

        It is None for words beyond max_seq_length.
        """
        [row] = rows
        there, count = _num_words(row), len(example.words)
        tags = self._written(task.plain(row["tags"][:there]), count)
        best = map(task.rounded, row["probabilities"][:there])
        shares = [*best, *[None] * (count - there)]
        return {"words": example.words, "tags": tags, "probabilities": shares}

    def right_answer(self, split: str, example: TaggingExample) -> list[str] | None:
        """The tags in the scheme of the data."""
        if example.tags is None:
            return None
        return self._written(example.tags, len(example.words))

    def write_predictions(self, split, scorer, directory) -> list[str]:
        """CoNLL: word, tag, predicted tag; words beyond max_seq_length get O.

        Tags are in the scheme of the data; where they have none, only the predicted.
        """
        rows, lines, between = self.predicted(split, scorer), [], self._separator(split)
        for row in rows:
            columns = (row[x] for x in ("words", "correct", "tags") if x in row)
            cells = zip(*columns, strict=True)
            lines += [*(f"{between.join(one)}\n" for one in cells), "\n"]
        path = Path(directory) / f"{self.name}_{split}.txt"
        atomic_write(path, "".join(lines))
        return [task.write_jsonl(path.with_suffix(".jsonl"), rows), str(path)]

    def _separator(self, split: str) -> str:
        """That of the file; a tab where a word or a class has a blank in it."""
        lines = () if self._has_lists(split) else Source.of(self.path(split)).lines
        cells = [*self.labels, *(word for e in self.read(split) for word in e.words)]
        is_tabbed = any("\t" in x.rstrip() for x in lines if not x.startswith("#"))
        return "\t" if is_tabbed or any(" " in cell for cell in cells) else " "

    def _written(self, tags: list[str], count: int) -> list[str]:
        if self.is_plain:
            return [*tags, *[NO_TAG] * (count - len(tags))]
        return tags_of(self.reading(tags), count, self.scheme or "IOB2")


def _class_of(tag: str) -> str:
    """The class in a tag; of a plain tag, and of O, itself."""
    return tag[2:] if tag != "O" and conll.as_bioes(tag, "BIOES") else tag


def _named(tags: list[str] | None, names: Sequence[str]) -> list[str] | None:
    """Tags with their names for numbers, without numbers that have none."""
    numbers = {str(number): name for number, name in enumerate(names)}
    kept = (t for t in tags or () if t in numbers or not t.isdecimal())
    return [numbers.get(t, t) for t in kept] if tags else tags


class ChunkTask(TaggingTask):
    """Chunks of CoNLL-2000 as the original reads them: the last column is the tag."""

    is_original = True
    scheme = None

    def places(self, split: str) -> list[tuple[str, str]]:
        """CoNLL-2000's file."""
        return [(self.name, f"{split}.txt")]


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Spans in BIO, BIOES or IO tags, as the original reads them."""
    return conll.spans_in(tags, is_original=True)


_KEYS = dict.fromkeys(("words", "tags", "id"), task.COLUMN)
_KEYS |= {"scheme": task.TEXT, "tag_names": task.NAMES}
TYPES = {"tagging": task.TaskType(TaggingTask, TagHead, _KEYS)}
