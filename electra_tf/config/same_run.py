# SPDX-License-Identifier: Apache-2.0
"""What makes two configs of pre-training the same run, however they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from electra_tf.config.generators import GENERATORS
from electra_tf.config.hparams import IDENTITY, check, values_in_roles
from electra_tf.config.model import ModelConfig, model_config
from electra_tf.config.objectives import OBJECTIVES

if TYPE_CHECKING:
    from electra_tf.config.pretraining import PretrainingConfig

# How a model comes about, which is behind one that is only evaluated.
COURSE = ("stage_one_steps", "init_discriminator")
_FRACTIONS = ("generator_layers", "generator_hidden_size")
_KINDS = ("generator", "objective")  # null: what the original's hparams say
_OVERRIDES = "model_hparam_overrides"


def in_one_spelling(config: PretrainingConfig) -> PretrainingConfig:
    """The config in which the original's hparams say what they can say."""
    said: dict[str, Any] = {}
    kind = GENERATORS[config.generator] if config.generator else None
    if kind and kind.original:
        said |= {"generator": None, **kind.original}
    kind = OBJECTIVES[config.objective] if config.objective else None
    if kind and kind.is_originals:
        said |= {"objective": None, **kind.original}
    return dataclasses.replace(config, **said) if said else config


def with_stages(config: PretrainingConfig) -> PretrainingConfig:
    """The config with `stage_one_steps` written down, where there are stages.

    Another num_train_steps must not move them.
    """
    if config.objective != "two_stage" or config.stage_one_steps is not None:
        return config
    half = max(1, config.num_train_steps // 2)
    return dataclasses.replace(config, stage_one_steps=half)


def without_idle(config: PretrainingConfig, identity: dict[str, Any]) -> dict[str, Any]:
    """An identity without what means nothing in this run, or is said elsewhere."""
    idle: list[str] = []
    if not config.uses_generator_config:
        idle += _FRACTIONS
    idle += [name for name in _KINDS if identity[name] is None]
    if config.embedding_sharing != "disentangled":
        idle.append("embedding_sharing")  # said by untied_generator_embeddings
    if config.objective_kind != "two_stage":
        idle += COURSE
    return {name: value for name, value in identity.items() if name not in idle}


def identity_told(
    config: PretrainingConfig, hparams: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """The identity of a config, but for what the files of a model say otherwise.

    Args:
      hparams: of these files, few or many.
      source: where they come from, for messages.

    Raises `UserError` for a value that no config could have.
    """
    names = {*values_in_roles(config, IDENTITY), "model_size", _OVERRIDES}
    told = {name: value for name, value in hparams.items() if name in names}
    told = check(type(config), told, source)
    overrides = check(ModelConfig, told.pop(_OVERRIDES, {}), source)
    if size := told.pop("model_size", None):
        shape = model_config(size, 1, overrides)
    else:
        shape = dataclasses.replace(config.model_config(), **overrides)
    told = {k: v for k, v in told.items() if v is not None or k in _KINDS}
    told[_OVERRIDES] = shape.overrides()
    there = in_one_spelling(dataclasses.replace(config, **told))
    if _sizes(there) == _sizes(config):
        # Fractions are equal if they give the same size.
        same = {name: getattr(config, name) for name in _FRACTIONS}
        there = dataclasses.replace(there, **same)
    return there.identity()


def _sizes(config: PretrainingConfig) -> list[tuple[int, int]]:
    """Width and depth of both networks; of one where there is no other."""
    shapes = [config.model_config()]
    if config.uses_generator_config:
        shapes.append(config.generator_config())
    return [(shape.hidden_size, shape.num_hidden_layers) for shape in shapes]


def hparams_of(identity: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Parts of an identity as a user sets them."""
    fields = {field.name for field in dataclasses.fields(ModelConfig)} - {"vocab_size"}
    found: dict[str, Any] = {}
    for name, value in identity:
        inner = name in fields
        place = found.setdefault(_OVERRIDES, {}) if inner else found
        place[name] = value
    return found
