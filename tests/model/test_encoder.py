# SPDX-License-Identifier: Apache-2.0
"""The encoder: attention and padding, dropout, precision, serialisation."""

import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.errors import UserError
from electra_tf.model import attention, layers
from electra_tf.model import encoder as modeling
from tests.helpers.runs import by_default
from tests.helpers.tiny_pretraining import tiny_batch, tiny_config, tiny_model

ROWS, LENGTH, WIDTH, VOCAB_SIZE = 3, 12, 16, 60


def config(**changes) -> ModelConfig:
    values = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 20,
        "initializer_range": 0.3,
    }
    return ModelConfig(**(values | changes))


def encoder(embedding_size=8, seed=0, direction="bidirectional", dtype=None, **changes):
    layer = modeling.TextEncoder(
        config(**changes), embedding_size, direction=direction, dtype=dtype
    )
    layer.build(None)
    randomise(layer, seed)
    return layer


def randomise(layer, seed=0):
    rng = np.random.default_rng(seed)
    for variable in layer.weights:
        noise = rng.normal(0, 0.3, variable.shape)
        variable.assign(noise + 1.0 * ("gamma" in variable.path))


def text(lengths=(12, 9, 5), length=LENGTH, seed=0):
    """input_ids, input_mask, segment_ids [B, L]."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, (len(lengths), length)).astype(np.int32)
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    segments = (np.arange(length) >= 4).astype(np.int32) * mask
    return ids * mask, mask, segments


def states(layer, inputs, seed=None):
    return layer(*(tf.constant(x) for x in inputs), seed).sequence_output.numpy()


def influence(layer, inputs):
    """[B, L, L]: change of the state at the second position by a token at the first."""
    before = states(layer, inputs)
    ids = inputs[0]
    changes = []
    for position in range(ids.shape[1]):
        changed = ids.copy()
        changed[:, position] = changed[:, position] % (VOCAB_SIZE - 6) + 6
        after = states(layer, (changed, *inputs[1:]))
        changes.append(np.abs(after - before).max(axis=-1))
    return np.stack(changes, axis=1)


@pytest.mark.parametrize("direction", attention.DIRECTIONS)
def test_direction(direction):
    inputs = text()
    found = influence(encoder(direction=direction), inputs) > 0
    source, target = np.indices([LENGTH, LENGTH])
    seen = {
        "bidirectional": np.ones([LENGTH, LENGTH], bool),
        "ltr": source <= target,
        "rtl": source >= target,
    }[direction]
    for row, mask in enumerate(inputs[1].astype(bool)):
        # A real position sees exactly the real ones in its direction, and itself.
        expected = seen & (mask[:, None] | np.eye(LENGTH, dtype=bool))
        np.testing.assert_array_equal(found[row][:, mask], expected[:, mask])
    # The amount of padding has no influence, either.
    layer, real = encoder(direction=direction), inputs[1][1:, :10].astype(bool)
    shorter = states(layer, [x[1:, :10] for x in inputs])[real]
    longer = states(layer, inputs)[1:, :10][real]
    np.testing.assert_allclose(shorter, longer, atol=2e-6)


def test_attention_without_visible_keys_is_to_all():
    """-10000 is added, not -inf: where every key has it, it makes no difference."""
    ids, mask, segments = text((12, 0))
    alone = states(encoder(), (ids, mask, segments))
    assert np.isfinite(alone).all()
    unmasked = states(encoder(), (ids, np.ones_like(mask), segments))
    # Scores around -10000 keep three decimals.
    np.testing.assert_allclose(alone[1], unmasked[1], atol=0.02)
    np.testing.assert_array_equal(alone[0], unmasked[0])


def test_same_numbers_in_a_graph_of_unknown_shape():
    layer = encoder()
    spec = tf.TensorSpec([None, None], tf.int32)
    function = lambda *x: layer(*x).sequence_output  # noqa: E731
    traced = tf.function(function, input_signature=[spec] * 3)
    compiled = tf.function(function, jit_compile=True)
    for inputs in (text(), text((3, 7), length=7), text((20,), length=20)):
        found = traced(*(tf.constant(x) for x in inputs))
        np.testing.assert_allclose(found, states(layer, inputs), atol=2e-6)
    found = compiled(*(tf.constant(x) for x in text()))
    np.testing.assert_allclose(found, states(layer, text()), atol=5e-6)


# Dropout.


def transparent_encoder(which):
    """An encoder whose layer outputs show the mask of one of their dropouts.

    All kernels are 0 and one bias is huge: after the layer norm the sign of an entry
    says whether dropout kept it.
    """
    shape = {"embedding_size": 64, "hidden_size": 64, "num_hidden_layers": 3}
    layer = encoder(**shape, hidden_dropout_prob=0.1, num_attention_heads=4)
    for variable in layer.encoder.weights:
        value = float(variable.path.endswith("gamma"))
        of_attention = "/attention/output/dense/bias" in variable.path
        if variable.path.endswith("/output/dense/bias"):
            value = 1e4 if of_attention == (which == "attention") else 0.0
        variable.assign(tf.fill(variable.shape, value))
    return layer


def test_layers_and_steps_have_their_own_masks():
    inputs = [tf.constant(x) for x in text((12,) * 8)]
    layers = [transparent_encoder(which) for which in ("attention", "feed_forward")]

    def masks(seed):
        outs = [layer(*inputs, tf.constant(seed)).all_layer_outputs for layer in layers]
        return [x.numpy().reshape(-1) > 0 for x in itertools.chain(*outs)]

    first = masks([42, 0])
    assert len(first) == 6
    for mask in first:
        assert abs(mask.mean() - 0.9) < 5 * np.sqrt(0.09 / mask.size)
    for one, other in zip(first, masks([42, 0]), strict=True):
        np.testing.assert_array_equal(one, other)
    unrelated = first + masks([42, 1]) + masks([43, 0])
    for one, other in itertools.combinations(unrelated, 2):
        agreement = (one == other).mean()
        assert abs(agreement - 0.82) < 5 * np.sqrt(0.82 * 0.18 / one.size)


@pytest.mark.parametrize("policy", by_default([None, "mixed_bfloat16"], [None]))
def test_layers_traced_once_compute_and_learn_the_same(policy):
    """In a graph for training, one trace serves all layers; dropout included."""
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    layer = encoder(num_hidden_layers=4, dtype=policy, **dropout)
    inputs = [tf.constant(x) for x in text()]
    weights = [v.value for v in layer.trainable_variables]

    def outputs_and_gradients():
        with tf.GradientTape() as tape:
            found = layer(*inputs, tf.constant([42, 7]))
            loss = tf.reduce_sum(tf.sin(tf.cast(found.sequence_output, "float32")))
        gradients = tape.gradient(loss, weights)
        found = [*found.all_layer_outputs, *map(tf.convert_to_tensor, gradients)]
        return [tf.cast(x, "float32") for x in found]

    eager = outputs_and_gradients()
    graph = tf.function(outputs_and_gradients, autograph=False)()
    largest = max(np.abs(x).max() for x in eager)
    atol = largest * (0.02 if policy else 1e-6)
    for one, other in zip(eager, graph, strict=True):
        np.testing.assert_allclose(one, other, atol=atol)


def test_embedding_and_attention_dropout():
    inputs = [tf.constant(x) for x in text((12,) * 8)]
    layer = encoder(embedding_size=WIDTH, hidden_dropout_prob=0.2)
    out = layer(*inputs, tf.constant([1, 2])).embedding_output.numpy()
    assert (out == 0).mean() == pytest.approx(0.2, abs=0.05)
    layer = encoder(attention_probs_dropout_prob=0.2)
    plain = layer(*inputs)
    outs = [layer(*inputs, tf.constant([1, s])) for s in (2, 2, 3)]
    np.testing.assert_array_equal(outs[0].embedding_output, plain.embedding_output)
    first, again, other = (out.all_layer_outputs[0].numpy() for out in outs)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert np.abs(first - plain.all_layer_outputs[0]).max() > 0.01


# Keras.


def test_encoder_from_config():
    layer = encoder(direction="rtl", dtype="mixed_bfloat16", hidden_act="relu")
    copy = modeling.TextEncoder.from_config(json.loads(json.dumps(layer.get_config())))
    assert copy.get_config() == layer.get_config()
    earlier = layer.get_config()
    earlier["config"]["attention_chunk_size"] = 8
    assert modeling.TextEncoder.from_config(earlier).config == layer.config
    copy.build(None)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(states(copy, text()), states(layer, text()))


def test_residual_embeddings_are_saved_with_their_pretrainer_only():
    model = tiny_model("disentangled")
    assert model.generator.encoder.get_config()["embedding_size"] == 8
    with pytest.raises(ValueError, match="save the ElectraPretrainer"):
        model.electra.get_config()


def test_weights_that_are_not_float32_are_refused():
    floatx = keras.config.floatx()
    keras.config.set_floatx("float16")
    try:
        with pytest.raises(UserError, match="policy is float16.*\n.*mixed_float16"):
            modeling.TextEncoder(ModelConfig(vocab_size=50), 16, dtype="float16")
    finally:
        keras.config.set_floatx(floatx)


def test_layer_norm_statistics_are_float32():
    layer = layers.LayerNorm(dtype="mixed_float16")
    layer.build((None, 64))
    x = np.random.default_rng(0).normal(300, 1, (4, 64)).astype(np.float16)
    out = np.float32(layer(tf.constant(x)))
    y = np.float64(x)
    expected = (y - y.mean(1, keepdims=True)) / y.std(1, keepdims=True)
    np.testing.assert_allclose(out, expected, atol=3e-3)


def test_hidden_act_is_used_everywhere():
    """In the feed-forward layers and both heads."""
    overrides = tiny_config().model_hparam_overrides
    losses = {}
    for name in ("gelu", "relu", "linear"):
        model = tiny_model(model_hparam_overrides=overrides | {"hidden_act": name})
        parts = (
            model.electra.encoder.transformer_layers[0],
            model.generator.encoder.encoder.transformer_layers[0],
            model.generator.head,
            model.discriminator_predictions,
        )
        assert all(p.activation is layers.activation(name) for p in parts)
        losses[name] = float(model(tiny_batch()).total_loss)
    assert len(set(losses.values())) == 3, losses
