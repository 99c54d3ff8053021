# SPDX-License-Identifier: Apache-2.0
"""Whole words of scripts without spaces, found by a list of them."""

import json

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.pretrain import run
from electra_tf.pretrain.word_masking import WordTables, continue_words
from electra_tf.text import word_list
from electra_tf.text.tokenization import Tokenizer, basic_tokenize
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL, pretrain, run_script, tiny
from tests.pretrain.test_masking import as_batch
from tests.pretrain.test_word_masking import draw, masked_at

NO_SPACES = ("\u0e00", "\u0eff"), ("\u3005", "\u30ff")


def load(folder, words, vocab):
    path = folder / "words.txt"
    path.write_text("".join(f"{word}\n" for word in words))
    return word_list.load.__wrapped__(str(path), vocab, True)


def units_of(text, words, vocab, compiled=False):
    """The words that a text is cut into, their tokens joined by blanks."""
    tokens = Tokenizer(vocab).tokenize(text)
    ids = tf.constant([[vocab.ids[token] for token in tokens]], tf.int32)
    function = tf.function(
        lambda ids: continue_words(ids, vocab.continuations, WordTables.of(words)),
        jit_compile=compiled,
    )
    [continues] = function(ids).numpy().tolist()
    units = []
    for token, joined in zip(tokens, continues, strict=True):
        units[-1 if joined else len(units) :] = (
            [f"{units[-1]} {token}"] if joined else [token]
        )
    return units


TOKENS = "东 京 大 学 生 東 京 タ 行 く へ 卡 拉 ok ! 人 คน c + play".split()
TOKENS += "##ワ ##ー ##へ ##く ##こ ##と ##s ##ing ##ไ ##ทย ##รก ##ค ##น".split()
WORDS = "东京 东京大学 大学生 学生 タワー 行く こと 卡拉ok คน ไทย c++ ing PLAY".split()


@pytest.mark.parametrize(
    "text, units",
    [
        # Chinese: the longest word from the left, what is no word by its characters.
        ("东京大学生", ["东 京 大 学", "生"]),
        ("京东大学生", ["京", "东", "大 学 生"]),
        ("东大!学生", ["东", "大", "!", "学 生"]),
        ("卡拉OKs人", ["卡 拉 ok ##s", "人"]),
        # A space between two ideographs leaves no trace in the tokens.
        ("东 京", ["东 京"]),
        # Japanese: words begin, and end, within what the tokenizer leaves together.
        (
            "東京タワーへ行くこと",
            ["東", "京", "タ ##ワ ##ー", "##へ", "行 く", "##こ ##と"],
        ),
        ("へワー", ["へ ##ワ ##ー"]),
        # Thai, with something between two words that is none.
        ("คนไทยคน", ["คน", "##ไ ##ทย", "##ค ##น"]),
        ("คนรกไทย", ["คน", "##รก", "##ไ ##ทย"]),
        # Scripts with spaces are as ever, but for words of several of their words.
        ("playing plays c++", ["play ##ing", "play ##s", "c + +"]),
    ],
)
def test_words_in_text(tmp_path, text, units):
    vocab = Vocabulary((*SPECIAL, *dict.fromkeys(TOKENS)))
    words = load(tmp_path, WORDS, vocab)
    assert units_of(text, words, vocab) == units


def units_by_hand(tokens, words):
    """As `units_of`, by what is said of it, one token at a time."""

    def is_open(token):
        return token[:2] == "##" and any(a <= token[2] <= b for a, b in NO_SPACES)

    def is_word(part):
        if part[0][:2] == "##" and not is_open(part[0]):
            return False
        whole = " ".join([part[0].removeprefix("##"), *part[1:]]).replace(" ##", "")
        return whole.split() in words

    units, place, behind_word = [], 0, False
    while place < len(tokens):
        ends = range(len(tokens), place, -1)
        end = next((e for e in ends if is_word(tokens[place:e])), None)
        token = tokens[place]
        if token[:2] == "##" and end is None and not (is_open(token) and behind_word):
            units[-1] += f" {token}"
        elif token[:2] == "##" and not is_open(token):
            units[-1] += " ".join(["", *tokens[place:end]])
        else:
            units.append(" ".join(tokens[place : end or place + 1]))
        behind_word = end is not None
        place = end or place + 1
    return units


