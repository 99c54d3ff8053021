# SPDX-License-Identifier: Apache-2.0
"""A two-tower cloze model by itself: Electric's generator at the model's own size.

The baseline TwoTower of the Electric paper, section 3.2.
"""

from __future__ import annotations

from electra_tf.pretrain.objectives import Objective


class TwoTower(Objective):
    """The cloze loss of two towers, which are all there is: nobody reads samples."""

    name = "two_tower"
    model = "a two-tower cloze model"
    description = (
        "a two-tower cloze model: one transformer read from left to right, one from "
        "right to left, and together they predicted each token (Electric paper)"
    )
