# SPDX-License-Identifier: Apache-2.0
"""Replays recordings of the original's tokenizer (`tokenization/` of a golden)."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from electra_tf.text.tf_tokenization import TFTokenizer
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.unicode_classes import UNICODE_VERSION
from electra_tf.text.vocabulary import Vocabulary
from tests.parity.rows import Row, read_json, vocabulary


class Recorded(NamedTuple):
    """The original's tokens of one text.

    `basic` is None where it depends on the version of Unicode and was recorded with
    other versions only.
    """

    text: str
    basic: list[str] | None
    tokens: list[str]


def replay(directory: str) -> Iterator[Row]:
    """Compares with the recording in `directory`, which holds tokenization.json.

    The deviation is the number of strings that differ: in the words of the basic
    tokenizer, in the wordpieces, and in the ids of the fast paths (many lines at once,
    with offsets, TensorFlow ops).
    """
    recording = read_json(directory, "tokenization.json")
    vocab = vocabulary(directory, recording["vocab"])
    for combo in recording["combos"]:
        settings = [digit == "1" for digit in re.findall(r"\d", combo)]
        items = list(_recorded(recording, combo))
        for quantity, differing in _differing(vocab, settings, items).items():
            yield Row(f"{combo}/{quantity} of {len(items)}", differing, 0)


def _differing(
    vocab: Vocabulary, settings: list[bool], items: list[Recorded]
) -> dict[str, int]:
    """Returns the number of differing strings by quantity."""
    tokenizer = Tokenizer(vocab, *settings)
    texts = [item.text for item in items]
    expected = [tokenizer.convert_tokens_to_ids(item.tokens) for item in items]
    ids, splits = tokenizer.tokenize_lines(texts)
    lines = [ids[a:b].tolist() for a, b in zip(splits, splits[1:], strict=False)]
    # Texts can hold lone surrogates, which UTF-8 cannot hold.
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    ops = TFTokenizer(vocab, *settings).tokenize(encoded).to_list()
    return {
        "basic": sum(
            item.basic is not None and tokenizer.basic_tokenize(item.text) != item.basic
            for item in items
        ),
        "tokens": sum(tokenizer.tokenize(item.text) != item.tokens for item in items),
        "lines": _count(lines, expected),
        "offsets": _count(
            [tokenizer.encode_with_offsets(text)[0] for text in texts], expected
        ),
        "tensorflow": _count(ops, expected),
    }


def _recorded(recording: dict, combo: str) -> Iterator[Recorded]:
    """The items of one setting, as the original gives them on our Unicode version."""
    version = recording.get("unicode_of_tokens", UNICODE_VERSION)
    for item in recording["items"]:
        basic, tokens = item["basic"][combo], item["tokens"][combo]
        if item.get("unicode_sensitive") and version != UNICODE_VERSION:
            basic = None
            # A version that is not listed gives what was recorded.
            others = item["tokens_by_unicode"]
            tokens = others.get(UNICODE_VERSION, item["tokens"])[combo]
        yield Recorded(item["text"], basic, tokens)


def _count(found: list, expected: list) -> int:
    return sum(a != b for a, b in zip(found, expected, strict=True))
