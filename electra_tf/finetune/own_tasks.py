# SPDX-License-Identifier: Apache-2.0
"""Tasks that hparams describe, on files of the user's own.

    "tasks": {"mytask": {"type": "classification", "train": "train.tsv", "dev":
              "dev.tsv", "text_a": "sentence", "label": "class", "metric": "mcc"}}

Types: classification, multilabel, regression (of one text, or two with text_b), tagging
(words and tags on lines as CoNLL has them, or lists in JSONL; spans or plain tags), qa
(files in SQuAD's form). Texts come from TSV or CSV with a header, from JSONL or from
Parquet; paths are relative to --data-dir.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from electra_tf.errors import UserError
from electra_tf.finetune import conll, inputs, tag_schemes
from electra_tf.finetune.classification import (
    InputExample,
    TextTask,
    columns_of,
    example_of,
)
from electra_tf.finetune.inputs import Source, shown
from electra_tf.finetune.multilabel import Multilabel
from electra_tf.finetune.qa import QATask
from electra_tf.finetune.run_settings import FILES
from electra_tf.finetune.tag_schemes import PLAIN, Notation
from electra_tf.finetune.tagging import Sentence, TaggingTask
from electra_tf.finetune.task import Task, TaskFacts, reasons
from electra_tf.interop import networks
from electra_tf.storage.remote import fetch_once

METRICS = ("accuracy", "mcc", "f1")
_TYPES = {
    "metric": ((str, list), "text, or a list of it"),
    "class_weights": ((str, list, dict), 'a list, an object {...} or "balanced"'),
    "lowest": ((int, float), "a number"),
    "highest": ((int, float), "a number"),
    "has_impossible": (bool, "true or false"),
    "quoted": (bool, "true or false"),
    "delimiter": (str, "one character"),
    "words": ((str, int), "a column's name, or its number from 1"),
    "tags": ((str, int), "a column's name, or its number from 1"),
    "tag_names": (list, "a list of names"),
    "label_names": (list, "a list of names"),
    "multilabel label": ((str, list), "a column, or a list of one for each class"),
}
_TABLE_KEYS = ("delimiter", "quoted")  # of a table in text
# Names go into those of files and variables.
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# Type -> the keys that a description may have beside the files; * must be there.
KEYS = {
    "classification": (
        *("text_a*", "text_b", "label*", "id", "metric", "class_weights"),
    ),
    "multilabel": (
        *("text_a*", "text_b", "label*", "id", "separator", "label_names"),
        "class_weights",
    ),
    "regression": ("text_a*", "text_b", "label*", "id", "lowest", "highest"),
    "tagging": ("words", "tags", "id", "scheme", "tag_names"),
    "qa": ("has_impossible",),
}


def make_own_task(name: str, config, tokenizer) -> Task:
    """The task that `config.tasks` describes under this name.

    Raises `UserError` for a description that is wrong, naming the key.
    """
    description = config.tasks[name]
    check_description(name, description)
    kinds = {"tagging": OwnTaggingTask, "qa": OwnQATask}
    kinds["multilabel"] = OwnMultilabelTask
    return kinds.get(description["type"], OwnTextTask)(name, config, tokenizer)


def check_description(name: str, description: dict[str, Any]) -> None:
    """Raises a UserError that names the key that is wrong or missing."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"task {name!r}: a name has letters, digits and the signs _ . - only."
        )
    if name in networks.PARTS:
        raise UserError(
            f"task {name!r}: export_model.py has that name for a part of a pre-trained "
            f"model, as it has {', '.join(p for p in networks.PARTS if p != name)}.\n"
            "Give the task another name."
        )
    kind = description.get("type")
    if not isinstance(kind, str) or kind not in KEYS:
        raise UserError(
            f"task {name}: type is {kind!r}; it is one of {', '.join(KEYS)}."
        )
    keys = [key.rstrip("*") for key in KEYS[kind]]
    known = ["type", *FILES, *keys, *_TABLE_KEYS * (kind != "tagging")]
    for key in description:
        if key not in known:
            raise UserError(
                f"task {name}: unknown key {key!r}; {kind} has {', '.join(known)}."
            )
    needed = ["train", "dev"] + [k[:-1] for k in KEYS[kind] if k.endswith("*")]
    for key in needed:
        if key not in description:
            raise UserError(f"task {name}: {key!r} is missing; {kind} needs it.")
    for key, value in description.items():
        usual = _TYPES.get(key, (str, "text"))
        types, what = _TYPES.get(f"{kind} {key}", usual)
        is_other_bool = isinstance(value, bool) and types is not bool
        if is_other_bool or not isinstance(value, types):
            raise UserError(f"task {name}: {key} is {value!r}; it must be {what}.")
    low, high = (description.get(key) for key in ("lowest", "highest"))
    if low is not None and high is not None and not low < high:
        raise UserError(
            f"task {name}: lowest is {low}, highest is {high}; lowest must be below "
            "highest."
        )
    if len(description.get("delimiter", ",")) != 1:
        raise UserError(f"task {name}: delimiter is one character, such as ;.")
    if description.get("separator") == "":
        raise UserError(f"task {name}: separator is empty; it parts the labels.")
    metrics = metrics_of(description)
    if not metrics or not all(metric in METRICS for metric in metrics):
        raise UserError(
            f"task {name}: metric is {description['metric']!r}; it is one of "
            f"{', '.join(METRICS)}, or a list of them, the main one first."
        )
    if "scheme" in description:
        Notation.named(description["scheme"])


