# SPDX-License-Identifier: Apache-2.0
"""Questions on texts in a user's file, in the forms that are in use.

SQuAD's nested form (also DRCD, KorQuAD, FQuAD), CMRC's, MRQA's, and a row for each
question with its context, as Hugging Face's `datasets` writes it: JSON, JSON Lines,
CSV, TSV or Parquet. Answers are objects, plain texts or a table of texts and places.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from electra_tf.errors import UserError
from electra_tf.finetune.inputs import (
    Input,
    Source,
    more_columns,
    number_of,
    printed,
    read_json,
    records,
    refuse,
    shown,
)

# SQuAD's key -> its names in the forms that are read.
_KEYS = {
    "context": ("context", "context_text", "passage"),
    "qas": ("qas", "questions"),
    "question": ("question", "query_text", "query"),
    "id": ("id", "qid", "query_id", "question_id"),
    "answers": ("answers", "answer", "answer_text"),
    "text": ("text", "answer_text", "answer"),
    "answer_start": ("answer_start", "start"),
}
_EXPECTED = "context, question and answers with text and answer_start"
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}
_TRUTHS |= {"1.0": True, "0.0": False, "yes": True, "no": False}


class Answer(NamedTuple):
    """A right answer, and where it begins in the context."""

    text: str
    start: int | None  # None: the form does not say it


class Question(NamedTuple):
    """A question as a file has it.

    Attributes:
      id: None where it has none.
      answers: None where the file says nothing of answers.
      spans: those to train on, if these are not the answers (MRQA).
      is_impossible: None where the file does not say.
    """

    id: Any
    text: str
    answers: list[Answer] | None
    spans: list[Answer] | None
    is_impossible: bool | None


class Paragraph(NamedTuple):
    """A text with its questions."""

    where: str
    context: str
    questions: list[Question]


def questions(source: Source) -> Iterator[Input]:
    """Questions to be answered, one by one."""
    for where, context, asked in paragraphs(source, refuse, has_answers=False):
        for one in asked:
            given = {} if one.id is None else {"id": one.id}
            yield Input(where, given | {"question": one.text, "context": context})


def paragraphs(
    source: Source, bad: Callable[[str, str], None], has_answers: bool = True
) -> Iterator[Paragraph]:
    """All texts with their questions.

    Args:
      bad: is called with (where, what is wrong) for questions that cannot be used.
      has_answers: whether answers are read.
    """
    for where, entry in _entries(source):
        yield paragraph(where, entry, bad, has_answers)


def paragraph(
    where: str, entry: Any, bad: Callable[[str, str], None], has_answers: bool = True
) -> Paragraph:
    """A text with its questions, from an object in one of the forms; see `paragraphs`.

    Raises `UserError` for an object that is in none of them, naming its keys.
    """
    if not isinstance(entry, Mapping):
        refuse(where, f"{shown(entry)} is not an object with {_EXPECTED}")
    keys = ", ".join(map(str, entry)) or "none"
    qas, context = _field(entry, "qas"), _field(entry, "context")
    if not isinstance(qas, list) and _field(entry, "question") is not None:
        qas = [entry]
    if not isinstance(qas, list) or not all(isinstance(x, Mapping) for x in qas):
        refuse(where, f"no list of questions; keys: {keys}; expected: {_EXPECTED}")
    if not isinstance(context, str):
        what = f"the context is {shown(context)}, not a text; keys: {keys}"
        refuse(where, f"{what}; expected: {_EXPECTED}")
    found = []
    for one in qas:
        try:
            found.append(_question(one, has_answers))
        except ValueError as error:
            bad(where, str(error))
    return Paragraph(where, context, found)


def _field(entry: Mapping[Any, Any], name: str) -> Any:
    """A value by SQuAD's name of its key; None where there is none."""
    return next((entry[k] for k in _KEYS[name] if entry.get(k) is not None), None)


def _question(entry: Mapping[str, Any], has_answers: bool) -> Question:
    text, name = _field(entry, "question"), _field(entry, "id")
    if not isinstance(text, str):
        keys = ", ".join(map(str, entry))
        raise ValueError(f"the question is {shown(text)}, not a text; keys: {keys}")
    if not has_answers:
        return Question(name, text, None, None, None)
    try:
        spans = _spans(entry.get("detected_answers"))
        impossible = _truth(entry.get("is_impossible"))
        return Question(name, text, _answers(entry), spans, impossible)
    except ValueError as error:
        raise ValueError(f"{error}, of the question {shown(text)}") from None


