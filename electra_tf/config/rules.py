# SPDX-License-Identifier: Apache-2.0
"""Hparams of pre-training that are right alone and wrong together.

Beside these rules, an hparam says itself what it applies to.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from electra_tf.config.generators import GENERATORS
from electra_tf.config.hparams import idle_fields, show
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.run import check_heads
from electra_tf.errors import UserError


class Rule(NamedTuple):
    """Hparams that exclude each other.

    Attributes:
      names: the hparams.
      is_broken: whether those of a PretrainingConfig do.
      reason: why, and what to do.
    """

    names: tuple[str, ...]
    is_broken: Callable[[Any], bool]
    reason: str


def _is_last_to_learn(config) -> bool:
    """Whether the main network learns from disc_weight's loss alone."""
    kind = OBJECTIVES[config.objective]
    has_verdict = config.objective == "electra_sentence" and config.sentence_weight > 0
    return kind.main_network and not kind.is_originals and not has_verdict


def _is_mixed(phase) -> bool:
    """Whether the data of a phase are a list of several data sets."""
    data = phase.config.pretrain_tfrecords
    return isinstance(data, list) and len(data) > 1


RULES = (
    Rule(
        ("do_train", "do_eval"),
        lambda c: c.do_train == c.do_eval,
        'exactly one must be true.\nTo evaluate: {"do_train": false, "do_eval": true}',
    ),
    Rule(
        ("objective", "phases"),
        lambda c: c.objective == "two_stage" and c.phases,
        "its stages are phases already. Leave phases out",
    ),
    Rule(
        ("stage_one_steps", "num_train_steps"),
        lambda c: (c.stage_one_steps or 0) >= c.num_train_steps,
        "no step is left for the discriminator. Lower the first, or raise the second",
    ),
    Rule(
        ("mask_prob", "max_seq_length"),
        lambda c: c.max_predictions_per_seq < 1,
        "less than one token is masked. Raise one of them",
    ),
    Rule(
        ("sampling_alpha", "pretrain_tfrecords"),
        lambda c: c.sampling_alpha != 1 and not any(map(_is_mixed, c.run_phases())),
        "it gives shares to a list\nof data sets without weights. Leave it out",
    ),
    Rule(
        ("mask_token_share", "random_token_share"),
        # 0.7 and 0.3 pass, whatever their rounding.
        lambda c: c.mask_token_share + c.random_token_share > 1 + 1e-9,
        "they are shares of one whole, together at most 1",
    ),
    Rule(
        ("mask_unit", "repeated_masks"),
        lambda c: c.mask_unit == "word" and c.repeated_masks != "fixed",
        "words are distinct. Leave repeated_masks out",
    ),
    Rule(
        ("rare_mask_power", "repeated_masks"),
        lambda c: c.rare_mask_power and c.repeated_masks != "fixed",
        'it draws distinct positions.\nSet "repeated_masks": "fixed"',
    ),
    Rule(
        ("rare_mask_power", "mask_unit"),
        lambda c: c.rare_mask_power and c.mask_unit == "word",
        "the frequencies are those of tokens. Leave one of them out",
    ),
    Rule(
        ("objective", "repeated_masks"),
        lambda c: c.objective == "adversarial" and c.repeated_masks != "fixed",
        "where a position is drawn twice, the discriminator reads neither sample",
    ),
    Rule(
        ("objective", "disallow_correct"),
        lambda c: c.objective == "adversarial" and c.disallow_correct,
        "samples must be of the generator's own distribution",
    ),
    Rule(
        ("objective", "temperature", "disallow_correct"),
        lambda c: (
            c.objective == "two_tower" and (c.temperature != 1 or c.disallow_correct)
        ),
        "no samples are drawn. Leave the others out",
    ),
    Rule(
        ("objective", "intact_share"),
        lambda c: c.objective == "electra_sentence" and c.intact_share == 1,
        "nothing would ever be replaced",
    ),
    Rule(
        ("objective", "disc_weight"),
        lambda c: c.disc_weight == 0 and _is_last_to_learn(c),
        "the main network, or its discriminator, would not learn",
    ),
    Rule(
        ("objective", "gen_weight"),
        lambda c: c.gen_weight == 0 and c.objective in ("two_stage", "adversarial"),
        "the generator would not learn",
    ),
    Rule(
        ("embedding_sharing", "objective", "generator"),
        lambda c: c.embedding_sharing == "disentangled" and c.generator != "masked_lm",
        "it needs a discriminator beside a\ngenerator that is a masked language model. "
        "Leave embedding_sharing out",
    ),
)

