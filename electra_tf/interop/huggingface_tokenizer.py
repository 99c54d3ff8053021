# SPDX-License-Identifier: Apache-2.0
"""The tokenizer's files of a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import verification
from electra_tf.interop.stored_model import StoredModel
from electra_tf.storage.manifest import read_json
from electra_tf.text import unicode_classes
from electra_tf.text.vocabulary import (
    CLS,
    MASK,
    MAX_CHARS_PER_WORD,
    PAD,
    SEP,
    UNK,
    TokenizerConfig,
    Vocabulary,
    write_tokens,
)

SPECIAL = {
    "cls_token": CLS,
    "mask_token": MASK,
    "pad_token": PAD,
    "sep_token": SEP,
    "unk_token": UNK,
}
CONFIG, TOKENIZER, VOCABULARY = "tokenizer_config.json", "tokenizer.json", "vocab.txt"
# A class that takes tokenizer.json as it is. ElectraTokenizer, and what it was before,
# make it anew from vocab.txt: words end at 100 characters there, and its tables of
# characters are those of another version of Unicode.
_AS_IT_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_BERTS = tuple(
    f"{name}Tokenizer{fast}" for name in ("Electra", "Bert") for fast in ("", "Fast")
)
# What the tokenizers here always do; None: what is left out means the same.
_ALWAYS = {
    "tokenize_chinese_chars": (True, None),
    "do_basic_tokenize": (True, None),
    "never_split": (None, []),
}
_SETTINGS = (TokenizerConfig(), TokenizerConfig(True, False), TokenizerConfig(False))


def write_tokenizer(
    folder: Path, vocab: Vocabulary, config: TokenizerConfig, max_length: int
) -> None:
    """Writes vocab.txt, tokenizer.json and the two files of settings."""
    write_tokens(folder / VOCABULARY, vocab.tokens)
    fast(vocab, config).save(str(folder / TOKENIZER))
    settings = {
        "tokenizer_class": _AS_IT_IS[0],
        "do_lower_case": config.do_lower_case,
        "strip_accents": _strips(config),
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **SPECIAL,
    }
    for name, content in ((CONFIG, settings), ("special_tokens_map.json", SPECIAL)):
        text = json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _strips(config: TokenizerConfig) -> bool:
    # A cased tokenizer keeps accents whatever it is told, in the original as here.
    return config.do_lower_case and config.strip_accents


def _pattern(ranges: Iterable[tuple[int, int]]):
    """A regular expression for one character in any of the ranges."""
    from tokenizers import Regex

    return Regex("[" + "".join(f"\\x{{{a:X}}}-\\x{{{b:X}}}" for a, b in ranges) + "]")


def _vanishing() -> Iterable[tuple[int, int]]:
    """Ranges of what `text.tokenization` removes; surrogates are in no text here."""
    spaces = {c for a, b in unicode_classes.WHITE_SPACE for c in range(a, b + 1)}
    yield 0xFFFD, 0xFFFD
    for first, last in unicode_classes.OTHER:
        inside = {c for c in spaces if first <= c <= last}
        if first <= 0xD800 <= last:
            inside |= set(range(0xD800, 0xE000))
        start = first
        for c in sorted(inside):
            if start < c:
                yield start, c - 1
            start = c + 1
        if start <= last:
            yield start, last


def _normalizer(config: TokenizerConfig):
    """Steps 1 and 2 of `text.tokenization`, by its tables of characters."""
    from tokenizers import normalizers

    steps = [
        normalizers.Replace(_pattern(_vanishing()), ""),
        normalizers.Replace(_pattern(unicode_classes.WHITE_SPACE), " "),
    ]
    if config.do_lower_case:
        steps.append(normalizers.Lowercase())
    if _strips(config):
        marks = _pattern(unicode_classes.NONSPACING_MARKS)
        steps += [normalizers.NFD(), normalizers.Replace(marks, "")]
    return normalizers.Sequence(steps)


def _pre_tokenizer():
    """Words, and each ideograph and each punctuation character by itself."""
    from tokenizers import pre_tokenizers

    alone = [*unicode_classes.PUNCTUATION, *unicode_classes.IDEOGRAPHS]
    split = pre_tokenizers.Split(_pattern(alone), "isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])


def fast(vocab: Vocabulary, config: TokenizerConfig):
    """The tokenizer as one of the package tokenizers."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    model = models.WordPiece(
        vocab=dict(vocab.ids),
        unk_token=UNK,
        max_input_chars_per_word=MAX_CHARS_PER_WORD,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, vocab.cls_id), (SEP, vocab.sep_id)],
    )
    special = [AddedToken(token, special=True) for token in (PAD, UNK, CLS, SEP, MASK)]
    tokenizer.add_special_tokens(special)
    return tokenizer


