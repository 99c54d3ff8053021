# SPDX-License-Identifier: Apache-2.0
"""Pre-training models and batches small enough for a test."""

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
    "electric_untied": {
        "electric_objective": True,
        "untied_generator_embeddings": True,
    },
    "two_tower_alone": {"objective": "two_tower", "generator_hidden_size": 1.0},
    "two_stage": {
        "objective": "two_stage",
        "embedding_size": 16,
        "generator_hidden_size": 1.0,
    },
    "adversarial": {"objective": "adversarial"},
    "electra_15": {"objective": "electra_15"},
    "electra_sentence": {"objective": "electra_sentence"},
    "replace_mlm": {"objective": "replace_mlm"},
    "all_tokens_mlm": {"objective": "all_tokens_mlm"},
}


# Those that differ most from each other.
_BY_DEFAULT = (
    *("electra", "tied_all", "disentangled", "mlm", "electric", "two_stage"),
    *("adversarial", "all_tokens_mlm", "electra_sentence"),
)


def each_variant() -> list:
    """Parameters of a test that takes seconds for each: half of them thorough."""
    return by_default(VARIANTS, _BY_DEFAULT)


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
    config = tiny_config(**(VARIANTS[variant] | changes))
    model = build_pretrainer(config, SPECIAL_IDS, dtype=dtype)
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = rng.normal(0, 0.2, variable.shape)
        variable.assign(noise + 1.0 * ("gamma" in variable.path))
    return model


def tiny_batch(rows=ROWS, seed=0, **options) -> dict[str, tf.Tensor]:
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
        mask_prob=0.15,
        max_predictions_per_seq=4,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        **options,
    )


def gradients(model, loss_of, *args, **kwargs) -> dict[str, np.ndarray | None]:
    """d loss_of(output) / d variable by path, dense; None where nothing connects."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = loss_of(model(*args, **kwargs))
    found = tape.gradient(loss, [v.value for v in variables])
    return {
        variable.path: None if g is None else tf.convert_to_tensor(g).numpy()
        for variable, g in zip(variables, found, strict=True)
    }


def assert_taught(model, batch, losses, taught) -> None:
    """What learns from each loss: the variables whose paths begin so, and no others.

    Args:
      losses: name -> loss of the model's output.
      taught: the same name -> beginnings of paths.
    """
    for name, loss in losses.items():
        for path, gradient in gradients(model, loss, batch).items():
            if path.endswith("key/bias"):
                continue  # has no influence
            learns = gradient is not None and gradient.any()
            assert learns == path.startswith(taught[name]), (name, path)
