# SPDX-License-Identifier: Apache-2.0
"""Tagging of words in CoNLL files; labels are BIOES, scores count whole spans.

Plain tags, such as parts of speech, are labels as they are, scored word by word.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.finetune import conll, inputs, tag_schemes
from electra_tf.finetune.inputs import Columns, Input, Source, shown
from electra_tf.finetune.tag_schemes import PLAIN, Notation, Span, tags_of
from electra_tf.finetune.task import (
    FeatureSpec,
    HeadSpec,
    OwnFiles,
    Scorer,
    Task,
    class_details,
    rounded,
    write_jsonl,
)
from electra_tf.storage.files import atomic_write

_TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)
_CUT_OFF = "(cut off)"  # in confusion matrices
NO_TAG = "_"  # of a word beyond max_seq_length, where tags are plain


class Sentence(NamedTuple):
    """What a file has of a sentence."""

    where: str
    words: list[str]
    tags: list[str] | None  # one missing in a bad sentence, None without any
    id: Any = None  # the user's own


class TaggingExample(NamedTuple):
    """A sentence."""

    eid: int
    words: list[str]
    tags: list[str] | None  # BIOES or plain; None where there are none to read
    written: Sequence[str] = ()  # the tags as the file has them
    id: Any = None  # the user's own


def spans_of(tags: list[str]) -> list[Span]:
    """Spans in BIO, BIOES or IO tags; the class is that of a span's last tag."""
    spans, start = [], None
    for i, tag in enumerate([*tags, "O"]):
        position = tag.partition("-")[0]
        if start is not None and (tag == "O" or position in "BS"):
            spans.append((start, i - 1, tags[i - 1].partition("-")[2]))
            start = None
        if tag != "O" and start is None:
            start = i
    return spans


class SpanScorer(Scorer):
    """Precision, recall and F1 of whole spans.

    Args:
      labels: the tags, by their numbers.
      examples: the right tags by example id, those of words that were cut off too;
        None: as the outputs have them.
      reading: tags -> spans.
    """

    def __init__(
        self,
        labels: Sequence[str],
        examples: dict[int, TaggingExample] | None = None,
        reading: Callable[[list[str]], list[Span]] = spans_of,
    ):
        super().__init__()
        self.labels, self._examples, self._reading = labels, examples, reading

    def tags(self, row: dict[str, Any], name: str) -> list[str]:
        """The tags of one sentence, "labels" or "predictions"."""
        if name == "labels" and self._examples is not None:
            return self._examples[int(row["eid"])].tags or []
        count = int(round(float(np.sum(row["labels_mask"]))))
        return [self.labels[int(i)] for i in row[name][:count]]

    def spans(self, row: dict[str, Any], name: str) -> list[Span]:
        """The spans of one sentence, "labels" or "predictions"."""
        return self._reading(self.tags(row, name))

    def _counts(self) -> dict[str, collections.Counter[str]]:
        """Right, predicted and gold spans of each class."""
        found = {name: collections.Counter() for name in ("right", "predicted", "gold")}
        for row in self.rows:
            ours = set(self.spans(row, "predictions"))
            theirs = set(self.spans(row, "labels"))
            both = (ours & theirs, ours, theirs)
            for counter, spans in zip(found.values(), both, strict=True):
                counter.update(name for _, _, name in spans)
        return found

    def get_results(self) -> list[tuple[str, float]]:
        """precision, recall, f1 and the loss per word."""
        counts = self._counts().values()
        found = _precision_recall(*(counter.total() for counter in counts))
        words = sum(len(self.tags(row, "labels")) for row in self.rows)
        loss = sum(float(row["loss"]) for row in self.rows) / max(words, 1)
        return [*((k, 100.0 * v) for k, v in found.items()), ("loss", loss)]

    def details(self) -> dict[str, Any]:
        """Precision, recall and F1 of the spans of each class, and how many there are.

        In percent.
        """
        right, predicted, gold = self._counts().values()
        classes = {}
        for name in sorted({*predicted, *gold}):
            found = _precision_recall(right[name], predicted[name], gold[name])
            classes[name] = {k: 100.0 * v for k, v in found.items()}
            classes[name]["support"] = gold[name]
        return {"classes": classes}

    @property
    def is_degenerate(self) -> bool:
        """Whether every word gets the same tag."""
        seen = {tag for row in self.rows for tag in self.tags(row, "predictions")}
        return len(seen) == 1


def _precision_recall(right: int, predicted: int, gold: int) -> dict[str, float]:
    precision = right / predicted if predicted else 0.0
    recall = right / gold if gold else 0.0
    both = precision + recall
    f1 = 2 * precision * recall / both if both else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


