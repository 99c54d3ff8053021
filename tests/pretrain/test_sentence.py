# SPDX-License-Identifier: Apache-2.0
"""The verdict on whole texts: its loss, what is left alone, who learns from what."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain.sentence import judged
from tests.helpers.tiny_pretraining import assert_taught, tiny_batch, tiny_model

log = np.log


def test_by_hand():
    """Two texts of three tokens; the second token of the first was replaced.

    Logits of "corrupted" 0 and log 3, that is 1/2 and 3/4: losses -log(1/2) = log 2
    and -log(1 - 3/4) = log 4, their mean 3/2 log 2 = 1.0397.
    """
    is_replaced = tf.constant([[False, True, False], [False] * 3])
    logits = tf.constant([0.0, log(3)], tf.float32)
    found = judged(logits, is_replaced, None)
    assert found.labels.numpy().tolist() == [1, 0]
    np.testing.assert_allclose(found.losses, [log(2), log(4)], rtol=1e-6)
    assert float(found.loss) == pytest.approx(1.5 * log(2), rel=1e-5)
    # As a part of a global batch of six texts.
    part = judged(logits, is_replaced, tf.constant(6.0))
    assert float(part.loss) == pytest.approx(3 * log(2) / 6, rel=1e-5)


def test_intact_texts_are_read_as_they_are():
    batch = tiny_batch(rows=64, intact_share=0.5)
    intact = batch["is_intact"].numpy()[:, 0] > 0
    assert 16 < intact.sum() < 48
    model = tiny_model("electra_sentence", sentence_weight=3.0)
    out = model(batch)
    ids, corrupted = batch["input_ids"].numpy(), out.corrupted_ids.numpy()
    np.testing.assert_array_equal(corrupted[intact], ids[intact])
    changed = (corrupted != ids).any(axis=1)
    assert changed[~intact].mean() > 0.9
    np.testing.assert_array_equal(out.is_replaced.numpy(), corrupted != ids)
    sentences = out.discriminated.sentences
    np.testing.assert_array_equal(sentences.labels, changed)
    # The generator learns from them all the same.
    usual = {name: value for name, value in batch.items() if name != "is_intact"}
    assert float(out.generated.loss) == float(model(usual).generated.loss)
    parts = out.generated.loss + 50 * out.discriminated.loss + 3 * sentences.loss
    assert float(out.total_loss) == pytest.approx(float(parts), rel=1e-6)


def test_metrics_are_those_of_the_texts():
    batch = tiny_batch(rows=16, intact_share=0.5)
    model = tiny_model("electra_sentence")
    out = model(batch)
    sums = model.objective.sums(out, batch)
    found = out.discriminated.sentences
    p = 1 / (1 + np.exp(-found.logits.numpy().astype(np.float64)))
    right = found.labels.numpy()
    losses = -np.where(right > 0, log(p), log(1 - p))
    values = {m.name: float(m.evaluation(sums)) for m in model.objective.metrics}
    assert values["sentence_loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert values["sentence_accuracy"] == pytest.approx(((p > 0.5) == right).mean())


def test_who_learns_from_what():
    model, batch = tiny_model("electra_sentence"), tiny_batch(intact_share=0.5)
    losses = {
        "sentences": lambda out: out.discriminated.sentences.loss,
        "tokens": lambda out: out.discriminated.loss,
    }
    taught = {
        "sentences": ("electra/", "sentence_predictions/"),
        "tokens": ("electra/", "discriminator_predictions/"),
    }
    assert_taught(model, batch, losses, taught)
