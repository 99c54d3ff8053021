# SPDX-License-Identifier: Apache-2.0
"""The optimizer against its formula in float64, and its schedules."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.train.optimization import (
    AdamWeightDecay,
    LayerwiseDecay,
    WarmupPolynomialDecay,
    create_optimizer,
)
from tests.helpers.runs import by_default
from tests.helpers.tiny_pretraining import tiny_config

STEPS = 20
JIT = by_default([None, True], [None])
# Shape and path of each variable.
SHAPES = {
    "electra/embeddings/word_embeddings": (7, 4),
    "electra/embeddings/LayerNorm/gamma": (4,),
    "electra/encoder/layer_0/attention/self/query/kernel": (4, 4),
    "electra/encoder/layer_0/attention/self/query/bias": (4,),
    "electra/encoder/layer_1/output/LayerNorm/beta": (4,),
    "generator_predictions/output_bias": (7,),
    "task_specific/cola/dense/kernel": (4, 2),
}
NOT_DECAYED = {path for path in SHAPES if path.endswith(("gamma", "beta", "bias"))}


def make_variables(seed=0):
    rng = np.random.default_rng(seed)
    variables = []
    for path, shape in SHAPES.items():
        variable = keras.Variable(
            rng.normal(size=shape).astype("f4"), name=path.replace("/", ".")
        )
        variable._path = path
        variables.append(variable)
    return variables


def norm_of(gradients):
    return math.sqrt(sum((np.float64(g) ** 2).sum() for g in gradients))


def make_gradients(scale, steps=STEPS, seed=1):
    rng = np.random.default_rng(seed)
    return [
        [
            (scale * 10 ** rng.uniform(-2, 0) * rng.normal(size=shape)).astype("f4")
            for shape in SHAPES.values()
        ]
        for _ in range(steps)
    ]


def reference(values, all_gradients, rates, *, clip=1.0, decay=0.01, factor=None):
    """Values, m and v after the steps, all float64."""
    values = [np.float64(value) for value in values]
    m = [np.zeros_like(value) for value in values]
    v = [np.zeros_like(value) for value in values]
    for gradients, rate in zip(all_gradients, rates, strict=True):
        gradients = [np.float64(g) for g in gradients]
        norm = math.sqrt(sum((g**2).sum() for g in gradients))
        shrink = 1.0 if clip is None else clip / max(norm, clip)
        for i, path in enumerate(SHAPES):
            g = gradients[i] * shrink
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            update = m[i] / (np.sqrt(v[i]) + 1e-6)
            if path not in NOT_DECAYED:
                update = update + decay * values[i]
            own_rate = rate * (factor(path) if factor else 1.0)
            values[i] = values[i] - own_rate * update
    return values, m, v


def run(optimizer, variables, all_gradients, jit=None):
    optimizer.build(variables)

    def step(*gradients):
        optimizer.apply(list(gradients), variables)

    if jit is not None:
        step = tf.function(step, jit_compile=jit)
    for gradients in all_gradients:
        step(*(tf.constant(g) for g in gradients))


def assert_close(variables, expected, atol=2e-6):
    for variable, value, path in zip(variables, expected, SHAPES, strict=True):
        np.testing.assert_allclose(variable, value, atol=atol, err_msg=path)


@pytest.mark.parametrize(
    ("scale", "jit"), [(0.02, None), (0.02, True), (5.0, False), (5.0, True)]
)
def test_twenty_steps(scale, jit):
    """Small gradients that are not clipped, and large ones."""
    schedule = WarmupPolynomialDecay(0.01, 30, warmup_steps=4)
    rates = [0.01 * (1 - step / 30) * min(1.0, step / 4) for step in range(STEPS)]
    gradients = make_gradients(scale)
    norms = [norm_of(step) for step in gradients]
    assert max(norms) < 1 if scale < 1 else min(norms) > 1
    variables = make_variables()
    expected = reference(variables, gradients, rates)
    optimizer = AdamWeightDecay(schedule)
    run(optimizer, variables, gradients, jit)
    assert_close(variables, expected[0])
    assert_close(optimizer.adam_m, expected[1])
    assert_close(optimizer.adam_v, expected[2])
    assert int(optimizer.iterations) == STEPS
    assert np.abs(np.subtract(variables[0], make_variables()[0])).max() > 0.02


@pytest.mark.parametrize("jit", JIT)
def test_generator_with_its_own_rate_and_norm(jit):
    """As two optimizers, one of which has the generator's variables alone."""
    config = tiny_config(
        learning_rate=0.01,
        generator_learning_rate=0.002,
        clip_by="network",
        schedule="constant",
        num_warmup_steps=0,
    )
    variables, gradients = make_variables(), make_gradients(500.0)
    index = [path.split("/")[0] for path in SHAPES].index("generator_predictions")
    expected = make_variables()
    for chosen, rate in ((lambda i: i == index, 0.002), (lambda i: i != index, 0.01)):
        own = [i for i in range(len(SHAPES)) if chosen(i)]
        parts = [[step[i] for i in own] for step in gradients]
        assert min(map(norm_of, parts)) > 1  # Both are clipped.
        run(AdamWeightDecay(rate), [expected[i] for i in own], parts, jit)
    run(create_optimizer(config), variables, gradients, jit)
    assert_close(variables, expected)


