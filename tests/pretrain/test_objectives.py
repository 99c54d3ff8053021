# SPDX-License-Identifier: Apache-2.0
"""Objectives: which weights learn from which loss, and losses computed by hand.

The main network's loss teaches the generator nothing: samples let no gradient through,
and neither does Electric's log q.
"""

import types

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.config.objectives import (
    CORRECTION_HEAD,
    OBJECTIVES,
    SELECTION_HEAD,
    TOKEN_HEAD,
)
from electra_tf.model.heads import MaskedLMHead
from electra_tf.pretrain import token_objectives
from electra_tf.pretrain.generators import (
    GeneratorOutput,
    MaskedInputs,
    TwoTowerGenerator,
)
from electra_tf.pretrain.objectives import (
    CorruptedText,
    LossWeights,
    objective_of,
    policy_of,
)
from electra_tf.pretrain.pretraining import build_pretrainer
from tests.helpers.tiny_pretraining import (
    VARIANTS,
    each_variant,
    gradients,
    shared_model,
    tiny_batch,
    tiny_config,
    tiny_model,
)

log = np.log

LEARN_NOTHING = ("uniform", "unigram")
# Where generator and main network share no embeddings.
APART = ("untied_embeddings", "disentangled", "electric_untied", "two_stage")
APART += ("frozen_generator",)
# Every objective with a generator of two towers.
MORE = {
    **{
        f"{name}_two_towers": {"objective": name, "generator": "two_tower"}
        for name, kind in OBJECTIVES.items()
        if "two_tower" in kind.generators
        and name not in ("electra", "electric", "two_tower")
    },
    "replace_mlm_apart": {"objective": "replace_mlm"} | VARIANTS["disentangled"],
    "all_tokens_apart": {"objective": "all_tokens_mlm"} | VARIANTS["disentangled"],
}


def is_generators(path):
    """Belongs to the generator alone."""
    return path.startswith(("generator", "cloze"))


def check(variant, hparams, monkeypatch):
    model = tiny_model(variant, **hparams)
    kind = OBJECTIVES[model.hparams.objective]
    batch = tiny_batch(repeated_masks="fixed")
    # All that counts in the loss but the generator's own part, which has no weight.
    own = model.hparams.replaced(gen_weight=0.0)
    monkeypatch.setattr(model.objective, "config", own)
    losses = {"generator": lambda out: out.generated.loss}
    if kind.main_network and model.hparams.objective != "mlm":
        losses["main"] = lambda out: out.total_loss
    found = gradients(model, losses, batch)
    learns = model.hparams.generator not in LEARN_NOTHING
    tied = model.hparams.generator == "tied"
    apart = variant in APART or "apart" in variant
    for path in found["generator"]:
        if path.endswith("key/bias"):  # has no influence
            continue
        generators = is_generators(path) and not path.startswith("generator_baseline/")
        expected = {"generator": generators, "main": not is_generators(path)}
        if path.startswith("electra/embeddings/"):
            expected["generator"] = not apart
        elif tied and path.startswith("electra/"):
            expected["generator"] = True
        expected["generator"] &= learns
        for name in losses:
            assert found[name][path].any() == expected[name], (name, path)


@pytest.mark.parametrize(
    "variant", each_variant("tied_all", "disentangled", "two_stage", "uniform")
)
def test_what_each_loss_teaches(variant, monkeypatch):
    check(variant, {}, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MORE)
def test_what_each_loss_teaches_in_other_combinations(name, monkeypatch):
    check(name, MORE[name], monkeypatch)


MAIN = ("electra/", "discriminator_predictions/")
PARTS = [
    # Variant, loss of the sums, scopes of the weights that learn.
    (
        "adversarial",
        lambda sums: sums["policy_loss"] - sums["baseline_loss"],
        ("generator/", "generator_predictions/", "electra/embeddings/"),
    ),
    ("adversarial", lambda sums: sums["baseline_loss"], "generator_baseline/"),
    ("adversarial", lambda sums: sums["disc_loss"], MAIN),
    # Corrections teach nothing about copying.
    (
        "corrective_lm",
        lambda sums: sums["token_loss"],
        ("electra/", "correction_predictions/"),
    ),
    ("corrective_lm", lambda sums: sums["disc_loss"], MAIN),
    (
        "multi_choice",
        lambda sums: sums["token_loss"],
        ("electra/", "selection_predictions/"),
    ),
    ("multi_choice", lambda sums: sums["disc_loss"], MAIN),
]


