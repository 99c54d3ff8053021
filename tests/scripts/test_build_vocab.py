# SPDX-License-Identifier: Apache-2.0
"""build_vocab.py, and the counting and training below it."""

import io
import json
import os
from collections import Counter

import pytest

from electra_tf.data import vocabulary_training
from electra_tf.text import units, vocabulary
from electra_tf.text.corpus import TextReader
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary
from tests.helpers.runs import run_script

# 12 KB in which every rule of the tokenizer has something to do.
TEXT = (
    """The old man and the sea: an old man, who fished alone in a skiff!
Ein Käse-Brötchen für Zoë — "naïve café", printed the waiter; the WAITER printed.
ΟΔΥΣΣΕΥΣ και Οδυσσεύς, 北京大学 and 東京 and again 北京.
zero\u200bwidth con\x0btrol\x1cs tab\tsplit\u2028separators\u3000here
"""
    * 40
)


@pytest.fixture
def corpus_dir(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.txt").write_text(TEXT, encoding="utf-8")
    (folder / "deeper" / "b.txt").write_bytes(("\ufeff" + TEXT[::-1]).encode())
    return folder


def build(*flags, expect=0, env=None):
    """Runs the script; returns its output (stderr if it must fail)."""
    done = run_script("build_vocab.py", *map(str, flags), env=env)
    assert done.returncode == expect, done.stderr
    if expect:
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) <= 3
        return done.stderr
    return done.stdout


