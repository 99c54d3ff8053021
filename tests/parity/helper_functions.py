# SPDX-License-Identifier: Apache-2.0
"""Replays recordings of the original's helper functions (golden/misc).

helpers.npz holds inputs and outputs of single functions, schedules.{json,npz} learning
rates, masking_statistics.json how often its random masking chose each position.

Not compared: `sample/*`, ids drawn by Gumbel noise, one number per vocabulary entry.
Our sampler spends one number per draw; test_masking.py holds it to the distribution.
"""

from __future__ import annotations

import math
import os
import re
import types
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig, max_predictions_per_seq
from electra_tf.model import encoder, layers
from electra_tf.pretrain import masking
from electra_tf.pretrain.generators import MaskedInputs, TwoTowerGenerator
from electra_tf.train.optimization import LayerwiseDecay, WarmupPolynomialDecay
from tests.parity.rows import Row, compare, forward_row, read_json

# Frequencies of random draws agree within this many standard errors.
STANDARD_ERRORS = 5.0
# The recording's vocabulary: [CLS], [SEP], [MASK].
CLS_ID, SEP_ID, MASK_ID = 2, 3, 4


def replay(directory: str) -> Iterator[Row]:
    """Compares what one directory recorded of the original's helper functions."""
    helpers = np.load(os.path.join(directory, "helpers.npz"))
    yield from _scatter_and_gather(helpers)
    yield from _num_to_predict(helpers)
    yield from _gelu(helpers)
    yield from _layer_norm(helpers)
    yield from _towers(helpers)
    yield from _attention_bias(helpers)
    if os.path.exists(os.path.join(directory, "schedules.json")):
        yield from _schedules(directory)
    if os.path.exists(os.path.join(directory, "masking_statistics.json")):
        yield from _masking_statistics(read_json(directory, "masking_statistics.json"))


def _scatter_and_gather(golden) -> Iterator[Row]:
    positions = golden["scatter/positions"]
    sequence = golden["scatter/int_sequence"]
    out, written = masking.scatter_update(
        tf.constant(sequence), golden["scatter/int_updates"], positions
    )
    yield compare("scatter_update/ids", out, golden["scatter/int_out"])
    yield compare("scatter_update/mask", written, golden["scatter/int_mask"])
    floats = golden["scatter/float_sequence"]
    for name, source in (("gather2", sequence), ("gather3", floats)):
        ours = layers.gather_positions(tf.constant(source), positions)
        golden_values = golden[f"scatter/{name}"]
        ours = tf.reshape(ours, golden_values.shape)
        yield compare(f"gather_positions/{name}", ours, golden_values)


def _num_to_predict(golden) -> Iterator[Row]:
    for key in golden.files:
        match = re.fullmatch(r"num_to_predict/p([\d.]+)_L(\d+)", key)
        if match:
            mask_prob, length = float(match[1]), int(match[2])
            ours = masking.num_to_predict(
                tf.range(1, length + 1),
                mask_prob,
                max_predictions_per_seq(mask_prob, length),
            )
            yield compare(key, ours, golden[key])