def metrics_of(description: dict[str, Any]) -> list[Any]:
    """The metrics of a description, the main one first."""
    found = description.get("metric", "accuracy")
    return found if isinstance(found, list) else [found]


def table_of(facts: TaskFacts, config) -> dict[str, Any]:
    """Where a table has a task's texts or words, and ids: for an export's manifest."""
    if facts.kind == "qa":
        return {}
    said = config.tasks.get(facts.name, {})
    usual = TaggingTask if facts.kind == "tagging" else TextTask
    found = {"identity": (said.get("id", "id"),) if said else usual.identity}
    if facts.kind == "tagging":
        return found | {"words": said.get("words", usual.word_column)}
    return found | {"columns": columns_of(facts.name, config, facts.num_texts)}


def _number(label: Any) -> float | None:
    try:
        found = float(label)
    except (ValueError, TypeError):
        return None
    return found if math.isfinite(found) else None


class _OwnFiles(Task):
    """Where the files are that a description names."""

    @property
    def description(self) -> dict[str, Any]:
        return self.config.tasks[self.name]

    def path(self, split: str) -> Path:
        """The file of a split."""
        path = Path(self.config.data_dir) / self.description[split]
        return Path(fetch_once(str(path)))

    def source(self, split: str) -> Source:
        """As `Task.source`, with the separator and the quotes of the description."""
        keys = ("delimiter", "quoted")
        delimiter, is_quoted = (self.description.get(key) for key in keys)
        return super().source(split)._replace(delimiter=delimiter, is_quoted=is_quoted)

    def splits(self, kind: str) -> list[str]:
        """Those that the description names."""
        return [kind] if kind in self.description else []


