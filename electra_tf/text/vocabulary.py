# SPDX-License-Identifier: Apache-2.0
"""The vocabulary file, checked, and the tokenizer settings that travel beside it.

As in BERT and the original ELECTRA, a vocabulary has one wordpiece per line; the line
number is its id. `vocab.txt.json` beside `vocab.txt` holds the settings by which text
is normalised before wordpieces are looked up.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from electra_tf.errors import EXIT_DAMAGED, JSON_ERRORS, UserError
from electra_tf.storage.files import atomic_write
from electra_tf.storage.remote import fetch
from electra_tf.text import unicode_classes

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)

MAX_CHARS_PER_WORD = 200  # A longer word is [UNK].

SPECIAL_NAMES = {f"{t[1:-1].lower()}_token": t for t in sorted(SPECIAL_TOKENS)}
# Limits of a word in tokenizer.json; BERT's 100 is ignored, as in the original.
_MAX_CHARS = (100, MAX_CHARS_PER_WORD)
# Limit of tensorflow_text for a token without its "##".
_MAX_TOKEN_BYTES = 256
# Share of tokens that the settings may change without a question.
_FEW_CHANGED = 0.02

_MARKS = unicode_classes.code_points(unicode_classes.NONSPACING_MARKS)


class TokenizerConfig(NamedTuple):
    """How text is normalised before wordpieces are looked up.

    Attributes:
        do_lower_case: lower-case the text.
        strip_accents: decompose characters and drop the accents; as in the original,
            without effect on a cased tokenizer.
    """

    do_lower_case: bool = True
    strip_accents: bool = True

    def equivalent(self, other: TokenizerConfig) -> bool:
        """Whether both give the same tokens for every text."""
        lower = self.do_lower_case == other.do_lower_case
        return lower and strips_accents(self) == strips_accents(other)

    def normalize(self, word: str) -> str:
        """A word of cleaned text in lower case, decomposed, without accents."""
        if self.do_lower_case:
            word = word.lower()
            if self.strip_accents and not word.isascii():
                decomposed = unicodedata.normalize("NFD", word)
                word = "".join(c for c in decomposed if c not in _MARKS)
        return word

    def __str__(self) -> str:
        if not self.do_lower_case:
            return "cased"
        return "uncased, accents " + ("stripped" if self.strip_accents else "kept")


_SETTINGS = (TokenizerConfig(), TokenizerConfig(True, False), TokenizerConfig(False))


class Vocabulary:
    """Wordpieces and their ids; immutable.

    Attributes:
        tokens: the wordpieces; a token's index is its id.
        ids: token -> id; for a repeated token the last, as in the original.
        path: of the file, for messages.
        sha256: of the tokens, each followed by LF: as a file with LF line ends.
        pad_id, unk_id, cls_id, sep_id, mask_id: of the special tokens.
    """

    def __init__(self, tokens: Sequence[str], path: str = "vocabulary"):
        self.tokens, self.path = tuple(tokens), path
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if missing := [token for token in SPECIAL_TOKENS if token not in self.ids]:
            raise UserError(
                f"{path}: {', '.join(missing)} not among its {len(self)} "
                "tokens.\nA BERT or ELECTRA vocabulary has one wordpiece a line; "
                "build_vocab.py makes one."
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.ids[token] for token in (PAD, UNK, CLS, SEP, MASK)
        )
        self.sha256 = hashlib.sha256(_text_of(self.tokens).encode()).hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike) -> Vocabulary:
        """Reads a vocabulary file and checks every line.

        A tokenizer.json of the package tokenizers with WordPiece is also read. White
        space around a token is stripped, as in the original; a blank line keeps its id.
        Raises UserError, naming the file and the line, for other files.
        """
        path = os.fspath(path)
        if (data := read_if_there(path)) is None:
            raise UserError(f"cannot read the vocabulary {path}: it does not exist.")
        is_json = data.lstrip().startswith(b"{")
        return cls((_tokens_of_json if is_json else _tokens_of_text)(path, data), path)

    @classmethod
    def load_if_there(cls, path: str | os.PathLike) -> Vocabulary | None:
        """As `load`; None if the file does not exist."""
        return None if read_if_there(path) is None else cls.load(path)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.tokens):,} tokens, {self.path!r})"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def continuations(self) -> list[bool]:
        """For each token, whether it continues a word ("##ing")."""
        return [len(t) > 2 and t.startswith("##") for t in self.tokens]

    @property
    def distinct(self) -> tuple[str, ...]:
        """The tokens, made unique for other libraries.

        A token that is repeated later gets its id appended; no text has this id.
        """
        return tuple(
            token if self.ids[token] == i else f"[{token} {i}]"
            for i, token in enumerate(self.tokens)
        )

    def unused(self, config: TokenizerConfig) -> str | None:
        """Names the tokens that no text gets, as normalising changes them; None if few.

        Single characters do not count: some alphabets hold all of ASCII, for any text.
        """
        bare = ((t, t.removeprefix("##")) for t in self.tokens if t[:1] != "[")
        changed = [t for t, w in bare if len(w) > 1 and config.normalize(w) != w]
        if len(changed) <= _FEW_CHANGED * len(self):
            return None
        return (
            f"{len(changed):,} tokens of {self.path}, {changed[0]!r} first, are in no "
            f"text that is {config}"
        )

    def check_words(self) -> None:
        """Raises UserError unless there are words of several tokens."""
        if not any(self.continuations):
            raise UserError(
                f'mask_unit is "word", but {self.path} has no ## tokens: each token is '
                "a word already.\nLeave mask_unit out."
            )

    def check_size(self, vocab_size: int) -> None:
        """Raises UserError unless the hparam `vocab_size` is the number of tokens."""
        if vocab_size != len(self):
            raise UserError(
                f"{self.path} has {len(self)} tokens, but the hparam vocab_size is "
                f'{vocab_size}.\nSet "vocab_size": {len(self)}, or "vocab_file" to '
                "the vocabulary the model was made for."
            )

    def check_same(self, sha256: str | None, user: str, advice: str) -> None:
        """Raises `UserError` naming both if something was made with other tokens.

        Args:
          sha256: of the vocabulary that was used; None if unknown.
          user: subject and verb, as in "model.ckpt-5 was trained".
        """
        if sha256 not in (None, self.sha256):
            raise UserError(
                f"{user} with another vocabulary than {self.path}:\nsha256 "
                f"{sha256!s:.16}... there, {self.sha256:.16}... here.\n{advice}"
            )


def _text_of(tokens: Iterable[str]) -> str:
    return "".join(f"{token}\n" for token in tokens)


def is_too_long(token: str) -> bool:
    """Whether a token is too long for a SavedModel with a tokenizer."""
    return len(token.removeprefix("##").encode()) > _MAX_TOKEN_BYTES


def read_if_there(path: str | os.PathLike) -> bytes | None:
    """The content of a file, here or in a bucket; None if it does not exist."""
    try:
        with open(fetch(path), "rb") as f:
            return f.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}.") from None


def _tokens_of_text(path: str, data: bytes) -> list[str]:
    """The tokens on the lines of a file, without blank ones at its end.

    Raises UserError for a line that is not UTF-8.
    """
    lines = data.removeprefix(b"\xef\xbb\xbf").rstrip().split(b"\n")
    try:
        texts = [line.decode() for line in lines]
        # A blank line, such as U+2028, keeps its id, which no text gets.
        return [text.strip() or text.removesuffix("\r") for text in texts]
    except UnicodeDecodeError as e:
        number = lines.index(e.object) + 1
        raise UserError(
            f"{path} line {number}: byte 0x{e.object[e.start]:02x} at position "
            f"{e.start} is not UTF-8.\nConvert the file to UTF-8."
        ) from None


def _tokens_of_json(path: str, data: bytes) -> list[str]:
    """Returns the tokens of a tokenizer.json, by their ids."""
    try:
        model = json.loads(data)["model"]
        ids = model["vocab"]
        tokens = sorted(ids, key=ids.__getitem__)
        kind = model.get("type", "WordPiece"), model["continuing_subword_prefix"]
        if kind != ("WordPiece", "##") or model.get("unk_token") != UNK:
            raise ValueError("another model than WordPiece")
        if [ids[token] for token in tokens] != list(range(len(tokens))):
            raise ValueError("ids with gaps")
        if _tokens_of_text(path, _text_of(tokens).encode()) != tokens:
            raise ValueError("a token that is not the same on a line of vocab.txt")
    except JSON_ERRORS as e:
        raise UserError(
            f"{path} is not a tokenizer.json with a WordPiece vocabulary ({e}).\n"
            "ELECTRA needs one, or one token a line (vocab.txt)."
        ) from None
    return tokens


# The settings beside the vocabulary.


def settings_path(vocab_path: str | os.PathLike) -> str:
    """Returns the name of the settings file of a vocabulary file."""
    return os.fspath(vocab_path) + ".json"


def write_settings(
    vocab: Vocabulary, config: TokenizerConfig, **provenance: Any
) -> None:
    """Writes the settings beside the vocabulary's file, atomically.

    `provenance`: the tool's version, the corpus, counts.
    """
    facts = {"vocab_size": len(vocab), "vocab_sha256": vocab.sha256}
    settings = config._asdict() | facts | provenance
    # ASCII: the name of a corpus may have bytes that are not UTF-8.
    text = json.dumps(settings, indent=2) + "\n"
    atomic_write(settings_path(vocab.path), text)


def read_settings(vocab: Vocabulary | str | os.PathLike) -> TokenizerConfig | None:
    """Returns the settings beside a vocabulary or in its tokenizer.json; None if none.

    Missing keys have BERT's defaults; a missing hash is not checked. Raises UserError
    for damaged settings, settings of other tokens, and unsupported tokenizers.
    """
    if not isinstance(vocab, Vocabulary):
        if (vocab := Vocabulary.load_if_there(vocab)) is None:
            return None
    path = settings_path(vocab.path)
    if (data := read_if_there(path)) is None:
        return settings_in_file(vocab.path)
    try:
        settings = json.loads(data)
        lower = settings.get("do_lower_case", True)
        config = TokenizerConfig(lower, settings.get("strip_accents", lower))
        if not all(isinstance(value, bool) for value in config):
            raise ValueError("do_lower_case and strip_accents are true or false")
        if not settings.keys() & {*config._fields}:
            raise ValueError("neither do_lower_case nor strip_accents is in it")
    except JSON_ERRORS as e:
        raise UserError(
            f"{path}: not readable as tokenizer settings ({e}).\nFix it, or give "
            "--do-lower-case and --strip-accents without it."
        ) from None
    advice = "Restore the right vocabulary, or remove the settings."
    vocab.check_same(settings.get("vocab_sha256"), f"{path} was written", advice)
    return config


def unsettled(vocab: Vocabulary, user: str, config: TokenizerConfig) -> str | None:
    """The error message if no file states the settings and they matter; else None.

    The original's default would leave tokens with capitals or accents unused.

    Args:
      user: subject of the message.
      config: the default.
    """
    if not (unused := vocab.unused(config)) or read_settings(vocab):
        return None
    return (
        f"{user} does not say whether it lower-cases text and strips accents, but "
        f"{unused}.\n"
        f'Set do_lower_case, or write into {vocab.path}.json {{"do_lower_case": false}}'
        ' or {"do_lower_case": true, "strip_accents": false} for text with accents.'
    )


def resolve_settings(
    vocab: Vocabulary,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
) -> TokenizerConfig:
    """Returns the settings to tokenise with.

    The default (None) of each is that of the vocabulary's settings, or else of the
    original: lower-case, strip accents. Raises UserError for a value that contradicts
    the vocabulary's settings, and where nothing states the casing and it matters.
    """
    stored = read_settings(vocab)
    default = stored or TokenizerConfig()
    config = TokenizerConfig(
        default.do_lower_case if do_lower_case is None else do_lower_case,
        default.strip_accents if strip_accents is None else strip_accents,
    )
    if do_lower_case is None and (question := unsettled(vocab, vocab.path, config)):
        raise UserError(question)
    if stored and not stored.equivalent(config):
        where = settings_path(vocab.path)
        where = where if os.path.exists(where) else vocab.path
        raise UserError(
            f"{vocab.path} was built {stored} ({where}),\nbut the flags or hparams ask "
            f"for text that is {config}.\nGive do_lower_case "
            f"{json.dumps(stored.do_lower_case)}."
        )
    return config


def recorded_settings(
    stored: Mapping[str, Any],
    found: TokenizerConfig | None,
    vocab_file: str | None,
    user: str,
) -> TokenizerConfig | None:
    """The tokenizer settings of a run, from its checkpoint or else its vocabulary.

    Args:
      stored: the settings of the checkpoint, perhaps none.
      found: the current settings of the vocabulary; None if unknown.
      vocab_file: the vocabulary.
      user: names the checkpoint in the `UserError` if the two differ.
    """
    if not (tokenizer := stored.get("tokenizer")):
        return found
    trained = TokenizerConfig(*map(tokenizer.get, TokenizerConfig._fields))
    if found and not trained.equivalent(found):
        raise UserError(
            f"{user} was trained on text that is {trained},\nbut {vocab_file} is used "
            f"now for text that is {found}.\nPut this into {vocab_file}.json: "
            f"{json.dumps(trained._asdict())}"
        )
    return trained


def write_tokens(path: str | os.PathLike, tokens: Sequence[str]) -> Vocabulary:
    """Writes tokens as a vocabulary file, atomically, and returns the vocabulary."""
    vocab = Vocabulary(tokens, os.fspath(path))
    atomic_write(vocab.path, _text_of(vocab.tokens))
    return vocab


# Tokenizers of other libraries.


def strips_accents(config: TokenizerConfig) -> bool:
    """Whether accents are stripped: as in the original, not by a cased tokenizer."""
    return config.do_lower_case and config.strip_accents


def fast_tokenizer(tokens: Sequence[str], config: TokenizerConfig):
    """The tokenizer of distinct tokens for the package tokenizers.

    It does the same as `text.tokenization`, with the same tables of characters.
    """
    import tokenizers
    from tokenizers import Regex, normalizers, pre_tokenizers

    def regex(*classes):
        return Regex(unicode_classes.pattern(*classes))

    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            vocab=ids, unk_token=UNK, max_input_chars_per_word=MAX_CHARS_PER_WORD
        )
    )
    steps = [
        normalizers.Replace(Regex(unicode_classes.VANISHING), ""),
        normalizers.Replace(regex(unicode_classes.WHITE_SPACE), " "),
    ]
    if config.do_lower_case:
        steps.append(normalizers.Lowercase())
    if strips_accents(config):
        marks = regex(unicode_classes.NONSPACING_MARKS)
        steps += [normalizers.NFD(), normalizers.Replace(marks, "")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    alone = regex(unicode_classes.PUNCTUATION, unicode_classes.IDEOGRAPHS)
    split = pre_tokenizers.Split(alone, "isolated")
    words = pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, split])
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
    )
    special = [tokenizers.AddedToken(token, special=True) for token in SPECIAL_TOKENS]
    tokenizer.add_special_tokens(special)
    return tokenizer


def refused_tokenizer(
    path: str | os.PathLike,
    what: str,
    remedy: str = "If the model can do without it, remove it from that file.",
) -> UserError:
    """The error for an unsupported tokenizer."""
    return UserError(
        f"{path}: {what}, which tokenizers of this project and of the original do not "
        f"support.\nTexts would get other ids. {remedy}"
    )


def config_of_bert(
    settings: dict[str, Any], path: str | os.PathLike
) -> TokenizerConfig:
    """The settings from BERT's names for them; `UserError` for unsupported ones."""
    lower = settings.get("do_lower_case", True)
    strip = settings.get("strip_accents")
    strip = lower if strip is None else strip
    if not (isinstance(lower, bool) and isinstance(strip, bool)):
        raise UserError(
            f"{path}: do_lower_case and strip_accents are true or false.", EXIT_DAMAGED
        )
    if strip and not lower:
        raise refused_tokenizer(path, "strip_accents is true and do_lower_case false")
    for name in ("tokenize_chinese_chars", "do_basic_tokenize"):
        if settings.get(name) not in (True, None):
            raise refused_tokenizer(path, f"{name} is {settings[name]!r}")
    # transformers never splits its special tokens.
    if others := {*(settings.get("never_split") or ())} - {*SPECIAL_TOKENS}:
        raise refused_tokenizer(path, f"never_split has {min(others)!r}")
    for name, token in SPECIAL_NAMES.items():
        stored = settings.get(name) or token
        stored = stored.get("content") if isinstance(stored, dict) else stored
        if stored != token:
            raise refused_tokenizer(path, f"{name} is {stored!r} instead of {token!r}")
    return TokenizerConfig(lower, strip)


