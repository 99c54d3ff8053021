# SPDX-License-Identifier: Apache-2.0
"""JSON Lines as a stream of texts: one object a line, its text under a key."""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.text.corpus import TextReader, lines_before, record


def json_line(row: dict[str, Any]) -> str:
    """An object in one line, without the line's end; text stays readable."""
    line = json.dumps(row, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:  # half a pair of surrogates
        return json.dumps(row)
    return line


def read_json_lines(
    reader: TextReader, key: str, encoding_errors: str = "strict", start: int = 0
) -> Iterator[TextReader]:
    """Yields a reader for the text of each line; blank lines are passed over.

    Args:
      reader: of the lines that begin at or after byte `start` of a file.
      key: of the text; "a/b" is b inside a. A null is an empty text.

    Raises UserError (65), naming file and line, for anything else.
    """
    number = replaced = 0
    for lines in reader:
        for line in lines:
            number += 1
            if not line.strip():
                continue
            place = functools.partial(_place, reader.name, start, number)
            data = _text_of(line, key, place)
            text = record(data, reader.name, encoding_errors, place)
            # What was replaced in the line was so before the text was found in it.
            text.num_replaced = reader.num_replaced - replaced
            replaced = reader.num_replaced
            yield text


def _place(name: str, start: int, number: int) -> str:
    """Names a line by its number in the file, of which `start` bytes came before."""
    return f"{name} line {number + lines_before(name, start)}"


def _text_of(line: str, key: str, place: Callable[[], str]) -> bytes:
    try:
        value: Any = json.loads(line)
    except ValueError as e:  # also of a line that was cut, beyond 16 MB
        raise _broken(place(), f"is not JSON ({e})") from None
    for part in [key] if isinstance(value, dict) and key in value else key.split("/"):
        if not isinstance(value, dict) or part not in value:
            has = list(value) if isinstance(value, dict) else value
            raise _broken(place(), f"has no {key!r} but {has!r:.80}")
        value = value[part]
    if not isinstance(value, str | None):
        raise _broken(place(), f"has no text under {key!r} but {value!r:.40}")
    # Half a surrogate pair cannot be encoded; decoding finds its bytes.
    return (value or "").encode("utf-8", "surrogatepass")


def _broken(place: str, problem: str) -> UserError:
    return UserError(
        f"{place} {problem}.\nEach line is an object with its text under one key "
        "(--text-key); fix the line or remove it.",
        EXIT_DAMAGED,
    )
