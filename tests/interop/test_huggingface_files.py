# SPDX-License-Identifier: Apache-2.0
"""The tokenizer's files: as transformers loads them, and foreign ones."""

import json

import pytest

from electra_tf.errors import UserError
from electra_tf.interop import huggingface_files
from electra_tf.text.tokenization import basic_tokenize
from electra_tf.text.vocabulary import SPECIAL_TOKENS, TokenizerConfig, Vocabulary
from tests.helpers.interop_models import edit_json
from tests.helpers.runs import by_default

CONFIGS = [
    TokenizerConfig(True, True),
    TokenizerConfig(True, False),
    TokenizerConfig(False, False),
]
VOCAB = Vocabulary((*SPECIAL_TOKENS, "x", "##x"))
# The package tokenizers decomposes it differently from Python.
KNOWN = {"\U00011938"}


def write(folder, config=CONFIGS[0], **changes):
    huggingface_files.write_tokenizer(folder, VOCAB, config, 128)
    (folder / "config.json").write_text('{"model_type": "electra"}')
    edit_json(folder / "tokenizer_config.json", **changes)


@pytest.mark.parametrize("config", by_default(CONFIGS, CONFIGS[:1]), ids=str)
def test_every_character_is_split_as_transformers_does(tmp_path, config):
    transformers = pytest.importorskip("transformers")
    write(tmp_path, config)
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.encode("x" * 200, add_special_tokens=False) == [5] + [6] * 199
    assert loaded.encode("x" * 201, add_special_tokens=False) == [VOCAB.unk_id]
    assert "token_type_ids" in loaded("x", "x")
    theirs = loaded.backend_tokenizer
    surrogates = range(0xD800, 0xE000)
    chars = [chr(c) for c in range(0x110000) if c not in surrogates]

    def differing(chars):
        """Compares many at a time, and those that differ one by one."""
        text = " ".join(f"x{c}x" for c in chars)
        normal = theirs.normalizer.normalize_str(text)
        words = [w for w, _ in theirs.pre_tokenizer.pre_tokenize_str(normal)]
        if words == basic_tokenize(text, config):
            return set()
        half = len(chars) // 2
        return differing(chars[:half]) | differing(chars[half:]) if half else {*chars}

    found = [differing(chars[i : i + 2048]) for i in range(0, len(chars), 2048)]
    assert set.union(*found) == (KNOWN if config == CONFIGS[0] else set())


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_settings_are_read_back_from_either_file(tmp_path, config):
    write(tmp_path, config)
    for name in ("vocab.txt", "tokenizer_config.json"):
        read, file = huggingface_files.read_tokenizer(tmp_path)
        assert read.equivalent(config) and Vocabulary.load(file).tokens == VOCAB.tokens
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"strip_accents": True, "do_lower_case": False}, "strip_accents is true"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is False"),
        ({"tokenizer_class": "XLNetTokenizer"}, "'XLNetTokenizer'.*\n.*write 'Elec"),
        ({"cls_token": "<s>"}, "cls_token is '<s>'"),
        ({"do_lower_case": False, "strip_accents": None}, "says cased"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is False"),
        ({"never_split": ["[CLS]", "x"]}, "never_split has 'x'.*\n.*remove it from"),
    ],
)
def test_settings_of_other_tokenizers_are_refused(tmp_path, changes, text):
    write(tmp_path, **({"tokenizer_class": "ElectraTokenizer"} | changes))
    with pytest.raises(UserError, match=text):
        huggingface_files.read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"never_split": [*SPECIAL_TOKENS]}, {"tokenizer_class": "AutoTokenizer"}],
    ids=str,
)
def test_settings_of_older_versions_are_read(tmp_path, changes):
    write(tmp_path, CONFIGS[2], **({"tokenizer_class": "BertTokenizer"} | changes))
    assert huggingface_files.read_tokenizer(tmp_path)[0] == CONFIGS[2]


def test_settings_without_a_casing_say_none(tmp_path):
    """Not the default of transformers, which lower-cases: see `check_casing`."""
    for content in ({}, {"init_inputs": [], "model_max_length": 128}):
        write(tmp_path)
        (tmp_path / "tokenizer.json").unlink()
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
        assert huggingface_files.read_tokenizer(tmp_path)[0] is None


def test_two_vocabularies_that_differ_are_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "y", "##x"]))
    with pytest.raises(UserError, match="another vocabulary"):
        huggingface_files.read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "name, content",
    [
        ("added_tokens.json", {"<user>": 7}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": "<x>"}}}),
        ("tokenizer_config.json", {"additional_special_tokens": ["[user]"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"image_token": "<x>"}}),
        ("special_tokens_map.json", {"additional_special_tokens": [{"content": "x"}]}),
    ],
)
def test_added_tokens_are_refused_in_every_file(tmp_path, name, content):
    known = {"5": {"content": "[CLS]", "special": True}}
    write(tmp_path, added_tokens_decoder=known)
    (tmp_path / "tokenizer.json").unlink()
    assert huggingface_files.read_tokenizer(tmp_path)[0] == TokenizerConfig()
    path = tmp_path / name
    usual = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(usual | content))
    with pytest.raises(UserError, match=f"{name}: its added token"):
        huggingface_files.read_tokenizer(tmp_path)