def _answers(entry: Mapping[str, Any]) -> list[Answer] | None:
    value = _field(entry, "answers")
    if isinstance(value, str):
        there = printed(value) if value[:1] in ("[", "{", "(") else None
        value = [_beside(entry, value)] if there is None else there
    if isinstance(value, Mapping):  # a table, or one answer
        texts, starts = (_field(value, name) for name in ("text", "answer_start"))
        texts = [] if texts is None else texts if isinstance(texts, list) else [texts]
        starts = starts if isinstance(starts, list) else [starts] * len(texts)
        if len(starts) != len(texts):
            raise ValueError(f"{len(texts)} answers with {len(starts)} answer_start")
        pairs = zip(texts, starts, strict=True)
        value = [{"text": t, "answer_start": s} for t, s in pairs]
    if not isinstance(value, list | None):
        raise ValueError(f"the answers are {shown(value)}, not a list")
    return value if value is None else [_answer(one) for one in value]


def _beside(entry: Mapping[str, Any], text: str) -> Any:
    """An answer whose place is a column of its own, if it has one."""
    start = _field(entry, "answer_start")
    return text if start is None else {"text": text, "answer_start": start}


def _answer(value: Any) -> Answer:
    if isinstance(value, str):
        return Answer(value, None)
    text = _field(value, "text") if isinstance(value, Mapping) else None
    if not isinstance(text, str | int | float):
        raise ValueError(f"{shown(value)} is not an answer: it has no text")
    start = _field(value, "answer_start")
    if isinstance(start, str):  # pandas has 4.0 in columns with an empty cell
        number = number_of(start.strip() or -1)
        start = start if number is None else number
    start = -1 if start is None else start  # An object has to say it.
    if isinstance(start, bool) or not isinstance(start, int | float) or start % 1:
        raise ValueError(f"answer_start is {shown(start)}, not a number")
    return Answer(str(text), int(start))


def _spans(detected: Any) -> list[Answer] | None:
    """The answers that MRQA found in a text; a span ends with its last character."""
    if detected is None:
        return None
    try:
        return [Answer(one["text"], one["char_spans"][0][0]) for one in detected]
    except (LookupError, TypeError):
        raise ValueError(
            f"detected_answers is {shown(detected)}; expected: text and char_spans"
        ) from None


def _truth(value: Any) -> bool | None:
    found = _TRUTHS.get(str(value).strip().lower())
    if value is not None and found is None:
        raise ValueError(f"is_impossible is {shown(value)}, neither true nor false")
    return found


def _entries(source: Source) -> Iterator[tuple[str, Any]]:
    """(place, object with a context) for each."""
    if source.form != "json":
        has_header = source.form in ("tsv", "csv", "parquet")
        pairs = itertools.product(_KEYS["question"], _KEYS["context"])
        for where, row in records(source, [*pairs] if has_header else ()):
            if None in row:
                refuse(where, more_columns(row))
            # MRQA's first line has a header and nothing else.
            if not isinstance(row.get("header"), dict) or _field(row, "context"):
                yield where, row
        return
    content = read_json(source)
    entries = content.get("data") if isinstance(content, Mapping) else content
    if not isinstance(entries, list):
        keys = ", ".join(map(str, content)) if isinstance(content, Mapping) else "none"
        raise UserError(
            f"{source.name} is not in the form it should be; its keys: {keys:.200}.\n"
            'Expected: {"data": [...]} or a list, of objects with paragraphs (SQuAD) '
            f"or with {_EXPECTED}."
        )
    for count, entry in enumerate(entries):
        title = entry.get("title", "?") if isinstance(entry, Mapping) else "?"
        inner = entry.get("paragraphs") if isinstance(entry, Mapping) else None
        if isinstance(inner, list):
            for number, found in enumerate(inner):
                yield f"{source.name}, {title!r}, paragraph {number}", found
        else:
            yield f"{source.name}, entry {count} ({title!r})", entry
