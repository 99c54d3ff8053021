# SPDX-License-Identifier: Apache-2.0
"""The pre-training model: corruption, losses, who learns from what, Keras."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.pretrain import masking
from electra_tf.pretrain.metrics import evaluation_metrics
from electra_tf.pretrain.pretraining import LossWeights, build_pretrainer
from tests.helpers.runs import GOLDEN
from tests.helpers.tiny_pretraining import (
    ROWS,
    SPECIAL_IDS,
    VARIANTS,
    VOCAB_SIZE,
    each_variant,
    gradients,
    tiny_batch,
    tiny_model,
)

RECORDINGS = GOLDEN / "pretrain"
SEED = (5, 6)


def with_discriminator():
    """The variants with the original's objectives; others have tests of their own."""
    own = [name for name, hparams in VARIANTS.items() if "objective" in hparams]
    return [name for name in VARIANTS if name not in ("mlm", *own)]


# Names and sharing.


@pytest.mark.parametrize("recording", sorted(os.listdir(RECORDINGS)))
def test_variables_are_the_originals(recording):
    """Names and shapes, each variable once, for every way of sharing weights."""
    described = json.loads((RECORDINGS / recording / "config.json").read_text())
    listed = json.loads((RECORDINGS / recording / "variables.json").read_text())
    config = PretrainingConfig.from_hparams("/nowhere", "x", described["hparams"])
    model = build_pretrainer(config, SPECIAL_IDS)
    expected = {v["name"]: tuple(v["shape"]) for v in listed["trainable"]}
    found = {v.path: tuple(v.shape) for v in model.trainable_variables}
    assert found == expected
    assert len(model.trainable_variables) == len(expected)
    assert len(model.weights) == len(expected)
    size = sum(int(np.prod(shape)) for shape in expected.values())
    assert model.count_params() == size


@pytest.mark.parametrize("variant", each_variant())
def test_shared_variables_are_counted_once(variant):
    model = tiny_model(variant)
    paths = [v.path for v in model.trainable_variables]
    assert len(paths) == len(set(paths))
    tables = [path for path in paths if path.endswith("word_embeddings")]
    untied = {"untied_embeddings": 2, "electric_untied": 3, "two_stage": 2}
    assert len(tables) == untied.get(variant, 1)


def test_two_models_in_one_process_have_the_same_names():
    first, second = tiny_model(), tiny_model()
    assert [v.path for v in first.weights] == [v.path for v in second.weights]


# Generate, corrupt, discriminate.


@pytest.mark.parametrize("variant", each_variant())
def test_corruption_and_labels(variant):
    model, batch = tiny_model(variant), tiny_batch()
    out = model(batch)
    ids = batch["input_ids"].numpy()
    positions = batch["masked_lm_positions"].numpy()
    masked = np.zeros(ids.shape, bool)
    expected = ids.copy()
    for row in range(ROWS):
        for position in set(positions[row]) - {0}:
            here = positions[row] == position
            samples = out.sampled_ids.numpy()[row][here]
            expected[row, position] = samples.sum() // len(samples)
            masked[row, position] = True
    np.testing.assert_array_equal(out.corrupted_ids, expected)
    replaced = masked if "electric" in variant else masked & (expected != ids)
    np.testing.assert_array_equal(out.is_replaced, replaced)
    assert replaced.any()


@pytest.mark.parametrize("variant", ["electra", "electric", "uniform"])
def test_a_sample_that_is_right(variant):
    """To ELECTRA it is an original token, to Electric it is noise all the same."""
    model, batch = tiny_model(variant), tiny_batch(repeated_masks="fixed")
    batch["sampled_ids"] = batch["masked_lm_ids"]
    out = model(batch)
    np.testing.assert_array_equal(out.corrupted_ids, batch["input_ids"])
    if variant == "electric":
        assert tf.reduce_sum(tf.cast(out.is_replaced, tf.float32)) == tf.reduce_sum(
            batch["masked_lm_weights"]
        )
    else:
        assert not tf.reduce_any(out.is_replaced)


@pytest.mark.parametrize("variant", ["electra", "tied_all", "electric", "two_tower"])
@pytest.mark.parametrize("disallow_correct", [False, True])
def test_samples_come_from_the_generator(variant, disallow_correct):
    settings = {"temperature": 0.6, "disallow_correct": disallow_correct}
    model, batch = tiny_model(variant, **settings), tiny_batch(rows=64)
    out = model(batch)
    ids = batch["masked_lm_ids"]
    expected = masking.sample_from_softmax(
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
    out = model(batch)
    used = batch["masked_lm_weights"].numpy() > 0
    sampled = out.sampled_ids.numpy()
    assert sampled.min() >= 0 and sampled.max() < VOCAB_SIZE
    right = (sampled == batch["masked_lm_ids"].numpy())[used].sum()
    assert right == 0 if disallow_correct else right > 0
    counts = np.bincount(sampled.reshape(-1), minlength=VOCAB_SIZE)
    expected = sampled.size / VOCAB_SIZE
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (VOCAB_SIZE - 1)) < 5 * np.sqrt(2 * VOCAB_SIZE)


