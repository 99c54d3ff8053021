# SPDX-License-Identifier: Apache-2.0
"""Hparams of pre-training that are right alone and wrong together."""

from collections.abc import Mapping
from typing import Any

from electra_tf.config.generators import GENERATORS
from electra_tf.config.hparams import show
from electra_tf.config.objectives import DISCRIMINATOR_HEAD, OBJECTIVES
from electra_tf.config.run import check_heads
from electra_tf.errors import UserError


def check_action(config) -> None:
    """Raises a UserError for a run that would neither train nor evaluate, or both."""
    if config.do_train == config.do_eval:
        raise UserError(
            f"do_train and do_eval are both {show(config.do_train)}; exactly one "
            'must be true.\nTo evaluate: {"do_train": false, "do_eval": true}'
        )


def check_phases(config) -> None:
    """Raises a UserError for phases of a run that has stages; before their own."""
    if config.phases and config.objective_kind == "two_stage":
        raise UserError(
            "objective two_stage and phases exclude each other: its stages are phases "
            "already. Leave phases out"
        )


def check(config) -> None:
    """Raises a UserError for hparams of a PretrainingConfig that exclude each other."""
    _check_objective(config)
    _check_generator_kind(config)
    _check_original(config)
    _check_match(config)
    _check_masking(config)
    _check_data(config)
    _check_schedule(config)
    _check_settings(config)
    _check_weights(config)
    own = {
        "adversarial": _check_adversarial,
        "two_stage": _check_two_stage,
        "two_tower": _check_two_tower,
    }
    if check_own := own.get(config.objective_kind):
        check_own(config)
    _check_sharing(config)


def _check_objective(config) -> None:
    """Raises a UserError for an `objective` that other hparams contradict."""
    if config.objective is None:
        return
    for name, value in OBJECTIVES[config.objective].original.items():
        if getattr(config, name) != value:
            raise UserError(
                f"objective {show(config.objective)} and {name} "
                f"{show(getattr(config, name))} exclude each other: leave {name} out"
            )


def _check_generator_kind(config) -> None:
    """Raises a UserError for a `generator` that other hparams contradict."""
    if config.generator is None:
        return
    kind = GENERATORS[config.generator]
    said = {"uniform_generator": False, "two_tower_generator": False}
    for name, value in (said | (kind.original or {"untied_generator": True})).items():
        if getattr(config, name) != value:
            raise UserError(
                f"generator {show(config.generator)} and {name} "
                f"{show(getattr(config, name))} exclude each other: leave {name} out"
            )


