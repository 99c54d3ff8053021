# SPDX-License-Identifier: Apache-2.0
"""A generator that is loaded and does not learn."""

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.interop import readers, start
from electra_tf.pretrain.pretraining import build_pretrainer
from tests.helpers.exporting import tiny_source, tiny_vocabulary, write_run
from tests.helpers.tiny_pretraining import SPECIAL_IDS, tiny_batch, tiny_config
from tests.train.test_loop import Trained

FROZEN = {"objective": "frozen_generator"}
# The shape of the tiny generator.
ALONE = {
    "model_hparam_overrides": {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 40,
    }
}


def loaded(folder, variant, vocab=None, of_run=None, **hparams):
    """(a model with the generator of a run, the run's model)."""
    source = tiny_source(variant, **(of_run or {}))
    path = write_run(folder, source, **(of_run or {}))
    config = tiny_config(**FROZEN, **hparams)
    model = build_pretrainer(config, SPECIAL_IDS)
    variables = {v.path: v.value for v in model.variables}
    found = readers.find(str(path), print)
    vocab = vocab or tiny_vocabulary()
    start.load_generator(found, config, vocab, variables, print)
    return model, source.pretrainer


@pytest.mark.parametrize(
    "variant, of_run", [("electra", {}), ("disentangled", {}), ("mlm", ALONE)]
)
def test_the_loaded_generator_predicts_as_the_other_model(tmp_path, variant, of_run):
    model, other = loaded(tmp_path, variant, of_run=of_run)
    batch = tiny_batch()
    text = (batch[name] for name in ("masked_input_ids", "input_mask", "segment_ids"))
    text = (*text, batch["masked_lm_positions"])
    expected = other.generator.logits_at(*text)
    np.testing.assert_allclose(model.generator.logits_at(*text), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"generator_hidden_size": 1.0}, "hidden_size is 8 there"),
        ({"generator_layers": 2.0}, "num_hidden_layers is 1 there"),
        ({"vocab": tiny_vocabulary(96)}, "another vocabulary"),
        ({"variant": "unigram", "of_run": ALONE}, "not a masked language model"),
    ],
)
def test_another_network_or_vocabulary_is_refused(tmp_path, hparams, words):
    hparams = {"variant": "electra"} | hparams
    with pytest.raises(UserError, match=words):
        loaded(tmp_path, **hparams)


def test_steps_leave_the_generator_as_it_is(tiny_data):
    """It has no slots, and weight decay does not reach it."""
    more = {"num_train_steps": 3, "num_warmup_steps": 0, "weight_decay_rate": 0.5}
    run = Trained(tiny_data, **FROZEN, **more)
    before = run.values()
    found = run.run(2)
    np.testing.assert_allclose(found["loss"], 50 * found["disc_loss"], rtol=1e-5)
    assert "masked_lm_loss" in found
    changed = {k for k, v in run.values().items() if (v != before[k]).any()}
    assert {k for k in changed if k.startswith("electra/")}
    assert not [k for k in changed if k.startswith("generator")]
    assert not [k for k in before if k.startswith("generator") and "adam" in k]
