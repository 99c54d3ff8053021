# SPDX-License-Identifier: Apache-2.0
"""Runs of random configurations: out in each format and back, or refused by name."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.generators import GENERATORS, MASKED_LM_HEAD
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_CONFIG, UserError
from electra_tf.interop import huggingface, keras_hub, networks, sources, tf1
from electra_tf.interop.stored_model import DISCRIMINATOR_HEAD, empty_pretrainer
from electra_tf.interop.tf1 import HPARAMS
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.manifest import MANIFEST
from electra_tf.text.vocabulary import SPECIAL_TOKENS, Vocabulary, write_tokens

pytest.importorskip("safetensors")
quiet = {"log": lambda line: None}
OVERRIDES = "model_hparam_overrides"
LETTERS = "abcdefghijklmnopqrstuvwxyzABC"
KINDS = (
    {},
    {"untied_generator_embeddings": True},
    {"embedding_sharing": "disentangled"},
    {"untied_generator": False},
    {"electra_objective": False},
    {"uniform_generator": True},
    {"two_tower_generator": True},
    {"electric_objective": True},
    {"generator": "unigram"},
)


def random_run(rng, data):
    """A directory of a run with random hparams and weights; None for an impossible."""
    heads = int(rng.integers(1, 4))
    overrides = {
        "hidden_size": heads * int(rng.integers(2, 9)),
        "num_attention_heads": heads,
        "num_hidden_layers": int(rng.integers(1, 4)),
        "intermediate_size": int(rng.integers(3, 40)),
        "max_position_embeddings": int(rng.integers(16, 40)),
        "type_vocab_size": int(rng.integers(2, 4)),
        "hidden_act": str(rng.choice(["gelu"] * 3 + ["gelu_tanh", "relu", "tanh"])),
        "attention_probs_dropout_prob": round(float(rng.random()) / 2, 3),
    }
    hparams = KINDS[rng.integers(len(KINDS))] | {
        "embedding_size": [4, 7, overrides["hidden_size"], None][rng.integers(4)],
        "generator_hidden_size": round(float(rng.uniform(0.1, 1.1)), 3),
        "generator_layers": round(float(rng.uniform(0.2, 1.4)), 3),
        "max_seq_length": 16,
        "do_lower_case": bool(rng.integers(2)),
        "model_hparam_overrides": overrides,
    }
    words = [*LETTERS, *(f"##{c}" for c in LETTERS)]
    tokens = [*SPECIAL_TOKENS, *words[: rng.integers(20, len(words))]]
    rng.shuffle(tokens)
    vocab = write_tokens(data / "vocab.txt", tokens)
    try:
        config = PretrainingConfig.from_hparams(str(data), "run", hparams)
    except UserError:
        return None
    with tf.Graph().as_default():
        variables = empty_pretrainer(config, vocab).variables
        shapes = {v.path: tuple(v.shape) for v in variables}
    tensors = {k: rng.normal(0, 0.3, s).astype(np.float32) for k, s in shapes.items()}
    saved = tensors | {"global_step": np.array(3, np.int64)}
    config.save(f"{config.model_dir}/config.json")
    identity = config.identity() | {"vocab_sha256": vocab.sha256}
    Checkpoints(config.model_dir, identity=identity, **quiet).save(3, saved)
    return config, tensors


def same(stored, config, tensors, vocab):
    """Whether a model that was read is the one that was written, bit by bit."""
    assert stored.tensors.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(stored.tensors[name], array, err_msg=name)
    assert stored.config.model_config() == config.model_config()
    assert stored.config.embedding_size == config.embedding_size
    has_own = any(name.startswith("generator") for name in tensors)
    if config.uses_generator_config and has_own:
        assert stored.config.generator_config() == config.generator_config()
    assert stored.vocab.tokens == vocab.tokens
    assert stored.tokenizer_config.do_lower_case == config.do_lower_case


def reason_against(write, config, what) -> str | None:
    """Why a library has no such model."""
    if write is tf1.write_tf1:
        return None
    head, act = GENERATORS[config.generator].head, config.model_config().hidden_act
    if what == "all" and head not in (None, MASKED_LM_HEAD):
        return f"{config.generator.replace('_', '-')} generator"
    if write is keras_hub.write_keras_hub:
        return None if act in ("gelu", "gelu_tanh") else "hidden_act"
    if what == "all" and head == MASKED_LM_HEAD and act != "gelu":
        return "hidden_act"
    return None


def part_of(stored, what):
    """What reading an export of this part gives back."""
    if what == "all":
        return stored.tensors
    return networks.split(stored, what)[what].tensors


def check_out_and_in(seed, folder):
    rng = np.random.default_rng(seed)
    data = folder / str(seed)
    data.mkdir()
    while (made := random_run(rng, data)) is None:
        pass
    config, tensors = made
    vocab = Vocabulary.load(data / "vocab.txt")
    stored = sources.read(config.model_dir, **quiet)
    same(stored, config, tensors, vocab)
    has_discriminator = any(k.startswith(DISCRIMINATOR_HEAD) for k in tensors)
    writers = [(tf1.write_tf1, "all"), (huggingface.write_huggingface, "all")]
    if has_discriminator:
        writers.append((huggingface.write_huggingface, "discriminator"))
        writers.append((keras_hub.write_keras_hub, "discriminator"))
    for write, what in writers:
        out = data / f"{write.__name__}_{what}"
        if reason := reason_against(write, config, what):
            with pytest.raises(UserError, match=reason) as error:
                write(stored, what, out, **quiet)
            assert error.value.exit_code == EXIT_CONFIG and not out.exists()
            continue
        write(stored, what, out, **quiet)
        expected = part_of(stored, what)
        if write is keras_hub.write_keras_hub:
            out = out / what
            expected = {k: v for k, v in expected.items() if k.startswith("electra/")}
        same(sources.read(out, **quiet), config, expected, vocab)


@pytest.fixture
def run(tmp_path):
    """(its settings, its directory) of an uncased ELECTRA."""
    rng, found = np.random.default_rng(5), None
    while not (found and found.do_lower_case and found.objective == "electra"):
        found, _ = random_run(rng, tmp_path) or (None, None)
    return found, Path(found.model_dir)


def test_another_vocabulary_of_the_same_size_is_refused(run, tmp_path):
    _, folder = run
    tokens = list(Vocabulary.load(tmp_path / "vocab.txt").tokens)
    other = write_tokens(tmp_path / "other.txt", tokens[::-1])
    with pytest.raises(UserError, match="Give its own vocabulary") as error:
        sources.read(folder, vocab_file=str(other.path), **quiet)
    assert error.value.exit_code == EXIT_CONFIG
    same_tokens = write_tokens(tmp_path / "same.txt", tokens)
    stored = sources.read(folder, vocab_file=str(same_tokens.path), **quiet)
    assert stored.vocab.tokens == tuple(tokens)


@pytest.fixture(params=["run", "export"])
def taken(request, run, tmp_path):
    """A model that says what it is, in a run's manifest or in files beside it."""
    place = run[1]
    if request.param == "export":
        stored = sources.read(place, **quiet)
        place = tf1.write_tf1(stored, "all", tmp_path / "export", **quiet)
    return sources.find(place, **quiet)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_hparam_overrides": {"hidden_act": "linear"}},
        {"objective": "electra_15"},
    ],
    ids=["activation", "objective"],
)
def test_a_model_is_taken_as_it_is_for_its_own_run_alone(run, taken, changes, tmp_path):
    """What no shape gives away: weights of the one would do for the other."""
    config, vocab = run[0], Vocabulary.load(tmp_path / "vocab.txt")
    own = config.to_dict()
    taken.check_fits(config, vocab)

    def changed(hparams):
        overrides = own["model_hparam_overrides"] | hparams.get(OVERRIDES, {})
        given = own | hparams | {OVERRIDES: overrides}
        return PretrainingConfig.from_hparams(own["data_dir"], "run", given)

    for action in ({}, {"do_train": False, "do_eval": True}):
        with pytest.raises(UserError) as error:
            taken.check_fits(changed(changes | action), vocab)
        name = next(iter(changes.get(OVERRIDES, changes)))
        message = str(error.value)
        assert f"{taken.origin} is another model than this run's: {name} is" in message
        fitting = json.loads(message.partition("These hparams fit it: ")[2])
        back = {OVERRIDES: changes.get(OVERRIDES, {}) | fitting.pop(OVERRIDES, {})}
        taken.check_fits(changed(changes | action | fitting | back), vocab)


