# SPDX-License-Identifier: Apache-2.0
"""ELECTRA with a generator that was trained before and does not learn.

Fast-ELECTRA (Dong et al., ICLR 2024): no backward pass, gradients or optimizer slots of
the generator; its temperature falls in the training (`curriculum`).
"""

from __future__ import annotations

from electra_tf.pretrain.objectives import Electra


class FrozenGenerator(Electra):
    """Replaced token detection alone; `init_generator` gives the generator."""

    name = "frozen_generator"
    model = "an ELECTRA with a frozen generator"
    description = (
        "ELECTRA with a frozen generator (Fast-ELECTRA): a masked language model that "
        "was trained before replaced tokens, the model learned which"
    )
    trains_generator = False

    def total_loss(self, generated, discriminated):
        del generated
        return self.settings.disc_weight * discriminated.loss
