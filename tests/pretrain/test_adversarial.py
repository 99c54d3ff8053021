# SPDX-License-Identifier: Apache-2.0
"""The policy gradient: by hand, without bias, and through nothing that it must not."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain.adversarial import policy_of
from tests.helpers.tiny_pretraining import assert_taught, tiny_batch, tiny_model

log = np.log


def policy(probabilities, samples, reward, baseline_logits, weights=None):
    samples = np.asarray(samples, np.int32)
    weights = np.ones(samples.shape) if weights is None else weights
    arrays = (log(probabilities), reward, baseline_logits, weights)
    logits, reward, baseline, weights = (tf.constant(a, tf.float32) for a in arrays)
    return policy_of(logits, tf.constant(samples), reward, baseline, weights, None)


def test_by_hand():
    """Three masked tokens, four words; the third slot is not in use.

    The generator's probabilities are 1/2 1/4 1/8 1/8 at both; it drew words 1 and 0.
    The first is a fake with D = 1/4, so R = -log(1 - 1/4) = log(4/3); the second is
    the original with D = 1/8, so R = log 8.
    Baselines of sigmoid 1/2 and 3/4: b = log 2 and log(4/3).
    Policy: -(log(1/4) (log(4/3) - log 2) + log(1/2) (log 8 - log(4/3))) / 2
          = -(0.5621 - 1.2420) / 2 = 0.3399.
    Baseline's cross-entropy: its targets exp(-R) are 3/4 and 1/8, so
      first  3/4 log 2 + 1/4 log 2 = log 2
      second 1/8 log(4/3) + 7/8 log 4
    and the mean is (0.6931 + 1.2490) / 2 = 0.9710.
    Entropy: 1/2 log 2 + 1/4 log 4 + 2/8 log 8 = 7/4 log 2.
    """
    p = [[[1 / 2, 1 / 4, 1 / 8, 1 / 8]] * 3]
    reward = [[log(4 / 3), log(8), 99.0]]
    found = policy(p, [[1, 0, 3]], reward, [[0, log(3), 5]], [[1, 1, 0]])
    np.testing.assert_allclose(found.baseline[0, :2], [log(2), log(4 / 3)], rtol=1e-5)
    expected = -(log(1 / 4) * log(2 / 3) + log(1 / 2) * log(6)) / 2
    baseline_loss = (log(2) + 1 / 8 * log(4 / 3) + 7 / 8 * log(4)) / 2
    assert expected == pytest.approx(0.3399, abs=1e-4)
    assert baseline_loss == pytest.approx(0.9710, abs=1e-4)
    assert float(found.baseline_loss) == pytest.approx(baseline_loss, rel=1e-5)
    assert float(found.loss) == pytest.approx(expected + baseline_loss, rel=1e-5)
    np.testing.assert_allclose(found.entropy, 7 / 4 * log(2), rtol=1e-5)


@pytest.mark.parametrize("baseline", [-3.0, 0.0, 2.0])
def test_the_gradient_has_no_bias(baseline):
    """Averaged over samples it is that of the expected reward, whatever the baseline.

    One token of four words, with a reward for each word.
    """
    logits = tf.Variable(np.random.default_rng(0).normal(size=[1, 1, 4]))
    rewards = tf.constant([0.1, 2.0, 0.5, 3.0], tf.float64)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.nn.softmax(logits) * rewards)
    expected = tape.gradient(value, logits)
    found = 0.0
    one = tf.ones([1, 1], tf.float64)
    for word in range(4):
        with tf.GradientTape() as tape:
            loss = policy_of(
                logits,
                tf.constant([[word]]),
                rewards[word] * one,
                baseline * one,
                one,
                one[0, 0] - 1e-6,
            ).loss
        # The generator goes up where the loss goes down.
        found -= tf.nn.softmax(logits)[0, 0, word] * tape.gradient(loss, logits)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


def test_the_baseline_learns_the_mean_of_the_probabilities():
    """Where sigmoid(z) is the mean of exp(-R), its gradient is zero."""
    reward = tf.constant([[0.2, 1.5, 0.7]])
    mean = float(tf.reduce_mean(tf.exp(-reward)))
    z = tf.Variable(log(mean / (1 - mean)), dtype=tf.float32)
    with tf.GradientTape() as tape:
        loss = policy_of(
            tf.zeros([1, 3, 4]),
            tf.zeros([1, 3], tf.int32),
            reward,
            z * tf.ones([1, 3]),
            tf.ones([1, 3]),
            None,
        ).loss
    assert abs(float(tape.gradient(loss, z))) < 1e-6


def test_rewards_are_the_discriminators_loss_at_the_samples():
    model = tiny_model("adversarial", temperature=0.7)
    batch = tiny_batch(repeated_masks="fixed")
    out = model(batch)
    found, used = out.discriminated, batch["masked_lm_weights"].numpy() > 0
    logits, labels = found.logits.numpy(), out.is_replaced.numpy()
    losses = np.logaddexp(0, np.where(labels, -logits, logits))
    expected = np.take_along_axis(losses, batch["masked_lm_positions"].numpy(), 1)
    np.testing.assert_allclose(
        found.policy.reward.numpy()[used], expected[used], rtol=1e-4
    )
    p = tf.nn.softmax(out.generated.logits / 0.7).numpy()
    entropy = -(p * log(p)).sum(-1)
    np.testing.assert_allclose(found.policy.entropy, entropy, rtol=1e-4)
    # The likelihood is measured, not learned.
    total = found.policy.loss + 50 * found.loss
    assert float(out.total_loss) == pytest.approx(float(total), rel=1e-5)


def test_who_learns_from_what():
    model, batch = tiny_model("adversarial"), tiny_batch(repeated_masks="fixed")
    losses = {
        "policy": lambda out: (
            out.discriminated.policy.loss - out.discriminated.policy.baseline_loss
        ),
        "baseline": lambda out: out.discriminated.policy.baseline_loss,
        "discriminator": lambda out: out.discriminated.loss,
    }
    taught = {
        "policy": ("generator/", "generator_predictions/", "electra/embeddings/"),
        "baseline": ("generator_baseline/",),
        "discriminator": ("electra/", "discriminator_predictions/"),
    }
    assert_taught(model, batch, losses, taught)