def _check_original(config) -> None:
    """Raises a UserError for hparams of the original that exclude each other."""
    two = "two_tower_generator"
    electric, electra = "electric_objective", "electra_objective"
    tied = not config.untied_generator
    mlm = config.objective_kind == "mlm"
    impossible = [
        (config.electra_objective and config.electric_objective, electra, electric,
         "a run has one objective"),
        (config.electric_objective and config.uniform_generator,
         electric, "uniform_generator", "Electric needs a two-tower generator"),
        (config.electric_objective and config.generator_kind == "two_tower"
         and not config.two_tower_generator, electric, two,
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


def _check_match(config) -> None:
    """Raises a UserError for a generator that the objective cannot train or use."""
    name, objective = config.generator_kind, config.objective_kind
    if objective in GENERATORS[name].objectives:
        return
    said = f"objective {show(objective)}"
    if config.objective is None:
        said = (
            "electra_objective false"
            if objective == "mlm"
            else f"{objective}_objective"
        )
    fitting = [n for n, kind in GENERATORS.items() if objective in kind.objectives]
    raise UserError(
        f"generator {show(name)} does not go with {said}; with it goes "
        f"{' or '.join(fitting)}"
    )


def _check_masking(config) -> None:
    """Raises a UserError for shares of the masked positions that cannot be."""
    names = ("mask_token_share", "random_token_share")
    shares = [getattr(config, name) for name in names]
    said = " and ".join(f"{n} {show(s)}" for n, s in zip(names, shares, strict=True))
    # 0.7 and 0.3 are no more than 1, whatever their rounding.
    if sum(shares) > 1 + 1e-9:
        raise UserError(f"{said} are shares of one whole: together at most 1")
    if config.mask_unit == "word":
        if config.repeated_masks != "fixed":
            raise UserError(
                f'mask_unit "word" and repeated_masks {show(config.repeated_masks)} '
                "exclude each other: words are distinct. Leave repeated_masks out"
            )
    elif config.word_list is not None:
        raise UserError(
            f"word_list {show(config.word_list)} says what words are, but mask_unit is "
            '"token": set "mask_unit": "word", or leave word_list out'
        )
    power, kind = config.rare_mask_power, config.generator_kind
    if power and config.repeated_masks != "fixed":
        raise UserError(
            f"rare_mask_power {show(power)} and repeated_masks "
            f"{show(config.repeated_masks)} exclude each other: it draws distinct "
            'positions.\nSet "repeated_masks": "fixed"'
        )
    if power and config.mask_unit == "word":
        raise UserError(
            f'rare_mask_power {show(power)} and mask_unit "word" exclude each other: '
            "the frequencies are those of tokens. Leave one of them out"
        )
    if power and config.objective_kind in ("electric", "two_tower"):
        reason = "takes all tokens for masked equally often"
        if config.objective_kind == "two_tower":
            reason = "masks nothing"
        raise UserError(
            f"rare_mask_power {show(power)} does not go with objective "
            f"{config.objective_kind}, which {reason}: leave it out"
        )
    names = ("mask_unit", *names)
    own = [n for n in names if getattr(config, n) != getattr(type(config), n)]
    if own and GENERATORS[kind].predicts != "masked":
        said = ", ".join(f"{name} {show(getattr(config, name))}" for name in own)
        raise UserError(
            f"{said}: no network reads a masked text, since the generator is "
            f"{show(kind)}. Leave {', '.join(own)} out"
        )


def _check_data(config) -> None:
    """Raises a UserError for data sets that cannot be mixed."""
    data = [phase.config.pretrain_tfrecords for phase in config.run_phases()]
    data = next((d for d in data if isinstance(d, list) and len(d) > 1), data[-1])
    for name in ("pretrain_tfrecords", "eval_tfrecords"):
        _check_data_sets(name, getattr(config, name))
    if config.sampling_alpha != type(config).sampling_alpha and (
        not isinstance(data, list) or len(data) < 2
    ):
        reason = "weights say what each share is"
        if not isinstance(data, dict):
            reason = "there is one data set; it chooses among those of a list"
        raise UserError(
            f"sampling_alpha is {show(config.sampling_alpha)}, but pretrain_tfrecords "
            f"is {show(data)}: {reason}. Leave sampling_alpha out"
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


def _check_schedule(config) -> None:
    """Raises a UserError for a hparam that the schedule would not look at."""
    powers = ("original", "polynomial")
    for name, schedules in (("lr_decay_power", powers), ("decay_proportion", ("wsd",))):
        changed = getattr(config, name) != getattr(type(config), name)
        if changed and config.schedule not in schedules:
            raise UserError(
                f"{name} belongs to schedule {' or '.join(map(show, schedules))}, but "
                f"schedule is {show(config.schedule)}: leave {name} out, or change the "
                "schedule"
            )


def _check_settings(config) -> None:
    """Raises a UserError for settings of an objective that is not the run's."""
    defaults = type(config)
    for name, objective in (
        ("electra_15_positions", "electra_15"),
        ("intact_share", "electra_sentence"),
        ("sentence_weight", "electra_sentence"),
        ("stage_one_steps", "two_stage"),
        ("init_discriminator", "two_stage"),
    ):
        value = getattr(config, name)
        if value != getattr(defaults, name) and config.objective_kind != objective:
            raise UserError(
                f"{name} {show(value)} is a setting of the objective {objective}, but "
                f"the objective is {config.objective_kind}: leave {name} out"
            )
    heads = OBJECTIVES[config.objective_kind].heads
    if config.sample_steps and DISCRIMINATOR_HEAD not in heads:
        raise UserError(
            f"sample_steps shows what the discriminator says, but objective "
            f"{config.objective_kind} has none: leave sample_steps out"
        )


def _check_weights(config) -> None:
    """Raises a UserError for a network that would not learn what it is there for."""
    name = config.objective_kind
    kind, generator = OBJECTIVES[name], GENERATORS[config.generator_kind]
    losses = {
        "gen_weight": generator.predicts != "none",
        "disc_weight": bool(kind.heads),
        "sentence_weight": name == "electra_sentence",
    }
    weights = [weight for weight, has_parameters in losses.items() if has_parameters]
    if not any(getattr(config, weight) for weight in weights):
        said = " and ".join(f"{weight} 0" for weight in weights)
        raise UserError(
            f"{said} with objective {name} and generator {config.generator_kind}: "
            "nothing would be learned"
        )
    learner = "main network" if kind.predicts != "none" else "discriminator"
    has_verdict = name == "electra_sentence" and config.sentence_weight > 0
    samples = name in ("two_stage", "adversarial") or not kind.main_network
    for is_impossible, weight, reason in (
        (not kind.is_originals and kind.main_network and config.disc_weight == 0
         and not has_verdict, "disc_weight", f"the {learner} would not learn"),
        (samples and config.gen_weight == 0,
         "gen_weight", "the generator would not learn"),
        (name == "electra_sentence" and config.intact_share == 1,
         "intact_share", "nothing would ever be replaced"),
    ):  # fmt: skip
        if is_impossible:
            raise UserError(
                f"objective {name} and {weight} {show(getattr(config, weight))} "
                f"exclude each other: {reason}"
            )


def _check_two_stage(config) -> None:
    """Raises a UserError unless one network's weights can be the other's."""
    needed = {
        "generator_hidden_size": 1.0,
        "generator_layers": 1.0,
        "untied_generator_embeddings": True,
        "embedding_sharing": "untied",
        "embedding_size": config.model_config().hidden_size,
    }
    reason = (
        "two networks of one size with\nembeddings of their own, because the "
        "generator's weights initialise the discriminator"
    )
    _need(config, needed, reason)
    first, last = config.stage_one_steps, config.num_train_steps
    if first is not None and first >= last:
        raise UserError(
            f"stage_one_steps {first} leaves no step of num_train_steps {last} for the "
            "discriminator; lower it, or raise num_train_steps"
        )


def _check_two_tower(config) -> None:
    """Raises a UserError where towers are told by a network that is not there."""
    needed = {
        "generator_hidden_size": 1.0,
        "generator_layers": 1.0,
        "untied_generator_embeddings": False,
        "embedding_sharing": "shared",
    }
    reason = (
        "the towers are the whole model.\nmodel_size and model_hparam_overrides size it"
    )
    _need(config, needed, reason)
    for name in ("temperature", "disallow_correct", "repeated_masks"):
        if getattr(config, name) != getattr(type(config), name):
            raise UserError(
                f"{name} {show(getattr(config, name))} does not go with objective "
                f"two_tower, which masks nothing and draws no samples: leave {name} out"
            )


def _check_sharing(config) -> None:
    """Raises a UserError for embeddings that cannot be shared in this way."""
    sharing, untied = config.embedding_sharing, config.untied_generator_embeddings
    if (sharing == "untied") != untied:
        raise UserError(
            f"embedding_sharing {show(sharing)} and untied_generator_embeddings "
            f"{show(untied)} exclude each other: leave untied_generator_embeddings out"
        )
    if sharing == "disentangled" and config.generator_kind != "masked_lm":
        raise UserError(
            f"embedding_sharing {show(sharing)} needs a discriminator beside a "
            "generator that is\na masked language model; objective "
            f"{config.objective_kind} with generator {config.generator_kind} has none. "
            "Leave it out"
        )


def _need(config, needed: Mapping[str, Any], reason: str) -> None:
    for name, value in needed.items():
        # embedding_size may still be open.
        if getattr(config, name) not in (value, None):
            raise UserError(
                f"{name} is {show(getattr(config, name))}, but objective "
                f"{config.objective_kind} needs {show(value)}: {reason}. Leave {name} "
                "out"
            )


def _check_adversarial(config) -> None:
    """Raises a UserError where samples are not the generator's own."""
    for is_impossible, name, reason in (
        (config.repeated_masks != "fixed", "repeated_masks",
         "where a position is drawn twice, the discriminator reads neither sample"),
        (config.disallow_correct, "disallow_correct",
         "samples must be of the generator's own distribution"),
    ):  # fmt: skip
        if is_impossible:
            raise UserError(
                f"objective adversarial and {name} {show(getattr(config, name))} "
                f"exclude each other: {reason}"
            )


def notes(config) -> list[str]:
    """What a user should be told of hparams that go together, if not well.

    What the original takes as well is no error.
    """
    found, kind = [], config.generator_kind
    own = [n for n in ("temperature", "disallow_correct") if _is_changed(config, n)]
    for name in own:
        said = f"{name} is {show(getattr(config, name))}"
        if config.objective_kind == "electric":
            found.append(
                f"{said}: Electric's samples are not of the q that its loss is made "
                "of, as in the original; its scores are no log p"
            )
        elif config.objective_kind == "mlm":
            found.append(f"{said}, without effect: no network reads the samples")
        elif name == "temperature" and kind == "uniform":
            found.append(f"{said}, without effect: all tokens are drawn alike")
    if config.untied_generator_embeddings and not config.uses_generator_config:
        found.append(
            "untied_generator_embeddings is true, without effect: the generator "
            f"({kind}) has no encoder of its own"
        )
    return found


def _is_changed(config, name: str) -> bool:
    return getattr(config, name) != getattr(type(config), name)


def check_sizes(config) -> None:
    """Raises a UserError for masks of nothing or a generator without units."""
    if config.max_predictions_per_seq < 1:
        raise UserError(
            f"mask_prob {config.mask_prob} of max_seq_length {config.max_seq_length} "
            "is less than one token; raise one of them"
        )
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