class PlainTagScorer(SpanScorer):
    """The share of words with the right tag; one that was cut off has none."""

    def _pairs(self) -> Iterator[tuple[str, str | None]]:
        for row in self.rows:
            theirs, ours = self.tags(row, "labels"), self.tags(row, "predictions")
            ours += [None] * (len(theirs) - len(ours))  # Any text may be a right tag.
            yield from zip(theirs, ours, strict=False)

    def get_results(self) -> list[tuple[str, float]]:
        """accuracy, and the loss per word."""
        pairs = list(self._pairs())
        right = sum(theirs == ours for theirs, ours in pairs)
        loss = sum(float(row["loss"]) for row in self.rows)
        count = max(len(pairs), 1)
        return [("accuracy", 100.0 * right / count), ("loss", loss / count)]

    def details(self) -> dict[str, Any]:
        """Each tag's precision, recall and F1, and which is taken for which."""
        pairs = ((gold, ours or _CUT_OFF) for gold, ours in self._pairs())
        return class_details(*zip(*pairs, strict=True))


class TaggingTask(Task):
    """A task whose files have a word and its tag on each line.

    Attributes:
      reading: tags -> spans.
      is_frugal: stop early in long sentences with tags, as the original, which counts
        all words and not those that are left; what was cut off is not scored.
      is_plain: labels are the tags as they are, one per word.
      word_column: where a table has the list of words.
      identity: where it has the user's own id.
    """

    reads = "words"
    word_column = "words"
    identity: Columns = ("id",)
    reading = staticmethod(spans_of)
    is_frugal = True

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self._layouts: dict[str, conll.Layout] = {}
        self._kept: dict[str, list[Sentence]] = {}

    @functools.cached_property
    def labels(self) -> list[str]:
        """Those that the model was trained for, else those of the data."""
        return list(self.stored.labels) if self.stored else self.data_labels()

    def data_labels(self) -> list[str]:
        """All tags of the splits that are there, sorted."""
        splits = [s for s in ("dev", "test") if self.path(s).is_file()]
        return sorted(
            {
                tag
                for s in ("train", *splits)
                for e in self.read(s)
                for tag in e.tags or ()
            }
        )

    @property
    def main_metric(self) -> str:
        """F1 of spans, or the accuracy of plain tags."""
        return "accuracy" if self.is_plain else "f1"

    def check(self) -> None:
        """A model that is not trained now must know the classes of the dev set."""
        if not (self.stored and self.config.scores_dev):
            return
        if unknown := self._unknown("dev"):
            known = ", ".join(sorted({_class_of(tag) for tag in self.labels}))
            raise UserError(
                f"{self.path('dev')} has the class {shown(unknown[0])}, which the "
                f"model was not trained for; it knows {known}.\nName it as there, or "
                "train anew."
            )

    def notes(self, kinds: Sequence[str]) -> list[str]:
        """Classes that only the dev set has."""
        unknown = self._unknown("dev") if "dev" in kinds else []
        return super().notes(kinds) + [
            f"{self.name}: class {name} is in {self.path('dev')} but not in the "
            "training file; it can only be missed"
            for name in unknown
        ]

    def _unknown(self, split: str) -> list[str]:
        """The classes of a split that no label stands for."""
        there = {_class_of(t) for e in self.read(split) for t in e.tags or ()}
        return sorted(there - {_class_of(tag) for tag in self.labels})

    @property
    def head(self) -> HeadSpec:
        """One class per tag."""
        return HeadSpec("tagging", len(self.labels))

    def splits(self, kind: str) -> list[str]:
        """The test set is optional."""
        return [kind] if kind == "dev" or self.path(kind).is_file() else []

    def path(self, split: str) -> Path:
        """The file of a split."""
        return Path(self.config.raw_data_dir(self.name)) / f"{split}.txt"

    def read_tag(self, tag: str) -> str | None:
        """A tag with its letter in front, as BIOES has it; None where it is none."""
        return tag if _TAG.fullmatch(tag) else None

    def wrong_tag(self, tag: str) -> str:
        """Why `read_tag` gives None."""
        return "is not O, nor a class with B-, I-, E- or S- before it"

    def examples(self, split: str) -> list[TaggingExample]:
        """All sentences; blank lines and -DOCSTART- part them."""
        found: list[TaggingExample] = []
        for where, words, tags, identity in self._kept.pop(split, None) or (
            self.sentences(split)
        ):
            if tags is None:
                found.append(TaggingExample(len(found), words, None, (), identity))
                continue
            if len(words) != len(tags):
                self.bad(
                    split,
                    where,
                    f"{len(words)} words, {len(tags)} tags: a word without a tag, or "
                    "not as many columns as others",
                )
                continue
            marks = [self.read_tag(tag) for tag in tags]
            if None in marks:
                wrong = tags[marks.index(None)]
                what = f"the tag {shown(wrong)} {self.wrong_tag(wrong)}"
                self.bad(split, where, what)
                continue
            if not self.is_plain:
                marks = tags_of(self.reading(marks), len(tags))
            found.append(TaggingExample(len(found), words, marks, tags, identity))
        return found

    def read_inputs(self, source: Source) -> Iterator[Input]:
        """Sentences as lists of words."""
        return conll.words(source, self.word_column, self.identity)

    def input_example(self, number: int, given: dict[str, Any]) -> TaggingExample:
        """Without tags."""
        return TaggingExample(number, given["words"], None, (), given.get("id"))

    def prediction(self, example, rows, split: str | None = None) -> dict[str, Any]:
        """Tags, in the scheme of the data, and the probability of each.

        It is None for words beyond max_seq_length.
        """
        [row] = rows
        there = int(round(float(np.sum(row["labels_mask"]))))
        tags = [self.labels[int(i)] for i in row["predictions"][:there]]
        logits = np.asarray(row["logits"][:there], np.float64)
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
        best = odds.max(axis=-1, initial=0) / odds.sum(axis=-1)
        count = len(example.words)
        missing = [None] * (count - there)
        return {
            "tags": self._written(tags, count, split),
            "probabilities": [*map(rounded, best), *missing],
        }

    def sentences(self, split: str) -> Iterator[Sentence]:
        """All sentences; in a bad one a tag is missing."""
        path, layout, skipped = self.required(split), self.layout(split), []
        lines = iter(Source.of(path).lines)
        for note in layout.notes:
            self.remark(split, note, 0)
        for first, rows in conll.sentences(lines, layout, skipped):
            bad, place = None, layout.words
            for number, row in enumerate(rows, start=first):
                if len(row) != layout.width or not row[place]:
                    bad = bad or number
            where = f"{path}, line {bad or first}"
            words = [row[min(place, len(row) - 1)] for row in rows]
            tags = [row[layout.tags or 0] for row in rows if len(row) == layout.width]
            if bad and len(tags) == len(words):
                self.bad(split, where, "an empty word")
            else:
                yield Sentence(where, words, None if layout.tags is None else tags)
        if skipped:
            what = f"comment lines are left out, as {shown(skipped[0])}"
            self.remark(split, what, len(skipped))

    def layout(self, split: str) -> conll.Layout:
        """What stands where in a file; a test set with fewer columns has no tags."""
        if split not in self._layouts:
            lines = Source.of(self.required(split)).lines
            self._layouts[split] = self.layout_of(split, [*lines])
        return self._layouts[split]

    def layout_of(self, split: str, lines: list[str]) -> conll.Layout:
        """The layout of a file with these lines: the tag is in the last column."""
        found = conll.layout_of(lines)._replace(words=0, is_numbered=False, notes=())
        width = (
            2
            if split == "train" or not self.is_there("train")
            else (self.layout("train").width)
        )
        if split == "test" and found.width < width:
            return found
        return found._replace(width=max(found.width, 2), tags=max(found.width, 2) - 1)

    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """Where words are, and what they are."""
        shape = (self.config.max_seq_length,)
        return (
            FeatureSpec("labels", shape, "int32"),
            FeatureSpec("labels_mask", shape, "float32"),
            FeatureSpec("labeled_positions", shape, "int32"),
            FeatureSpec("eid", (), "int32"),
        )

    def featurize(
        self, example: TaggingExample, is_training: bool
    ) -> Iterator[dict[str, Any]]:
        """[CLS] words [SEP]; a word is tagged at its first wordpiece."""
        vocab, length = self.tokenizer.vocab, self.config.max_seq_length
        pieces = [[vocab.cls_id], *map(self.tokenizer.encode, example.words)]
        pieces.append([vocab.sep_id])
        ids: list[int] = []
        positions: list[int] = []
        # What is asked for is tagged as far as it fits.
        is_frugal = self.is_frugal and example.tags is not None
        for number, word in enumerate(pieces):
            if (len(pieces) if is_frugal else 1) + len(ids) + 1 > length:
                self.num_cut += sum(map(len, pieces)) - min(len(ids) + 1, length)
                ids = [*ids[: length - 1], vocab.sep_id]
                break
            if 0 < number < len(pieces) - 1:
                positions.append(len(ids))
            ids += word
        # Words without a token take no room, so that there may be more of them.
        positions = positions[:length]
        index = {label: i for i, label in enumerate(self.labels)}
        outside = index.get("O", 0)  # for a class that only this data set has
        yield {
            "input_ids": ids,
            "segment_ids": [1] * len(ids),
            "labels": [
                index.get(tag, outside) for tag in (example.tags or ())[:length]
            ],
            "labels_mask": [1.0] * len(positions),
            "labeled_positions": positions,
            "eid": example.eid,
        }

    def scorer(self, split: str) -> Scorer:
        """By spans, or word by word where tags are plain."""
        if self.is_frugal:
            return SpanScorer(self.labels)
        examples = {e.eid: e for e in self.read(split)}
        kind = PlainTagScorer if self.is_plain else SpanScorer
        return kind(self.labels, examples, self.reading)

    def notation_on(self, split: str | None) -> Notation:
        """How predictions on a split, or on other texts, are written."""
        if split is None:
            return Notation("IOB2")
        letters = {tag[:2] for e in self.read(split) for tag in e.written}
        return Notation("BIOES" if letters & {"E-", "S-"} else "IOB2")

    def separator(self, split: str) -> str:
        """What stands between a word and its tags in what is written of a split."""
        return " "

    def write_predictions(self, split, scorer, directory, trial) -> list[str]:
        """CoNLL: word, tag, predicted tag; words beyond max_seq_length get O.

        Tags are in the scheme of the data; where they have none, only the predicted.
        """
        by_eid = {int(row["eid"]): row for row in scorer.rows}
        lines, rows, between = [], [], self.separator(split)
        for example in self.read(split):
            found = self.prediction(example, [by_eid[example.eid]], split)
            given = {"eid": example.eid, "id": example.id, "words": example.words}
            given = {name: value for name, value in given.items() if value is not None}
            columns = [example.words, found["tags"]]
            if example.tags is not None:
                right = self._written(example.tags, len(example.words), split)
                columns.insert(1, right)
                found["correct"] = right
            rows.append(given | found)
            rows_of = zip(*columns, strict=True)
            lines += [f"{between.join(cells)}\n" for cells in rows_of]
            lines.append("\n")
        path = Path(directory) / f"{self.name}_{split}.txt"
        atomic_write(path, "".join(lines))
        return [write_jsonl(path.with_suffix(".jsonl"), rows), str(path)]

    def _written(self, tags: list[str], count: int, split: str | None) -> list[str]:
        if self.is_plain:
            return [*tags, *[NO_TAG] * (count - len(tags))]
        return self.notation_on(split).written(self.reading(tags), count)


