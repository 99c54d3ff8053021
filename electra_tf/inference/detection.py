# SPDX-License-Identifier: Apache-2.0
"""Detects replaced tokens in a stream of passages and shows them, line by line.

The output is coloured terminal text, HTML or JSON. In a corrupted text with n replaced
tokens the n most suspicious tokens are flagged. A flagged token is caught or a false
alarm, so there are as many misses as false alarms.
"""

from __future__ import annotations

import html
import string
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_tf.console import printable
from electra_tf.inference.model import TokenPrediction
from electra_tf.inference.scoring import chunks
from electra_tf.text.records import json_line

if TYPE_CHECKING:
    from electra_tf.inference.pretrained_model import PretrainedModel

# Passages per call of the model, so that output appears while a long input is read.
_CHUNK = 256


def detect(
    model: PretrainedModel, texts: Iterable[str], corruption_seed: int | None = None
) -> Iterator[tuple[str, list[TokenPrediction]]]:
    """Yields each non-blank text with the predictions for its tokens, lazily.

    Args:
      corruption_seed: of the replacements by the generator; None: no replacements.
    """
    texts = filter(None, map(str.strip, texts))
    for number, chunk in enumerate(chunks(texts, _CHUNK)):
        if corruption_seed is None:
            tokens = model.detect(chunk)
        else:
            # A seed for each chunk, so that other places are masked.
            tokens = model.corrupt(chunk, seed=corruption_seed + 1_000_003 * number)
        yield from zip(chunk, tokens, strict=True)


def show(
    detected: Iterable[tuple[str, Sequence[TokenPrediction]]],
    form: str,
    *,
    temperature: float | None = None,
    threshold: float,
    colour: bool,
) -> Iterator[str]:
    """The lines of the output.

    Args:
      detected: texts with the predictions for their tokens.
      form: terminal, jsonl or html.
      temperature: of the generator that drew the replacements; None: no replacements.
      threshold: probability above which a token of an unchanged text is marked.
      colour: mark with colours in the terminal, rather than with signs.
    """
    is_corrupted = temperature is not None
    limit = None if is_corrupted else threshold
    if form == "jsonl":
        for text, tokens in detected:
            yield json_line(to_json(text, tokens))
    elif form == "html":
        parts = [to_html(*pair, limit) for pair in detected]
        yield page("Replaced tokens", [html_legend(is_corrupted), *parts])
    else:
        legend = terminal_legend(is_corrupted, colour)
        if is_corrupted:
            legend += f" (replacements drawn at temperature {temperature:g})"
        yield legend + "\n"
        replaced = caught = 0
        for text, tokens in detected:
            counts = score(tokens)
            replaced, caught = replaced + counts[0], caught + counts[1]
            yield to_terminal(text, tokens, limit, colour) + "\n"
        if replaced:
            yield (
                f"{caught} of {replaced} replaced tokens are among the {replaced} most "
                "suspicious ones."
            )


# (replaced, flagged) -> class in HTML, ANSI colour, sign without colours, name.
_MARKS = {
    (True, True): ("caught", "1;30;42", "*", "replaced, caught"),
    (True, False): ("missed", "1;30;43", "?", "replaced, missed"),
    (False, True): ("alarm", "4;31", "!", "false alarm"),
}
_Mark = tuple[str, str, str, str] | None


def flagged(
    tokens: Sequence[TokenPrediction], threshold: float | None = None
) -> set[int]:
    """Indices of the tokens the discriminator calls replaced.

    Args:
      threshold: flags tokens with a higher probability; None: in a corrupted text,
        flags the most suspicious tokens, as many as were replaced.
    """
    order = sorted(range(len(tokens)), key=lambda i: -tokens[i].probability)
    if threshold is None:
        return set(order[: sum(token.is_replaced for token in tokens)])
    return {i for i in order if tokens[i].probability > threshold}


def score(tokens: Sequence[TokenPrediction]) -> tuple[int, int]:
    """How many tokens of a corrupted text were replaced, and how many are flagged."""
    replaced = {i for i, token in enumerate(tokens) if token.is_replaced}
    return len(replaced), len(replaced & flagged(tokens))