# What objectives need: the reason, and the values.
_SIZES = {"generator_hidden_size": 1.0, "generator_layers": 1.0}
_NEEDS = {
    "two_stage": (
        "two networks of one size with\nembeddings of their own, because the "
        "generator's weights initialise the discriminator",
        _SIZES | {"embedding_sharing": "untied"},
    ),
    "frozen_generator": (
        "its generator does not learn, and\nso cannot share what does",
        {"embedding_sharing": "untied"},
    ),
    "two_tower": (
        "the towers are the whole model.\n"
        "model_size and model_hparam_overrides size it",
        _SIZES | {"embedding_sharing": "shared"},
    ),
}


def check(config) -> None:
    """Raises a UserError for hparams of a PretrainingConfig that exclude each other."""
    for name in ("pretrain_tfrecords", "eval_tfrecords"):
        _check_data_sets(name, getattr(config, name))
    for rule in RULES:
        if rule.is_broken(config):
            said = [f"{name} {show(getattr(config, name))}" for name in rule.names]
            raise UserError(f"{' and '.join(said)} exclude each other: {rule.reason}")
    for field, name, value in _changed_in_vain(config):
        if field.metadata["if_idle"] == "refuse":
            fitting, only = field.metadata["applies_to"][name], ""
            if len(fitting) < 3:
                only = f", but with {' or '.join(map(show, fitting))}"
            raise UserError(
                f"{field.name} {show(value)} has no effect with {name} "
                f"{show(getattr(config, name))}{only}: leave {field.name} out"
            )
    _check_needs(config)
    _check_weights(config)
    _check_sizes(config)


def _changed_in_vain(config) -> Iterable[tuple[Any, str, Any]]:
    """(field, the hparam with which it has no effect, value) of what is set."""
    for field, name in idle_fields(type(config), vars(config)):
        value = getattr(config, field.name)
        if value != field.default:
            yield field, name, value


def _check_needs(config) -> None:
    reason, needed = _NEEDS.get(config.objective, ("", {}))
    if config.objective == "two_stage":
        needed = {**needed, "embedding_size": config.model_config().hidden_size}
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise UserError(
                f"{name} is {show(getattr(config, name))}, but objective "
                f"{config.objective} needs {show(value)}: {reason}. Leave {name} out"
            )


def _check_weights(config) -> None:
    """Raises a UserError if no loss counts."""
    losses = {
        "gen_weight": GENERATORS[config.generator].predicts != "none",
        "disc_weight": bool(OBJECTIVES[config.objective].heads),
        "sentence_weight": config.objective == "electra_sentence",
    }
    weights = [weight for weight, has_parameters in losses.items() if has_parameters]
    if not any(getattr(config, weight) for weight in weights):
        said = " and ".join(f"{weight} 0" for weight in weights)
        raise UserError(
            f"{said} with objective {config.objective} and generator "
            f"{config.generator}: nothing would be learned"
        )


def _check_data_sets(name: str, data: str | list | dict) -> None:
    """Raises a UserError unless these are patterns, each once, with weights."""
    problem = ""
    if not data:
        problem = "is empty: it names no data"
    elif not all(isinstance(pattern, str) and pattern for pattern in data):
        problem = "names data sets by patterns, which are text"
    elif isinstance(data, list) and len(set(data)) < len(data):
        problem = "names a data set twice; an object {pattern: weight} has weights"
    elif isinstance(data, dict) and not all(map(_is_weight, data.values())):
        problem = "has a weight that is not a number above 0"
    if problem:
        raise UserError(f"{name} {show(data)} {problem}")


def _is_weight(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


def _check_sizes(config) -> None:
    """Raises a UserError for a generator without units."""
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
    chunk = config.model_config().attention_chunk_size
    longest = max(phase.config.max_seq_length for phase in parts)
    if chunk >= longest:
        found.append(
            f"attention_chunk_size ({chunk}) has no effect: no sequence is longer, "
            f"max_seq_length being {longest}"
        )
    return found