def test_the_generators_peak_is_that_of_each_phase():
    """Its rate stays constant where the others' rises."""
    steps = {0.01: 8, 0.04: STEPS - 8}  # by learning rate
    config = tiny_config(
        phases=[{"num_train_steps": n, "learning_rate": r} for r, n in steps.items()],
        num_train_steps=STEPS,
        generator_learning_rate=0.002,
        schedule="constant",
        num_warmup_steps=0,
    )
    saved = keras.optimizers.serialize(create_optimizer(config))
    variables, gradients = make_variables(), make_gradients(0.02)
    run(keras.optimizers.deserialize(saved), variables, gradients)
    index = list(SHAPES).index("generator_predictions/output_bias")
    expected = make_variables()[index]
    run(AdamWeightDecay(0.002), [expected], [[step[index]] for step in gradients])
    np.testing.assert_allclose(variables[index], expected, atol=2e-6)


def test_layerwise_factors():
    factor = LayerwiseDecay(0.5, 2)
    paths = [p for p in SHAPES if not p.startswith("generator_predictions")]
    assert [factor(p) for p in paths] == [1 / 16, 1 / 16, 1 / 8, 1 / 8, 1 / 4, 1.0]

    def or_one(path):
        return factor(path) if path in paths else 1.0

    variables, gradients = make_variables(), make_gradients(5.0)
    expected, _, _ = reference(variables, gradients, [0.01] * STEPS, factor=or_one)
    run(AdamWeightDecay(0.01, layer_factor=or_one), variables, gradients)
    assert_close(variables, expected)


@pytest.mark.parametrize(
    ("offset", "top", "bottom"),
    [("original", 0.8**2, 0.8**14), ("fixed", 0.8, 0.8**13)],
)
def test_layerwise_offset(offset, top, bottom):
    factor = LayerwiseDecay(0.8, 12, offset)
    assert factor("electra/encoder/layer_11/output/dense/bias") == pytest.approx(top)
    assert factor("electra/embeddings/position_embeddings") == pytest.approx(bottom)
    assert factor("electra/embeddings_project/kernel") == pytest.approx(bottom)
    assert factor("task_specific/cola/dense/kernel") == 1.0
    # layer_1 is not layer_11.
    ratio = factor("electra/encoder/layer_1/output/dense/bias") / factor(
        "electra/encoder/layer_11/output/dense/bias"
    )
    assert ratio == pytest.approx(0.8**10)
    with pytest.raises(ValueError, match="generator_predictions/dense/bias"):
        factor("generator_predictions/dense/bias")