@pytest.mark.thorough
@pytest.mark.parametrize("compiled", [False, True])
def test_any_text_and_vocabulary(tmp_path, compiled):
    """Of ideographs, kana, Thai and Latin letters, some pieces of two or three."""
    random = np.random.default_rng(7)
    letters = "東京大かきくคนab"

    def some(count, low, high):
        sizes = random.integers(low, high, count)
        return ["".join(random.choice(list(letters), n)) for n in sizes]

    pieces = [p for p in some(150, 2, 4) if not set(p) & set("東京大")]
    singles = [*letters, *(f"##{c}" for c in letters[3:]), "!"]
    tokens = [*SPECIAL, *singles, *pieces, *(f"##{p}" for p in pieces)]
    vocab = Vocabulary(tuple(dict.fromkeys(tokens)))
    listed = some(60, 1, 6)
    words = load(tmp_path, listed, vocab)
    parts = [basic_tokenize(word, Tokenizer(vocab).config) for word in listed]
    text = " ".join(some(80, 1, 30))
    tokens = Tokenizer(vocab).tokenize(text)
    found = units_of(text, words, vocab, compiled)
    assert found == units_by_hand(tokens, parts)
    assert len(tokens) > len(found) > 300


# A corpus of Chinese kind.

LENGTH = 64
HPARAMS = {
    "mask_unit": "word",
    "overrides": {"max_position_embeddings": LENGTH},
    "max_seq_length": LENGTH,
}


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """A data directory whose text is words of 1 to 4 of 300 characters; its words."""
    folder, random = tmp_path_factory.mktemp("chinese"), np.random.default_rng(2)
    characters = [chr(0x4E00 + i) for i in range(300)]
    tokens = [*SPECIAL, "。", *characters]
    (folder / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens))
    sizes = random.choice([1, 2, 3, 4], 500, p=[0.1, 0.6, 0.2, 0.1])
    words = ["".join(random.choice(characters, n)) for n in sizes]
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words))
    lines = ["".join(random.choice(words, 20)) + "。" for _ in range(2000)]
    (folder / "text").mkdir()
    (folder / "text" / "text.txt").write_text("\n".join(lines))
    done = run_script(
        "build_pretraining_dataset.py",
        f"--corpus-dir={folder}/text",
        f"--vocab-file={folder}/vocab.txt",
        f"--output-dir={folder}/pretrain_tfrecords",
        f"--max-seq-length={LENGTH}",
    )
    assert done.returncode == 0, done.stderr
    return folder, {word for word in words if len(word) > 1}


def hparams_of(folder, **changes):
    own = {"vocab_file": f"{folder}/vocab.txt", "word_list": f"{folder}/words.txt"}
    return tiny(**HPARAMS | own | changes)


def batch_of(folder, training=True, **changes):
    """A batch of 400, or fewer, as a run reads them."""
    hparams = hparams_of(folder, **changes.pop("hparams", {}))
    config = PretrainingConfig.from_hparams(str(folder), "m", hparams)
    vocab = Vocabulary.load(config.vocab_file)
    options = {"batch_size": 400, "num_batches": 1} | changes
    [batch] = run._dataset(config, vocab, training, **options)
    return {name: value.numpy() for name, value in batch.items()}, vocab


def words_in(row, vocab, words):
    """Places of the words in a row of ids: the longest from the left."""
    text = "".join(vocab.tokens[i] if i > 4 else " " for i in row)
    place, found = 0, []
    while place < len(text):
        sizes = [n for n in (4, 3, 2, 1) if text[place : place + n] in words]
        size = sizes[0] if sizes else 1
        if text[place] not in " 。":
            found.append(range(place, place + size))
        place += size
    return found


