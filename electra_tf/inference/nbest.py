# SPDX-License-Identifier: Apache-2.0
"""N-best lists: what a speech recogniser or translator offers, to be ranked again.

Two forms are read.  JSON lines, one list a line, higher scores are better:

    {"id": "utt1", "hypotheses": [{"text": "a cat", "score": -3.5}, ...],
     "reference": "the cat"}

"reference" may be left out; other keys are kept.  Kaldi's text files, one hypothesis a
line, `<utterance>-<number> word word ...`, with one or more files of costs,
`<utterance>-<number> cost`, which are added; lower costs are better.  References for
both may come from a file of lines `<utterance> word word ...`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, JSON_ERRORS, UserError
from electra_tf.text import archives


@dataclasses.dataclass
class Hypothesis:
    """One text that is offered, with its score (higher is better)."""

    text: str
    score: float
    row: dict[str, Any]  # the JSON object it came from; {} in Kaldi's form


@dataclasses.dataclass
class NBestList:
    """What is offered for one utterance, in the order of the file."""

    id: str
    hypotheses: list[Hypothesis]
    reference: str | None
    row: dict[str, Any]


def read_nbest(
    path: str | os.PathLike | None,
    costs: Sequence[str | os.PathLike] = (),
    references: str | os.PathLike | None = None,
    encoding_errors: str = "strict",
) -> list[NBestList]:
    """Reads all lists of a file, in order.

    Args:
      path: JSON lines, or Kaldi's text if there are `costs`; None: standard input.
      costs: files of costs, by the same ids.
      references: a file of references; every list must have one then.
      encoding_errors: see `archives.read_lines`.

    Raises `UserError` naming file and line: no or twice the same id, ids that other
    files lack, empty lists, scores that are not finite numbers.
    """
    if costs:
        lists = _read_kaldi(path, costs, encoding_errors)
    else:
        lists = _read_json_lines(path, encoding_errors)
    if not lists:
        raise UserError(f"{_name(path)} holds no lists.")
    if references is not None:
        known = _keyed(references, encoding_errors)
        missing = [one.id for one in lists if one.id not in known]
        if missing:
            raise UserError(
                f"{references} has no reference for {missing[0]!r} of {_name(path)}"
                f"{_and_more(missing)}."
            )
        for one in lists:
            one.reference = known[one.id][1]
    return lists


def _and_more(missing: list) -> str:
    return f", nor for {len(missing) - 1} others" if len(missing) > 1 else ""


def _name(path) -> str:
    return archives.STANDARD_INPUT if path is None else str(path)


def _damaged(path, line: int | None, what: str) -> UserError:
    where = f"{_name(path)}, line {line}" if line else _name(path)
    return UserError(f"{where}: {what}", EXIT_DAMAGED)


def _read_json_lines(path, encoding_errors: str) -> list[NBestList]:
    lists: list[NBestList] = []
    lines_of: dict[str, int] = {}
    for number, line in enumerate(archives.read_lines(path, encoding_errors), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except JSON_ERRORS as e:
            raise _damaged(
                path,
                number,
                f"no JSON ({e}).\nOne list a line; Kaldi's text needs --costs.",
            ) from None
        found = _json_list(path, number, row)
        if found.id in lines_of:
            raise _damaged(
                path, number, f"id {found.id!r} again, after line {lines_of[found.id]}."
            )
        lines_of[found.id] = number
        lists.append(found)
    return lists


def _json_list(path, number: int, row: Any) -> NBestList:
    if not isinstance(row, dict) or not isinstance(row.get("id", ""), str | int):
        raise _damaged(path, number, f"not an n-best list: {row!r:.60}.")
    if row.get("id", "") == "":
        raise _damaged(path, number, f'"id" is missing; found {sorted(row)}.')
    hypotheses = row.get("hypotheses")
    if not isinstance(hypotheses, list) or not hypotheses:
        raise _damaged(path, number, f'{row["id"]!r} has no "hypotheses".')
    for place, item in enumerate(hypotheses, start=1):
        if not _is_hypothesis(item):
            raise _damaged(
                path,
                number,
                f'hypothesis {place} of {row["id"]!r} needs "text" and a finite '
                f'"score"; found {item!r:.60}.',
            )
    reference = row.get("reference")
    if not isinstance(reference, str | None):
        raise _damaged(path, number, f'"reference" of {row["id"]!r} is not a text.')
    found = [Hypothesis(h["text"], float(h["score"]), h) for h in hypotheses]
    return NBestList(str(row["id"]), found, reference, row)


def _is_hypothesis(item: Any) -> bool:
    try:
        score = item["score"]
        is_number = not isinstance(score, bool) and math.isfinite(score)
        return is_number and isinstance(item["text"], str)
    except (KeyError, TypeError, OverflowError):  # an int may exceed all floats
        return False


def _read_kaldi(path, costs, encoding_errors: str) -> list[NBestList]:
    texts = _keyed(path, encoding_errors)
    totals = dict.fromkeys(texts, 0.0)
    for cost_path in costs:
        given = _keyed(cost_path, encoding_errors)
        missing = [key for key in texts if key not in given]
        if missing:
            raise UserError(
                f"{cost_path} has no cost for {missing[0]!r} of {_name(path)}"
                f"{_and_more(missing)}."
            )
        unknown = [key for key in given if key not in texts]
        if unknown:
            raise UserError(
                f"{_name(path)} has no hypothesis {unknown[0]!r} of {cost_path}"
                f"{_and_more(unknown)}."
            )
        for key, (number, value) in given.items():
            totals[key] += _cost(cost_path, number, key, value)
    lists: dict[str, NBestList] = {}
    for key, (number, text) in texts.items():
        utterance, dash, rank = key.rpartition("-")
        if not dash or not utterance or not rank.isdigit():
            raise _damaged(
                path, number, f"id {key!r} is not of the form <utterance>-<number>."
            )
        one = lists.setdefault(utterance, NBestList(utterance, [], None, {}))
        one.hypotheses.append(Hypothesis(text, -totals[key], {}))
    return list(lists.values())


def _cost(path, number: int, key: str, value: str) -> float:
    try:
        cost = math.nan if "_" in value else float(value)  # Python reads 1_0 as 10.
    except ValueError:
        cost = math.nan
    if not math.isfinite(cost):
        raise _damaged(
            path, number, f"the cost of {key!r} is {value!r}: no finite number."
        )
    return cost


def _keyed(path, encoding_errors: str) -> dict[str, tuple[int, str]]:
    """First word of each line -> (line number, the rest with single spaces)."""
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(archives.read_lines(path, encoding_errors), 1):
        words = line.split()
        if not words:
            raise _damaged(path, number, "an empty line: the id is missing.")
        if line[0].isspace():
            raise _damaged(path, number, "begins with a space: the id is missing.")
        if words[0] in found:
            raise _damaged(
                path, number, f"id {words[0]!r} again, after line {found[words[0]][0]}."
            )
        found[words[0]] = (number, " ".join(words[1:]))
    return found
