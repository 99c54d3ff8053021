# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json as a vocabulary: its settings apply, other tokenizers are refused."""

import json

import pytest

from electra_tf.errors import UserError
from electra_tf.text import tokenizer_config
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import (
    TokenizerConfig,
    Vocabulary,
    read_settings,
    resolve_settings,
)
from tests.helpers.building import VOCAB

CONFIGS = (TokenizerConfig(), TokenizerConfig(True, False), TokenizerConfig(False))
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
TEXT = "The Café of ΣΟΦΟΣ, 中文; unaffable 123!"


def write(path, config, **changes):
    """The tiny vocabulary as the package tokenizers has it, with BERT's normalizer."""
    text = tokenizer_config.fast(Vocabulary.load(VOCAB).distinct, config).to_str()
    lower, strip = config.do_lower_case, tokenizer_config.strips_accents(config)
    content = json.loads(text) | {"pre_tokenizer": {"type": "BertPreTokenizer"}}
    content["normalizer"] = BERT | {"lowercase": lower, "strip_accents": strip}
    for name, value in changes.items():
        content[name] = value(content[name])
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_settings_are_those_of_the_file(tmp_path, config):
    tokenizers = pytest.importorskip("tokenizers")
    path = write(tmp_path / "tokenizer.json", config)
    vocab = Vocabulary.load(path)
    assert vocab.tokens == Vocabulary.load(VOCAB).tokens
    assert read_settings(path).equivalent(config)
    unset = write(
        tmp_path / "unset.json",
        config,
        normalizer=lambda n: n | {"strip_accents": None},
    )
    strips = config._replace(strip_accents=config.do_lower_case)
    assert read_settings(unset).equivalent(strips)
    found = resolve_settings(vocab)
    theirs = tokenizers.Tokenizer.from_file(str(path))
    ids = theirs.encode(TEXT, add_special_tokens=False).ids
    assert Tokenizer(vocab, *found).encode(TEXT) == ids
    other = not config.do_lower_case
    with pytest.raises(UserError, match=f"built {config}.*as it says itself"):
        resolve_settings(vocab, do_lower_case=other)


@pytest.mark.parametrize("token", ["a\nb", "\ud800", " a", ""])
def test_tokens_that_do_not_fit_a_line_are_refused(tmp_path, token):
    """In vocab.txt, which every export writes, they would shift the ids after them."""

    def with_token(model):
        return model | {"vocab": model["vocab"] | {token: len(model["vocab"])}}

    path = write(tmp_path / "tokenizer.json", TokenizerConfig(), model=with_token)
    with pytest.raises(UserError, match="no tokenizer.json with a WordPiece"):
        Vocabulary.load(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"normalizer": lambda n: None}, "normalizer is None"),
        ({"normalizer": lambda n: n | {"clean_text": False}}, "clean_text is false"),
        ({"normalizer": lambda n: n | {"lowercase": False}}, "strip_accents is true"),
        (
            {"normalizer": lambda n: n | {"handle_chinese_chars": False}},
            "tokenize_chinese_chars is False",
        ),
        ({"normalizer": lambda n: n | {"type": "NFKC"}}, "normalizer is NFKC"),
        ({"pre_tokenizer": lambda p: {"type": "Whitespace"}}, "is Whitespace"),
        (
            {"model": lambda m: m | {"max_input_chars_per_word": 10}},
            "max_input_chars_per_word is 10",
        ),
        (
            {"added_tokens": lambda a: [*a, {"content": "<url>", "id": 1000}]},
            "its added token '<url>'",
        ),
    ],
)
def test_other_tokenizers_are_refused(tmp_path, changes, problem):
    path = write(tmp_path / "tokenizer.json", TokenizerConfig(), **changes)
    with pytest.raises(UserError, match=problem):
        resolve_settings(Vocabulary.load(path))


def test_files_of_earlier_exports_are_read():
    path = "examples/novels_model/discriminator/tokenizer.json"
    assert tokenizer_config.settings_in_file(path) == TokenizerConfig()
