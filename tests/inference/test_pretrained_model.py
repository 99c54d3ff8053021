# SPDX-License-Identifier: Apache-2.0
"""What a trained model says about tokens: load, detect, corrupt, and the marks."""

import json
import re
import shutil

import numpy as np
import pytest

import electra_tf
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.inference import rendering
from electra_tf.inference.pretrained_model import PretrainedModel, TokenPrediction
from electra_tf.interop import huggingface, sources, tf1
from electra_tf.interop.stored_model import empty_pretrainer
from electra_tf.storage.checkpoint_manifest import name_of
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL, TINY, pretrain

STEPS = TINY | {"num_train_steps": 2}
TEXT = "w1 W2, w3 w4"  # "," is not in the vocabulary


@pytest.fixture(scope="module")
def run(tiny_data):
    done = pretrain(tiny_data, "detection", STEPS)
    assert done.returncode == 0, done.stderr
    return tiny_data / "models" / "detection"


@pytest.fixture(scope="module")
def model(run):
    return electra_tf.load(run)


def test_tokens_are_those_of_the_text(model):
    (tokens,) = model.detect(TEXT)
    assert [token.text for token in tokens] == ["w1", "W2", ",", "w3", "w4"]
    assert all(TEXT[t.start : t.end] == t.text for t in tokens)
    assert all(0 < t.probability < 1 and not t.is_replaced for t in tokens)


def test_what_is_no_text_is_named(model):
    for wrong in (None, b"w1", 5):
        with pytest.raises(UserError, match="text 1 is "):
            model.detect(["w1", wrong])


def test_probabilities_are_the_discriminators(model):
    """The head's output on exactly these ids, computed layer by layer."""
    (tokens,) = model.detect(TEXT)
    ids = np.array([[2, 6, 7, 1, 8, 9, 3]])
    encoded = model.pretrainer.electra(ids, np.ones_like(ids), np.zeros_like(ids))
    logits = model.pretrainer.discriminator_predictions(encoded.sequence_output)
    probs = 1 / (1 + np.exp(-np.asarray(logits)[0, 1:-1]))
    assert [t.probability for t in tokens] == pytest.approx(probs.tolist(), abs=1e-6)


def test_batching_and_neighbours_change_nothing(model):
    texts = [TEXT, "", "w5 " * 20, "w9"]
    together = model.detect(texts)
    assert [len(tokens) for tokens in together] == [5, 0, 20, 1]
    for text, tokens in zip(texts, together, strict=True):
        (alone,) = model.detect([text])
        assert [t[:3] for t in alone] == [t[:3] for t in tokens]
        assert [t.probability for t in alone] == pytest.approx(
            [t.probability for t in tokens], abs=1e-5
        )
    assert model.detect([]) == []


def test_long_texts_are_read_in_windows(model):
    text = " ".join(f"w{i % 50}" for i in range(70))  # max_seq_length is 32
    (tokens,) = model.detect(text)
    assert [t.text for t in tokens] == text.split()
    (second,) = model.detect(" ".join(text.split()[30:60]))
    assert [t.probability for t in tokens[30:60]] == pytest.approx(
        [t.probability for t in second], abs=1e-5
    )


def test_corrupt_replaces_some_tokens_as_in_training(model):
    texts = [" ".join(f"w{(i + k) % 50}" for i in range(30)) for k in range(60)]
    found = model.corrupt(texts, seed=3)
    replaced = [t for tokens in found for t in tokens if t.is_replaced]
    # int((0.15 + 0.005) * 32) = 4 positions of each; few samples are the original.
    assert 0.85 * 4 * 60 < len(replaced) <= 4 * 60
    assert all(t.replacement != t.text for t in replaced)
    assert model.corrupt(texts, seed=3) == found
    assert model.corrupt(texts, seed=4) != found
    model.corrupt(["w1 w2"] * 6, batch_size=1)
    assert model._corrupt.experimental_get_tracing_count() <= 3  # of 9 calls


def test_a_checkpoint_keeps_the_noise_that_it_was_made_with(run, tmp_path):
    """config.json has that of a later start; Electric's answers depend on it."""
    copy = shutil.copytree(run, tmp_path / "models" / "later")
    config = json.loads((copy / "config.json").read_text())
    config |= {"vocab_file": str(run.parent.parent / "vocab.txt")}
    config |= {"mask_prob": 0.5, "temperature": 2.0, "disallow_correct": True}
    (copy / "config.json").write_text(json.dumps(config))
    found = electra_tf.load(copy / "model.ckpt-2").config
    assert (found.mask_prob, found.temperature) == (0.15, 1.0)
    assert not found.disallow_correct