def test_settings():
    """Clip norm, decay rate, exclusions, betas and epsilon are used."""
    variables, gradients = make_variables(), make_gradients(5.0)
    plain = {"weight_decay_rate": 0.3, "clip_norm": None}
    rates = [0.01] * STEPS
    expected, _, _ = reference(variables, gradients, rates, clip=None, decay=0.3)
    run(AdamWeightDecay(0.01, **plain), variables, gradients)
    assert_close(variables, expected)
    for settings in (
        {"beta_1": 0.5},
        {"beta_2": 0.9},
        {"epsilon": 1e-2},
        {"no_decay": []},
        {"no_decay": ["embeddings", *("LayerNorm", "bias")]},
        {"clip_norm": 0.1},
    ):
        others = make_variables()
        run(AdamWeightDecay(0.01, **(plain | settings)), others, gradients)
        difference = max(
            np.abs(np.subtract(a, b)).max()
            for a, b in zip(others, variables, strict=True)
        )
        assert difference > 1e-5, settings


@pytest.mark.parametrize("jit", JIT)
def test_repeated_tokens_are_summed_before_the_norm(jit):
    table = keras.Variable(np.ones([5, 2], "f4"), name="word_embeddings")
    values = tf.constant([[3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    sparse = tf.IndexedSlices(values, tf.constant([1, 1, 3]), tf.constant([5, 2]))
    dense = np.zeros([5, 2], "f4")
    dense[1, 0], dense[3, 1] = 6.0, 4.0
    optimizer = AdamWeightDecay(0.1, weight_decay_rate=0.0)
    optimizer.build([table])

    def step():
        optimizer.apply([sparse], [table])
        return optimizer.global_norm

    step = step if jit is None else tf.function(step, jit_compile=jit)
    # sqrt(6**2 + 4**2), not sqrt(3**2 + 3**2 + 4**2).
    assert float(step()) == pytest.approx(math.sqrt(52))
    np.testing.assert_allclose(
        optimizer.adam_m[0], 0.1 * dense / math.sqrt(52), rtol=1e-5
    )
    other = keras.Variable(np.ones([5, 2], "f4"), name="word_embeddings")
    plain = AdamWeightDecay(0.1, weight_decay_rate=0.0)
    plain.build([other])
    plain.apply([tf.constant(dense)], [other])
    np.testing.assert_allclose(table, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("bad", "jit"),
    # The last is finite, but its square is not.
    [(np.nan, None), (np.nan, True), (-np.inf, None), (1e30, None)],
)
def test_a_gradient_that_is_not_finite_changes_nothing(bad, jit):
    variables = make_variables()
    optimizer = AdamWeightDecay(0.01)
    good = make_gradients(1.0, steps=3)
    run(optimizer, variables, good[:2], jit)
    everything = [*variables, *optimizer.adam_m, *optimizer.adam_v]
    before = [x.numpy().copy() for x in everything]
    broken = [g.copy() for g in good[2]]
    broken[3][1] = bad
    run(optimizer, variables, [broken], jit)
    for variable, value in zip(everything, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    # The step counts for the learning rate.
    assert int(optimizer.iterations) == 3
    run(optimizer, variables, good[2:], jit)
    assert np.isfinite(variables[0]).all()
    assert (variables[0].numpy() != before[0]).all()


# AdamW and LAMB.


@pytest.mark.parametrize("jit", JIT)
def test_adamw_equals_pytorch(jit):
    torch = pytest.importorskip("torch")
    variables, gradients = make_variables(), make_gradients(0.5)
    theirs = [torch.nn.Parameter(torch.tensor(v.numpy())) for v in variables]
    adamw = torch.optim.AdamW(theirs, lr=0.01, eps=1e-6, weight_decay=0.1)
    for step in gradients:
        for parameter, gradient in zip(theirs, step, strict=True):
            parameter.grad = torch.tensor(gradient)
        adamw.step()
    ours = AdamWeightDecay(
        0.01, weight_decay_rate=0.1, clip_norm=None, no_decay=(), bias_correction=True
    )
    run(ours, variables, gradients, jit)
    assert_close(variables, [p.detach().numpy() for p in theirs])


def test_bias_correction_counts_from_where_the_moments_begin():
    """As in the second stage of two_stage, whose moments are new."""
    first = keras.Variable([1.0, -2.0]), keras.Variable([1.0, -2.0])
    for begin, variable in zip((0, 7), first, strict=True):
        adamw = AdamWeightDecay(
            0.01, clip_norm=None, bias_correction=True, moments_from=(0, 7, 9)
        )
        adamw.build([variable])
        adamw.iterations.assign(begin)
        adamw.apply([tf.constant([0.5, 0.25])], [variable])
    np.testing.assert_array_equal(*first)
    np.testing.assert_allclose(first[0], [0.99, -2.01], atol=1e-3)


@pytest.mark.parametrize("jit", JIT)
def test_lamb_equals_the_paper(jit):
    variables, gradients = make_variables(), make_gradients(5.0)
    values = [np.float64(v.numpy()) for v in variables]
    m = [np.zeros_like(v) for v in values]
    v = [np.zeros_like(v) for v in values]
    for t, step in enumerate(gradients, start=1):
        for i, path in enumerate(SHAPES):
            m[i] = 0.9 * m[i] + 0.1 * step[i]
            v[i] = 0.999 * v[i] + 0.001 * np.float64(step[i]) ** 2
            update = m[i] / (1 - 0.9**t) / (np.sqrt(v[i] / (1 - 0.999**t)) + 1e-6)
            if path not in NOT_DECAYED:
                update += 0.01 * values[i]
                update *= np.linalg.norm(values[i]) / np.linalg.norm(update)
            values[i] = values[i] - 0.01 * update
    lamb = AdamWeightDecay(0.01, clip_norm=None, bias_correction=True, trust_ratio=True)
    run(lamb, variables, gradients, jit)
    assert_close(variables, values)


def test_lamb_changes_a_variable_that_is_zero():
    zero = keras.Variable(np.zeros((3, 2), "f4"), name="kernel")
    lamb = AdamWeightDecay(0.01, bias_correction=True, trust_ratio=True)
    lamb.build([zero])
    lamb.apply([tf.ones((3, 2))], [zero])
    np.testing.assert_allclose(zero, np.full((3, 2), -0.01), rtol=1e-4)


# Keras.


def test_serialization():
    settings = {
        "weight_decay_rate": 0.3,
        "beta_1": 0.8,
        "beta_2": 0.95,
        "epsilon": 1e-4,
        "clip_norm": 2.0,
        "clip_apart": ["generator"],
        "no_decay": ["beta"],
    }
    schedule = WarmupPolynomialDecay(2e-4, 50, 5, 0.2, 2.0)
    layers = LayerwiseDecay(0.8, 2)
    optimizer = AdamWeightDecay(schedule, layer_factor=layers, **settings)
    saved = json.dumps(keras.optimizers.serialize(optimizer))
    copy = keras.optimizers.deserialize(json.loads(saved))
    assert type(copy) is AdamWeightDecay
    assert json.dumps(keras.optimizers.serialize(copy)) == saved
    path = "electra/encoder/layer_0/output/dense/bias"  # decayed with this no_decay
    assert copy.layer_factor(path) == layers(path) == 0.8**3
    one, other = (keras.Variable(np.ones([3, 2], "f4")) for _ in range(2))
    for this, variable in ((optimizer, one), (copy, other)):
        variable._path = path
        run(this, [variable], [[np.full([3, 2], step, "f4")] for step in range(1, 9)])
    np.testing.assert_array_equal(one, other)
    assert (one.numpy() != 1).all()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("original", (False, False)), ("adamw", (True, False)), ("lamb", (True, True))],
)
def test_optimizers_by_name(name, kind):
    optimizer = create_optimizer(tiny_config(optimizer=name, weight_decay_rate=0.25))
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert (copy.bias_correction, copy.trust_ratio) == kind
    assert (copy.weight_decay_rate, copy.clip_norm) == (0.25, 1.0)


@pytest.mark.parametrize(
    ("hparams", "rates"),
    [
        ({"schedule": "constant"}, {0: 0, 5: 0.5, 10: 1, 99: 1, 200: 1}),
        ({"schedule": "linear"}, {0: 0, 5: 0.5, 10: 1, 55: 0.5, 100: 0, 200: 0}),
        ({"schedule": "wsd"}, {0: 0, 5: 0.5, 10: 1, 90: 1, 95: 0.5, 100: 0, 200: 0}),
        (
            {"schedule": "wsd", "decay_proportion": 0.5, "num_warmup_steps": 0},
            {0: 1, 50: 1, 75: 0.5, 100: 0},
        ),
        (
            {"schedule": "polynomial", "lr_decay_power": 0.5},
            {0: 0, 5: 0.5, 10: 1, 55: 0.5**0.5, 100: 0, 200: 0},
        ),
        # Each phase from its own beginning.
        (
            {
                "num_train_steps": 130,
                "phases": [
                    {"num_train_steps": 100, "schedule": "linear"},
                    {"num_train_steps": 20, "num_warmup_steps": 4},
                    {"num_train_steps": 10, "learning_rate": 1.0, "schedule": "wsd"},
                ],
            },
            {5: 0.5, 55: 0.5, 99: 1 / 90, 100: 0, 102: 0.45, 110: 0.5, 119: 0.05}
            | {120: 0, 125: 0.25, 130: 0, 140: 0},
        ),
        # Both at once: the decay starts before the warm-up ends.
        (
            {"schedule": "wsd", "decay_proportion": 1, "num_warmup_steps": 50},
            {0: 0, 25: 0.375, 50: 0.5, 75: 0.25},
        ),
    ],
)
def test_other_schedules(hparams, rates):
    usual = {"learning_rate": 2.0, "num_train_steps": 100, "num_warmup_steps": 10}
    optimizer = create_optimizer(tiny_config(**(usual | hparams)))
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    copy.build([keras.Variable([1.0])])
    for step, share in rates.items():
        copy.iterations.assign(step)
        assert float(copy.learning_rate) == pytest.approx(2 * share, abs=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_muon_of_matrices_in_layers_and_adamw_of_the_rest(jit):
    """As keras.optimizers.Muon, also with more rows than columns, or fewer."""
    config = tiny_config(optimizer="muon", learning_rate=0.1, schedule="constant")
    optimizer = create_optimizer(config.replaced(num_warmup_steps=0))
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    copy.clip_norm = None
    peers = [keras.optimizers.Muon(0.1, weight_decay=0.01)]
    peers += [keras.optimizers.AdamW(0.1, weight_decay=0.01, epsilon=1e-6)]
    names = "encoder/layer_0/a/kernel", "encoder/layer_1/b/kernel", "head/dense/kernel"
    rng = np.random.default_rng(0)
    shapes = (6, 4), (4, 6), (5, 3)
    starts = [rng.normal(size=shape).astype(np.float32) for shape in shapes]

    def variables():
        found = [keras.Variable(start, name="kernel") for start in starts]
        for variable, name in zip(found, names, strict=True):
            variable._path = name
        return found

    ours, theirs = variables(), variables()
    step = tf.function(lambda g: copy.apply(g, ours), autograph=False, jit_compile=jit)
    copy.build(ours)
    peers[0].build(theirs[:2])
    peers[1].build(theirs[2:])
    for _ in range(3):
        gradients = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        step([tf.constant(gradient) for gradient in gradients])
        peers[0].apply(gradients[:2])
        peers[1].apply(gradients[2:])
    for one, other, start in zip(ours, theirs, starts, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
        assert np.abs(np.array(one) - start).max() > 0.05


def test_the_graph_has_one_function_for_updates_of_a_kind():
    variables, [gradients] = make_variables(), make_gradients(1.0, steps=1)
    optimizer = AdamWeightDecay(0.1)
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step():
        optimizer.apply([tf.constant(g) for g in gradients], variables)

    graph = step.get_concrete_function().graph
    functions = graph.as_graph_def().library.function
    kinds = {(shape, path in NOT_DECAYED) for path, shape in SHAPES.items()}
    assert len(functions) == len(kinds) < len(SHAPES)
    assert all(function.attr["_noinline"].b for function in functions)


def test_no_rate_is_negative_behind_the_end():
    rate = WarmupPolynomialDecay(1.0, 999, power=0.5, decay_steps=99.9)
    assert rate(tf.constant(999)) == rate(tf.constant(2000)) == 0.0
