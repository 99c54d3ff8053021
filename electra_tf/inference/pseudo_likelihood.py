# SPDX-License-Identifier: Apache-2.0
"""Log-probability of each token given all others, by the methods a model offers.

| method | model | passes over a text of n tokens |
|---|---|---|
| electric | Electric: minus the energy | 1 |
| electra_tt | ELECTRA with two towers: p from its discriminator and log q | 1 |
| two_tower | Electric's generator, its own log-probabilities | 1 |
| mask_each | a masked language model: each token masked in turn | n |
| discriminator | ELECTRA: log-probability of "original"; a score, no likelihood | 1 |

docs/electric.md derives them.  Shapes: B rows, L length.
"""

from __future__ import annotations

import tensorflow as tf

from electra_tf.inference.scoring import METHODS
from electra_tf.pretrain.generators import MaskedInputs
from electra_tf.pretrain.heads import log_probability
from electra_tf.pretrain.pretraining import ElectraPretrainer

_TEXTS = [
    tf.TensorSpec([None, None], tf.int32)
] * 3  # as `text.tokenization` packs them
_POSITIONS = tf.TensorSpec([None], tf.int32)


def methods_of(pretrainer: ElectraPretrainer) -> list[str]:
    """The methods that a model offers, the best one first."""
    offered = {pretrainer.objective.scoring, pretrainer.generator.scoring}
    # It takes the generator's q for what the samples were drawn from, and `mask_prob`
    # for the probability that a token is one.
    settings = pretrainer.settings
    drawn = settings.temperature == 1 and not settings.disallow_correct
    evenly = pretrainer.objective.masks_evenly and not settings.rare_mask_power
    has_q = pretrainer.generator.log_q is not None and drawn
    if "discriminator" in offered and has_q and evenly:
        offered.add("electra_tt")
    return [name for name in METHODS if name in offered]


def electric(pretrainer: ElectraPretrainer):
    """-E(x)_t of every token in one pass (Electric paper, sections 2.1 and 2.4).

    The head says how much a token looks replaced, which is its energy: with the
    normaliser that noise-contrastive estimation drives to 1, -E(x)_t estimates
    log p(x_t | the other tokens).

    Returns: function of ids, mask and segment ids, int32 [B, L], to float32 [B, L].
    """
    return lambda *texts: -pretrainer.replaced_logits(*texts, net_only=True)


def discriminator(pretrainer: ElectraPretrainer):
    """log P(token was not replaced), by ELECTRA's discriminator; see `electric`."""
    return lambda *texts: tf.math.log_sigmoid(-pretrainer.replaced_logits(*texts))


def electra_tt(pretrainer: ElectraPretrainer):
    """log p(x_t | the other tokens) from the discriminator and q (ELECTRA-TT).

    Section 3.2 of the Electric paper; see `heads.log_probability` and
    `electric`.
    """
    log_q, mask_prob = two_tower(pretrainer), pretrainer.settings.mask_prob
    return lambda *texts: log_probability(
        pretrainer.replaced_logits(*texts), log_q(*texts), mask_prob
    )


def two_tower(pretrainer: ElectraPretrainer):
    """log q(x_t | x before t, x after t), by the two towers; see `electric`."""
    generator = pretrainer.generator
    return lambda *texts: generator.log_q(
        generator(MaskedInputs.unmasked(*texts)), texts[0]
    )


def mask_each(pretrainer: ElectraPretrainer, mask_id: int):
    """log p(x_t | x without t) of one token per row, which is masked.

    Returns: function of ids, mask and segment ids, int32 [B, L], and positions int32
      [B], to float32 [B].
    """

    def scores(ids, mask, segments, positions):
        at = tf.stack([tf.range(tf.shape(ids)[0]), positions], axis=1)
        targets = tf.gather_nd(ids, at)
        masked = tf.tensor_scatter_nd_update(
            ids, at, tf.fill(tf.shape(targets), mask_id)
        )
        logits = pretrainer.generator.logits_at(
            masked, mask, segments, positions[:, None]
        )
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits[:, 0])

    return scores


# Methods that score all tokens of a text in one pass.
ONE_PASS = {
    "electric": electric,
    "electra_tt": electra_tt,
    "two_tower": two_tower,
    "discriminator": discriminator,
}


def function_of(pretrainer: ElectraPretrainer, method: str, mask_id: int):
    """The function of a method as a graph; see `electric` and `mask_each`."""
    if method == "mask_each":
        scores, signature = mask_each(pretrainer, mask_id), [*_TEXTS, _POSITIONS]
    else:
        scores, signature = ONE_PASS[method](pretrainer), _TEXTS
    return tf.function(scores, input_signature=signature, autograph=False)
