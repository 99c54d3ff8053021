# SPDX-License-Identifier: Apache-2.0
"""Electric learns conditional log-probabilities as energies, as in its paper.

A distribution over four words is known exactly, by enumeration.  A tiny Electric,
trained on samples of it, must find its conditional probabilities, with a normaliser of
1 that nothing enforces (noise-contrastive estimation, the paper's section 2.2).
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.inference.pretrained_model import function_of
from electra_tf.pretrain import masking
from electra_tf.pretrain.heads import noise_contrastive_logits
from electra_tf.pretrain.pretraining import build_pretrainer
from tests.helpers.runs import NO_DROPOUT
from tests.helpers.tiny_pretraining import CLS, MASK, SEP, tiny_config

WORDS, LENGTH, FIRST_WORD = 7, 4, 5  # a vocabulary of 12 tokens
# Share of the sequences in which one of the four words is noise.  While a word is
# judged the others are true only if they are not noise, so it is small.
NOISY = 0.4
MASK_PROB = NOISY / LENGTH


def chain(seed=0):
    """log p of every sequence, float64 [7, 7, 7, 7]: a Markov chain's."""
    random = np.random.default_rng(seed)
    start = log_softmax(random.normal(0, 1, WORDS))
    step = log_softmax(random.normal(0, 1, (WORDS, WORDS)))
    total = start[:, None, None, None] + step[:, :, None, None]
    return total + step[None, :, :, None] + step[None, None, :, :]


def log_softmax(x, axis=-1):
    top = x.max(axis=axis, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis=axis, keepdims=True))


def conditionals(log_p):
    """log p(x_t | the others) of every sequence and position, [7, 7, 7, 7, 4]."""
    return np.stack([log_softmax(log_p, axis=t) for t in range(LENGTH)], axis=-1)


def sequences():
    """Ids of all sequences in the order of `chain`, with [CLS] and [SEP]: [7^4, 6]."""
    words = np.stack(np.indices([WORDS] * LENGTH), -1).reshape(-1, LENGTH) + FIRST_WORD
    ends = np.ones((len(words), 1), int)
    return np.concatenate([CLS * ends, words, SEP * ends], 1).astype(np.int32)


def test_the_right_energies_are_the_posterior_of_noise():
    """With E = -log p the training logit is Bayes' log odds of noise, signs and all."""
    log_p = conditionals(chain())
    log_q = conditionals(chain(seed=1))
    prior = 0.15
    energy = -log_p
    given = (tf.constant(values, tf.float32) for values in (energy, log_q))
    logits = noise_contrastive_logits(*given, prior)
    noise, data = prior * np.exp(log_q), (1 - prior) * np.exp(log_p)
    np.testing.assert_allclose(tf.sigmoid(logits), noise / (noise + data), atol=1e-6)

    # Another energy, or one with a normaliser other than 1, has a larger loss.
    def loss(energy):
        logits = energy + log_q + np.log(prior / (1 - prior))
        terms = noise * np.logaddexp(0, -logits) + data * np.logaddexp(0, logits)
        return terms.sum()

    random = np.random.default_rng(2)
    for change in (0.01, -0.01, *(random.normal(0, 0.01, (5, *energy.shape)))):
        assert loss(energy + change) > loss(energy)


def trained(log_p, steps, batch_size=256):
    """An Electric trained on samples of p, one word at a time replaced in some."""
    keras.utils.set_random_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"initializer_range": 0.2, "max_position_embeddings": 32}
    config = tiny_config(
        objective="electric",
        vocab_size=FIRST_WORD + WORDS,
        embedding_size=32,
        generator_hidden_size=1.0,
        mask_prob=MASK_PROB,
        disc_weight=10.0,
        model_hparam_overrides=shape | NO_DROPOUT,
    )
    model = build_pretrainer(config, (CLS, SEP, MASK))
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, alpha=1e-2, warmup_target=2e-3, warmup_steps=100
    )
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98)
    optimizer.build(model.trainable_variables)
    every = tf.constant(sequences())
    # The last is 1: rounding it down would draw an index beyond the end.
    up_to = np.append(np.cumsum(np.exp(log_p).ravel())[:-1], 1)
    up_to = tf.constant(up_to, tf.float32)

    def batch(step):
        key = tf.stack([tf.cast(step, tf.int32), 1])
        draw, size = tf.random.stateless_uniform, [batch_size, 1]
        which = tf.searchsorted(up_to, draw([batch_size], key), side="right")
        ids = tf.gather(every, which)
        place = draw(size, key + [0, 1], 1, LENGTH + 1, tf.int32)
        noisy = draw(size, key + [0, 2]) < NOISY
        place *= tf.cast(noisy, tf.int32)
        masked_ids = masking.gather_positions(ids, place)
        return {
            "input_ids": ids,
            "input_mask": tf.ones_like(ids),
            "segment_ids": tf.zeros_like(ids),
            "masked_input_ids": ids,  # the towers do not look at it
            "masked_lm_positions": place,
            "masked_lm_ids": masked_ids * tf.cast(noisy, tf.int32),
            "masked_lm_weights": tf.cast(noisy, tf.float32),
            "sample_uniform": draw(size, key + [0, 3]),
        }

    @tf.function(jit_compile=True, autograph=False)
    def train(step):
        with tf.GradientTape() as tape:
            loss = model(batch(step)).total_loss
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply_gradients(
            [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        )
        return loss

    for step in range(steps):
        train(tf.constant(step))
    return model


def estimates(model):
    """-E(x)_t of every sequence and position, [7, 7, 7, 7, 4]."""
    ids = tf.constant(sequences())
    electric = function_of(model, "electric", mask_id=3)
    scores = electric(ids, tf.ones_like(ids), tf.zeros_like(ids))
    return scores.numpy()[:, 1:-1].astype(np.float64).reshape(*[WORDS] * LENGTH, LENGTH)


@pytest.mark.thorough
def test_training_recovers_the_conditional_probabilities():
    log_p = chain()
    p = np.exp(log_p)
    expected, found = conditionals(log_p), estimates(trained(log_p, steps=1200))
    for place in range(LENGTH):
        truth, ours = expected[..., place], found[..., place]
        assert p.ravel() @ np.abs(ours - truth).ravel() < 0.3
        # Not the words' frequencies only, which ignore the context.
        others = tuple(i for i in range(LENGTH) if i != place)
        alone = np.log(p.sum(axis=others, keepdims=True))
        ignorance = (p * (truth - alone)).sum()
        divergence = (p * (truth - log_softmax(ours, axis=place))).sum()
        assert divergence < ignorance / 3
        assert np.corrcoef(ours.ravel(), truth.ravel())[0, 1] > 0.7
        # The normaliser of each context, weighted by how often it occurs, goes to 1;
        # it begins at 7, with energies of 0.
        normalizer = np.log(np.exp(ours).sum(axis=place))
        assert np.sqrt((normalizer**2 * p.sum(axis=place)).sum()) < 0.3
