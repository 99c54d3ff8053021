# SPDX-License-Identifier: Apache-2.0
"""build_vocab.py as a user runs it, and the counting and training below it."""

import io
import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from electra_tf.errors import UserError
from electra_tf.text import units, vocabulary, vocabulary_training
from electra_tf.text.corpus import TextReader
from electra_tf.text.tokenization import (
    TFTokenizer,
    Tokenizer,
    TokenizerConfig,
    Vocabulary,
)
from tests.helpers.runs import ROOT

# 12 KB in which every rule of the tokenizer has something to do.
TEXT = (
    """The old man and the sea: an old man, who fished alone in a skiff!
Ein Käse-Brötchen für Zoë — "naïve café", said the waiter; the WAITER said.
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


def build(*flags, hash_seed="0", expect=0):
    """Runs the script; returns what it printed (stderr where it must fail)."""
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "build_vocab.py"), *map(str, flags)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=False,
    )
    assert done.returncode == expect, done.stderr
    if expect:
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) <= 3
        return done.stderr
    return done.stdout


def test_builds_a_vocabulary_that_spells_its_corpus(corpus_dir, tmp_path):
    output = tmp_path / "new" / "vocab.txt"
    said = build(
        "--corpus-dir", corpus_dir, "--vocab-size", 400, "--output-file", output
    )
    assert "400 tokens (uncased, accents stripped)" in said
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


def test_the_same_corpus_gives_the_same_files(corpus_dir, tmp_path):
    found = set()
    for i, (processes, threads) in enumerate(((1, 1), (2, 4), (2, 1))):
        output = tmp_path / str(i) / "vocab.txt"
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        flags = ["--output-file", output, "--num-processes", processes]
        flags += ["--corpus-dir", corpus_dir, "--vocab-size", 400]
        build(*flags, hash_seed=str(i))
        found.add(
            (output.read_bytes(), (output.parent / "vocab.txt.json").read_bytes())
        )
    del os.environ["RAYON_NUM_THREADS"]
    assert len(found) == 1


def test_fills_up_what_a_small_corpus_cannot(corpus_dir, tmp_path):
    output = tmp_path / "vocab.txt"
    said = build(
        "--corpus-dir", corpus_dir, "--vocab-size", 3000, "--output-file", output
    )
    vocab = Vocabulary.load(output)
    padding = [token for token in vocab.tokens if token.startswith("[unused")]
    assert len(vocab) == 3000
    assert f"the last {len(padding)} are [unusedN]" in said
    assert list(vocab.tokens[-len(padding) :]) == padding


def test_never_overwrites_unasked(corpus_dir, tmp_path):
    output = tmp_path / "vocab.txt"
    flags = ["--corpus-dir", corpus_dir, "--vocab-size", 400, "--output-file", output]
    output.write_text("precious")
    assert "exists already" in build(*flags, expect=2)
    assert output.read_text() == "precious"
    build(*flags, "--overwrite")
    assert len(Vocabulary.load(output)) == 400
    output.unlink()
    assert "vocab.txt.json exists already" in build(*flags, expect=2)


def test_text_that_is_not_utf8(corpus_dir, tmp_path):
    path = corpus_dir / "bad.txt"
    path.write_bytes(b"fine\n" * 10 + b"caf\xe9 and \xff\n")
    flags = ["--corpus-dir", corpus_dir, "--vocab-size", 400]
    flags += ["--output-file", tmp_path / "vocab.txt", "--num-processes", 2]
    error = build(*flags, expect=65)
    assert str(path) in error and "offset 53" in error
    assert not (tmp_path / "vocab.txt").exists()
    said = build(*flags, "--encoding-errors", "replace")
    assert f"2 bytes that were not UTF-8 in {path} (2)" in said


def test_words_that_are_too_long_are_told(tmp_path):
    """As of scripts without spaces, of which little would be learnt otherwise."""
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


def test_the_corpus_is_never_overwritten(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text(TEXT)
    flags = (f"--corpus-dir={text}", f"--output-file={text}", "--overwrite")
    assert f"{text} is --corpus-dir itself" in build(*flags, expect=2)
    settings = tmp_path / "v.json"
    settings.write_text(TEXT)
    flags = (f"--corpus-dir={settings}", f"--output-file={tmp_path}/v", "--overwrite")
    assert "is --corpus-dir itself" in build(*flags, expect=2)
    assert text.read_text() == settings.read_text() == TEXT


def test_a_corpus_whose_name_is_not_utf8(corpus_dir, tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/w\xff")
    corpus_dir.rename(folder)
    output = tmp_path / "vocab.txt"
    build(f"--corpus-dir={folder}", f"--output-file={output}", "--vocab-size=500")
    settings = json.loads(output.with_name("vocab.txt.json").read_text())
    assert settings["corpus"]["corpus_dir"] == folder


def test_a_data_set_as_corpus(tmp_path):
    from tests.helpers import tiny_texts

    tiny_texts.TinyTexts(data_dir=tmp_path).download_and_prepare()
    flags = ["--tfds", "tiny_texts:text", "--tfds-data-dir", tmp_path]
    flags += ["--output-file", tmp_path / "vocab.txt", "--vocab-size", 130]
    said = build(*flags, "--no-strip-accents")
    assert "from 320 words, 45 of them different" in said
    vocab = Vocabulary.load(tmp_path / "vocab.txt")
    assert "page" in vocab.ids and "é" in vocab.ids
    with open(f"{vocab.path}.json", encoding="utf-8") as f:
        assert json.load(f)["corpus"] == {"tfds": "tiny_texts/1.0.0:text"}
    flags[1] = "tiny_texts:body"
    assert "no text feature" in build(*flags, "--overwrite", expect=2)


def test_the_same_text_in_other_files(corpus_dir, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for path in sorted(corpus_dir.rglob("*.txt")):
        line = json.dumps({"body": path.read_text(encoding="utf-8")})
        (other / f"{path.stem}.jsonl").write_text(f"{line}\n")
    said = {}
    for name, folder in (("text", corpus_dir), ("json", other)):
        output = tmp_path / f"{name}.txt"
        flags = ["--corpus-dir", folder, "--vocab-size", 300, "--output-file", output]
        said[name] = build(*flags, "--text-key", "body").partition(": ")[2]
    assert said["text"] == said["json"]
    assert (tmp_path / "text.txt").read_text() == (tmp_path / "json.txt").read_text()
    error = build(*flags, "--overwrite", expect=65)
    assert f"{other}/a.jsonl line 1 has no 'text' (its keys: body)" in error


@pytest.mark.parametrize(
    "flags,code,says",
    [
        ("--output-file {tmp}/v.txt", 1, "either --corpus-dir or --tfds"),
        ("--output-file {tmp}/v.txt --corpus-dir {tmp} --tfds a:b", 1, "either"),
        ("--corpus-dir {tmp}", 1, "--output-file must be given"),
        ("--output-file {tmp}/v.txt --corpus-dir {tmp}/no", 2, "does not exist"),
        ("--output-file {tmp}/v.txt --corpus-dir {tmp}/blank", 2, "holds no words"),
        ("--output-file {tmp} --corpus-dir {tmp}", 2, "is a directory"),
        ("--output-file {tmp}/a/v.txt --corpus-dir {tmp}", 2, "is in --corpus-dir"),
        ("--output-file /proc/version/v.txt --corpus-dir {tmp}", 73, "is a file"),
        (
            "--output-file {tmp}/v --corpus-dir {tmp}/text --vocab-size 5",
            2,
            "nothing beside",
        ),
        (
            "--output-file {tmp}/v --corpus-dir {tmp}/text --vocab-size 90",
            2,
            "ASCII alone",
        ),
        (
            "--output-file {tmp}/v --corpus-dir {tmp}/text --vocab-size x",
            1,
            "vocab_size",
        ),
        ("--output-file {tmp}/blank/b.txt/v --corpus-dir {tmp}", 73, "cannot write"),
    ],
)
def test_wrong_use(tmp_path, flags, code, says):
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "b.txt").write_text("\n \n\u200b\n")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some words " * 5)
    error = build(*flags.format(tmp=tmp_path).split(), expect=code)
    assert says in error


def test_wrong_flags_are_told_before_anything_heavy_is_imported(tmp_path):
    code = (
        "import sys, build_vocab; from electra_tf.text import vocabulary_training;"
        "assert not {'tensorflow', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def readers(texts):
    return [TextReader(io.BytesIO(text.encode()), "text") for text in texts]


class TestCounting:
    @pytest.mark.parametrize("settings", [(True, True), (True, False), (False, False)])
    def test_counts_what_the_tokenizer_sees(self, corpus_dir, settings, monkeypatch):
        config = TokenizerConfig(*settings)
        paths = [str(corpus_dir / "a.txt"), str(corpus_dir / "deeper" / "b.txt")]
        whole = units.file_corpus(str(corpus_dir)).units
        assert [unit.path for unit in whole] == paths
        reading = units.Reading()
        tokenizer = Tokenizer(Vocabulary(vocabulary.SPECIAL_TOKENS), *settings)
        expected = Counter()
        for path in paths:
            with open(path, encoding="utf-8") as f:
                expected.update(tokenizer.basic_tokenize(f.read()))
        assert vocabulary_training.count_units(whole, config, reading).words == expected
        monkeypatch.setattr(units, "PIECE_BYTES", 700)
        pieces = units.file_corpus(str(corpus_dir)).units
        assert len(pieces) > len(whole)
        monkeypatch.setattr(vocabulary_training, "_MAX_RAW_WORDS", 5)
        parts = vocabulary_training.count_units(pieces, config, reading)
        assert parts.words == expected
        documents = vocabulary_training.count_documents(
            readers([TEXT, TEXT[::-1]]), config
        )
        assert documents.words == expected

    def test_forgets_the_rarest_when_there_are_too_many(self, monkeypatch):
        monkeypatch.setattr(vocabulary_training, "_MAX_WORDS", 100)
        monkeypatch.setattr(vocabulary_training, "_MAX_RAW_WORDS", 50)
        documents = [
            f"often once{i} {'now and then ' * (i % 3 == 0)}" for i in range(400)
        ]
        counts = vocabulary_training.count_documents(
            readers(documents), TokenizerConfig()
        )
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

    def test_learns_no_token_that_is_too_long_for_a_saved_model(self):
        """A phrase of a script without spaces, often enough to become a token."""
        letters = [chr(c) for c in range(0x0E01, 0x0E2F)]
        rng = random.Random(1)
        words = Counter({"".join(rng.choices(letters, k=110)): 2000})
        for _ in range(3000):
            words["".join(rng.choices(letters, k=rng.randint(5, 60)))] += 10
        tokens, padding = vocabulary_training.train(words, self.CONFIG, 4000)
        assert len(tokens) == len(set(tokens)) == 4000 and padding == 0
        sizes = [len(token.removeprefix("##").encode()) for token in tokens]
        assert 200 < max(sizes) <= 256
        ops = TFTokenizer(Vocabulary(tuple(tokens)))
        text = max(words, key=len)
        found = ops.tokenize([text]).to_list()
        assert found == [Tokenizer(ops.vocab).encode(text)]

    def test_what_is_learned_instead_comes_after_the_rest(self):
        """A vocabulary with room for all of it, and a smaller one."""
        words = Counter({"ก" * 30 + "ข" * 70: 50, "zqx": 9, "zq": 3, "jk": 6, "vw": 4})
        tokens, padding = vocabulary_training.train(words, self.CONFIG, 300)
        assert padding and max(len(token) for token in tokens) <= 85 + 2
        for size in range(120, 300 - padding):
            smaller = vocabulary_training.train(words, self.CONFIG, size)
            assert smaller == (tokens[:size], 0)

    def test_too_small(self):
        with pytest.raises(UserError, match="ASCII alone"):
            vocabulary_training.train(Counter("a"), self.CONFIG, 100)