def _class_of(tag: str) -> str:
    """The class in a tag; of a plain tag, and of O, itself."""
    return tag[2:] if _TAG.fullmatch(tag) and tag != "O" else tag


class OwnTaggingTask(OwnFiles, TaggingTask):
    """Tags for words, from CoNLL lines or JSONL lists."""

    is_frugal = False

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        said = self.description.get("scheme")
        self._said = Notation.named(said) if said else None
        self.is_plain = self._said is not None and self._said.scheme == PLAIN
        self.word_column = self.description.get("words")
        self.identity = (self.description.get("id", "id"),)

    def reading(self, tags: Sequence[str]) -> list[tag_schemes.Span]:
        """The spans in tags, as far as the scheme can tell them apart."""
        spans = tag_schemes.spans_in(tags)
        if self.notation.scheme == "IO":
            io = tag_schemes.tags_of(spans, len(tags), "IO")
            spans = tag_schemes.spans_in(io)
        return spans

    @functools.cached_property
    def notation(self) -> Notation:
        """How tags are written: as the description, the model or the tags say."""
        if self.is_plain or not self._said and self.stored and self.stored.scheme:
            return self._said or Notation.named(self.stored.scheme)
        split = "train" if self.path("train").is_file() else "dev"
        self._kept[split] = list(self.sentences(split))
        written = [one.tags for one in self._kept[split] if one.tags]
        classes = {tag for tags in written for tag in tags} - {"O"}
        if classes and all(tag.lstrip("-").isdecimal() for tag in classes):
            raise UserError(
                f"{self.path(split)}: tags are the numbers {', '.join(sorted(classes))}"
                '.\n"tag_names" of the task lists their names in order, such as ["O", '
                '"B-PER", "I-PER"]; "scheme": "plain" takes numbers as they are.'
            )
        try:
            found = tag_schemes.notation_of(written, self._said)
        except UserError as error:
            raise UserError(f"{self.path(split)} has {error}.") from None
        self.remark(split, f"tags are read as {found}", 0)
        return found

    @property
    def scheme(self) -> str:
        """The name of the notation."""
        return str(self.notation)

    def notation_on(self, split: str | None) -> Notation:
        """How predictions are written."""
        return self.notation

    def read_tag(self, tag: str) -> str | None:
        """A tag with its letter in front; of plain tags, itself."""
        return self.notation.read(tag)

    def wrong_tag(self, tag: str) -> str:
        """Why `read_tag` gives None."""
        hint = "" if self._said else '; "scheme": "plain" takes any tag'
        return self.notation.wrong() + hint * ("-" not in tag)

    def data_labels(self) -> list[str]:
        """All tags of the training file."""
        return sorted({tag for e in self.read("train") for tag in e.tags})

    def check(self) -> None:
        """The tags are in one scheme."""
        super().check()
        if self.path("train").is_file() and self.scheme:
            self.data_labels()

    def _is_lists(self, split: str) -> bool:
        forms = ("json", "jsonl", "parquet", "csv")
        return inputs.form_of(self.path(split)) in forms

    def separator(self, split: str) -> str:
        """That of the file; a tab where a word or a class has a blank in it."""
        is_tabbed = not self._is_lists(split) and self.layout(split).is_tabbed
        named = [*self.labels, *(word for e in self.read(split) for word in e.words)]
        return "\t" if is_tabbed or any(" " in one for one in named) else " "

    def layout_of(self, split: str, lines: list[str]) -> conll.Layout:
        """The layout of a file with these lines; the description names columns."""
        name, words = str(self.path(split)), self.description.get("words")
        if split == "test":
            found = conll.untagged_layout(name, lines, words)
            is_whole = self.is_there("train") and not self._is_lists("train")
            width = self.layout("train").width if is_whole else 2
            if found.is_running or found.width < width:
                return found
        tags = self.description.get("tags")
        return conll.tagged_layout(name, lines, words, tags, self.is_plain)

    def sentences(self, split: str) -> Iterator[Sentence]:
        """All sentences; in a bad one a tag is missing."""
        if self._is_lists(split):
            found = self._of_lists(split)
        elif self.layout(split).is_running:
            path = self.path(split)
            rows = (
                (n, line.split()) for n, line in enumerate(Source.of(path).lines, 1)
            )
            found = (Sentence(f"{path}, line {n}", row, None) for n, row in rows if row)
        else:
            found = super().sentences(split)
        names = self.description.get("tag_names")
        for one in found:
            if names and one.tags:
                tags = [_named(tag, names) for tag in one.tags]
                one = one._replace(tags=[str(tag) for tag in tags if tag is not None])
            yield one

    def _key(self, row: inputs.Row, key: str, names: Sequence[str]) -> str:
        """Where a row has its words or tags: as described, or by a usual name."""
        names = [self.description[key]] if key in self.description else names
        there = [name for name in names if row.get(name) is not None]
        if len(there) > 1:
            raise UserError(
                f"task {self.name}: {' and '.join(there)} are both there: "
                f"{', '.join(shown(row[name]) for name in there)}.\n"
                f'Name one in the task, such as "{key}": "{there[0]}".'
            )
        return there[0] if there else names[0]

    def _of_lists(self, split: str) -> Iterator[Sentence]:
        [identity] = self.identity
        usual = {"words": conll.WORDS, "tags": conll.TAGS}
        columns = [(self.description.get(k), *names) for k, names in usual.items()]
        rows = conll.sentence_rows(self.source(split), columns, identity)
        for where, row in rows:
            words = self._key(row, "words", conll.WORDS)
            tags = self._key(row, "tags", conll.TAGS)
            found = [row.get(key) for key in (words, tags)]
            lists = [x for x in found if isinstance(x, list)]
            if wrong := next(filter(None, map(conll.no_words, lists)), None):
                self.bad(split, where, f"{words} or {tags} has {wrong} in it")
            elif split == "test" and isinstance(found[0], list) and found[1] is None:
                yield Sentence(where, [*map(str, found[0])], None, row.get(identity))
            elif all(isinstance(x, list) for x in found) and found[0]:
                both = (list(map(str, x)) for x in found)
                yield Sentence(where, *both, row.get(identity))
            else:
                there = ", ".join(map(str, row))
                what = f"{words} and {tags} are not two lists; there are {there}"
                self.bad(split, where, what)


def _named(tag: str, names: Sequence[str]) -> str | None:
    """The name of a tag that is a number."""
    if not tag.isdecimal():
        return tag
    return names[int(tag)] if int(tag) < len(names) else None
