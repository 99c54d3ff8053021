# SPDX-License-Identifier: Apache-2.0
"""The tokenizer's files of a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_tf.errors import UserError
from electra_tf.interop import verification
from electra_tf.interop.checkpoint import StoredModel
from electra_tf.storage.manifest import read_json
from electra_tf.text import tokenizer_config
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary, write_tokens

CONFIG, TOKENIZER, VOCABULARY = "tokenizer_config.json", "tokenizer.json", "vocab.txt"
ADDED, SPECIAL_TOKENS = "added_tokens.json", "special_tokens_map.json"
_SHORTEST = 8  # tokens; what is less is no limit that any model has
_ADDED_KEYS = ("added_tokens_decoder", "additional_special_tokens")
_ADDED_KEYS += ("extra_special_tokens",)
# A class that takes tokenizer.json as it is. ElectraTokenizer, and what it was before,
# make it anew from vocab.txt: words end at 100 characters there, and its tables of
# characters are those of another version of Unicode.
_AS_IT_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_BERTS = tuple(
    f"{name}Tokenizer{fast}" for name in ("Electra", "Bert") for fast in ("", "Fast")
)
_BERTS += ("AutoTokenizer",)  # names none: the family decides


def write_tokenizer(
    folder: Path, vocab: Vocabulary, config: TokenizerConfig, max_length: int
) -> None:
    """Writes vocab.txt, tokenizer.json and the two files of settings."""
    write_tokens(folder / VOCABULARY, vocab.tokens)
    tokenizer_config.fast(vocab.distinct, config).save(str(folder / TOKENIZER))
    settings = {
        "tokenizer_class": _AS_IT_IS[0],
        "do_lower_case": config.do_lower_case,
        "strip_accents": tokenizer_config.strips_accents(config),
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **tokenizer_config.SPECIAL,
    }
    for name, content in (
        (CONFIG, settings),
        (SPECIAL_TOKENS, tokenizer_config.SPECIAL),
    ):
        text = json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def words_tokenized_otherwise(stored: StoredModel) -> verification.Words:
    """How `tokenizer_config.fast` does on the words of the vocabulary."""
    tokenizer = tokenizer_config.fast(stored.vocab.distinct, stored.tokenizer_config)

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
    settings = _json_of(said)
    kind = settings.get("tokenizer_class") or _BERTS[0]
    if kind not in (*_BERTS, *_AS_IT_IS):
        remedy = f"If it splits words as BERT does, write {_BERTS[0]!r} there."
        raise tokenizer_config.refused(said, f"tokenizer_class is {kind!r}", remedy)
    _check_added(folder, settings)
    by_config = by_json = None
    if settings and (kind in _BERTS or "do_lower_case" in settings):
        checked = tokenizer_config.of_settings(settings, said)
        if settings.keys() & {*TokenizerConfig._fields}:  # else it says no casing
            by_config = checked
    if fixed.is_file():
        by_json = tokenizer_config.settings_of(read_json(fixed), fixed)
    if by_config and by_json and not by_config.equivalent(by_json):
        raise UserError(
            f"{said} says {by_config}, {fixed.name} beside it {by_json}.\nRemove the "
            "one that the model was not trained with."
        )
    found = [folder / name for name in (VOCABULARY, TOKENIZER)]
    found = [path for path in found if path.is_file()]
    if len(found) == 2:
        vocab, other = map(Vocabulary.load, found)
        if vocab.distinct != other.distinct:
            user, advice = f"{found[1]} was made", "Remove one of the two."
            vocab.check_same(other.sha256, user, advice)
    return by_config or by_json, str(found[0]) if found else None


def max_length(folder: Path) -> int | None:
    """The longest sequence that the settings allow; None where they say nothing."""
    said = _json_of(folder / CONFIG).get("model_max_length")
    is_length = isinstance(said, int) and said >= _SHORTEST
    return said if is_length else None


def _check_added(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuses tokens beside the vocabulary, wherever versions of transformers put them.

    Only a tokenizer.json says them itself.
    """
    tokenizer_config.check_added(_json_of(folder / ADDED), folder / ADDED)
    for path, said in (
        (folder / CONFIG, settings),
        (folder / SPECIAL_TOKENS, _json_of(folder / SPECIAL_TOKENS)),
    ):
        for name in _ADDED_KEYS:
            added = said.get(name) or ()
            added = added.values() if isinstance(added, Mapping) else added
            tokenizer_config.check_added(added, path)


def _json_of(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
