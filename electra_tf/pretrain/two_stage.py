# SPDX-License-Identifier: Apache-2.0
"""Two-stage ELECTRA: first the generator learns, then the discriminator.

"Training algorithms" in section 3.2 of the ELECTRA paper: the generator is trained as
a masked language model, its weights initialise the discriminator, and that is trained
while the generator is frozen.
"""

from __future__ import annotations

from electra_tf.pretrain.objectives import Electra, Objective


class TwoStage(Electra):
    """One stage after the other in one run; each step is of one of them.

    A finished model is in the second.
    """

    name = "two_stage"
    model = "a two-stage ELECTRA"
    description = (
        "two-stage ELECTRA: a masked language model was trained, its weights began the "
        "discriminator, which then learned while the generator stayed as it was"
    )

    def __init__(self, settings, stage=None):
        super().__init__(settings, stage or 2)
        if self.stage == 1:
            self.metrics = Objective.metrics

    def begin(self, model):
        if self.stage == 2 and self.settings.init_discriminator:
            theirs = {v.path: v for v in model.generator.encoder.variables}
            for variable in model.electra.variables:
                name = variable.path.replace("electra/", "generator/", 1)
                variable.assign(theirs[name].value)

    def trained_variables(self, model):
        if self.stage == 1:
            return model.generator.trainable_variables
        head = model.discriminator_predictions.trainable_variables
        return model.electra.trainable_variables + head

    def discriminate(self, *args):
        return None if self.stage == 1 else super().discriminate(*args)

    def total_loss(self, generated, discriminated):
        if self.stage == 1:
            return super().total_loss(generated, None)
        return self.settings.disc_weight * discriminated.loss

    def sums(self, output, batch):
        if self.stage == 1:
            return Objective.sums(self, output, batch)
        return super().sums(output, batch)