@pytest.mark.parametrize("variant", with_discriminator())
def test_discriminator_loss(variant):
    """Cross-entropy over the real tokens, special ones included."""
    model, batch = tiny_model(variant), tiny_batch()
    out = model(batch)
    logits, labels = out.discriminated.logits.numpy(), out.is_replaced.numpy()
    losses = np.logaddexp(0, np.where(labels, -logits, logits))
    mask = batch["input_mask"].numpy()
    assert float(out.discriminated.loss) == pytest.approx(
        (losses * mask).sum() / mask.sum(), rel=1e-5
    )
    np.testing.assert_allclose(
        out.discriminated.per_example_loss,
        (losses * mask).sum(1) / mask.sum(1),
        rtol=1e-5,
    )
    np.testing.assert_array_equal(out.discriminated.predictions, logits > 0)
    total = out.generated.loss + 50.0 * out.discriminated.loss
    assert float(out.total_loss) == pytest.approx(float(total), rel=1e-6)


def test_a_logit_of_zero_means_original():
    model = tiny_model("uniform")
    for variable in model.discriminator_predictions.weights:
        variable.assign(tf.zeros(variable.shape))
    out = model(tiny_batch())
    assert not np.any(out.discriminated.logits)
    assert not np.any(out.discriminated.predictions)
    np.testing.assert_array_equal(out.discriminated.probs, 0.5)


def test_weights_of_the_losses():
    batch = tiny_batch()
    out = tiny_model("electra")(batch)
    weighted = tiny_model("electra", gen_weight=0.25, disc_weight=3.0)(batch)
    expected = 0.25 * out.generated.loss + 3.0 * out.discriminated.loss
    assert float(weighted.total_loss) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("variant", ["electric", "electric_untied"])
