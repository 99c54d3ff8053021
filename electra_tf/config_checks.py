# SPDX-License-Identifier: Apache-2.0
"""Settings that are right alone and wrong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from electra_tf.errors import UserError
from electra_tf.hparams import show
from electra_tf.model_config import ModelConfig

if TYPE_CHECKING:
    from electra_tf.config import PretrainingConfig


def count_lines(path: str) -> int | None:
    """The number of lines of a local file; None if there is no such file."""
    try:
        with open(path, "rb") as f:
            return sum(1 for _ in f)
    except OSError:
        return None


def check_together(config: PretrainingConfig) -> None:
    """Raises a UserError for values that are right alone and wrong together."""
    if config.do_train == config.do_eval:
        raise UserError(
            f"do_train and do_eval are both {show(config.do_train)}; exactly one must "
            'be true.\nTo evaluate: {"do_train": false, "do_eval": true}'
        )
    _check_objective(config)
    _check_shapes(config)
    _check_sizes(config)


def _check_objective(config: PretrainingConfig) -> None:
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


def _check_shapes(config: PretrainingConfig) -> None:
    shape = config.model_config()
    check_shape(shape, config.max_seq_length)
    if config.uses_generator_config:
        generator = config.generator_config()
        for name, fraction in (
            ("hidden_size", "generator_hidden_size"),
            ("num_hidden_layers", "generator_layers"),
        ):
            if getattr(generator, name) < 1:
                raise UserError(
                    f"{fraction} {getattr(config, fraction)} of {name} "
                    f"{getattr(shape, name)} is {getattr(generator, name)}; it must "
                    "be 1 or more"
                )
        _check_heads("the generator", generator, "generator_hidden_size")


def check_shape(shape: ModelConfig, max_seq_length: int) -> None:
    """Raises a UserError for an encoder that cannot be, or cannot read so far."""
    _check_heads("the model", shape, "model_hparam_overrides")
    if max_seq_length > shape.max_position_embeddings:
        raise UserError(
            f"max_seq_length {max_seq_length} exceeds max_position_embeddings "
            f"{shape.max_position_embeddings}; raise the latter in "
            "model_hparam_overrides"
        )


def _check_heads(which: str, shape: ModelConfig, mend: str) -> None:
    if shape.hidden_size % shape.num_attention_heads:
        raise UserError(
            f"{which} has hidden_size {shape.hidden_size}, which its "
            f"{shape.num_attention_heads} attention heads do not divide; change {mend}"
        )


def _check_sizes(config: PretrainingConfig) -> None:
    if config.max_predictions_per_seq < 1:
        raise UserError(
            f"mask_prob {config.mask_prob} of max_seq_length {config.max_seq_length} "
            "is less than one token; raise one of them"
        )
    if config.train_batch_size % config.gradient_accumulation_steps:
        raise UserError(
            f"gradient_accumulation_steps {config.gradient_accumulation_steps} does "
            f"not divide train_batch_size {config.train_batch_size}"
        )
    lines = count_lines(config.vocab_file)
    if lines is not None and lines != config.vocab_size:
        raise UserError(
            f"vocab_size is {config.vocab_size}, but {config.vocab_file} has {lines} "
            "lines; leave vocab_size out to take the file's"
        )