def _gelu(golden) -> Iterator[Row]:
    x = tf.constant(golden["gelu/x"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layers.gelu(x)
    yield forward_row("gelu/value", y, golden["gelu/y"])
    slope = tape.gradient(y, x)
    yield forward_row("gelu/derivative", slope, golden["gelu/dy_dx"])


def _layer_norm(golden) -> Iterator[Row]:
    x = tf.constant(golden["layer_norm/x"])
    layer = layers.LayerNorm()
    layer.build(x.shape)
    layer.beta.assign(golden["layer_norm/beta"])
    layer.gamma.assign(golden["layer_norm/gamma"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        total = tf.reduce_sum(tf.square(y))
    d_x, d_beta, d_gamma = tape.gradient(
        total, [x, layer.beta.value, layer.gamma.value]
    )
    # The original subtracts mean * scale from x * scale. Where a row hardly varies the
    # scale is up to 1e6 and these terms' rounding is what it recorded.
    x = np.float64(x)
    varies = x.std(axis=-1, keepdims=True) > 0
    scale = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12)
    gain = np.abs(golden["layer_norm/gamma"])
    rounding = 2 * np.finfo(np.float32).eps * np.abs(x) * scale * gain
    yield compare("layer_norm/value", y, golden["layer_norm/y"], 1e-5, 2e-5 + rounding)
    recorded = golden["layer_norm/d_sumsq_dx"] * varies
    atol = 1e-5 * np.abs(recorded).max(axis=-1, keepdims=True)
    yield compare("layer_norm/dx", d_x * varies, recorded, atol=atol)
    recorded = golden["layer_norm/d_sumsq_dbeta"]
    atol = 1e-5 * np.abs(recorded).max() + 2 * rounding.sum(axis=0)
    yield compare("layer_norm/dbeta", d_beta, recorded, atol=atol)
    recorded = golden["layer_norm/d_sumsq_dgamma"]
    atol = 1e-5 * np.abs(recorded).max()
    yield compare("layer_norm/dgamma", d_gamma, recorded, atol=atol)


def _towers(golden) -> Iterator[Row]:
    """The states at each position, of two towers that yield the recorded ones."""

    def tower(*_):
        return types.SimpleNamespace(sequence_output=tf.constant(golden["roll/x"]))

    generator = types.SimpleNamespace(ltr=tower, rtl=tower)
    inputs = MaskedInputs(*[None] * len(MaskedInputs._fields))
    states = TwoTowerGenerator.towers(generator, inputs)
    before, after = tf.split(states, 2, axis=-1)
    yield compare("roll/before", before, golden["roll/minus1"])
    yield compare("roll/after", after, golden["roll/plus1"])


def _attention_bias(golden) -> Iterator[Row]:
    recorded = golden["attention_mask/out"]  # [B, L, L], 1 where a key is visible
    bias = encoder.attention_bias(
        tf.constant(golden["attention_mask/input_mask"]), "bidirectional"
    )
    visible = 1.0 - bias[:, 0] / -10000.0
    ours = tf.broadcast_to(visible, recorded.shape)
    yield compare("attention_bias/visible", ours, recorded)


def _schedules(directory: str) -> Iterator[Row]:
    golden = np.load(os.path.join(directory, "schedules.npz"))
    for described in read_json(directory, "schedules.json"):
        name = described["name"]
        schedule = WarmupPolynomialDecay(
            described["learning_rate"],
            described["num_train_steps"],
            warmup_steps=described["warmup_steps"],
            warmup_proportion=described["warmup_proportion"],
            power=described["lr_decay_power"],
        )
        steps, recorded = golden[f"{name}/steps"], golden[f"{name}/lr"]
        rates = np.array([schedule(tf.constant(step)) for step in steps])
        if "keys" in described:
            factor = LayerwiseDecay(
                described["layerwise_lr_decay_power"], described["n_transformer_layers"]
            )
            factors = [
                factor(f"electra/{key.strip('/')}/x") for key in described["keys"]
            ]
            rates = rates[:, None] * np.array(factors)
        # Near the end of the decay 1 - step / num_train_steps keeps few digits; whether
        # TensorFlow divides or multiplies by the reciprocal already shows there.
        atol = 1e-7 * described["learning_rate"]
        yield compare(f"schedule/{name}", rates, recorded, rtol=1e-6, atol=atol)


def _masking_statistics(golden) -> Iterator[Row]:
    """Our masking's frequencies against the recorded ones."""
    input_ids = np.array(golden["input_ids"], np.int32)
    input_mask = np.array(golden["input_mask"], np.int32)
    names = "mask_prob", "max_seq_length"
    config = PretrainingConfig(**{name: golden[name] for name in names})
    for row, recorded in enumerate(golden["stats"].values()):
        draws, used = recorded["draws"], recorded["n_predictions"]
        ids = np.tile(input_ids[row], [draws // 10, 1])
        batch = {
            "input_ids": ids,
            "input_mask": np.tile(input_mask[row], [len(ids), 1]),
        }
        positions, masked = [], []
        for step in range(10):
            result = masking.mask_batch(
                {name: tf.constant(value) for name, value in batch.items()},
                1,
                step,
                masking.Masking(config, (CLS_ID, SEP_ID, MASK_ID)),
            )
            weights = result["masked_lm_weights"].numpy()
            yield compare(
                f"masking_statistics/row{row}/step{step}/n_predictions",
                weights.sum(axis=1),
                np.full(len(ids), used),
            )
            positions.append(result["masked_lm_positions"].numpy()[:, :used])
            masked.append((result["masked_input_ids"].numpy() != ids).sum(axis=1))
        yield from _frequencies(
            f"masking_statistics/row{row}",
            np.concatenate(positions),
            np.concatenate(masked),
            recorded,
        )


def _frequencies(name, positions, masked, recorded) -> Iterator[Row]:
    """Rates of `positions` [draws, n] and of the number of [MASK]s [draws]."""
    length = len(recorded["position_selection_rate"])
    counts = np.bincount(positions.reshape(-1), minlength=length)
    for position, rate in enumerate(recorded["position_selection_rate"]):
        error = math.sqrt(2 * rate * (1 - rate) / positions.size)
        deviation = abs(counts[position] / positions.size - rate)
        quantity = f"{name}/position_{position}"
        yield Row(quantity, deviation, STANDARD_ERRORS * error)
    ordered = np.sort(positions, axis=1)
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    for quantity, ours, mean in (
        ("distinct_positions", distinct, recorded["mean_distinct_positions"]),
        ("mask_tokens", masked, recorded["mean_number_of_MASK_added"]),
    ):
        error = math.sqrt(2 / len(ours)) * ours.std()
        deviation = abs(ours.mean() - mean)
        yield Row(f"{name}/{quantity}", deviation, STANDARD_ERRORS * error)
