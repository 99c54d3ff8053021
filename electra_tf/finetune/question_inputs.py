# SPDX-License-Identifier: Apache-2.0
"""Questions on texts in a user's file: SQuAD's form, MRQA's, or a row for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from electra_tf.errors import JSON_ERRORS, UserError
from electra_tf.finetune.inputs import (
    Asked,
    Source,
    identity_of,
    more_columns,
    records,
    refuse,
    shown,
)


def questions(source: Source) -> Iterator[Asked]:
    """Questions on texts, in SQuAD's form, MRQA's, or a row for each."""
    for where, paragraph in paragraphs(source):
        context, qas = paragraph.get("context"), paragraph.get("qas")
        if not isinstance(qas, list) or not all(isinstance(x, Mapping) for x in qas):
            refuse(where, f"qas is {shown(qas)}, not a list of objects")
        for asked in qas:
            question = asked.get("question")
            for name, value in (("question", question), ("context", context)):
                if not isinstance(value, str):
                    refuse(where, f"the {name} is {shown(value)}, not a text")
            given = identity_of(asked, ("id", "qid"))
            yield Asked(where, given | {"question": question, "context": context})


def paragraphs(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, text with its questions), as SQuAD has them."""
    if source.form != "json":
        has_header = source.form in ("tsv", "csv", "parquet")
        wanted = [("question", "context")] if has_header else ()
        for where, row in records(source, wanted):
            if None in row:
                refuse(where, more_columns(row))
            # MRQA's first line has a header and nothing else.
            if "header" not in row or "question" in row or "context" in row:
                yield where, _as_paragraph(row)
        return
    try:
        content = json.loads("\n".join(source.lines))
        entries = content["data"] if isinstance(content, dict) else content
        for count, entry in enumerate(entries):
            title = entry.get("title", "?")
            if "paragraphs" not in entry:
                place = f"{source.name}, entry {count} ({title!r})"
                yield place, _as_paragraph(entry)
                continue
            for number, found in enumerate(entry["paragraphs"]):
                yield f"{source.name}, {title!r}, paragraph {number}", found
    except JSON_ERRORS as error:
        raise UserError(
            f"{source.name} is not in the form it should be: {error!r}"
        ) from None


def _as_paragraph(entry: dict[str, Any]) -> dict[str, Any]:
    """A record of Hugging Face's flat form as a paragraph with one question."""
    if "qas" in entry:
        return entry
    return {"context": entry.get("context"), "qas": [entry]}