def test_builds_a_vocabulary_that_spells_its_corpus(corpus_dir, tmp_path):
    output = tmp_path / "new" / "vocab.txt"
    printed = build(
        "--corpus-dir", corpus_dir, "--vocab-size", 400, "--output-file", output
    )
    assert "400 tokens (uncased, accents stripped)" in printed
    vocab = Vocabulary.load(output)
    vocab.check_size(400)
    assert vocab.tokens[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert vocabulary.read_settings(output) == TokenizerConfig(True, True)
    with open(f"{output}.json", encoding="utf-8") as f:
        settings = json.load(f)
    assert settings["corpus"] == {"corpus_dir": str(corpus_dir), "num_files": 2}
    assert settings["vocab_sha256"] == vocab.sha256
    tokenizer = Tokenizer(vocab)
    assert vocab.unk_id not in tokenizer.encode(TEXT)
    assert settings["num_words"] == len(tokenizer.basic_tokenize(TEXT + TEXT[::-1]))
    # Frequent words are whole; all of ASCII can be spelled; nothing has an accent.
    assert tokenizer.tokenize("THE Öld 北京") == ["the", "old", "北", "京"]
    assert vocab.unk_id not in tokenizer.encode("Quixotic? $5 & ~[0]")
    assert sorted(os.listdir(output.parent)) == ["vocab.txt", "vocab.txt.json"]


def test_cased_with_unused_tokens(corpus_dir, tmp_path):
    output = tmp_path / "vocab.txt"
    flags = "--no-lower-case --no-strip-accents --num-unused 3 --vocab-size 500"
    build("--corpus_dir", corpus_dir, "--output_file", output, *flags.split())
    vocab = Vocabulary.load(output)
    assert vocab.tokens[5:8] == ("[unused0]", "[unused1]", "[unused2]")
    assert len(vocab) == 500
    config = vocabulary.resolve_settings(vocab)
    assert not config.do_lower_case
    tokens = Tokenizer(vocab, *config).tokenize("The WAITER café")
    assert tokens == ["The", "WAITER", "café"]


def test_output_is_independent_of_processes_threads_and_hashes(corpus_dir, tmp_path):
    found = set()
    for i, (processes, threads) in enumerate(((1, 1), (2, 4))):
        output = tmp_path / str(i) / "vocab.txt"
        flags = ["--output-file", output, "--num-processes", processes]
        flags += ["--corpus-dir", corpus_dir, "--vocab-size", 400]
        env = {"RAYON_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(i)}
        build(*flags, env=env)
        found.add(tuple(path.read_bytes() for path in sorted(output.parent.iterdir())))
    assert len(found) == 1


def test_files_are_overwritten_only_if_asked(corpus_dir, tmp_path):
    output = tmp_path / "vocab.txt"
    flags = ["--corpus-dir", corpus_dir, "--vocab-size", 400, "--output-file", output]
    output.write_text("precious")
    assert "exists already" in build(*flags, expect=2)
    assert output.read_text() == "precious"
    build(*flags, "--overwrite")
    assert len(Vocabulary.load(output)) == 400
    output.unlink()
    assert "vocab.txt.json exists already" in build(*flags, expect=2)
    text = corpus_dir / "a.txt"
    flags = (f"--corpus-dir={text}", f"--output-file={text}", "--overwrite")
    assert "would be read as input" in build(*flags, expect=2)
    assert text.read_text(encoding="utf-8") == TEXT


def test_words_that_are_too_long_are_reported(tmp_path):
    """As in scripts without spaces."""
    (tmp_path / "in").mkdir()
    text = tmp_path / "in" / "a.txt"
    text.write_text(f"{'กา' * 150}\n" * 50, encoding="utf-8")
    flags = (f"--corpus-dir={text}", "--vocab-size=1000")
    output = f"--output-file={tmp_path}/vocab.txt"
    error = build(*flags, output, expect=2)
    assert "only 50 words of more than 200 characters" in error
    with text.open("a", encoding="utf-8") as f:
        f.write("some words\n")
    assert "Left out: 50 words of more than 200" in build(*flags, output)
    settings = json.loads((tmp_path / "vocab.txt.json").read_text())
    assert settings["num_words_too_long"] == 50


@pytest.mark.parametrize(
    ("text", "is_warned"),
    [
        ("मैं दिल्ली में रहता हूँ\n" * 9, True),
        ("가나다 학교\n" * 9, True),
        ("a café " + "and plain text " * 99, False),
        ("北京 text\n" * 9, False),
    ],
)
def test_many_words_that_lose_accents_are_reported(tmp_path, text, is_warned):
    (tmp_path / "in.txt").write_text(text, encoding="utf-8")
    flags = "--corpus-dir", tmp_path / "in.txt", "--vocab-size", 300
    flags += "--output-file", tmp_path / "vocab.txt", "--overwrite"
    assert ("warning: stripping accents changed" in build(*flags)) == is_warned
    assert "warning" not in build(*flags, "--no-strip-accents")


def readers(texts):
    return [TextReader(io.BytesIO(text.encode()), "text") for text in texts]


def count(parts, config):
    """The words of some units."""
    documents = (d for u in parts for d in units.read_unit(u, units.Reading()))
    return counted(documents, config)


def counted(documents, config):
    pieces = vocabulary_training.piece_counts(documents, config)
    return vocabulary_training.total_of(pieces)


class TestCounting:
    @pytest.mark.parametrize("settings", [(True, True), (True, False), (False, False)])
    def test_counts_what_the_tokenizer_sees(self, corpus_dir, settings, monkeypatch):
        config = TokenizerConfig(*settings)
        paths = [str(corpus_dir / "a.txt"), str(corpus_dir / "deeper" / "b.txt")]
        whole = units.file_corpus(str(corpus_dir)).units
        assert [unit.path for unit in whole] == paths
        tokenizer = Tokenizer(Vocabulary(vocabulary.SPECIAL_TOKENS), *settings)
        expected = Counter()
        for path in paths:
            with open(path, encoding="utf-8") as f:
                expected.update(tokenizer.basic_tokenize(f.read()))
        assert count(whole, config).words == expected
        monkeypatch.setattr(units, "PIECE_BYTES", 700)
        pieces = units.file_corpus(str(corpus_dir)).units
        assert len(pieces) > len(whole)
        monkeypatch.setattr(vocabulary_training, "_MAX_RAW_WORDS", 5)
        parts = vocabulary_training.total_of(count([piece], config) for piece in pieces)
        assert parts.words == expected
        assert counted(readers([TEXT, TEXT[::-1]]), config).words == expected

    def test_forgets_the_rarest_when_there_are_too_many(self, monkeypatch):
        monkeypatch.setattr(vocabulary_training, "_MAX_WORDS", 100)
        monkeypatch.setattr(vocabulary_training, "_MAX_RAW_WORDS", 50)
        documents = [
            f"often once{i} {'now and then ' * (i % 3 == 0)}" for i in range(400)
        ]
        counts = counted(readers(documents), TokenizerConfig())
        assert len(counts.words) <= 100
        assert counts.words["often"] == 400
        seen = Counter(" ".join(documents).split()).total()
        assert counts.words.total() + counts.num_forgotten == seen


class TestTraining:
    CONFIG = TokenizerConfig()

    def test_merges_the_most_frequent_pair_first(self):
        words = Counter({"zqx": 50, "zq": 30, "jk": 60, "vw": 1})
        tokens, padding = vocabulary_training.train(words, self.CONFIG, 118)
        learned = [t for t in tokens if len(t.removeprefix("##")) > 1][5:]
        # zq stands side by side 80 times, jk 60, zq + x 50; vw too rarely.
        assert learned[:3] == ["zq", "jk", "zqx"]
        assert "vw" not in tokens
        assert padding == len(tokens) - 5 - 68 - 36 - 3

    def test_scaling_keeps_the_order(self, monkeypatch):
        words = Counter({"zqx": 5000, "zq": 3000, "jk": 6000, "vw": 1})
        expected = vocabulary_training.train(words, self.CONFIG, 112)
        monkeypatch.setattr(vocabulary_training, "_MAX_REPEATED", 140)
        assert vocabulary_training.train(words, self.CONFIG, 112) == expected

    def test_rare_characters_do_not_crowd_out_words(self):
        words = Counter({chr(0x4E00 + i): 5000 - i for i in range(3000)})
        words.update({"the": 10_000, "then": 9000})
        tokens, _ = vocabulary_training.train(words, self.CONFIG, 1000)
        ideographs = [t for t in tokens if t >= "\u4e00"]
        assert ideographs == [chr(0x4E00 + i) for i in range(len(ideographs))]
        assert 400 < len(ideographs) <= 500
        assert "then" in tokens

    def test_a_smaller_vocabulary_is_the_beginning_of_a_larger_one(self):
        """Also where tokens of long phrases are replaced by others."""
        words = Counter({"ก" * 30 + "ข" * 70: 50, "zqx": 9, "zq": 3, "jk": 6, "vw": 4})
        tokens, padding = vocabulary_training.train(words, self.CONFIG, 300)
        assert padding and max(len(token) for token in tokens) <= 85 + 2
        for size in range(120, 300 - padding, 7):
            smaller = vocabulary_training.train(words, self.CONFIG, size)
            assert smaller == (tokens[:size], 0)