@pytest.mark.parametrize("variant, loss_of, scopes", PARTS)
def test_what_parts_of_the_main_loss_teach(variant, loss_of, scopes):
    batch = tiny_batch(repeated_masks="fixed")
    losses = {"part": lambda out: loss_of(out.sums)}
    found = gradients(shared_model(variant), losses, batch)["part"]
    for path, gradient in found.items():
        if not path.endswith("key/bias"):  # has no influence
            assert gradient.any() == path.startswith(scopes), path


# Two towers, alone and as the noise of Electric.
#
# Both tests read the same text: three tokens 0 1 2 of four words, where 0 is [CLS]. The
# states of both towers at a token are scores of the four words; the head adds the two
# that a position is predicted from.
#
# e to the power of the scores, by what is before and what is after a token:
#   second token (1):  1 1 3 2  x  1 2 1 2  =  1 2 3 4, so q(1) = 2/10
#   third token (2):   1 1 6 2  x  1 1 1 1  =  1 1 6 2, so q(2) = 6/10 and q(3) = 2/10
#   [CLS]:             2 1 1 1  x  1 1 1 4  =  2 1 1 4, so q(0) = 2/8
# At an end, what is beyond it is the state at the other end.
SPECIAL = 0, 8, 9  # [SEP] and [MASK] are not in the text.
# e to the power of the states, at each token.
LEFT_TO_RIGHT = [[1, 1, 3, 2], [1, 1, 6, 2], [2, 1, 1, 1]]
RIGHT_TO_LEFT = [[1, 1, 1, 1], [1, 1, 1, 4], [1, 2, 1, 2]]
CLOZE_LOSS = (log(10 / 2) + log(10 / 6)) / 2


class Tower:
    """States that are given; its embeddings are the unit vectors."""

    hidden_size = embedding_size = 4
    config = ModelConfig(vocab_size=4)
    embeddings = types.SimpleNamespace(
        word_embeddings=types.SimpleNamespace(value=tf.eye(4))
    )

    def __init__(self, exp_states):
        self.states = tf.constant(log([exp_states]), tf.float32)

    def __call__(self, *_):
        return types.SimpleNamespace(sequence_output=self.states)


def tower_model(objective, net_logits=None, **settings):
    """A model whose networks give the states above.

    Args:
      net_logits: the head's own output at each token.
    """
    settings |= {"vocab_size": 4, "gen_weight": 2.0, "generator_hidden_size": 1.0}
    config = tiny_config(objective=objective, **settings)
    model = build_pretrainer(config, SPECIAL)
    towers = Tower(LEFT_TO_RIGHT), Tower(RIGHT_TO_LEFT)
    model.generator = TwoTowerGenerator(*towers, SPECIAL)
    model.generator.head.call = lambda hidden: hidden[..., :4] + hidden[..., 4:]
    model.electra = Tower(np.ones([3, 4]))
    if net_logits is not None:
        model.discriminator_predictions = lambda _: tf.constant(
            [net_logits], tf.float32
        )
    return model


def tower_batch(**more):
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


def test_two_tower_by_hand():
    """The cloze loss over the tokens that are not special, masked or not; weight 2.

    Loss (log(10/2) + log(10/6)) / 2 = 1.0601; in total 2.1203. [CLS] does not count.
    Predicted: 3 at the second token and 2 at the third.
    """
    assert CLOZE_LOSS == pytest.approx(1.0601, abs=1e-4)
    model = tower_model("two_tower")
    # Nothing is masked in the one, and all in the other: the loss does not look at it.
    unmasked = {"masked_lm_positions": [[0, 0, 0]], "masked_lm_weights": [[0.0] * 3]}
    for masked in ({}, unmasked):
        out = model(tower_batch(sampled_ids=[[3, 3, 0]], **masked))
        assert float(out.generated.loss) == pytest.approx(CLOZE_LOSS, rel=1e-5)
        assert float(out.total_loss) == pytest.approx(2 * CLOZE_LOSS, rel=1e-5)
        assert out.discriminated is None
        assert out.generated.cloze.predictions.numpy()[0, 1:].tolist() == [3, 2]


def test_electric_by_hand():
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
    model = tower_model("electric", [0, log(60), log(10)], **settings)
    out = model(tower_batch(sampled_ids=[[1, 3, 0]]))
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


# ELECTRA 15 %, Replace MLM and All-Tokens MLM.


