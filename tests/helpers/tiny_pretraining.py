# SPDX-License-Identifier: Apache-2.0
"""Pre-training models and batches small enough for a test."""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.pretrain import masking
from electra_tf.pretrain.pretraining import ElectraPretrainer, build_pretrainer
from tests.helpers.runs import by_default

CLS, SEP, MASK = SPECIAL_IDS = 2, 3, 4
VOCAB_SIZE, LENGTH, ROWS = 97, 32, 4

# Every objective and generator, by name.
VARIANTS = {
    "electra": {},
    "tied_all": {"untied_generator": False},
    "untied_embeddings": {"untied_generator_embeddings": True},
    "disentangled": {"embedding_sharing": "disentangled"},
    "same_embedding_size": {"embedding_size": 16},
    "two_tower": {"two_tower_generator": True},
    "uniform": {"uniform_generator": True},
    "unigram": {"generator": "unigram"},
    "mlm": {"electra_objective": False},
    "electric": {"electric_objective": True},
    "electric_unigram": {"electric_objective": True, "generator": "unigram"},
    "electric_untied": {"electric_objective": True, "embedding_sharing": "untied"},
    "two_tower_alone": {"objective": "two_tower", "generator_hidden_size": 1.0},
    "two_stage": {
        "objective": "two_stage",
        "embedding_size": 16,
        "generator_hidden_size": 1.0,
    },
    "adversarial": {"objective": "adversarial"},
    "electra_15": {"objective": "electra_15"},
    "replace_mlm": {"objective": "replace_mlm"},
    "all_tokens_mlm": {"objective": "all_tokens_mlm"},
    "frozen_generator": {"objective": "frozen_generator"},
    "corrective_lm": {"objective": "corrective_lm"},
    "multi_choice": {"objective": "multi_choice"},
}


# Those that differ most from each other.
_BY_DEFAULT = (
    *("electra", "mlm", "electric", "adversarial", "all_tokens_mlm"),
    "multi_choice",
)


def each_variant(*more: str) -> list:
    """Parameters; all but some and `more` are thorough."""
    return by_default(VARIANTS, [*_BY_DEFAULT, *more])


def tiny_config(dropout=0.0, layers=1, **hparams) -> PretrainingConfig:
    overrides = {
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "max_position_embeddings": 40,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    values = {
        "vocab_size": VOCAB_SIZE,
        "max_seq_length": LENGTH,
        "embedding_size": 8,
        "generator_hidden_size": 0.5,
        "train_batch_size": ROWS,
        "num_warmup_steps": 2,
        "num_train_steps": 100,
        "model_hparam_overrides": overrides,
    }
    return PretrainingConfig.from_hparams("/nowhere", "tiny", values | hparams)


def tiny_model(variant="electra", seed=0, dtype=None, **changes) -> ElectraPretrainer:
    """A model with weights drawn from `seed`, large enough to matter."""
    config = tiny_config(**(VARIANTS.get(variant, {}) | changes))
    model = build_pretrainer(config, SPECIAL_IDS, dtype=dtype)
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = rng.normal(0, 0.2, variable.shape)
        variable.assign(noise + 1.0 * ("gamma" in variable.path))
    return model


@functools.cache
def shared_model(variant="electra", **changes) -> ElectraPretrainer:
    """A `tiny_model` that tests of a file share: do not change it."""
    return tiny_model(variant, **changes)


@functools.cache
def shared_output(variant="electra"):
    """What the shared model makes of `tiny_batch()`."""
    return shared_model(variant)(tiny_batch())


def tiny_batch(rows=ROWS, seed=0, temperature=None, **options) -> dict[str, tf.Tensor]:
    """Masked sentence pairs of several lengths; the first row is not padded."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, (rows, LENGTH)).astype(np.int32)
    lengths = rng.integers(12, LENGTH, rows)
    lengths[0] = LENGTH
    for row, length in zip(ids, lengths, strict=True):
        row[0], row[length // 2], row[length - 1] = CLS, SEP, SEP
        row[length:] = 0
    columns = np.arange(LENGTH)
    mask = (columns < lengths[:, None]).astype(np.int32)
    segments = ((columns > lengths[:, None] // 2) * mask).astype(np.int32)
    batch = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    return masking.mask_batch(
        {name: tf.constant(value) for name, value in batch.items()},
        seed,
        0,
        masking.Masking(tiny_config(**options), SPECIAL_IDS, temperature=temperature),
    )


def gradients(model, losses: dict[str, Callable], *args, **kwargs) -> dict[str, dict]:
    """Gradients of losses of a model's output with respect to its variables.

    Args:
      losses: name -> function of the output.

    Returns:
      name -> path -> dense gradient; zeros where nothing connects. And under "loss":
      name -> loss.
    """
    variables = model.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        output = model(*args, **kwargs)
        values = {name: loss_of(output) for name, loss_of in losses.items()}
    found = {"loss": {name: float(value) for name, value in values.items()}}
    for name, value in values.items():
        dense = tape.gradient(
            value,
            [v.value for v in variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        found[name] = {
            variable.path: tf.convert_to_tensor(gradient).numpy()
            for variable, gradient in zip(variables, dense, strict=True)
        }
    return found


def total_gradients(model, *args, **kwargs) -> dict[str, np.ndarray]:
    """path -> gradient of the total loss."""
    return gradients(model, {"total": lambda out: out.total_loss}, *args, **kwargs)[
        "total"
    ]
