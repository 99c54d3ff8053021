# SPDX-License-Identifier: Apache-2.0
"""Tagging of words in CoNLL files; labels are BIOES, scores count whole spans."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.finetune.task import (
    FeatureSpec,
    HeadSpec,
    Scorer,
    Task,
    read_text,
    write_jsonl,
)

Span = tuple[int, int, str]  # first and last word, class
_TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)


class TaggingExample(NamedTuple):
    """A sentence."""

    eid: int
    words: list[str]
    tags: list[str]


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


def bioes(spans: list[Span], length: int) -> list[str]:
    """The tags of spans."""
    tags = ["O"] * length
    for start, end, name in spans:
        if start == end:
            tags[start] = f"S-{name}"
            continue
        tags[start], tags[end] = f"B-{name}", f"E-{name}"
        for i in range(start + 1, end):
            tags[i] = f"I-{name}"
    return tags


def bio(spans: list[Span], length: int) -> list[str]:
    """The tags of spans, as the CoNLL tasks have them."""
    tags = ["O"] * length
    for start, end, name in spans:
        tags[start : end + 1] = [f"B-{name}"] + [f"I-{name}"] * (end - start)
    return tags


class SpanScorer(Scorer):
    """Precision, recall and F1 of whole spans."""

    def __init__(self, labels: list[str]):
        super().__init__()
        self.labels = labels

    def tags(self, row: dict[str, Any], name: str) -> list[str]:
        """The tags of one sentence, "labels" or "predictions"."""
        count = int(round(float(np.sum(row["labels_mask"]))))
        return [self.labels[int(i)] for i in row[name][:count]]

    def get_results(self) -> list[tuple[str, float]]:
        """precision, recall, f1 and the loss per word."""
        right = predicted = gold = words = 0
        for row in self.rows:
            ours = set(spans_of(self.tags(row, "predictions")))
            theirs = set(spans_of(self.tags(row, "labels")))
            right += len(ours & theirs)
            predicted += len(ours)
            gold += len(theirs)
            words += len(self.tags(row, "labels"))
        precision = right / predicted if predicted else 0.0
        recall = right / gold if gold else 0.0
        both = precision + recall
        f1 = 2 * precision * recall / both if both else 0.0
        loss = sum(float(row["loss"]) for row in self.rows) / max(words, 1)
        return [
            ("precision", 100.0 * precision),
            ("recall", 100.0 * recall),
            ("f1", 100.0 * f1),
            ("loss", loss),
        ]

    @property
    def is_degenerate(self) -> bool:
        """Whether every word gets the same tag."""
        seen = {tag for row in self.rows for tag in self.tags(row, "predictions")}
        return len(seen) == 1


class TaggingTask(Task):
    """A task whose files have a word and its tag on each line."""

    @functools.cached_property
    def labels(self) -> list[str]:
        """All tags of the splits that are there, sorted."""
        found = set()
        for split in ("train", "dev", "test"):
            if split == "train" or self.path(split).is_file():
                for example in self.examples(split):
                    found.update(example.tags)
        return sorted(found)

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

    def examples(self, split: str) -> list[TaggingExample]:
        """All sentences; blank lines and -DOCSTART- part them."""
        found: list[TaggingExample] = []
        for where, words, tags in self.sentences(split):
            if len(words) != len(tags):
                self.bad(split, where, "a word without a tag, or too few columns")
                continue
            wrong = [tag for tag in tags if not _TAG.fullmatch(tag)]
            if wrong:
                what = "is not O, nor a class with B-, I-, E- or S- before it"
                self.bad(split, where, f"the tag {wrong[0]!r} {what}")
                continue
            marks = bioes(spans_of(tags), len(tags))
            found.append(TaggingExample(len(found), words, marks))
        return found

    def sentences(self, split: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """(where it stands, words, tags); in a bad sentence a tag is missing."""
        path = self.required(split)
        words: list[str] = []
        tags: list[str] = []
        where, columns = str(path), 2
        lines = read_text(path).split("\n")
        for number, line in enumerate([*lines, ""], start=1):
            cells = line.split()
            if not cells or cells[0] == "-DOCSTART-":
                if words:
                    yield where, words, tags
                words, tags = [], []
                continue
            columns = max(columns, len(cells))
            is_whole = len(cells) == columns
            if not words or (not is_whole and len(words) == len(tags)):
                where = f"{path}, line {number}"
            words.append(cells[0])
            tags += cells[-1:] if is_whole else []

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
        for number, word in enumerate(pieces):
            # The original stops early: it counts all words, not those that are left.
            if len(pieces) + len(ids) + 1 > length:
                ids.append(vocab.sep_id)
                break
            if 0 < number < len(pieces) - 1:
                positions.append(len(ids))
            ids += word
        index = {label: i for i, label in enumerate(self.labels)}
        yield {
            "input_ids": ids,
            "segment_ids": [1] * len(ids),
            "labels": [index[tag] for tag in example.tags[:length]],
            "labels_mask": [1.0] * len(positions),
            "labeled_positions": positions,
            "eid": example.eid,
        }

    def scorer(self, split: str) -> Scorer:
        """By spans."""
        return SpanScorer(self.labels)

    def write_predictions(self, split, scorer, directory, trial) -> list[str]:
        """CoNLL: word, tag, predicted tag; words beyond max_seq_length get O.

        Tags are BIOES where the data's are, else BIO.
        """
        by_eid = {int(row["eid"]): row for row in scorer.rows}
        found = {tag[:2] for _, _, tags in self.sentences(split) for tag in tags}
        form = bioes if found & {"E-", "S-"} else bio
        lines, rows = [], []
        for example in self.examples(split):
            found = scorer.tags(by_eid[example.eid], "predictions")
            found = form(spans_of(found), len(example.words))
            rows.append({"eid": example.eid, "prediction": found})
            right = form(spans_of(example.tags), len(example.words))
            for word, tag, ours in zip(example.words, right, found, strict=True):
                lines.append(f"{word} {tag} {ours}\n")
            lines.append("\n")
        folder = Path(directory)
        paths = [write_jsonl(folder / f"{self.name}_{split}.jsonl", rows)]
        (folder / f"{self.name}_{split}.txt").write_text("".join(lines))
        return [*paths, str(folder / f"{self.name}_{split}.txt")]
