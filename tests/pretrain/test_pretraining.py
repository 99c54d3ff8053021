# SPDX-License-Identifier: Apache-2.0
"""The pre-training model: corruption, losses, metrics, precision, and as a Keras model.

Which weights learn from which loss: test_objectives.py.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain import generators
from electra_tf.pretrain.metrics import evaluation_metrics
from electra_tf.pretrain.pretraining import ElectraPretrainer, LossWeights, task_of
from electra_tf.train.optimization import AdamWeightDecay
from tests.helpers.statistics import assert_like
from tests.helpers.tiny_pretraining import (
    VOCAB_SIZE,
    each_variant,
    gradients,
    shared_model,
    shared_output,
    tiny_batch,
    tiny_model,
    total_gradients,
)

SEED = (5, 6)


# Generate, corrupt, discriminate.


@pytest.mark.parametrize("variant", ["electra", "tied_all", "electric", "uniform"])
def test_correct_samples(variant):
    """They are original tokens in ELECTRA, and noise in Electric.

    Logits are then those of `replaced_logits`, which reads a text without masks.
    """
    model, batch = shared_model(variant), tiny_batch(repeated_masks="fixed")
    batch["sampled_ids"] = batch["masked_lm_ids"]
    text = [batch[name] for name in ("input_ids", "input_mask", "segment_ids")]
    out = model(batch)
    np.testing.assert_array_equal(out.corrupted_ids, text[0])
    noise = np.sum(batch["masked_lm_weights"]) if variant == "electric" else 0
    assert np.sum(out.is_replaced) == noise
    near = {"rtol": 1e-5, "atol": 1e-5}
    found, expected = model.replaced_logits(*text), out.discriminated
    np.testing.assert_allclose(found, expected.logits, **near)
    found = model.replaced_logits(*text, net_only=True)
    np.testing.assert_allclose(found, expected.net_logits, **near)


@pytest.mark.parametrize(
    "variant, disallow_correct",
    [("electra", False), ("electra", True), ("electric", False)],
)
def test_samples_come_from_the_generator(variant, disallow_correct):
    settings = {"temperature": 0.6, "disallow_correct": disallow_correct}
    model, batch = tiny_model(variant, **settings), tiny_batch(rows=64)
    out = model(batch)
    ids = batch["masked_lm_ids"]
    expected = generators.sample_from_softmax(
        out.generated.logits,
        batch["sample_uniform"],
        temperature=0.6,
        disallowed_ids=ids if disallow_correct else None,
    )
    np.testing.assert_array_equal(out.sampled_ids, expected)
    used = batch["masked_lm_weights"].numpy() > 0
    right = (out.sampled_ids.numpy() == ids.numpy())[used]
    # About one in a hundred of some 200 draws would be right.
    assert right.sum() == 0 if disallow_correct else right.sum() > 0


@pytest.mark.parametrize("disallow_correct", [False, True])
def test_uniform_samples(disallow_correct):
    model = tiny_model("uniform", disallow_correct=disallow_correct)
    batch = tiny_batch(rows=512)
    sampled = model(batch).sampled_ids.numpy()
    used = batch["masked_lm_weights"].numpy() > 0
    right = (sampled == batch["masked_lm_ids"].numpy())[used].sum()
    assert right == 0 if disallow_correct else right > 0
    counts = np.bincount(sampled.reshape(-1), minlength=VOCAB_SIZE)
    assert_like(counts, np.full(VOCAB_SIZE, sampled.size / VOCAB_SIZE))


def test_weights_of_losses_and_a_logit_of_zero():
    """A logit of zero means "original"."""
    model = tiny_model("electra", gen_weight=0.25, disc_weight=3.0)
    out = model(tiny_batch())
    expected = 0.25 * out.generated.loss + 3.0 * out.discriminated.loss
    assert float(out.total_loss) == pytest.approx(float(expected), rel=1e-6)
    for variable in model.discriminator_predictions.weights:
        variable.assign(tf.zeros(variable.shape))
    out = model(tiny_batch())
    assert not np.any(out.discriminated.logits)
    assert not np.any(out.discriminated.predictions)
    np.testing.assert_array_equal(out.discriminated.probs, 0.5)


# Parts of a global batch.


@pytest.mark.parametrize("variant", each_variant("coco_lm"))
def test_parts_of_a_batch_add_up(variant):
    """With the weights of the whole, losses and gradients of parts are summands."""
    model, batch = shared_model(variant), tiny_batch(rows=6)
    parts = [
        {name: value[:2] for name, value in batch.items()},
        {name: value[2:] for name, value in batch.items()},
    ]
    shares = list(map(task_of(model).divisors, parts))
    weights = LossWeights(*(sum(values) for values in zip(*shares, strict=True)))
    total = {"total": lambda out: out.total_loss}
    whole = gradients(model, total, batch)
    found = [gradients(model, total, part, weights=weights) for part in parts]
    loss = whole["loss"]["total"]
    assert sum(f["loss"]["total"] for f in found) == pytest.approx(loss, rel=1e-5)
    # With weights of their own they would not be.
    apart = sum(float(model(part).total_loss) for part in parts)
    assert apart != pytest.approx(loss, rel=1e-2)
    for path, expected in whole["total"].items():
        summed = sum(f["total"][path] for f in found)
        atol = 2e-5 * np.abs(expected).max() + 1e-6
        np.testing.assert_allclose(summed, expected, atol=atol, err_msg=path)


def test_auc_is_the_probability_of_the_right_order():
    model, batch = shared_model(), tiny_batch(rows=64)
    out = model(batch)
    sums = out.sums
    metrics = evaluation_metrics(model.objective.metrics, sums)
    mask = batch["input_mask"].numpy() > 0
    labels, probs = out.is_replaced.numpy(), out.discriminated.probs.numpy()

    def auc(positive, negative):
        diff = positive[:, None] - negative[None]
        return (diff > 0).mean() + 0.5 * (diff == 0).mean()

    fake, real = probs[labels & mask], probs[~labels & mask]
    # 200 thresholds approximate it.
    assert metrics["disc_auc_tokens"] == pytest.approx(auc(fake, real), abs=0.01)
    padded = np.concatenate([real, np.zeros((~mask).sum())])
    assert metrics["disc_auc"] == pytest.approx(auc(fake, padded), abs=0.01)
    assert metrics["disc_auc"] > metrics["disc_auc_tokens"] + 0.05


# Dropout, compilation and precision.


def test_training_is_a_function_of_the_seed():
    model, batch = tiny_model(dropout=0.2), tiny_batch()
    seeds = [tf.constant(s) for s in ((1, 2), (1, 2), (1, 3), (2, 2))]
    losses = [float(model(batch, training=True, seed=s).total_loss) for s in seeds]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3
    still = float(model(batch).total_loss)
    assert still not in losses
    assert float(model(batch, seed=tf.constant((1, 2))).total_loss) == still
    # Without a seed each call draws its own.
    free = {float(model(batch, training=True).total_loss) for _ in range(3)}
    assert len(free) == 3


def test_steps_have_dropout_and_evaluations_none():
    task, batch = task_of(tiny_model(dropout=0.5)), tiny_batch()
    losses = [float(task.loss(batch, key, None)[0]) for key in (SEED, (5, 7))]
    losses += [float(task.loss(batch, None, None)[0]) for _ in range(2)]
    assert len({*losses}) == 3 and losses[2] == losses[3]


def test_generator_and_discriminator_have_dropout_of_their_own():
    """Tied networks that read the same text do not share a mask."""
    model = tiny_model("tied_all", dropout=0.2)
    batch = tiny_batch()
    batch["masked_input_ids"] = batch["input_ids"]
    batch["sampled_ids"] = batch["masked_lm_ids"]
    seen = []
    call = model.electra.call

    def record(*args, **kwargs):
        seen.append(call(*args, **kwargs).sequence_output)
        return call(*args, **kwargs)

    model.electra.call = record
    model(batch, training=True, seed=tf.constant(SEED))
    generator, discriminator = seen
    assert np.abs(generator - discriminator).mean() > 0.1
    seen.clear()
    model(batch)
    np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize(
    "variant, policy",
    [
        ("electra", "mixed_float16"),
        ("tied_all", "mixed_bfloat16"),
        ("mlm", "mixed_float16"),
        ("electric", "mixed_bfloat16"),
    ],
)
def test_mixed_precision(variant, policy):
    batch = tiny_batch()
    batch["sampled_ids"] = (batch["masked_lm_ids"] + 7) % VOCAB_SIZE
    exact = shared_model(variant)(batch)
    model = shared_model(variant, dtype=policy)
    assert {v.dtype for v in model.weights} == {"float32"}
    mixed = model(batch)
    close = 0.05 if policy == "mixed_bfloat16" else 0.01
    for ours, theirs in (
        (mixed.total_loss, exact.total_loss),
        (mixed.generated.loss, exact.generated.loss),
    ):
        assert ours.dtype == tf.float32
        assert float(ours) == pytest.approx(float(theirs), rel=close)
        assert float(ours) != float(theirs)
    if mixed.discriminated is not None:
        assert mixed.discriminated.logits.dtype == tf.float32
        difference = np.abs(mixed.discriminated.logits - exact.discriminated.logits)
        assert difference.mean() < 2 * close
    for path, gradient in total_gradients(model, batch).items():
        assert gradient.dtype == np.float32 and np.isfinite(gradient).all(), path


def test_log_q_agrees_with_the_cloze_loss_in_mixed_precision():
    """One log q, as a loss and as an input of the discriminator."""
    batch = tiny_batch()
    batch["sampled_ids"] = batch["masked_lm_ids"]
    batch["masked_lm_positions"] = tf.zeros_like(batch["masked_lm_positions"])
    out = shared_model("electric", dtype="mixed_bfloat16")(batch)
    np.testing.assert_array_equal(out.corrupted_ids, batch["input_ids"])
    found = out.discriminated.logits - out.discriminated.net_logits
    found -= np.log(0.15 / 0.85)
    expected = -out.generated.cloze.per_token_loss
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# As an ordinary Keras model: saved, compiled, fitted.


@pytest.mark.parametrize("variant", each_variant())
def test_from_config_and_weights_file(variant, tmp_path):
    model, path = shared_model(variant), tmp_path / "model.weights.h5"
    config = json.loads(json.dumps(model.get_config()))
    config["config"]["sample_steps"] = 9  # has left
    copy = ElectraPretrainer.from_config(config)
    assert copy.get_config() == model.get_config()
    assert [v.path for v in copy.weights] == [v.path for v in model.weights]
    model.save_weights(path)
    copy.load_weights(path)
    ours, theirs = copy(tiny_batch()), shared_output(variant)
    assert float(ours.total_loss) == float(theirs.total_loss)
    np.testing.assert_array_equal(ours.sampled_ids, theirs.sampled_ids)


def dataset(rows=8):
    return tf.data.Dataset.from_tensor_slices(tiny_batch(rows=rows)).batch(4)


@pytest.mark.thorough
def test_fit_equals_a_plain_loop():
    fitted, looped = tiny_model("mlm"), tiny_model("mlm")
    fitted.compile(optimizer=AdamWeightDecay(1e-3), jit_compile=False)
    fitted.fit(dataset(), verbose=0)
    optimizer = AdamWeightDecay(1e-3)
    variables = looped.trainable_variables
    optimizer.build(variables)
    for batch in dataset():
        with tf.GradientTape() as tape:
            loss = looped(batch, training=True).total_loss
        found = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply(found, variables)
    for one, two in zip(fitted.weights, looped.weights, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5, err_msg=one.path)
