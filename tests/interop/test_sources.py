# SPDX-License-Identifier: Apache-2.0
"""Runs of random configurations: out in each format and back, or refused by name."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.generators import GENERATORS, MASKED_LM_HEAD
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_CONFIG, UserError
from electra_tf.interop import huggingface, keras_hub, networks, sources, tf1
from electra_tf.interop.stored_model import DISCRIMINATOR_HEAD, empty_pretrainer
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import SPECIAL_TOKENS, Vocabulary, write_tokens

pytest.importorskip("safetensors")
quiet = {"log": lambda line: None}
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
    head, act = GENERATORS[config.generator_kind].head, config.model_config().hidden_act
    if what == "all" and head not in (None, MASKED_LM_HEAD):
        return f"{config.generator_kind.replace('_', '-')} generator"
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
