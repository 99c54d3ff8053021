# SPDX-License-Identifier: Apache-2.0
"""The tokenizer's files of a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import verification
from electra_tf.interop.stored_model import StoredModel
from electra_tf.storage.manifest import read_json
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
CONFIG = "tokenizer_config.json"


def write_tokenizer(
    folder: Path, vocab: Vocabulary, config: TokenizerConfig, max_length: int
) -> None:
    """Writes vocab.txt, tokenizer.json and the two files of settings."""
    write_tokens(folder / "vocab.txt", vocab.tokens)
    fast(vocab, config).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "ElectraTokenizer",
        "do_lower_case": config.do_lower_case,
        "strip_accents": _strips(config),
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        **SPECIAL,
    }
    for name, content in ((CONFIG, settings), ("special_tokens_map.json", SPECIAL)):
        text = json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _strips(config: TokenizerConfig) -> bool:
    # A cased tokenizer keeps accents whatever it is told, in the original as here.
    return config.do_lower_case and config.strip_accents


def fast(vocab: Vocabulary, config: TokenizerConfig):
    """The tokenizer as one of the package tokenizers."""
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    model = models.WordPiece(
        vocab=dict(vocab.ids),
        unk_token=UNK,
        max_input_chars_per_word=MAX_CHARS_PER_WORD,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=_strips(config),
        lowercase=config.do_lower_case,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
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


def read(folder: Path) -> tuple[TokenizerConfig | None, str | None]:
    """(settings, vocabulary) of a directory; None for what is not there."""
    path = folder / CONFIG
    config = None
    if path.is_file():
        settings = read_json(path)
        lower = settings.get("do_lower_case", True)
        strip = settings.get("strip_accents")
        strip = lower if strip is None else strip
        if not (isinstance(lower, bool) and isinstance(strip, bool)):
            raise UserError(
                f"{path}: do_lower_case and strip_accents are true or false.",
                EXIT_DAMAGED,
            )
        config = TokenizerConfig(lower, strip)
    vocab_file = folder / "vocab.txt"
    return config, str(vocab_file) if vocab_file.is_file() else None
