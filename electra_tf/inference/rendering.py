# SPDX-License-Identifier: Apache-2.0
"""Predictions on the tokens of a text, as coloured terminal text, HTML and JSON.

In a corrupted text as many tokens are flagged as were replaced: those that look most
replaced.  So a flagged token is caught or a false alarm, and the numbers of misses and
of false alarms are equal.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, NamedTuple

from electra_tf.console import printable
from electra_tf.inference.pretrained_model import TokenPrediction

# ANSI colours: what was replaced and flagged, replaced only, flagged only.
_CAUGHT, _MISSED, _ALARM, _DIM, _PLAIN = "1;30;42", "1;30;43", "4;31", "2", "0"

STYLE = """
.passage { font: 1.05rem/2.1 Georgia, serif; max-width: 46rem; }
.passage span[class] { border-radius: .25em; padding: .1em .12em; }
.passage .caught { background: #9fdcae; font-weight: 600; }
.passage .missed { background: #f6d58a; font-weight: 600; }
.passage span.alarm { border-radius: 0; box-shadow: inset 0 -2px 0 #c0392b; }
.passage s { color: #7b8794; font-size: .8em; margin-left: .25em; }
.legend span { border-radius: .25em; padding: .15em .4em; margin-right: .8em; }
"""


class Score(NamedTuple):
    """How many of the replaced tokens were flagged."""

    replaced: int
    caught: int
    flagged: int


def flagged(
    tokens: Sequence[TokenPrediction], threshold: float | None = None
) -> set[int]:
    """Indices of the tokens the discriminator calls replaced.

    Args:
      threshold: those whose probability is above it; None: in a corrupted text, the
        most suspicious ones, as many as were replaced.
    """
    order = sorted(range(len(tokens)), key=lambda i: -tokens[i].probability)
    if threshold is None:
        return set(order[: sum(token.is_replaced for token in tokens)])
    return {i for i in order if tokens[i].probability > threshold}


def score(tokens: Sequence[TokenPrediction]) -> Score:
    """Counts of one corrupted text."""
    found = flagged(tokens)
    replaced = {i for i, token in enumerate(tokens) if token.is_replaced}
    return Score(len(replaced), len(replaced & found), len(found))


def _pieces(text: str, tokens: Sequence[TokenPrediction], threshold: float | None):
    """(gap before, shown text, kind, original) of each token, then the last gap."""
    found, last = flagged(tokens, threshold), 0
    for i, token in enumerate(tokens):
        if token.is_replaced:
            shown = token.replacement.removeprefix("##")
        elif token.end > last:  # Pieces of one character have the same place.
            shown = text[max(last, token.start) : token.end]
        else:
            continue
        kind = {
            (True, True): "caught",
            (True, False): "missed",
            (False, True): "alarm",
            (False, False): "",
        }[token.is_replaced, i in found]
        yield text[last : token.start], shown, kind, token
        last = max(last, token.end)
    yield text[last:], "", "", None


def to_terminal(
    text: str,
    tokens: Sequence[TokenPrediction],
    threshold: float | None = None,
    colour: bool = True,
) -> str:
    """The text with marks; replaced tokens are followed by the original in brackets.

    Without colour: *caught*, ?missed?, !false alarm!. `threshold` as of `flagged`.
    """
    codes = {"caught": _CAUGHT, "missed": _MISSED, "alarm": _ALARM}
    signs = {"caught": "*", "missed": "?", "alarm": "!"}
    parts = []
    for gap, shown, kind, token in _pieces(text, tokens, threshold):
        gap, shown = printable(gap), printable(shown)
        parts.append(gap)
        if not kind:
            parts.append(shown)
            continue
        mark = f"\x1b[{codes[kind]}m{shown}\x1b[{_PLAIN}m"
        parts.append(mark if colour else f"{signs[kind]}{shown}{signs[kind]}")
        if token.is_replaced:
            original = f"[{printable(token.text)}]"
            dim = f"\x1b[{_DIM}m{original}\x1b[{_PLAIN}m"
            parts.append(dim if colour else original)
    return "".join(parts)


def terminal_legend(is_corrupted: bool, colour: bool = True) -> str:
    """One line that explains the marks of `to_terminal`."""
    if not is_corrupted:
        return f"\x1b[{_ALARM}mlooks replaced\x1b[{_PLAIN}m" if colour else "!replaced!"
    if not colour:
        return "*caught* ?missed? [original], !false alarm!"
    samples = (
        (_CAUGHT, "replaced, caught"),
        (_MISSED, "replaced, missed"),
        (_DIM, "[original]"),
        (_ALARM, "false alarm"),
    )
    return " ".join(f"\x1b[{code}m{name}\x1b[{_PLAIN}m" for code, name in samples)


def to_html(
    text: str, tokens: Sequence[TokenPrediction], threshold: float | None = None
) -> str:
    """The text as an HTML fragment; STYLE colours it; the mouse shows probabilities.

    `threshold` as of `flagged`.
    """
    parts = ['<p class="passage">']
    for gap, shown, kind, token in _pieces(text, tokens, threshold):
        parts.append(html.escape(gap))
        if token is None:
            continue
        title = f"{token.probability:.0%} replaced"
        name = f' class="{kind}"' if kind else ""
        parts.append(f'<span{name} title="{title}">{html.escape(shown)}</span>')
        if token.is_replaced:
            parts.append(f"<s>{html.escape(token.text)}</s>")
    return "".join([*parts, "</p>"])


def of_sample(passage: Sequence[Sequence]) -> tuple[str, list[TokenPrediction]]:
    """A passage of `pretrain.samples` as a text and the predictions for its tokens."""
    text, tokens = "", []
    for token, probability, *replacement in passage:
        text += " " if text and not token.startswith("##") else ""
        start, text = len(text), text + token.removeprefix("##")
        found = (start, len(text), probability, *replacement)
        tokens.append(TokenPrediction(text[start:], *found))
    return text, tokens


def html_legend(is_corrupted: bool) -> str:
    """An HTML fragment that explains the marks of `to_html`."""
    if not is_corrupted:
        return '<p class="legend passage"><span class="alarm">looks replaced</span></p>'
    return (
        '<p class="legend passage"><span class="caught">replaced and caught</span>'
        '<span class="missed">replaced, missed</span><s>original</s> '
        '<span class="alarm">false alarm</span></p>'
    )


def to_json(text: str, tokens: Sequence[TokenPrediction]) -> dict[str, Any]:
    """One JSON object per text: its tokens with character offsets."""
    rows = []
    for token in tokens:
        row = {
            "token": token.text,
            "start": token.start,
            "end": token.end,
            "probability": round(token.probability, 6),
        }
        if token.is_replaced:
            row["replacement"] = token.replacement
        rows.append(row)
    return {"text": text, "tokens": rows}
