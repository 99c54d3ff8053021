# SPDX-License-Identifier: Apache-2.0
"""Encoder blocks outside of the package: BERT's with one part of the modern block each.

  python3 experiments/ingredients.py pretrain --data-dir $DATA_DIR --model-name rotary \
    --hparams '{"model_hparam_overrides": {"block": "rotary"}}'

The commands of `electra-tf`, with four kinds of block more: rotary, gated, small_start
and post_norm, which has the three. What the modern block has beside them: norms before
its parts, no biases, no tables of positions and segments.
"""

import math

from electra_tf import commands
from electra_tf.config.model import BLOCKS, BlockKind

THETA = 10000.0  # base of the rotary positions, for short texts
_NAMES = {"rotary": "Rotary", "small_start": "SmallStart"}
_NAMES |= {"gated": "Gated", "post_norm": "PostNorm"}
# Before the imports below: they make the choices of hparams from the rows.
for _name, _class in _NAMES.items():
    _gated = _name in ("gated", "post_norm")
    BLOCKS[_name] = BlockKind(f"ingredients:{_class}", is_gated=_gated)

from electra_tf.model.attention import rotated  # noqa: E402
from electra_tf.model.blocks import BertBlock  # noqa: E402
from electra_tf.model.dropout import fold_in  # noqa: E402


class Rotary(BertBlock):
    """Rotary positions beside the table."""

    def _query_key_value(self, x, score_bias):
        query, key, value = super()._query_key_value(x, score_bias)
        return [rotated(query, THETA), rotated(key, THETA), value]


class SmallStart(BertBlock):
    """Kernels that write to the residual stream start 1 / sqrt(2 N) times as large."""

    def _residual(self):
        config = self.config
        stddev = config.initializer_range / math.sqrt(2 * config.num_hidden_layers)
        return self._scope(
            "output", dense=self._dense(stddev=stddev), layer_norm=self._norm()
        )


class Gated(BertBlock):
    """A gated feed-forward layer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        width = self.config.intermediate_size
        parts = {name: self._dense(name, width) for name in ("dense", "gate")}
        self.intermediate = self._scope("intermediate", **parts)

    def call(self, x, score_bias, seed=None):
        seeds, wide = (fold_in(seed, 0), fold_in(seed, 1)), self.intermediate
        context = self.attend(x, score_bias, fold_in(seeds[0], 0))
        own = self.attention.output_layer
        attended = self._add(own, context, x, fold_in(seeds[0], 1))
        gated = self.activation(wide.dense(attended)) * wide.gate(attended)
        return self._add(self.output_layer, gated, attended, seeds[1])


class PostNorm(Rotary, SmallStart, Gated):
    """All three."""


if __name__ == "__main__":
    commands.main()