@pytest.mark.parametrize("kind", ["training", "evaluation", "graph", "mixture"])
def test_words_are_masked_whole(chinese, kind):
    folder, words = chinese
    changes = {"training": kind != "evaluation", "in_graph": kind == "graph"}
    if kind == "mixture":
        data = {f"{folder}/pretrain_tfrecords/pretrain_data*": 1.0}
        data |= {f"{folder}/pretrain_tfrecords/*.tfrecord*": 2.0}
        changes["hparams"] = {"pretrain_tfrecords": data}
    batch, vocab = batch_of(folder, **changes)
    at, several = masked_at(batch), 0
    for row, masked in zip(batch["input_ids"], at, strict=True):
        found = words_in(row, vocab, words)
        wanted = max(1, round(0.15 * int((row > 0).sum())))
        for word in found:
            if len(word) <= wanted:
                assert masked[word].all() or not masked[word].any()
                several += len(word) > 1 and masked[word].all()
    assert several > 1000
    # [PAD], [CLS] and [SEP] are never masked.
    assert not at[batch["input_ids"] < 5].any()


def test_the_share_stays(chinese):
    folder, _ = chinese
    whole, _ = batch_of(folder)
    single, _ = batch_of(
        folder,
        hparams={"mask_unit": "token", "word_list": None, "repeated_masks": "fixed"},
    )
    np.testing.assert_array_equal(whole["input_ids"], single["input_ids"])
    found, expected = (b["masked_lm_weights"].sum() for b in (whole, single))
    assert 0.99 * expected < found <= expected


def test_readers_agree_and_steps_are_functions_of_their_number(chinese):
    folder, _ = chinese
    plain, vocab = batch_of(folder, start_step=7)
    in_graph, _ = batch_of(folder, start_step=7, in_graph=True)
    again, _ = batch_of(folder, start_step=7)
    later, _ = batch_of(folder, start_step=8)
    for name, value in plain.items():
        np.testing.assert_array_equal(value, in_graph[name], err_msg=name)
        np.testing.assert_array_equal(value, again[name], err_msg=name)
    assert not np.array_equal(masked_at(plain), masked_at(later))


def test_a_list_that_finds_nothing_changes_nothing(tmp_path):
    """Nor does one of words that are tokens."""
    ids = np.random.default_rng(1).integers(5, 1000, (64, 32))
    batch = as_batch(ids, np.ones_like(ids))
    vocab = Vocabulary(
        (
            *SPECIAL,
            *map(str, range(5, 600)),
            *map("##{}".format, range(600, 1000)),
            "東",
            "京",
        )
    )
    words = WordTables.of(load(tmp_path, ["東京", "7", "8"], vocab))
    one, other = draw(batch), draw(batch, words=words)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_what_excludes_each_other():
    with pytest.raises(UserError, match='mask_unit is "token"'):
        PretrainingConfig.from_hparams("/nowhere", "m", {"word_list": "words.txt"})


def test_the_script(chinese, tmp_path):
    folder, _ = chinese
    hparams = hparams_of(folder, num_train_steps=2, save_checkpoints_steps=1)
    bad = pretrain(folder, "words", hparams | {"word_list": f"{tmp_path}/none"})
    assert bad.returncode == 2 and "cannot read the word_list" in bad.stderr
    bad = pretrain(folder, "words", hparams | {"word_list": None})
    assert bad.returncode == 2 and "give a word_list" in bad.stderr
    done = pretrain(folder, "words", hparams)
    assert done.returncode == 0, done.stderr
    assert f"{folder}/words.txt: " in done.stdout
    manifest = json.loads((folder / "models/words/model.ckpt-2.json").read_text())
    sha256 = manifest["settings"]["word_list_sha256"]
    # Another list is told of.
    other = tmp_path / "words.txt"
    other.write_text("".join((folder / "words.txt").read_text().splitlines(True)[9:]))
    changed = hparams | {"word_list": str(other), "num_train_steps": 3}
    done = pretrain(folder, "words", changed)
    assert done.returncode == 0, done.stderr
    assert f"word_list_sha256 '{sha256}' -> '" in done.stdout
    # Where it is gone, a model at work says so.
    named = (f"--data-dir={folder}", "--model-name=words", "--corrupt")
    for is_there in (True, False):
        done = run_script("run_inference.py", "detect", *named, text="一丁七\n")
        assert done.returncode == 0, done.stderr
        assert ("cannot read the word_list" in done.stderr) != is_there
        other.unlink(missing_ok=True)
