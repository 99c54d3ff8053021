# SPDX-License-Identifier: Apache-2.0
"""The shapes of discriminator and generator."""

import dataclasses
from typing import Any

from electra_tf.config.hparams import identity, setting


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape of one transformer (the original's BertConfig)."""

    vocab_size: int = identity(30522, "Rows of the word embedding table.", ">= 1")
    hidden_size: int = identity(256, "Width of the encoder.", ">= 1")
    num_hidden_layers: int = identity(12, "Transformer layers.", ">= 1")
    num_attention_heads: int = identity(4, "Heads; they divide hidden_size.", ">= 1")
    hidden_act: str = identity(
        "gelu",
        "Activation of the feed-forward layers; gelu_tanh approximates gelu with tanh.",
        ("gelu", "gelu_tanh", "relu", "tanh", "linear"),
    )
    intermediate_size: int = identity(1024, "Width of the feed-forward layer.", ">= 1")
    hidden_dropout_prob: float = setting(
        0.1, "Dropout on embeddings and layer outputs.", ">= 0 and < 1"
    )
    attention_probs_dropout_prob: float = setting(
        0.1, "Dropout on attention probabilities.", ">= 0 and < 1"
    )
    max_position_embeddings: int = identity(
        512, "Rows of the position table: the longest sequence.", ">= 1"
    )
    type_vocab_size: int = identity(2, "Number of segment types.", ">= 2")
    initializer_range: float = setting(
        0.02, "Standard deviation of the truncated normal initializer.", "> 0"
    )
    attention_chunk_size: int = setting(
        0,
        "Compute attention for this many query positions at a time, to save memory on "
        "long sequences; 0: all at once.",
        ">= 0",
    )

    def overrides(self) -> dict[str, Any]:
        """As `model_hparam_overrides`; the vocabulary's size is an hparam by itself."""
        fields = dataclasses.asdict(self)
        del fields["vocab_size"]
        return fields


# Widths and depths of the paper, Table 6.
SIZES = {
    "small": {"hidden_size": 256, "num_hidden_layers": 12},
    "base": {"hidden_size": 768, "num_hidden_layers": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24},
}


def model_config(
    model_size: str, vocab_size: int, overrides: dict[str, Any]
) -> ModelConfig:
    """The discriminator's shape: heads and feed-forward width follow from the width.

    Args:
        model_size: "small", "base" or "large".
        vocab_size: rows of the embedding table.
        overrides: fields of ModelConfig that are set by hand.
    """
    shape = {"vocab_size": vocab_size, **SIZES[model_size], **overrides}
    derived = {
        "num_attention_heads": max(1, shape["hidden_size"] // 64),
        "intermediate_size": 4 * shape["hidden_size"],
    }
    return ModelConfig(**{**derived, **shape})


def generator_config(
    discriminator: ModelConfig, hidden_size: float, layers: float
) -> ModelConfig:
    """The generator's shape, as fractions of the discriminator's width and depth.

    Heads and feed-forward width always follow from the generator's width; fractions
    are rounded half to even, as in the original.
    """
    width = round(discriminator.hidden_size * hidden_size)
    return dataclasses.replace(
        discriminator,
        hidden_size=width,
        num_hidden_layers=round(discriminator.num_hidden_layers * layers),
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
    )