class Encoder:
    """Hidden states that are given; its embeddings are the unit vectors."""

    def __init__(self, states):
        self.states = tf.constant(states, tf.float32)
        tables = {"word_embeddings": tf.eye(4)}
        self.embeddings = types.SimpleNamespace(table=tables.get)

    def __call__(self, *_):
        return types.SimpleNamespace(sequence_output=self.states)


def inputs(positions, weights):
    """One row of three tokens, the words 0, 1 and 2."""
    return MaskedInputs(
        input_ids=tf.constant([[0, 1, 2]]),
        input_mask=tf.constant([[1, 1, 1]]),
        segment_ids=tf.zeros([1, 3], tf.int32),
        masked_input_ids=tf.constant([[0, 3, 3]]),
        masked_lm_positions=tf.constant([positions]),
        masked_lm_ids=tf.constant([positions]) * tf.cast([weights], tf.int32),
        masked_lm_weights=tf.constant([weights], tf.float32),
    )


def outputs(name, states, batch, corrupted, new_logits=None, drawn=(), **settings):
    """The Losses of an objective from hidden states that are scores of the four words.

    The heads are the identity and, of the discriminator's kind, `new_logits`.

    Args:
      drawn: the generator's samples, [N] each.
    """
    settings = {"embedding_size": 4, "vocab_size": 4} | settings
    settings |= {"gen_weight": 0.0, "disc_weight": 1.0, "token_weight": 1.0}
    objective = objective_of(name, types.SimpleNamespace(**settings))
    head = MaskedLMHead(ModelConfig(vocab_size=4), 4, "token_predictions", 4)
    head.call = lambda hidden: hidden
    samples = iter(drawn)
    model = types.SimpleNamespace(
        electra=Encoder(states),
        generator=types.SimpleNamespace(
            sample=lambda *_, **__: tf.constant([next(samples)])
        ),
        **dict.fromkeys((TOKEN_HEAD, CORRECTION_HEAD, SELECTION_HEAD), head),
        discriminator_predictions=lambda _: tf.constant([new_logits], tf.float32),
    )
    corrupted = tf.constant([corrupted])
    replaced = corrupted != batch.input_ids
    nothing = tf.zeros_like(batch.masked_lm_ids)
    losses = tf.zeros_like(batch.masked_lm_weights)
    generated = GeneratorOutput(None, losses, None, nothing, tf.zeros([]))
    text = CorruptedText(corrupted, replaced, batch, generated, nothing)
    return objective.loss(model, text, None, LossWeights())


def test_electra_15_by_hand():
    """Three tokens, the third masked and replaced; logits of "replaced" 0, 1 and -2.

    Over the masked one: -log sigmoid(-2) = log(1 + e^2) = 2.1269.
    (ELECTRA: (log 2 + 1.3133 + 2.1269) / 3 = 1.3778.)
    """
    batch = inputs([2, 0], [1, 0])
    states, corrupted = np.zeros([1, 3, 4]), [0, 1, 3]
    for name, expected in (
        ("electra_15", log(1 + np.e**2)),
        ("electra", (log(2) + log(1 + np.e) + log(1 + np.e**2)) / 3),
    ):
        out = outputs(name, states, batch, corrupted, [0, 1, -2])
        assert float(out.loss) == pytest.approx(expected, rel=1e-5)


def test_replace_mlm_by_hand():
    """Three tokens 0 1 2 of four words; 1 and 2 masked, the network reads 0 1 3.

    Scores at the second token: log 1, 2, 3, 4, so p(1) = 2 / 10 and 3 is predicted.
    At the third: log 1, 1, 6, 2, so p(2) = 6 / 10 and 2 is predicted.
    Loss (log 5 + log(10 / 6)) / 2 = 1.0601; one of two is right, and the replaced one.
    """
    states = np.log([[[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 6, 2]]])
    batch = inputs([1, 2, 0], [1, 1, 0])
    loss, _, out = outputs("replace_mlm", states, batch, [0, 1, 3])
    assert float(loss) == pytest.approx((log(5) + log(10 / 6)) / 2, rel=1e-5)
    assert out.predictions.numpy()[0, :2].tolist() == [3, 2]
    assert out.is_replaced.numpy()[0, :2].tolist() == [False, True]