class OwnTextTask(_OwnFiles, TextTask):
    """Classes or numbers for texts in columns."""

    fewest_labels = 2

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.num_texts = 2 if self.description.get("text_b") else 1
        self.identity = (self.description.get("id", "id"),)
        self.metric, *self.more_metrics = metrics_of(self.description)
        self._has_classes = self.description["type"] != "regression"

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Those that the model was trained for, else those of the training file."""
        if self.stored:
            return self.stored.labels
        found = {e.label for e in self.read("train")} if self._has_classes else ()
        return tuple(sorted(found))

    @property
    def said_weights(self) -> Any:
        """The class weights of the description."""
        return self.description.get("class_weights")

    @property
    def lowest(self) -> float:
        """The low end of the scale."""
        return self._scale[0]

    @property
    def highest(self) -> float:
        """The high end of the scale."""
        return self._scale[1]

    @functools.cached_property
    def _scale(self) -> tuple[float, float]:
        """What the description says, else the model, else the training file."""
        known = self.stored
        if self._has_classes:
            return 0.0, 1.0
        if known:
            found = known.lowest, known.highest
        elif {"lowest", "highest"} <= set(self.description):
            found = 0.0, 1.0
        else:
            found = _range(self.read("train"))
        keys = zip(("lowest", "highest"), found, strict=True)
        low, high = (float(self.description.get(key, value)) for key, value in keys)
        return low, high

    def check(self) -> None:
        """Classes or numbers to tell apart, and a scale that holds the dev set's."""
        if self._has_classes and len(self.labels) < self.fewest_labels:
            raise UserError(
                f"task {self.name}: {self.path('train')} has {len(self.labels)} labels "
                f"({', '.join(self.labels) or 'none'}); there is nothing to learn"
                f"{reasons(self.skipped.get('train', ()))}."
            )
        if self._has_classes:
            _ = self.class_weights  # What is wrong with them is said now.
            given = () if self.stored else self.read("train")
            texts = {(e.text_a, e.text_b) for e in given}
            if given and len(texts) < len({e.label for e in given}):
                raise UserError(
                    f"task {self.name}: {self.path('train')} has {len(texts)} texts "
                    f"and more labels, as {shown(given[0].label)}.\nAre the columns of "
                    "text and label swapped? text_a and label of the task name them."
                )
            return
        if self.highest <= self.lowest:
            raise UserError(f"task {self.name}: all scores are {self.lowest:g}.")
        if not self.config.scores_dev or self._is_scale_given:
            return
        low, high = _range(self.read("dev"))
        if low < self.lowest or high > self.highest:
            low, high = min(low, self.lowest), max(high, self.highest)
            raise UserError(
                f"{self.path('dev')} has scores from {low:g} to {high:g}, the training "
                f"file from {self.lowest:g} to {self.highest:g}.\nSay in the task what "
                f'the scale is, such as "lowest": {low:g}, "highest": {high:g}.'
            )

    @property
    def _is_scale_given(self) -> bool:
        """By a model or both keys; else the training file's scores are the scale."""
        return bool(self.stored) or {"lowest", "highest"} <= set(self.description)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """One; of classes in columns of their own, all."""
        label = self.description["label"]
        return (label,) if isinstance(label, str) else tuple(label)

    def _labelled(self, split: str) -> Iterator[tuple[str, dict[str | None, Any]]]:
        """Lines that have all columns; `bad` has been told of the others."""
        columns = (*self.columns[0], *self.label_columns)
        bad = functools.partial(self.bad, split)
        source = self.source(split)
        for where, row, _ in inputs.whole_rows(source, [columns], bad):
            if wrong := inputs.no_text(row, self.columns[0]):
                bad(where, wrong)
            elif wrong := self.wrong_cells(row):
                bad(where, wrong)
            else:
                yield where, row

    def examples(self, split: str) -> list[InputExample]:
        """All lines, counted by the example ids; spaces around labels do not count."""
        if split == "test":
            # In the described columns alone: those of other files are looked for.
            bad = functools.partial(self.bad, split)
            found = self.columns[:1], self.identity, bad
            asked = inputs.texts(self.source(split), *found)
            return [self.example_of(eid, one.given) for eid, one in enumerate(asked)]
        found = []
        rows = list(self._labelled(split))
        labels = [self.label_of(row) for _, row in rows]
        labels = self.one_spelling(split, labels)
        for eid, ((where, row), label) in enumerate(zip(rows, labels, strict=True)):
            if wrong := self._wrong(split, label):
                self.bad(split, where, wrong)
                continue
            given = inputs.given_of(row, self.columns[0], self.identity)
            found.append(example_of(eid, given, label))
        return found

    def wrong_cells(self, row: dict[str | None, Any]) -> str | None:
        """What is wrong with the cell of the label, as far as its type goes."""
        [column] = self.label_columns
        if isinstance(row[column], (list, dict)) or inputs.is_printed(row[column]):
            hint = "; type multilabel reads lists" * self._has_classes
            return f"{column} is {shown(row[column])}{hint}"
        return None if self.label_of(row) else f"the column {column!r} is empty"

    def label_of(self, row: dict[str | None, Any]) -> str:
        """The label of a line, without the spaces around it."""
        [column] = self.label_columns
        return str(row[column]).strip()

    def one_spelling(self, split: str, labels: list[Any]) -> list[Any]:
        """Labels in one spelling for equal numbers, such as 0 and 0.0."""
        if not self._has_classes:
            found = [inputs.with_decimal_point(label) for label in labels]
            if count := sum(map(str.__ne__, labels, found)):
                self.remark(split, "numbers have a decimal comma", count)
            return found
        is_known = split != "train" or self.stored
        spellings = inputs.spellings(self.labels if is_known else labels)
        known = {*self.labels} if is_known else set()
        found = [
            label if label in known else spellings.get(inputs.number_of(label), label)
            for label in labels
        ]
        if not is_known and (count := len({*labels}) - len({*found})):
            what = "spellings of a number that another class has, as 0.0 beside 0"
            self.remark(split, what, count)
        return found

    def _wrong(self, split: str, label: str) -> str | None:
        """What is wrong with a label, as far as the file can tell by itself."""
        if not self._has_classes and not self._is_scale_given:
            return self._wrong_number(label)
        if self._has_classes and split == "train" and not self.stored:
            return None
        return self.wrong_label(label)

    def _wrong_number(self, label: str) -> str | None:
        """What is wrong with a score, where one end of the scale at most is given."""
        value = _number(label)
        if value is None:
            either = f"; {label.replace(',', '.')} or {label.replace(',', '')}?"
            is_thousands = re.fullmatch(r"-?\d{1,3}(,\d{3})+", label)
            return f"{shown(label)} is not a number{either if is_thousands else ''}"
        low, high = (self.description.get(key) for key in ("lowest", "highest"))
        if low is not None and value < float(low):
            return f"the score is {label}, lowest is {low}"
        if high is not None and value > float(high):
            return f"the score is {label}, highest is {high}"
        return None


class OwnMultilabelTask(Multilabel, OwnTextTask):
    """Any number of classes for texts in columns."""

    fewest_labels = 1  # Which a text may have or not.


def _range(examples: Sequence[InputExample]) -> tuple[float, float]:
    numbers = [float(example.label) for example in examples]
    return min(numbers, default=0.0), max(numbers, default=1.0)


class OwnTaggingTask(_OwnFiles, TaggingTask):
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


class OwnQATask(_OwnFiles, QATask):
    """Questions in a file of SQuAD's form."""

    answer_text = "offsets"

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.is_v2 = bool(self.description.get("has_impossible", False))
