# SPDX-License-Identifier: Apache-2.0
"""Objectives and generators that cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from electra_tf.errors import UserError
from electra_tf.hparams import show
from electra_tf.run_config import check_heads

if TYPE_CHECKING:
    from electra_tf.config import PretrainingConfig


def check_objective(config: PretrainingConfig) -> None:
    """Raises a UserError for objectives that exclude each other."""
    two = "two_tower_generator"
    electric, electra = "electric_objective", "electra_objective"
    tied = not config.untied_generator
    mlm = not (config.electra_objective or config.electric_objective)
    impossible = [
        (config.electra_objective and config.electric_objective, electra, electric,
         "a run has one objective"),
        (config.electric_objective and config.uniform_generator,
         electric, "uniform_generator", "Electric needs a two-tower generator"),
        (config.electric_objective and not config.two_tower_generator, electric, two,
         "Electric needs a two-tower generator"),
        (config.electric_objective and tied, electric, "untied_generator",
         "the towers cannot be the discriminator"),
        (config.two_tower_generator and mlm, two, electra,
         "masked language modeling has no separate generator"),
        (config.two_tower_generator and tied, two, "untied_generator",
         "the towers cannot be the discriminator"),
        (config.two_tower_generator and config.uniform_generator,
         two, "uniform_generator", "there is one generator"),
        (config.uniform_generator and tied, "uniform_generator", "untied_generator",
         "a uniform generator has no weights to share"),
        (config.uniform_generator and mlm, "uniform_generator", electra,
         "nothing would be trained"),
    ]  # fmt: skip
    for is_impossible, first, second, reason in impossible:
        if is_impossible:
            raise UserError(
                f"{first} {show(getattr(config, first))} and "
                f"{second} {show(getattr(config, second))} exclude each other: {reason}"
            )


def check_generator(config: PretrainingConfig) -> None:
    """Raises a UserError for a generator of an impossible shape."""
    if not config.uses_generator_config:
        return
    shape, generator = config.model_config(), config.generator_config()
    for name, fraction in (
        ("hidden_size", "generator_hidden_size"),
        ("num_hidden_layers", "generator_layers"),
    ):
        if getattr(generator, name) < 1:
            raise UserError(
                f"{fraction} {getattr(config, fraction)} of {name} "
                f"{getattr(shape, name)} is {getattr(generator, name)}; it must be 1 "
                "or more"
            )
    check_heads("the generator", generator, "generator_hidden_size")
