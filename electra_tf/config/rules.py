# SPDX-License-Identifier: Apache-2.0
"""Hparams of pre-training that are right alone and wrong together.

Beside these rules, an hparam says itself what it applies to.
"""

from collections.abc import Iterator
from typing import Any

from electra_tf.config.generators import GENERATORS
from electra_tf.config.hparams import idle_fields, show
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.run import check_heads
from electra_tf.errors import UserError


def _is_last_to_learn(config) -> bool:
    """Whether the main network learns from disc_weight's loss alone."""
    kind = OBJECTIVES[config.objective]
    has_verdict = config.objective == "electra_sentence" and config.sentence_weight > 0
    return kind.main_network and not kind.is_originals and not has_verdict


def _is_mixed(phase) -> bool:
    """Whether the data of a phase are a list of several data sets."""
    data = phase.config.pretrain_tfrecords
    return isinstance(data, list) and len(data) > 1


def _conflicts(c) -> Iterator[tuple[str, str]]:
    """(hparams that exclude each other, why and what to do) of a PretrainingConfig."""
    if c.do_train == c.do_eval:
        yield "do_train do_eval", "exactly one must be true"
    if c.objective == "two_stage" and c.phases:
        yield "objective phases", "its stages are phases already. Leave phases out"
    if (c.stage_one_steps or 0) >= c.num_train_steps:
        yield "stage_one_steps num_train_steps", "no step is left for stage two"
    if c.max_predictions_per_seq < 1:
        yield "mask_prob max_seq_length", "less than one token is masked. Raise one"
    if c.sampling_alpha != 1 and not any(map(_is_mixed, c.run_phases())):
        reason = "it gives shares to a list\nof data sets without weights. Leave it out"
        yield "sampling_alpha pretrain_tfrecords", reason
    # 0.7 and 0.3 pass, whatever their rounding.
    if c.mask_token_share + c.random_token_share > 1 + 1e-9:
        yield "mask_token_share random_token_share", "together they are at most 1"
    if c.mask_unit == "word" and c.repeated_masks != "fixed":
        yield "mask_unit repeated_masks", "words are distinct. Leave the latter out"
    if c.rare_mask_power and c.repeated_masks != "fixed":
        reason = 'it draws distinct positions.\nSet "repeated_masks": "fixed"'
        yield "rare_mask_power repeated_masks", reason
    if c.rare_mask_power and c.mask_unit == "word":
        yield "rare_mask_power mask_unit", "the frequencies are those of tokens"
    is_mixture = c.generator == "mixture"
    if (is_mixture or c.objective == "adversarial") and c.repeated_masks != "fixed":
        reason = "at a position drawn twice, the discriminator reads neither sample"
        yield f"{'generator' if is_mixture else 'objective'} repeated_masks", reason
    if is_mixture and (c.temperature != 1 or c.disallow_correct):
        reason = "samples must be of the mixture's own distribution"
        yield "generator temperature disallow_correct", reason
    if c.objective == "adversarial" and c.disallow_correct:
        reason = "samples must be of the generator's own distribution"
        yield "objective disallow_correct", reason
    if c.objective == "two_tower" and (c.temperature != 1 or c.disallow_correct):
        yield "objective temperature disallow_correct", "no samples are drawn"
    if c.objective == "electra_sentence" and c.intact_share == 1:
        yield "objective intact_share", "nothing would ever be replaced"
    if c.disc_weight == 0 and _is_last_to_learn(c):
        reason = "the main network, or its discriminator, would not learn"
        yield "objective disc_weight", reason
    if c.gen_weight == 0 and c.objective in ("two_stage", "adversarial"):
        yield "objective gen_weight", "the generator would not learn"
    if c.embedding_sharing == "disentangled" and c.generator != "masked_lm":
        reason = "it needs a discriminator beside a\ngenerator that is a masked LM"
        yield "embedding_sharing objective generator", reason
    losses = {
        "gen_weight": GENERATORS[c.generator].predicts != "none",
        "disc_weight": bool(OBJECTIVES[c.objective].heads),
        "sentence_weight": c.objective == "electra_sentence",
    }
    weights = [weight for weight, has_parameters in losses.items() if has_parameters]
    if not any(getattr(c, weight) for weight in weights):
        names = " ".join([*weights, "objective generator"])
        yield names, "nothing would be learned"