@pytest.mark.parametrize("mask_prob", [0.15, 0.4])
def test_electric_adds_log_q_and_prior(variant, mask_prob):
    model, batch = tiny_model(variant, mask_prob=mask_prob), tiny_batch()
    out = model(batch)
    cloze, generator = out.generated.cloze, model.generator
    scores = generator.head.logits(
        cloze.hidden, generator.ltr.embeddings.word_embeddings.value
    )
    log_q = tf.gather(tf.nn.log_softmax(scores), out.corrupted_ids, batch_dims=2)
    expected = (
        out.discriminated.net_logits + log_q + np.log(mask_prob / (1 - mask_prob))
    )
    np.testing.assert_allclose(out.discriminated.logits, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(log_q).max() > 1


@pytest.mark.parametrize("variant", with_discriminator())
def test_replaced_logits_are_those_of_a_batch_without_replacements(variant):
    model, batch = tiny_model(variant), tiny_batch()
    batch["sampled_ids"] = batch["masked_lm_ids"]
    text = [batch[name] for name in ("input_ids", "input_mask", "segment_ids")]
    out = model(batch)
    np.testing.assert_array_equal(out.corrupted_ids, text[0])
    np.testing.assert_allclose(
        model.replaced_logits(*text), out.discriminated.logits, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        model.replaced_logits(*text, net_only=True),
        out.discriminated.net_logits,
        rtol=1e-5,
        atol=1e-5,
    )


# Who learns from what.

LEARN_NOTHING = ("uniform", "unigram", "electric_unigram")  # generators


def is_generator(path):
    """Belongs to the generator alone."""
    return path.startswith(("generator", "cloze"))


@pytest.mark.parametrize("variant", with_discriminator())
def test_discriminator_loss_teaches_no_generator(variant):
    """Sampling and log q stop the gradient."""
    model, batch = tiny_model(variant), tiny_batch()
    found = gradients(model, lambda out: out.discriminated.loss, batch)
    own = {path: g for path, g in found.items() if is_generator(path)}
    assert own or variant in LEARN_NOTHING
    for path, gradient in own.items():
        assert gradient is None or not gradient.any(), path
    for path, gradient in found.items():
        # A token type or position may not occur; a key's bias has no influence.
        if not is_generator(path) and not path.endswith("key/bias"):
            assert np.any(gradient), path


@pytest.mark.parametrize("variant", each_variant())
def test_generator_loss_teaches_no_discriminator(variant):
    model, batch = tiny_model(variant), tiny_batch()
    found = gradients(model, lambda out: out.generated.loss, batch)
    shares_encoder = variant in ("tied_all", "mlm")
    for path, gradient in found.items():
        taught = is_generator(path) or (
            shares_encoder and not path.startswith("discriminator")
        )
        if path.startswith("electra/embeddings/"):
            taught = variant not in (
                "untied_embeddings",
                "disentangled",
                "electric_untied",
                "two_stage",
            )
        if variant in LEARN_NOTHING or path.startswith("generator_baseline/"):
            taught = False  # The baseline learns from what the discriminator says.
        if path.endswith("key/bias"):
            continue
        assert (gradient is not None and gradient.any()) == taught, path


def test_disc_weight_zero_leaves_the_generators_gradient():
    batch = tiny_batch()
    whole = tiny_model("electra", disc_weight=0.0)
    alone = gradients(whole, lambda out: out.total_loss, batch)
    both = gradients(tiny_model("electra"), lambda out: out.total_loss, batch)
    for path in both:
        if is_generator(path):
            np.testing.assert_allclose(both[path], alone[path], rtol=1e-5, atol=1e-8)


# Parts of a global batch.


@pytest.mark.parametrize("variant", each_variant())
def test_parts_of_a_batch_add_up(variant):
    """With the weights of the whole, losses and gradients of parts are summands."""
    model, batch = tiny_model(variant), tiny_batch(rows=5)
    total = lambda out: out.total_loss  # noqa: E731
    parts = [
        {name: value[:2] for name, value in batch.items()},
        {name: value[2:] for name, value in batch.items()},
    ]
    shares = [model.loss_weights(part) for part in parts]
    weights = LossWeights(*(sum(values) for values in zip(*shares, strict=True)))
    whole = gradients(model, total, batch)
    summands = [gradients(model, total, part, weights=weights) for part in parts]
    losses = [float(model(part, weights=weights).total_loss) for part in parts]
    assert sum(losses) == pytest.approx(float(model(batch).total_loss), rel=1e-5)
    # With weights of their own they would not be.
    apart = [float(model(part).total_loss) for part in parts]
    assert sum(apart) != pytest.approx(float(model(batch).total_loss), rel=1e-2)
    for path, expected in whole.items():
        if expected is None:
            continue
        found = summands[0][path] + summands[1][path]
        atol = 2e-5 * np.abs(expected).max() + 1e-6
        np.testing.assert_allclose(found, expected, atol=atol, err_msg=path)


def sums_of(model, batch):
    return model.objective.sums(model(batch), batch)


def metrics_of(model, sums):
    return evaluation_metrics(model.objective.metrics, sums)


@pytest.mark.parametrize("variant", ["electra", "mlm", "electric"])
def test_metrics_add_up_over_batches(variant):
    model, batch = tiny_model(variant), tiny_batch(rows=6)
    parts = [
        {name: value[2 * i : 2 * i + 2] for name, value in batch.items()}
        for i in range(3)
    ]
    whole = metrics_of(model, sums_of(model, batch))
    sums = [sums_of(model, part) for part in parts]
    added = {name: sum(s[name] for s in sums) for name in sums[0]}
    metrics = metrics_of(model, added)
    assert metrics.keys() == whole.keys()
    for name, value in whole.items():
        if name != "loss":  # a mean over batches, as in the original
            assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_auc_is_the_probability_of_the_right_order():
    model, batch = tiny_model("electra"), tiny_batch(rows=64)
    out = model(batch)
    metrics = metrics_of(model, model.objective.sums(out, batch))
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


# Dropout.


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


# Compilation and precision.


@pytest.mark.parametrize("variant", ["electra", "electric"])
def test_compiled_by_xla(variant):
    model, batch = tiny_model(variant, dropout=0.1), tiny_batch()

    def losses(batch):
        out = model(batch, training=True, seed=tf.constant(SEED))
        sums = model.objective.sums(out, batch)
        return out.total_loss, out.sampled_ids, sums["masked_loss"]

    plain = losses(batch)
    compiled = tf.function(losses, jit_compile=True)(batch)
    assert float(compiled[0]) == pytest.approx(float(plain[0]), rel=1e-4)
    np.testing.assert_array_equal(plain[1], compiled[1])
    assert float(compiled[2]) == pytest.approx(float(plain[2]), rel=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("variant", ["electra", "tied_all", "mlm", "electric"])
def test_mixed_precision(variant, policy):
    batch = tiny_batch()
    batch["sampled_ids"] = (batch["masked_lm_ids"] + 7) % VOCAB_SIZE
    exact = tiny_model(variant)(batch)
    model = tiny_model(variant, dtype=policy)
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
    for path, gradient in gradients(model, lambda o: o.total_loss, batch).items():
        assert gradient is None or gradient.dtype == np.float32
        assert gradient is None or np.isfinite(gradient).all(), path


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_log_q_agrees_with_the_cloze_loss_in_mixed_precision(policy):
    """One log q, whether it is a loss or an input of the discriminator's."""
    batch = tiny_batch()
    batch["sampled_ids"] = batch["masked_lm_ids"]
    batch["masked_lm_positions"] = tf.zeros_like(batch["masked_lm_positions"])
    out = tiny_model("electric", dtype=policy)(batch)
    np.testing.assert_array_equal(out.corrupted_ids, batch["input_ids"])
    log_q = (
        out.discriminated.logits - out.discriminated.net_logits - np.log(0.15 / 0.85)
    )
    np.testing.assert_allclose(
        log_q, -out.generated.cloze.per_token_loss, rtol=1e-4, atol=1e-4
    )


# Keras.
