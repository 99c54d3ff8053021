# SPDX-License-Identifier: Apache-2.0
"""How text is normalised, the special tokens, and both in a tokenizer.json.

The tokenizers here can be written as one of the package tokenizers, and are recognised
in what that package and BERT wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.text import unicode_classes

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)

MAX_CHARS_PER_WORD = 200  # A longer word is [UNK].

SPECIAL = {
    "cls_token": CLS,
    "mask_token": MASK,
    "pad_token": PAD,
    "sep_token": SEP,
    "unk_token": UNK,
}
# What the tokenizers here always do; None: what is left out means the same.
_ALWAYS = {"tokenize_chinese_chars": (True, None), "do_basic_tokenize": (True, None)}
# Longer words are [UNK]; BERT's 100 is passed over, as the original did.
_MAX_CHARS = (100, MAX_CHARS_PER_WORD)


class TokenizerConfig(NamedTuple):
    """How text is normalised before wordpieces are looked up.

    Attributes:
        do_lower_case: lower-case the text.
        strip_accents: decompose characters and drop the accents. The original does so
            only when it lower-cases too; a cased tokenizer ignores this setting.
    """

    do_lower_case: bool = True
    strip_accents: bool = True

    def equivalent(self, other: TokenizerConfig) -> bool:
        """Whether both give the same tokens for every text."""
        if not self.do_lower_case:
            return not other.do_lower_case
        return tuple(self) == tuple(other)

    def __str__(self) -> str:
        if not self.do_lower_case:
            return "cased"
        return "uncased, accents " + ("stripped" if self.strip_accents else "kept")


_SETTINGS = (TokenizerConfig(), TokenizerConfig(True, False), TokenizerConfig(False))


def strips_accents(config: TokenizerConfig) -> bool:
    """Whether accents are really stripped."""
    # A cased tokenizer keeps accents whatever the setting, as in the original.
    return config.do_lower_case and config.strip_accents


def _normalizer(config: TokenizerConfig):
    """Steps 1 and 2 of `text.tokenization`, by its tables of characters."""
    from tokenizers import Regex, normalizers

    white_space = unicode_classes.pattern(unicode_classes.WHITE_SPACE)
    steps = [
        normalizers.Replace(Regex(unicode_classes.VANISHING), ""),
        normalizers.Replace(Regex(white_space), " "),
    ]
    if config.do_lower_case:
        steps.append(normalizers.Lowercase())
    if strips_accents(config):
        marks = unicode_classes.pattern(unicode_classes.NONSPACING_MARKS)
        steps += [normalizers.NFD(), normalizers.Replace(Regex(marks), "")]
    return normalizers.Sequence(steps)


def _pre_tokenizer():
    """Words, and each ideograph and each punctuation character by itself."""
    from tokenizers import Regex, pre_tokenizers

    alone = unicode_classes.PUNCTUATION, unicode_classes.IDEOGRAPHS
    split = pre_tokenizers.Split(Regex(unicode_classes.pattern(*alone)), "isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])


def fast(tokens: Sequence[str], config: TokenizerConfig):
    """The tokenizer of distinct tokens as one of the package tokenizers."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    ids = {token: i for i, token in enumerate(tokens)}
    model = models.WordPiece(
        vocab=ids, unk_token=UNK, max_input_chars_per_word=MAX_CHARS_PER_WORD
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
    )
    special = [AddedToken(token, special=True) for token in (PAD, UNK, CLS, SEP, MASK)]
    tokenizer.add_special_tokens(special)
    return tokenizer


# ------------------------------------------------------------------------- reading


def refused(
    path: str | os.PathLike,
    what: str,
    remedy: str = "If the model can do without it, remove it from that file.",
) -> UserError:
    """The error for a tokenizer that does something else than those here."""
    return UserError(
        f"{path}: {what}; tokenizers of this project and of the original do not do "
        f"that.\nIts texts would get other ids here than there. {remedy}"
    )


def of_settings(settings: dict[str, Any], path: str | os.PathLike) -> TokenizerConfig:
    """The settings from BERT's names for them; `UserError` for unsupported ones."""
    lower = settings.get("do_lower_case", True)
    strip = settings.get("strip_accents")
    strip = lower if strip is None else strip
    if not (isinstance(lower, bool) and isinstance(strip, bool)):
        raise UserError(
            f"{path}: do_lower_case and strip_accents are true or false.", EXIT_DAMAGED
        )
    if strip and not lower:
        raise refused(path, "strip_accents is true and do_lower_case false")
    for name, allowed in _ALWAYS.items():
        if settings.get(name) not in allowed:
            raise refused(path, f"{name} is {settings[name]!r}")
    # transformers does not split its special tokens anyway.
    if others := {*(settings.get("never_split") or ())} - {*SPECIAL_TOKENS}:
        raise refused(path, f"never_split has {min(others)!r}")
    for name, token in SPECIAL.items():
        there = settings.get(name) or token
        there = there.get("content") if isinstance(there, dict) else there
        if there != token:
            raise refused(path, f"{name} is {there!r} instead of {token!r}")
    return TokenizerConfig(lower, strip)


def settings_of(content: dict[str, Any], path: str | os.PathLike) -> TokenizerConfig:
    """The settings of a tokenizer.json: BERT's normalizer, or the one written here.

    Raises `UserError`, naming the difference, for one that does something else.
    """
    _check_words(content, path)
    normalizer = content.get("normalizer") or {}
    splits = content.get("pre_tokenizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        if splits.get("type") != "BertPreTokenizer":
            raise refused(path, f"pre_tokenizer is {splits.get('type')}")
        if not normalizer.get("clean_text", True):
            raise refused(path, "clean_text is false")
        names = {
            "do_lower_case": "lowercase",
            "strip_accents": "strip_accents",
            "tokenize_chinese_chars": "handle_chinese_chars",
        }
        return of_settings({k: normalizer.get(v) for k, v in names.items()}, path)
    for config in _SETTINGS:
        ours = json.loads(fast(SPECIAL_TOKENS, config).to_str())
        if (ours["normalizer"], ours["pre_tokenizer"]) == (normalizer, splits):
            return config
    raise refused(path, f"normalizer is {normalizer.get('type')}")


def _check_words(content: dict[str, Any], path: str | os.PathLike) -> None:
    """Refuses what makes other pieces of the same words."""
    limit = content.get("model", {}).get("max_input_chars_per_word", _MAX_CHARS[0])
    if limit not in _MAX_CHARS:
        raise refused(path, f"max_input_chars_per_word is {limit}")
    check_added(content.get("added_tokens") or (), path)


def check_added(tokens: Iterable[Any], path: str | os.PathLike) -> None:
    """Refuses tokens that are cut out of a text before it is cut into words.

    Args:
      tokens: strings, or objects with the string as `content`.
    """
    for one in tokens:
        token = one.get("content") if isinstance(one, Mapping) else one
        if token not in SPECIAL_TOKENS:
            raise refused(path, f"its added token {token!r} is found before words are")


def settings_in_file(path: str | os.PathLike) -> TokenizerConfig | None:
    """The settings in a vocabulary's own file; None unless it is a tokenizer.json."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError:
        return None
    if not data.lstrip().startswith(b"{"):
        return None
    return settings_of(json.loads(data), path)