def model_of_words(words):
    """A model of single characters, whose every sample is a fake, and its texts."""
    characters = "东京大学生活方法"
    vocab = Vocabulary((*SPECIAL, *characters))
    hparams = STEPS | {"vocab_size": len(vocab), "disallow_correct": True}
    hparams |= {"mask_unit": "word", "word_list": str(words)}
    config = PretrainingConfig.from_hparams("/nowhere", "words", hparams)
    model = PretrainedModel(config, vocab, empty_pretrainer(config, vocab))
    rng = np.random.default_rng(1)
    pairs = [characters[i : i + 2] for i in range(0, 8, 2)]
    return model, pairs, ["".join(rng.choice(pairs, 14)) for _ in range(40)]


def halves_replaced(model, texts):
    """Of each pair of characters, how many are replaced."""
    at = [[t.is_replaced for t in tokens] for tokens in model.corrupt(texts)]
    return np.reshape(at, (-1, 2)).sum(axis=1)


def test_corrupt_replaces_whole_words_of_a_list(tmp_path, capsys):
    """Where two characters are a word, both are masked or neither, as in training."""
    words = tmp_path / "words.txt"
    model, pairs, texts = model_of_words(words)
    words.write_text("\n".join(pairs))
    found = halves_replaced(model, texts)
    assert (found == 2).sum() == 80 and not (found == 1).any()  # 4 of 28 tokens each
    assert capsys.readouterr().err == ""


def test_a_list_of_words_that_is_gone_is_told(tmp_path, capsys):
    model, _, texts = model_of_words(tmp_path / "gone.txt")
    assert (halves_replaced(model, texts) == 1).any()
    model.corrupt(texts)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"cannot read the word_list {tmp_path}/gone.txt" in said
    assert "Words are masked by their ## pieces only." in said


def test_a_masked_language_model_detects_nothing(tiny_data):
    hparams = STEPS | {"electra_objective": False}
    assert pretrain(tiny_data, "detection_mlm", hparams).returncode == 0
    model = electra_tf.load(tiny_data / "models" / "detection_mlm")
    with pytest.raises(UserError, match="is a masked language model"):
        model.detect(TEXT)


def test_what_is_no_run_is_refused(tiny_data, tmp_path):
    with pytest.raises(UserError, match=r"config.json not found.*\n.*models/<model"):
        electra_tf.load(tiny_data)
    run = tmp_path / "models" / "empty"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    vocab = tiny_data / "vocab.txt"
    (tmp_path / "vocab.txt").write_text(vocab.read_text())
    with pytest.raises(UserError, match="has no checkpoint yet") as caught:
        electra_tf.load(run)
    assert caught.value.exit_code == EXIT_DAMAGED


def test_another_vocabulary_is_refused(run, tmp_path):
    data = run.parent.parent
    tokens = (data / "vocab.txt").read_text().replace("w54", "other")
    copy = tmp_path / "models" / "moved"
    copy.mkdir(parents=True)
    for path in run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    (tmp_path / "vocab.txt").write_text(tokens)
    with pytest.raises(UserError, match="trained with another vocabulary"):
        electra_tf.load(copy)


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """Format -> the directory of the run's model in it."""
    folder = tmp_path_factory.mktemp("formats")
    stored, quiet = sources.read(run), {"log": lambda line: None}
    huggingface.write_huggingface(stored, "all", folder / "huggingface", **quiet)
    tf1.write_tf1(stored, "all", folder / "tf1", **quiet)
    return folder


@pytest.mark.parametrize("path", ["huggingface", "huggingface/discriminator", "tf1"])
def test_a_model_of_another_format_says_the_same(model, exported, path):
    other = electra_tf.load(exported / path)
    texts = [TEXT, "w5 " * 20]
    for ours, theirs in zip(model.detect(texts), other.detect(texts), strict=True):
        assert [t[:3] for t in ours] == [t[:3] for t in theirs]
        assert [t.probability for t in ours] == pytest.approx(
            [t.probability for t in theirs], abs=1e-6
        )
    ours, theirs = (m.score_texts(texts, "discriminator") for m in (model, other))
    assert [t.score for t in ours] == pytest.approx([t.score for t in theirs])


