# SPDX-License-Identifier: Apache-2.0
"""Models of random configurations, exported in each format and read back."""

import json
from pathlib import Path

import numpy as np
import pytest

from electra_tf.config.objectives import GENERATORS, MASKED_LM_HEAD
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_CONFIG, UserError
from electra_tf.interop import huggingface, keras_hub, networks, readers, tf1
from electra_tf.interop.checkpoint import DISCRIMINATOR_HEAD, EVALUATE, RESUME
from electra_tf.pretrain.stored import shapes_of
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import SPECIAL_TOKENS, Vocabulary, write_tokens
from tests.helpers.interop_models import (
    assert_equal_tensors,
    golden,
    prefix_of,
    quiet,
    read,
    refused,
)

OVERRIDES = "model_hparam_overrides"
WRITERS = {
    "tf1": tf1.write_tf1,
    "huggingface": huggingface.write_huggingface,
    "keras_hub": keras_hub.write_keras_hub,
}
LETTERS = "abcdefghijklmnopqrstuvwxyzABC"
KINDS = (
    {},
    {"electric_objective": True},
    {"embedding_sharing": "disentangled"},
    {"untied_generator_embeddings": True},
    {"untied_generator": False},
    {"electra_objective": False},
    {"uniform_generator": True},
    {"two_tower_generator": True},
    {"generator": "unigram"},
)


def random_run(rng, data, kind):
    """A directory of a run with random hparams and weights; None if impossible."""
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
    hparams = KINDS[kind % len(KINDS)] | {
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
    shapes = shapes_of(config, vocab)
    tensors = {k: rng.normal(0, 0.3, s).astype(np.float32) for k, s in shapes.items()}
    saved = tensors | {"global_step": np.array(3, np.int64)}
    config.save(f"{config.model_dir}/config.json")
    identity = config.identity() | {"vocab_sha256": vocab.sha256}
    Checkpoints(config.model_dir, identity=identity, **quiet).save(3, saved)
    return config, tensors


def assert_same(stored, config, tensors, vocab):
    """Asserts that a model that was read is the one that was written, bit by bit."""
    assert_equal_tensors(stored.tensors, tensors)
    assert stored.config.model_config() == config.model_config()
    assert stored.config.embedding_size == config.embedding_size
    has_own = any(name.startswith("generator") for name in tensors)
    if config.generator_kind.has_own_encoders and has_own:
        assert stored.config.generator_config() == config.generator_config()
    assert stored.vocab.tokens == vocab.tokens
    assert stored.tokenizer_config.do_lower_case == config.do_lower_case


def reason_against(write, config, what) -> str | None:
    """The reason why a format cannot store a model, if any."""
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


SEEDS = [
    0,
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, len(KINDS))),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(len(KINDS), 200)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_exported_models_are_read_back(seed, tmp_path):
    rng = np.random.default_rng(seed)
    while (made := random_run(rng, tmp_path, seed)) is None:
        pass
    config, tensors = made
    vocab = Vocabulary.load(tmp_path / "vocab.txt")
    stored, _ = read(config.model_dir)
    assert_same(stored, config, tensors, vocab)
    has_discriminator = any(k.startswith(DISCRIMINATOR_HEAD) for k in tensors)
    writers = [(tf1.write_tf1, "all"), (huggingface.write_huggingface, "all")]
    if has_discriminator:
        writers.append((huggingface.write_huggingface, "discriminator"))
        writers.append((keras_hub.write_keras_hub, "discriminator"))
    for write, what in writers:
        out = tmp_path / f"{write.__name__}_{what}"
        if reason := reason_against(write, config, what):
            with pytest.raises(UserError, match=reason) as error:
                write(stored, what, out, **quiet)
            assert error.value.exit_code == EXIT_CONFIG and not out.exists()
            continue
        write(stored, what, out, **quiet)
        expected = tensors
        if what != "all":
            expected = networks.split(stored, what)[what].tensors
        if write is keras_hub.write_keras_hub:
            out = out / what
            expected = {k: v for k, v in expected.items() if k.startswith("electra/")}
        assert_same(read(out)[0], config, expected, vocab)


@pytest.fixture
def run(tmp_path):
    """(config, directory) of an uncased ELECTRA."""
    rng, config = np.random.default_rng(5), None
    while not (config and config.do_lower_case):
        config, _ = random_run(rng, tmp_path, 0) or (None, None)
    return config, Path(config.model_dir)


def exported(form, run, tmp_path):
    """The run's model in a format."""
    if form == "run":
        return run[1]
    stored, _ = read(run[1])
    if form == "tf1":
        return tf1.write_tf1(stored, "all", tmp_path / form, **quiet)
    out = tmp_path / form
    return huggingface.write_huggingface(stored, "discriminator", out, **quiet)


@pytest.mark.parametrize("form", ["run", "tf1", "huggingface", "original"])
def test_other_vocabularies_are_refused(form, run, tmp_path):
    if form == "original":
        tokens, place = golden("mlm").vocab.tokens, prefix_of("mlm")
        refused(place, EXIT_CONFIG, "--vocab-file", vocab_file=None)
        fields, others = ["1000 word embeddings"], [[*tokens, "more"]]
    else:
        tokens = Vocabulary.load(tmp_path / "vocab.txt").tokens
        place = exported(form, run, tmp_path)
        same_tokens = write_tokens(tmp_path / "same.txt", tokens)
        assert read(place, str(same_tokens.path))[0].vocab.tokens == tokens
        fields, others = ["another vocabulary"], [tokens[:-1], tokens[::-1]]
    for other in others:
        path = write_tokens(tmp_path / "other.txt", other).path
        refused(place, EXIT_CONFIG, *fields, vocab_file=str(path))