@pytest.mark.parametrize("form", ["run", "tf1", "huggingface"])
def test_hparams_cannot_say_otherwise_than_the_files(run, form, tmp_path):
    """Of what no shape shows; what is no part of the model may be chosen."""
    config, place = run
    stored, shape = sources.read(place, **quiet), config.model_config()
    changes = {"do_lower_case": False}
    if form == "huggingface":  # says nothing of the objective
        place = tmp_path / "hf"
        huggingface.write_huggingface(stored, "discriminator", place, **quiet)
    else:
        changes["objective"] = "electra_15"
        if form == "tf1":
            place = tf1.write_tf1(stored, "all", tmp_path / "export", **quiet)
    heads = 1 if shape.num_attention_heads > 1 else shape.hidden_size
    overrides = {"num_attention_heads": heads, "hidden_act": "linear"}
    for name, value in (changes | overrides).items():
        given = {OVERRIDES: {name: value}} if name in overrides else {name: value}
        there = getattr(shape if name in overrides else config, name)
        with pytest.raises(UserError, match=name) as error:
            sources.read(place, hparams=given, **quiet)
        said = str(error.value)
        assert str(there) in said and str(value) in said, said
        assert error.value.exit_code == EXIT_CONFIG and len(said.splitlines()) <= 3
    free = {"max_seq_length": 8, OVERRIDES: {"hidden_dropout_prob": 0.25}}
    found = sources.read(place, hparams=free, **quiet).config
    assert found.max_seq_length == 8
    assert found.model_config().hidden_dropout_prob == 0.25