def test_all_tokens_mlm_by_hand():
    """Three tokens 0 1 2 of four words; the network reads 0 1 3.

    Probability D of copying 1/2, 3/4 and 1/5, that is logits of "new" 0, log(1/3) and
    log 4. Softmax at the first: 1/4 each; at the second p(1) = 2/10; at the third
    p(2) = 6/10 (as for Replace MLM).
      p(0) = 1/2 + 1/2 1/4 = 5/8; p(1) = 3/4 + 1/4 2/10 = 4/5; p(2) = 4/5 6/10 = 12/25
    Loss (log(8/5) + log(5/4) + log(25/12)) / 3 = 0.4757. Predicted: 0 and 1 by copying,
    2 anew (12/25 against 1/5 + 4/5 2/10 = 9/25 for 3).
    """
    states = np.log([[[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 6, 2]]])
    batch = inputs([1, 2, 0], [1, 1, 0])
    new = [0, log(1 / 3), log(4)]
    loss, _, out = outputs("all_tokens_mlm", states, batch, [0, 1, 3], new)
    expected = [log(8 / 5), log(5 / 4), log(25 / 12)]
    np.testing.assert_allclose(out.per_token_loss[0], expected, rtol=1e-5)
    assert float(loss) == pytest.approx(np.mean(expected), rel=1e-5)
    assert out.predictions.numpy().tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(out.probs, [[1 / 2, 1 / 4, 4 / 5]], rtol=1e-5)


def test_corrective_lm_by_hand():
    """Three tokens 0 1 2 of four words; 1 and 2 masked, the network reads 0 1 3.

    Probability of a replacement 1/2, 1/4 and 4/5, so that of RTD the loss is
    (log 2 + log(4/3) + log(5/4)) / 3 = log(10/3) / 3. Softmax as for Replace MLM:
      p(1) = 3/4 + 1/4 2/10 = 4/5; p(2) = 4/5 6/10 = 12/25
    Loss of the tokens (log(5/4) + log(25/12)) / 2 = log(125/48) / 2; weight 3.
    """
    states = np.log([[[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 6, 2]]])
    batch = inputs([1, 2, 0], [1, 1, 0])
    new = [0, log(1 / 3), log(4)]
    _, sums, out = outputs("corrective_lm", states, batch, [0, 1, 3], new)
    assert float(out.loss) == pytest.approx(log(10 / 3) / 3, rel=1e-5)
    assert float(sums["token_loss"]) == pytest.approx(log(125 / 48), rel=1e-5)
    assert (float(sums["token_correct"]), float(sums["replaced_correct"])) == (2, 1)


def test_multi_choice_by_hand():
    """The same text and scores; of each token three others are drawn.

    For 1: 3, 3 and 0, the second is there already: 2 / (2 + 4 + 1).
    For 2: 0, 1 and 3, so that all words are there: 6 / 10.
    Loss (log(7/2) + log(10/6)) / 2 = log(35/6) / 2. Chosen: 3 and 2.
    """
    states = np.log([[[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 6, 2]]])
    batch = inputs([1, 2, 0], [1, 1, 0])._replace(sample_uniform=tf.zeros([1, 3]))
    drawn = [[3, 0, 1], [3, 1, 1], [0, 3, 1]]
    more = {"drawn": drawn, "num_candidates": 4}
    _, sums, out = outputs("multi_choice", states, batch, [0, 1, 3], [0, 0, 0], **more)
    assert float(out.loss) == pytest.approx(log(2), rel=1e-5)
    assert float(sums["token_loss"]) == pytest.approx(log(35 / 6), rel=1e-5)
    assert (float(sums["token_correct"]), float(sums["replaced_correct"])) == (1, 1)


@pytest.mark.parametrize("generator", ["masked_lm", "uniform"])
def test_candidates_of_multi_choice(generator):
    """The original token is the first alone; draws of equal tokens are all distinct."""
    model, batch = tiny_model("multi_choice", generator=generator), tiny_batch(64)
    generated = model(batch).generated
    text = CorruptedText(None, None, MaskedInputs.of(batch), generated, None)
    found = model.objective.candidates(model.generator, text).numpy()
    original = batch["masked_lm_ids"].numpy()[..., None]
    np.testing.assert_array_equal(found == original, np.arange(5) == 0 * original)
    if generator == "uniform":
        assert (np.diff(np.sort(found)) > 0).all()


def test_candidates_of_multi_choice_are_drawn_at_the_temperature():
    """Near 0 they are the generator's best token but the original."""
    model, batch = tiny_model("multi_choice"), tiny_batch()
    inputs = MaskedInputs.of(batch)
    generated = model.generator(inputs)
    text = CorruptedText(None, None, inputs, generated, None, temperature=0.02)
    found = model.objective.candidates(model.generator, text)[..., 1:]
    original = tf.one_hot(batch["masked_lm_ids"], generated.logits.shape[-1])
    best = tf.argmax(generated.logits - 1e9 * original, axis=-1)
    assert (found.numpy() == best.numpy()[..., None]).mean() > 0.9