def config_of_json(content: dict[str, Any], path: str | os.PathLike) -> TokenizerConfig:
    """The settings of a tokenizer.json with BERT's normalizer or `fast_tokenizer`'s.

    Raises `UserError`, naming the difference, for other tokenizers.
    """
    limit = content.get("model", {}).get("max_input_chars_per_word", _MAX_CHARS[0])
    if limit not in _MAX_CHARS:
        raise refused_tokenizer(path, f"max_input_chars_per_word is {limit}")
    check_added_tokens(content.get("added_tokens") or (), path)
    normalizer = content.get("normalizer") or {}
    splits = content.get("pre_tokenizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        if splits.get("type") != "BertPreTokenizer":
            raise refused_tokenizer(path, f"pre_tokenizer is {splits.get('type')}")
        if not normalizer.get("clean_text", True):
            raise refused_tokenizer(path, "clean_text is false")
        names = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
        names["tokenize_chinese_chars"] = "handle_chinese_chars"
        return config_of_bert({k: normalizer.get(v) for k, v in names.items()}, path)
    for config in _SETTINGS:
        known = json.loads(fast_tokenizer(SPECIAL_TOKENS, config).to_str())
        if (known["normalizer"], known["pre_tokenizer"]) == (normalizer, splits):
            return config
    raise refused_tokenizer(path, f"normalizer is {normalizer.get('type')}")


def check_added_tokens(tokens: Iterable[Any], path: str | os.PathLike) -> None:
    """Raises `UserError` for tokens that are found before text is split into words.

    Args:
      tokens: strings, or objects with the string as `content`.
    """
    for one in tokens:
        token = one.get("content") if isinstance(one, Mapping) else one
        if token not in SPECIAL_TOKENS:
            raise refused_tokenizer(
                path, f"its added token {token!r} is found before words are"
            )


def settings_in_file(path: str | os.PathLike) -> TokenizerConfig | None:
    """The settings in a vocabulary's own file; None unless it is a tokenizer.json."""
    data = read_if_there(path) or b""
    is_json = data.lstrip().startswith(b"{")
    return config_of_json(json.loads(data), path) if is_json else None