ROWS = "electra/embeddings/word_embeddings", "generator_predictions/output_bias"


@pytest.mark.parametrize("form", ["tf1", "huggingface", "keras_hub"])
def test_rows_beyond_the_vocabulary_are_left_out(form, tmp_path):
    """In every way of reading: whole, as a fine-tuning run and as a new run does."""
    stored, name = golden("mlm"), ROWS[0]
    tensors = dict(stored.tensors)
    for row in ROWS:
        tensors[row] = np.concatenate([tensors[row], tensors[row][:24]])
    spare = [f"[spare {i}]" for i in range(24)]
    wide = write_tokens(tmp_path / "wide.txt", [*stored.vocab.tokens, *spare])
    config = stored.config.replaced(vocab_size=len(wide))
    source = stored._replace(tensors=tensors, vocab=wide, config=config)
    what = {"tf1": "all", "huggingface": "generator"}.get(form, "encoder")
    request = WRITERS[form]
    place = request(source, what, tmp_path / "out", **quiet)
    place = place / what if form != "tf1" else place
    (place / "manifest.json").unlink()
    for other in ("vocab.txt.json", *["tokenizer.json"] * (form == "huggingface")):
        (place / other).unlink(missing_ok=True)
    [vocab_file] = [*place.rglob("vocab*.txt")]
    write_tokens(vocab_file, stored.vocab.tokens)
    hparams = {"do_lower_case": True} if form == "tf1" else {}
    model, log = read(place, hparams=hparams)
    assert log.count("left out: 24 rows of the embeddings") == 1
    kept = {k: v for k, v in stored.tensors.items() if k in model.tensors}
    assert len(kept) == len(model.tensors) and name in kept
    assert_equal_tensors(model.tensors, kept)
    lines = []
    tensors = readers.find(place, **quiet).tensors(lines.append)
    np.testing.assert_array_equal(tensors.get(name), kept[name])
    assert "left out: 24 rows" in "".join(lines)
    write_tokens(vocab_file, [*wide.tokens, "more"])
    texts = ("1024 word embeddings", "1025 tokens", "vocab_file")
    refused(place, EXIT_CONFIG, *texts, vocab_file=None, hparams=hparams)


def check_fits(model, config, vocab):
    model.check(config, vocab, EVALUATE if config.do_eval else RESUME)


@pytest.mark.parametrize("form", ["run", "tf1"])
@pytest.mark.parametrize(
    "changes",
    [{OVERRIDES: {"hidden_act": "linear"}}, {"objective": "electra_15"}],
    ids=["activation", "objective"],
)
def test_settings_that_no_shape_shows_must_fit_the_run(form, run, changes, tmp_path):
    config, vocab = run[0], Vocabulary.load(tmp_path / "vocab.txt")
    found = readers.find(exported(form, run, tmp_path), **quiet)
    own = config.to_dict()
    check_fits(found, config, vocab)

    def changed(hparams):
        overrides = own[OVERRIDES] | hparams.get(OVERRIDES, {})
        given = own | hparams | {OVERRIDES: overrides}
        return PretrainingConfig.from_hparams(own["data_dir"], "run", given)

    for action in ({}, {"do_train": False, "do_eval": True}):
        with pytest.raises(UserError) as error:
            check_fits(found, changed(changes | action), vocab)
        name = next(iter(changes.get(OVERRIDES, changes)))
        message = str(error.value)
        assert f"{found.origin} is another model: {name} is" in message
        fitting = json.loads(message.partition("These hparams fit it: ")[2])
        back = {OVERRIDES: changes.get(OVERRIDES, {}) | fitting.pop(OVERRIDES, {})}
        check_fits(found, changed(changes | action | fitting | back), vocab)


@pytest.mark.parametrize("form", ["run", "tf1", "huggingface"])
def test_hparams_cannot_contradict_the_files(run, form, tmp_path):
    config, place = run[0], exported(form, run, tmp_path)
    shape = config.model_config()
    changes = {"do_lower_case": False}
    if form != "huggingface":  # stores no objective
        changes["objective"] = "electra_15"
    heads = 1 if shape.num_attention_heads > 1 else shape.hidden_size
    overrides = {"num_attention_heads": heads, "hidden_act": "linear"}
    for name, value in (changes | overrides).items():
        given = {OVERRIDES: {name: value}} if name in overrides else {name: value}
        stored = getattr(shape if name in overrides else config, name)
        texts = (name, str(stored), str(value))
        refused(place, EXIT_CONFIG, *texts, vocab_file=None, hparams=given)
    # Hparams outside the model may be chosen.
    free = {"max_seq_length": 8, OVERRIDES: {"hidden_dropout_prob": 0.25}}
    found = read(place, hparams=free)[0].config
    assert found.max_seq_length == 8
    assert found.model_config().hidden_dropout_prob == 0.25


@pytest.mark.parametrize(
    ("name", "path"), [("model.safetensors", "."), ("m.ckpt-1.index", "m.ckpt-1")]
)
def test_a_pointer_of_git_lfs_is_named(tmp_path, name, path):
    (tmp_path / "config.json").write_text('{"model_type": "electra"}')
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=f"{name} is a git-lfs pointer"):
        readers.find(tmp_path / path, **quiet)
