# SPDX-License-Identifier: Apache-2.0
"""The losses of two towers, alone and as Electric's noise, computed by hand.

Both tests read the same text: three tokens 0 1 2 of four words, where 0 is [CLS]. The
state of the left-to-right tower at a token and that of the right-to-left one are scores
of the four words; the head adds the two that a position is told from.

e to the power of the scores, by what is before and what is after a token:
  second token (1):  1 1 3 2  x  1 2 1 2  =  1 2 3 4, so q(1) = 2/10
  third token (2):   1 1 6 2  x  1 1 1 1  =  1 1 6 2, so q(2) = 6/10 and q(3) = 2/10
  [CLS]:             2 1 1 1  x  1 1 1 4  =  2 1 1 4, so q(0) = 2/8
At an end, what is beyond it is the state at the other end.
"""

import types

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain.pretraining import build_pretrainer
from electra_tf.pretrain.two_tower_generator import TwoTowerGenerator
from tests.helpers.tiny_pretraining import tiny_config

log = np.log
SPECIAL_IDS = 0, 8, 9  # [SEP] and [MASK] are not in the text.
# e to the power of the states, at each token.
LEFT_TO_RIGHT = [[1, 1, 3, 2], [1, 1, 6, 2], [2, 1, 1, 1]]
RIGHT_TO_LEFT = [[1, 1, 1, 1], [1, 1, 1, 4], [1, 2, 1, 2]]
CLOZE_LOSS = (log(10 / 2) + log(10 / 6)) / 2


class Tower:
    """States that are given; its embeddings are the unit vectors."""

    hidden_size = embedding_size = 4
    hidden_act, initializer_range = "gelu", 0.02
    embeddings = types.SimpleNamespace(
        word_embeddings=types.SimpleNamespace(value=tf.eye(4))
    )

    def __init__(self, exp_states):
        self.states = tf.constant(log([exp_states]), tf.float32)

    def __call__(self, *_):
        return types.SimpleNamespace(sequence_output=self.states)


def model_of(objective, net_logits=None, **settings):
    """A model whose networks say what is written here.

    Args:
      net_logits: the head's own output at each token.
    """
    settings |= {"vocab_size": 4, "gen_weight": 2.0, "generator_hidden_size": 1.0}
    config = tiny_config(objective=objective, **settings)
    model = build_pretrainer(config, SPECIAL_IDS)
    towers = Tower(LEFT_TO_RIGHT), Tower(RIGHT_TO_LEFT)
    model.generator = TwoTowerGenerator(*towers, 4, SPECIAL_IDS, chunk_size=2)
    model.generator.head.call = lambda hidden: hidden[..., :4] + hidden[..., 4:]
    model.electra = Tower(np.ones([3, 4]))
    if net_logits is not None:
        model.discriminator_predictions = lambda _: tf.constant(
            [net_logits], tf.float32
        )
    return model


def batch_of(**more):
    """The second and the third token are masked; a third slot is not in use."""
    batch = {
        "input_ids": [[0, 1, 2]],
        "input_mask": [[1, 1, 1]],
        "segment_ids": [[0, 0, 0]],
        "masked_input_ids": [[0, 9, 9]],
        "masked_lm_positions": [[1, 2, 0]],
        "masked_lm_ids": [[1, 2, 0]],
        "masked_lm_weights": [[1.0, 1.0, 0.0]],
    }
    return {name: tf.constant(value) for name, value in (batch | more).items()}


def test_two_tower():
    """The cloze loss over the tokens that are not special, masked or not; weight 2.

    Loss (log(10/2) + log(10/6)) / 2 = 1.0601; in total 2.1203. [CLS] does not count.
    Predicted: 3 at the second token and 2 at the third.
    """
    assert CLOZE_LOSS == pytest.approx(1.0601, abs=1e-4)
    model = model_of("two_tower")
    # Nothing is masked in the one, and all in the other: the loss does not look at it.
    unmasked = {"masked_lm_positions": [[0, 0, 0]], "masked_lm_weights": [[0.0] * 3]}
    for masked in ({}, unmasked):
        out = model(batch_of(sampled_ids=[[3, 3, 0]], **masked))
        assert float(out.generated.loss) == pytest.approx(CLOZE_LOSS, rel=1e-5)
        assert float(out.total_loss) == pytest.approx(2 * CLOZE_LOSS, rel=1e-5)
        assert out.discriminated is None
        assert out.generated.cloze.predictions.numpy()[0, 1:].tolist() == [3, 2]


def test_electric():
    """The network reads 0 1 3; a fifth is masked, so that the odds of noise are 1/4.

    The sample 1 is the original token, and noise all the same. With net outputs 0,
    log 60 and log 10 the odds of noise e^net q / 4 are
      [CLS]   1 x 2/8 / 4   = 1/16, and it is data: -log(16/17) = log(17/16)
      1      60 x 2/10 / 4  = 3, and it is noise:   -log(3/4) = log(4/3)
      3      10 x 2/10 / 4  = 1/2, and it is noise: -log(1/3) = log 3
    Noise-contrastive loss (log(17/16) + log(4/3) + log 3) / 3 = log(17/4) / 3 = 0.4823.
    Cloze loss as above 1.0601. Total 2 x 1.0601 + 50 x 0.4823 = 26.2359.
    """
    settings = {"mask_prob": 0.2, "disc_weight": 50.0}
    model = model_of("electric", [0, log(60), log(10)], **settings)
    out = model(batch_of(sampled_ids=[[1, 3, 0]]))
    assert out.corrupted_ids.numpy().tolist() == [[0, 1, 3]]
    assert out.is_replaced.numpy().tolist() == [[False, True, True]]
    odds = np.exp(out.discriminated.logits)
    np.testing.assert_allclose(odds, [[1 / 16, 3, 1 / 2]], rtol=1e-5)
    contrastive = log(17 / 4) / 3
    assert contrastive == pytest.approx(0.4823, abs=1e-4)
    assert float(out.discriminated.loss) == pytest.approx(contrastive, rel=1e-5)
    assert float(out.generated.loss) == pytest.approx(CLOZE_LOSS, rel=1e-5)
    expected = 2 * CLOZE_LOSS + 50 * contrastive
    assert expected == pytest.approx(26.2359, abs=1e-3)
    assert float(out.total_loss) == pytest.approx(expected, rel=1e-5)