def words_tokenized_otherwise(stored: StoredModel) -> verification.Words:
    """How `fast` does on the words of the vocabulary."""
    tokenizer = fast(stored.vocab, stored.tokenizer_config)

    def encode(texts):
        return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return verification.words_tokenized_otherwise(stored, encode)


# ------------------------------------------------------------------------- reading


def read(folder: Path) -> tuple[TokenizerConfig | None, str | None]:
    """(settings, vocabulary) of a directory; None for what is not there.

    Raises `UserError`: 2 for a tokenizer that does something else than those here, or
    for files that contradict each other, 65 for damaged ones.
    """
    said, fixed = folder / CONFIG, folder / TOKENIZER
    settings = read_json(said) if said.is_file() else {}
    kind = settings.get("tokenizer_class") or _BERTS[0]
    if kind not in (*_BERTS, *_AS_IT_IS):
        raise _refused(said, f"tokenizer_class is {kind!r}")
    by_config = by_json = None
    if settings and (kind in _BERTS or "do_lower_case" in settings):
        by_config = _of_settings(settings, said)
    if fixed.is_file():
        by_json = _of_json(read_json(fixed), fixed)
    if by_config and by_json and not by_config.equivalent(by_json):
        raise UserError(
            f"{said} says {by_config}, {fixed.name} beside it {by_json}.\nRemove the "
            "one that the model was not trained with."
        )
    found = [folder / name for name in (VOCABULARY, TOKENIZER)]
    found = [path for path in found if path.is_file()]
    if len(found) == 2:
        vocab = Vocabulary.load(found[0])
        other = Vocabulary.load(found[1])
        vocab.check_same(other.sha256, f"{found[1]} was made", "Remove one of the two.")
    return by_config or by_json, str(found[0]) if found else None


def _refused(path: Path, what: str) -> UserError:
    return UserError(
        f"{path}: {what}; tokenizers of this project and of the original do not do "
        "that.\nIts texts would get other ids here than there."
    )


def _of_settings(settings: dict[str, Any], path: Path) -> TokenizerConfig:
    lower = settings.get("do_lower_case", True)
    strip = settings.get("strip_accents")
    strip = lower if strip is None else strip
    if not (isinstance(lower, bool) and isinstance(strip, bool)):
        raise UserError(
            f"{path}: do_lower_case and strip_accents are true or false.",
            EXIT_DAMAGED,
        )
    if strip and not lower:
        raise _refused(path, "strip_accents is true and do_lower_case false")
    for name, allowed in _ALWAYS.items():
        if settings.get(name) not in allowed:
            raise _refused(path, f"{name} is {settings[name]!r}")
    for name, token in SPECIAL.items():
        there = settings.get(name) or token
        there = there.get("content") if isinstance(there, dict) else there
        if there != token:
            raise _refused(path, f"{name} is {there!r} instead of {token!r}")
    return TokenizerConfig(lower, strip)


def _of_json(content: dict[str, Any], path: Path) -> TokenizerConfig:
    """The settings of a tokenizer.json: BERT's normalizer, or the one written here."""
    normalizer = content.get("normalizer") or {}
    splits = content.get("pre_tokenizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        if splits.get("type") != "BertPreTokenizer":
            raise _refused(path, f"pre_tokenizer is {splits.get('type')}")
        if not normalizer.get("clean_text", True):
            raise _refused(path, "clean_text is false")
        names = {
            "do_lower_case": "lowercase",
            "strip_accents": "strip_accents",
            "tokenize_chinese_chars": "handle_chinese_chars",
        }
        return _of_settings({k: normalizer.get(v) for k, v in names.items()}, path)
    for config in _SETTINGS:
        ours = json.loads(fast(Vocabulary(tuple(SPECIAL.values())), config).to_str())
        if (ours["normalizer"], ours["pre_tokenizer"]) == (normalizer, splits):
            return config
    raise _refused(path, f"normalizer is {normalizer.get('type')}")