def _pieces(text: str, tokens: Sequence[TokenPrediction], threshold: float | None):
    """(gap before, shown text, mark, token) of each token, then the last gap."""
    found, last = flagged(tokens, threshold), 0
    for i, token in enumerate(tokens):
        if token.is_replaced:
            shown = token.replacement.removeprefix("##")
        elif token.end > last:  # Several pieces may share one character.
            shown = text[max(last, token.start) : token.end]
        else:
            continue
        mark = _MARKS.get((token.is_replaced, i in found))
        yield text[last : token.start], shown, mark, token
        last = max(last, token.end)
    yield text[last:], "", None, None


def to_terminal(
    text: str,
    tokens: Sequence[TokenPrediction],
    threshold: float | None = None,
    colour: bool = True,
) -> str:
    """The text with marks; replaced tokens are followed by the original in brackets.

    Without colour: *caught*, ?missed?, !false alarm!. `threshold`: see `flagged`.
    """
    parts = []
    for gap, shown, mark, token in _pieces(text, tokens, threshold):
        parts += [printable(gap), _marked(printable(shown), mark, colour)]
        if token is not None and token.is_replaced:
            parts.append(_original(printable(token.text), colour))
    return "".join(parts)


def _marked(text: str, mark: _Mark, colour: bool) -> str:
    if mark is None:
        return text
    _, code, sign, _ = mark
    return f"\x1b[{code}m{text}\x1b[0m" if colour else f"{sign}{text}{sign}"


def _original(text: str, colour: bool) -> str:
    return f"\x1b[2m[{text}]\x1b[0m" if colour else f"[{text}]"


def terminal_legend(is_corrupted: bool, colour: bool = True) -> str:
    """One line that explains the marks of `to_terminal`."""
    if not is_corrupted:
        return _marked("looks replaced", _MARKS[False, True], colour)
    marks = [_marked(mark[-1], mark, colour) for mark in _MARKS.values()]
    return " ".join([*marks, _original("original", colour)])


class Html(str):
    """HTML, which `fill` inserts unchanged."""


def fill(template: str, **values: Any) -> Html:
    """A template with its values; all but `Html` and lists of it are escaped."""
    return Html(template.format(**{name: _html(v) for name, v in values.items()}))


def _html(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(_html, value))
    return value if isinstance(value, Html) else html.escape(str(value))


def to_html(
    text: str, tokens: Sequence[TokenPrediction], threshold: float | None = None
) -> Html:
    """The text as an HTML fragment, with probabilities on hover; `page` has the style.

    `threshold`: see `flagged`.
    """
    parts = []
    for gap, shown, mark, token in _pieces(text, tokens, threshold):
        parts.append(gap)
        if token is None:
            continue
        span = '<span class="{kind}" title="{title}">{shown}</span>'
        title = f"{token.probability:.0%} replaced"
        kind = mark[0] if mark else ""
        parts.append(fill(span, kind=kind, title=title, shown=shown))
        if token.is_replaced:
            parts.append(fill("<s>{text}</s>", text=token.text))
    return fill('<p class="passage">{parts}</p>', parts=parts)


def html_legend(is_corrupted: bool) -> Html:
    """An HTML fragment that explains the marks of `to_html`."""
    names = {kind: name for kind, _, _, name in _MARKS.values()}
    if not is_corrupted:
        names = {"alarm": "looks replaced"}
    span = '<span class="{kind}">{name}</span>'
    marks = [fill(span, kind=kind, name=name) for kind, name in names.items()]
    original = [Html("<s>original</s>")] if is_corrupted else []
    return fill('<p class="legend passage">{marks}</p>', marks=marks + original)


def to_json(text: str, tokens: Sequence[TokenPrediction]) -> dict[str, Any]:
    """One JSON object per text: its tokens with character offsets."""
    rows = []
    for token, start, end, probability, replacement in tokens:
        row = {"token": token, "start": start, "end": end}
        row["probability"] = round(probability, 6)
        more = {} if replacement is None else {"replacement": replacement}
        rows.append(row | more)
    return {"text": text, "tokens": rows}


def page(title: str, parts: Sequence[Html]) -> Html:
    """A whole HTML document, page.html; `parts` are fragments."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    shown = {"title": _html(title), "parts": _html([*parts])}
    return Html(string.Template(template).substitute(shown))