@pytest.mark.parametrize(
    "name, value",
    [("learning_rate", -1), ("model_size", 7), (OVERRIDES, "x"), ("no_such", 1)],
)
@pytest.mark.parametrize("form", ["run", "tf1"])
def test_a_wrong_value_is_of_the_file_that_has_it(run, form, name, value, tmp_path):
    """No hparam was given: to look at --hparams would be of no use."""
    folder, file = shutil.copytree(run[1], tmp_path / "copy"), "config.json"
    if form == "tf1":
        stored = sources.read(run[1], **quiet)
        folder, file = tf1.write_tf1(stored, "all", tmp_path / "tf1", **quiet), HPARAMS
        (folder / MANIFEST).unlink()
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(UserError, match=name) as error:
        sources.find(folder, **quiet)
    assert str(path) in str(error.value) and "--hparams" not in str(error.value)


def test_capitals_that_nothing_says_are_read(run, tmp_path):
    """Of a checkpoint of the original, whose files say nothing of it."""
    stored = sources.read(run[1], **quiet)
    tf1.write_tf1(stored, "all", tmp_path / "out", **quiet)
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in (tmp_path / "out").glob("*ckpt*"):
        shutil.copy(path, plain)
    tokens = Vocabulary.load(tmp_path / "vocab.txt").tokens
    for capitals in (True, False):
        words = (
            tokens
            if capitals
            else [
                t if t.startswith("[") else f"{t.lower()}{i}"
                for i, t in enumerate(tokens)
            ]
        )
        write_tokens(plain / "vocab.txt", list(words))
        said = []
        (prefix,) = {str(p).rpartition(".")[0] for p in plain.glob("*.index")}
        sources.read(prefix, log=said.append)
        assert any("does not say whether it reads capitals" in x for x in said) == (
            capitals
        )
        said.clear()
        sources.read(prefix, hparams={"do_lower_case": True}, log=said.append)
        assert not any("reads capitals" in line for line in said)


def test_models_near_the_root():
    """Where a container has them: /model, or a trial with few folders above it."""
    assert sources._above(Path("/model"), 2) == Path("/")
    assert sources._above(Path("/a/models/m"), 2) == Path("/a")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        trial = Path(folder)
        given = {"task_names": ["cola"], "vocab_size": 30522}
        (trial / "config.json").write_text(json.dumps(given))
        beside = sources.Settings({}, None, None)
        found = sources._settings_of_run(trial, beside)
        assert found.hparams["embedding_size"] == 128


def test_a_checkpoint_beside_one(run, tmp_path, monkeypatch):
    stored = sources.read(run[1], **quiet)
    tf1.write_tf1(stored, "all", tmp_path / "write_tf1", **quiet)
    here = tmp_path / "write_huggingface"
    huggingface.write_huggingface(stored, "discriminator", here, **quiet)
    monkeypatch.chdir(tmp_path / "write_tf1")
    (name,) = {path.stem for path in Path().glob("*.index")}
    assert sources.read(name, **quiet).config.model_name == "write_tf1"
    monkeypatch.chdir(here)
    assert sources.read(".", **quiet).config.model_name == "write_huggingface"


@pytest.mark.parametrize("seed", range(8))
def test_out_and_in_again(seed, tmp_path):
    pytest.importorskip("keras_hub")
    check_out_and_in(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8, 208, 20))
def test_out_and_in_again_of_many(first, tmp_path):
    pytest.importorskip("keras_hub")
    for seed in range(first, first + 20):
        check_out_and_in(seed, tmp_path)