@pytest.mark.parametrize("name", ["corrective_lm", "multi_choice"])
def test_weights_of_the_losses_of_tokens(name):
    model = tiny_model(name, token_weight=3.0, disc_weight=7.0)
    out = model(tiny_batch())
    main, tokens = out.discriminated, out.sums["token_loss"] / out.sums["masked"]
    expected = out.generated.loss + 7 * main.loss + 3 * tokens
    assert float(out.total_loss) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("logit", [-200.0, 0.0, 200.0])
def test_copying_in_log_space(logit):
    """Nothing overflows; the gradients of extreme cases are finite."""
    for log_softmax in (-500.0, -1.0, 0.0):
        variables = [tf.Variable(logit), tf.Variable(log_softmax)]
        with tf.GradientTape(persistent=True) as tape:
            copied, other = (
                token_objectives.log_with_copying(*variables, tf.constant(is_copy))
                for is_copy in (True, False)
            )
        copying, new = -np.logaddexp(0, logit), -np.logaddexp(0, -logit)
        expected = np.logaddexp(copying, new + np.float64(log_softmax))
        assert float(copied) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert float(other) == pytest.approx(new + log_softmax, rel=1e-5)
        for loss in (copied, other):
            assert np.isfinite(tape.gradient(loss, variables)).all()


# The policy gradient.


def policy(probabilities, samples, reward, baseline_logits, weights=None):
    samples = np.asarray(samples, np.int32)
    weights = np.ones(samples.shape) if weights is None else weights
    arrays = (log(probabilities), reward, baseline_logits, weights)
    logits, reward, baseline, weights = (tf.constant(a, tf.float32) for a in arrays)
    return policy_of(logits, tf.constant(samples), reward, baseline, weights, None)


def test_policy_by_hand():
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
    loss, found = policy(p, [[1, 0, 3]], reward, [[0, log(3), 5]], [[1, 1, 0]])
    expected = -(log(1 / 4) * log(2 / 3) + log(1 / 2) * log(6)) / 2
    baseline_loss = (log(2) + 1 / 8 * log(4 / 3) + 7 / 8 * log(4)) / 2
    assert expected == pytest.approx(0.3399, abs=1e-4)
    assert baseline_loss == pytest.approx(0.9710, abs=1e-4)
    assert float(found["baseline_loss"]) == pytest.approx(baseline_loss, rel=1e-5)
    assert float(loss) == pytest.approx(expected + baseline_loss, rel=1e-5)
    sums = [float(found[name]) for name in ("baseline", "reward", "entropy")]
    expected = [log(2) + log(4 / 3), log(4 / 3) + log(8), 7 / 2 * log(2)]
    assert sums == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("baseline", [-3.0, 2.0])
def test_gradient_is_unbiased(baseline):
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
            loss, _ = policy_of(
                logits,
                tf.constant([[word]]),
                rewards[word] * one,
                baseline * one,
                one,
                one[0, 0] - 1e-6,
            )
        # The generator goes up where the loss goes down.
        found -= tf.nn.softmax(logits)[0, 0, word] * tape.gradient(loss, logits)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


def test_rewards_are_the_discriminators_loss_at_the_samples():
    model = tiny_model("adversarial", temperature=0.7)
    batch = tiny_batch(repeated_masks="fixed")
    out = model(batch)
    found, used = out.discriminated, batch["masked_lm_weights"].numpy() > 0
    logits, labels = found.logits.numpy(), out.is_replaced.numpy()
    losses = np.logaddexp(0, np.where(labels, -logits, logits))
    expected = np.take_along_axis(losses, batch["masked_lm_positions"].numpy(), 1)
    sums, weights = out.sums, batch["masked_lm_weights"].numpy()
    assert float(sums["reward"]) == pytest.approx(expected[used].sum(), rel=1e-4)
    p = tf.nn.softmax(out.generated.logits / 0.7).numpy()
    entropy = (-(p * log(p)).sum(-1) * weights).sum()
    assert float(sums["entropy"]) == pytest.approx(entropy, rel=1e-4)
    # The likelihood is measured, not learned.
    total = sums["policy_loss"] + 50 * found.loss
    assert float(out.total_loss) == pytest.approx(float(total), rel=1e-5)