def check(config) -> None:
    """Raises a UserError for hparams of a PretrainingConfig that exclude each other."""
    for name in ("pretrain_tfrecords", "eval_tfrecords"):
        _check_data_sets(name, getattr(config, name))
    for names, reason in _conflicts(config):
        values = [f"{name} {show(getattr(config, name))}" for name in names.split()]
        raise UserError(f"{' and '.join(values)} exclude each other: {reason}")
    for field, name, value in _changed_in_vain(config):
        if field.metadata["if_idle"] == "refuse":
            fitting, only = field.metadata["applies_to"][name], ""
            if len(fitting) < 3:
                only = f", but with {' or '.join(map(show, fitting))}"
            raise UserError(
                f"{field.name} {show(value)} has no effect with {name} "
                f"{show(getattr(config, name))}{only}: leave {field.name} out"
            )
    needed = OBJECTIVES[config.objective].needs
    if config.objective == "two_stage":
        needed = {**needed, "embedding_size": config.model_config().hidden_size}
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise UserError(
                f"{name} is {show(getattr(config, name))}, but objective "
                f"{config.objective} needs {show(value)}: leave {name} out"
            )
    _check_generator(config)


def _changed_in_vain(config) -> Iterator[tuple[Any, str, Any]]:
    """(field, the hparam with which it has no effect, value) of what is set."""
    for field, name in idle_fields(type(config), vars(config)):
        value = getattr(config, field.name)
        if value != field.default:
            yield field, name, value


def _check_data_sets(name: str, data: str | list | dict) -> None:
    """Raises a UserError unless these are patterns, each once, with weights."""
    problem = ""
    if not data or not all(isinstance(pattern, str) and pattern for pattern in data):
        problem = "must name data sets by patterns, which are text"
    elif isinstance(data, list) and len(set(data)) < len(data):
        problem = "names a data set twice; an object {pattern: weight} has weights"
    elif isinstance(data, dict) and not all(map(_is_weight, data.values())):
        problem = "has a weight that is not a number above 0"
    if problem:
        raise UserError(f"{name} {show(data)} {problem}")


def _is_weight(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


def _check_generator(config) -> None:
    """Raises a UserError for a generator without units."""
    if not config.uses_generator_config:
        return
    generator = config.generator_config()
    sizes = generator.hidden_size, generator.num_hidden_layers
    if min(sizes) < 1:
        raise UserError(
            f"generator_hidden_size {config.generator_hidden_size} and generator_layers"
            f" {config.generator_layers} give a generator of hidden_size {sizes[0]} and"
            f" {sizes[1]} layers; both must be 1 or more"
        )
    check_heads("the generator", generator, "generator_hidden_size")


def notes(config) -> list[str]:
    """Hparams that the original accepts and that have no effect or a bad one."""
    found = [
        f"{field.name} is {show(value)}, without effect with {name} "
        f"{getattr(config, name)}"
        for field, name, value in _changed_in_vain(config)
        if field.metadata["if_idle"] == "note"
    ]
    for name in ("temperature", "disallow_correct"):
        value = getattr(config, name)
        if config.objective == "electric" and value != getattr(type(config), name):
            found.append(
                f"{name} is {show(value)}: Electric's samples are not of the q that "
                "its loss is made of, as in the original; its scores are not log p"
            )
    parts = config.run_phases()
    for phase in parts:
        warmup, steps = phase.config.num_warmup_steps, phase.config.num_train_steps
        where = f" in phase {phase.number}" if len(parts) > 1 else ""
        if warmup > steps and not config.debug:
            found.append(
                f"num_warmup_steps ({warmup}) exceeds num_train_steps ({steps}){where}:"
                " the learning rate never reaches its peak"
            )
    return found