def test_a_checkpoint_of_a_run_can_be_named(run, model):
    (ours,), (theirs,) = (m.detect(TEXT) for m in (model, load_newest(run)))
    assert ours == theirs


def load_newest(run):
    return electra_tf.load(run / name_of(STEPS["num_train_steps"]))


def test_what_a_model_lacks_is_said(exported, tmp_path, run):
    alone = electra_tf.load(exported / "huggingface" / "discriminator")
    with pytest.raises(UserError, match="without its generator"):
        alone.corrupt(TEXT)
    huggingface.write_huggingface(
        sources.read(run), "encoder", tmp_path / "e", log=print
    )
    with pytest.raises(UserError, match="holds an encoder without heads"):
        electra_tf.load(tmp_path / "e")


def test_a_run_without_a_whole_checkpoint_is_damaged(run, tmp_path):
    """Its files are not taken for those of the original, which have no manifest."""
    copy = tmp_path / "models" / "copy"
    copy.parent.mkdir()
    shutil.copytree(run, copy)
    (tmp_path / "vocab.txt").write_text((run.parents[1] / "vocab.txt").read_text())
    for manifest in copy.glob("model.ckpt-*.json"):
        manifest.unlink()
    with pytest.raises(UserError, match="holds no intact checkpoint") as caught:
        electra_tf.load(copy)
    assert caught.value.exit_code == EXIT_DAMAGED


# Marks.


def prediction(text, start, probability, replacement=None):
    return TokenPrediction(text, start, start + len(text), probability, replacement)


CORRUPTED = "a <b> cd"
TOKENS = [
    prediction("a", 0, 0.9, "x"),  # caught
    prediction("<", 2, 0.1, "##y"),  # missed
    prediction("b", 3, 0.6),  # a false alarm: second of two
    prediction(">", 4, 0.2),
    prediction("cd", 6, 0.3),
]


def test_as_many_are_flagged_as_were_replaced():
    assert rendering.flagged(TOKENS) == {0, 2}
    assert rendering.score(TOKENS) == (2, 1, 2)
    untouched = [token._replace(replacement=None) for token in TOKENS]
    assert rendering.flagged(untouched, threshold=0.5) == {0, 2}
    assert rendering.flagged(untouched, threshold=0.7) == {0}
    # A corrupted text in which the generator drew nothing but the original tokens.
    assert rendering.score(untouched) == (0, 0, 0)


def test_terminal():
    plain = rendering.to_terminal(CORRUPTED, TOKENS, colour=False)
    assert plain == "*x*[a] ?y?[<]!b!> cd"
    coloured = rendering.to_terminal(CORRUPTED, TOKENS)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == "x[a] y[<]b> cd"
    for kind in ("replaced, caught", "replaced, missed", "false alarm"):
        code = re.search(rf"\x1b\[([\d;]+)m{kind}", rendering.terminal_legend(True))[1]
        assert f"\x1b[{code}m" in coloured


def test_pieces_of_one_character_show_it_once():
    """Hangul is read as its letters, which have the place of their syllable."""
    text = "\ud55c\uad6d b"
    places = [(0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (3, 4)]
    tokens = [TokenPrediction(text[a:b], a, b, 0.1) for a, b in places]
    assert rendering.to_terminal(text, tokens, 0.5, colour=False) == text
    assert re.sub("<[^>]*>", "", rendering.to_html(text, tokens)) == text


def test_a_text_cannot_command_the_terminal():
    tokens = [token._replace(text="\x1b[2J") for token in TOKENS]
    for text in ("x\x1b]0;title\x07y", "\x9b2J", "\r\x7f\x08"):
        shown = rendering.to_terminal(text * 3, tokens, colour=False)
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown), shown


def test_html_is_escaped():
    page = rendering.to_html(CORRUPTED, TOKENS)
    assert '<span class="caught" title="90% replaced">x</span><s>a</s>' in page
    assert '<span class="missed" title="10% replaced">y</span><s>&lt;</s>' in page
    assert '<span class="alarm"' in page and "<b>" not in page


def test_json():
    row = rendering.to_json(CORRUPTED, TOKENS)
    assert row["text"] == CORRUPTED
    assert row["tokens"][0] == {
        "token": "a",
        "start": 0,
        "end": 1,
        "probability": 0.9,
        "replacement": "x",
    }
    assert "replacement" not in row["tokens"][2]
