# SPDX-License-Identifier: Apache-2.0
"""The shapes of discriminator and generator."""

import dataclasses
import math
from typing import Any, NamedTuple

from electra_tf.config.hparams import LARGEST, identity, setting
from electra_tf.errors import UserError


class BlockKind(NamedTuple):
    """Facts about a kind of encoder block; the class is the contract of `Block`.

    Attributes:
      implementation: "module:Class"; ".module" is one of electra_tf.model.
      has_tables: whether segments and positions have embeddings; those of positions
        limit the length.
      has_biases: whether dense layers and layer norms have a bias, heads included.
      is_pre_norm: whether blocks read normalised states. Then the embeddings are
        normalised after their projection, the last block's output is, too, the heads
        are dense, activation, norm, classifier, and kernels are initialised as in
        Megatron.
      is_gated: whether the feed-forward layer is.
      norm_epsilon: of layer norms.
      widening: the usual intermediate_size as a multiple of hidden_size.
    """

    implementation: str
    has_tables: bool = True
    has_biases: bool = True
    is_pre_norm: bool = False
    is_gated: bool = False
    norm_epsilon: float = 1e-12
    widening: float = 4


BLOCKS = {
    "bert": BlockKind(".blocks:BertBlock"),
    "modern": BlockKind(
        ".modern_block:ModernBlock",
        has_tables=False,
        has_biases=False,
        is_pre_norm=True,
        is_gated=True,
        norm_epsilon=1e-5,
        widening=1.5,
    ),
}
_MODERN = {"block": ["modern"]}
BLOCK_HPARAMS = ("block", "local_window", "global_every")
BLOCK_HPARAMS += ("global_rope_theta", "local_rope_theta")


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

    block: str = identity(
        "bert",
        "Encoder block: bert, or modern: ModernBERT's (docs/objectives.md).",
        BLOCKS,  # with rows that are added later
    )
    local_window: int = identity(
        128, "Tokens that a local layer attends to, half on each side.", ">= 2", _MODERN
    )
    global_every: int = identity(
        3, "Every n-th layer, from the first, attends to all tokens.", ">= 1", _MODERN
    )
    global_rope_theta: float = identity(
        160000.0, "Base of the rotary positions of global layers.", "> 1", _MODERN
    )
    local_rope_theta: float = identity(
        10000.0, "Base of those of local layers.", "> 1", _MODERN
    )

    @property
    def kind(self) -> BlockKind:
        """The facts about its blocks."""
        return BLOCKS[self.block]

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence that it can read."""
        return self.max_position_embeddings if self.kind.has_tables else LARGEST

    @property
    def output_range(self) -> float:
        """`initializer_range` of kernels that write to the residual stream."""
        depth = 2 * self.num_hidden_layers if self.kind.is_pre_norm else 1
        return self.initializer_range / math.sqrt(depth or 1)

    def check(self, which: str, fix: str) -> None:
        """Raises a UserError for sizes that do not fit each other."""
        width, heads = self.hidden_size, self.num_attention_heads
        if width % heads:
            raise UserError(
                f"{which} has hidden_size {width}, which its {heads} attention heads "
                f"do not divide; change {fix}"
            )
        if not self.kind.has_tables and (width // heads % 2 or self.local_window % 2):
            raise UserError(
                f"{which} has heads of width {width // heads} and local_window "
                f"{self.local_window}; both must be even"
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
    kind = BLOCKS[shape.get("block", ModelConfig.block)]
    derived = {
        "num_attention_heads": max(1, shape["hidden_size"] // 64),
        "intermediate_size": int(kind.widening * shape["hidden_size"]),
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
        intermediate_size=int(discriminator.kind.widening * width),
    )
