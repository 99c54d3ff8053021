# SPDX-License-Identifier: Apache-2.0
"""The hparams that the shapes of the weights give away.

Sizes, depth, sharing and objective can be read from names and shapes. The number of
attention heads, the activation and dropout cannot: they come from files beside the
weights, from the user, or are the original's rule (a head per 64 of width).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from electra_tf.config.generators import ENCODER, GENERATORS, by_scopes
from electra_tf.config.hparams import IDENTITY, check, values_in_roles
from electra_tf.config.model import SIZES, ModelConfig, model_config
from electra_tf.config.objectives import DISCRIMINATOR_HEAD, by_heads
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError

_OVERRIDES = "model_hparam_overrides"
_WORDS = "electra/embeddings/word_embeddings"
# What the generator's sizes are given as fractions of.
_FRACTIONS = {
    "generator_hidden_size": "hidden_size",
    "generator_layers": "num_hidden_layers",
}

# A model at rest has its last phase's settings, which stand beside them, and no data.
_NOT_OF_WEIGHTS = ("model_hparam_overrides", "model_size", "phases", "sampling_alpha")

Shapes = Mapping[str, list[int]]


def hparams_of(shapes: Shapes, origin: str) -> dict[str, Any]:
    """hparams of a PretrainingConfig with `model_hparam_overrides`, from the shapes.

    An encoder without heads counts as one with a uniform generator. Raises `UserError`
    if these are not the weights of an ELECTRA model.
    """
    try:
        vocab_size, embedding_size = shapes[_WORDS]
        main = _main_scope(shapes)
        hidden, intermediate = shapes[
            f"{main}/encoder/layer_0/intermediate/dense/kernel"
        ]
        positions = shapes["electra/embeddings/position_embeddings"][0]
        types = shapes["electra/embeddings/token_type_embeddings"][0]
    except (KeyError, ValueError):
        raise UserError(
            f"{origin} is not an ELECTRA model: "
            f"{_first_difference(shapes)}.\nAn ELECTRA model has an encoder under "
            "electra/ with word, position and segment embeddings."
        ) from None
    layers = _depth(shapes, main)
    found: dict[str, Any] = {
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "max_seq_length": positions,
        "model_hparam_overrides": {
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "max_position_embeddings": positions,
            "type_vocab_size": types,
        },
    }
    return found | _objective_and_generator(shapes, hidden, layers)


def note_of_heads(width: int, origin: str) -> str:
    """The note on heads that were inferred from the width, one per 64.

    Raises `UserError` asking for them where that gives no whole number.
    """
    if width % 64:
        hparams = '{"model_hparam_overrides": {"num_attention_heads": N}}'
        raise UserError(
            f"{origin} does not say its number of attention heads, and its width, "
            f"{width}, is no multiple of 64.\nSet num_attention_heads in the hparams: "
            f"{hparams}; or write that into hparams.json beside it."
        )
    return (
        f"Note: {origin} does not say its number of attention heads: {width // 64} "
        "inferred, one per 64 of its width."
    )


def guessed(shapes: Shapes) -> set[str]:
    """The hparams that `hparams_of` gives without seeing them.

    How many positions were trained is in no shape; a generator without weights may be
    a uniform one, or one that lies elsewhere.
    """
    scopes = {name.partition("/")[0] for name in shapes}
    found = {"max_seq_length"}
    if not GENERATORS[by_scopes(scopes)].scopes:
        found |= {"generator"} | ({"objective"} if by_heads(scopes) is None else set())
    return found


def _first_difference(shapes: Shapes) -> str:
    names = [name for name in sorted(shapes) if "/" in name]
    found = f"its first name is {names[0]}" if names else "it holds no weights"
    return f"no {_WORDS} of two dimensions; {found}" if _WORDS not in shapes else found


def _has(shapes: Shapes, prefix: str) -> bool:
    return any(name.startswith(prefix + "/") for name in shapes)


def _main_scope(shapes: Shapes) -> str:
    """The scope of the main encoder; a tower's where there are only towers."""
    tower = GENERATORS["two_tower"].encoders[0]
    only_towers = not _has(shapes, f"{ENCODER}/encoder") and _has(shapes, tower)
    return tower if only_towers else ENCODER


def _depth(shapes: Shapes, encoder: str) -> int:
    pattern = re.compile(re.escape(encoder) + r"/encoder/layer_(\d+)/")
    found = {int(m[1]) for m in map(pattern.match, shapes) if m}
    return 1 + max(found, default=-1)


def _objective_and_generator(
    shapes: Shapes, hidden: int, layers: int
) -> dict[str, Any]:
    scopes = {name.partition("/")[0] for name in shapes}
    name = by_scopes(scopes)
    kind = GENERATORS[name]
    objective = by_heads(scopes) or kind.objectives[0]
    if name == "tied" and not _has(shapes, DISCRIMINATOR_HEAD):
        objective = by_heads(scopes) or "mlm"
    if _main_scope(shapes) != ENCODER:
        objective = "two_tower"
    found: dict[str, Any] = {"objective": objective, "generator": name}
    if kind.has_own_encoders:
        scope = kind.encoders[0]
        query = shapes[f"{scope}/encoder/layer_0/attention/self/query/kernel"]
        own = _has(shapes, f"{scope}/embeddings")
        # Those of an untied generator are as wide as it is.
        summed = own and _has(shapes, f"{scope}/embeddings_project")
        found |= {
            "embedding_sharing": (
                "disentangled" if summed else "untied" if own else "shared"
            ),
            "generator_hidden_size": query[0] / hidden,
            "generator_layers": _depth(shapes, scope) / layers,
        }
    return found


def merge(
    derived: dict[str, Any],
    from_files: Mapping[str, Any],
    given: Mapping[str, Any],
    origin: str,
) -> dict[str, Any]:
    """Derived hparams completed by those of files and user.

    Raises `UserError` naming both values where the user or the files disagree with the
    shapes.
    """
    overrides = dict(derived["model_hparam_overrides"])
    _check_size(overrides, given, origin)
    if derived.get("embedding_sharing") == "untied":
        # Of one width, they have the same shapes.
        if from_files.get("embedding_sharing") == "disentangled":
            derived = derived | {"embedding_sharing": "disentangled"}
    result = {**derived, "model_hparam_overrides": overrides}
    for source, place in ((from_files, "the config beside it"), (given, "the hparams")):
        inner = source.get("model_hparam_overrides", {})
        for name, value in inner.items():
            _check_equal(name, value, derived["model_hparam_overrides"], origin, place)
            overrides[name] = value
        for name, value in source.items():
            if name in _FRACTIONS and name in derived and isinstance(value, float):
                _check_fraction(name, value, derived, origin, place)
                result[name] = value
                continue
            if name in _NOT_OF_WEIGHTS:
                continue
            if name == "embedding_size" and value is None:
                continue
            if name != "max_seq_length" and not (
                name == "objective" and _may_be(value, derived)
            ):
                _check_equal(name, value, derived, origin, place)
            result[name] = value
    return result


def _may_be(objective: str, derived: Mapping[str, Any]) -> bool:
    """Whether no weight tells that an objective is another one than derived."""
    fitting = GENERATORS[derived["generator"]].objectives
    return derived["objective"] in ("electra", "electric") and objective in fitting


def _check_size(overrides, given, origin) -> None:
    sizes = SIZES.get(given.get("model_size"), {})
    explicit = given.get("model_hparam_overrides", {})
    for name, value in sizes.items():
        if name not in explicit and overrides[name] != value:
            raise UserError(
                f"{name} is {overrides[name]} in {origin}, {value} by model_size "
                f"{given['model_size']!r} in the hparams."
            )


def _check_fraction(name, value, derived, origin, place) -> None:
    """Fractions are equal if they give the same size: 0.33333 of 768 is 256."""
    whole = derived["model_hparam_overrides"][_FRACTIONS[name]]
    there, said = round(whole * derived[name]), round(whole * value)
    if there != said:
        raise UserError(
            f"the generator's {_FRACTIONS[name]} is {there} in {origin}, {said} by "
            f"{name} {value} in {place}."
        )


def _check_equal(name, value, derived, origin, place) -> None:
    there = derived.get(name, value)
    if there != value:
        raise UserError(f"{name} is {there} in {origin}, {value} in {place}.")


def identity_by(
    config: PretrainingConfig, hparams: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """The identity of a config, but for what the files of a model say otherwise.

    Args:
      hparams: of these files, few or many.
      source: where they come from, for messages.

    Raises `UserError` for a value that no config could have.
    """
    names = {*values_in_roles(config, IDENTITY), "model_size", _OVERRIDES}
    stored = {name: value for name, value in hparams.items() if name in names}
    stored = check(type(config), stored, source)
    overrides = check(ModelConfig, stored.pop(_OVERRIDES, {}), source)
    if size := stored.pop("model_size", None):
        shape = model_config(size, 1, overrides)
    else:
        shape = dataclasses.replace(config.model_config(), **overrides)
    stored = {name: value for name, value in stored.items() if value is not None}
    stored[_OVERRIDES] = shape.overrides()
    there = dataclasses.replace(config, **stored)
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


def as_hparams(identity: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Parts of an identity as a user sets them."""
    fields = {field.name for field in dataclasses.fields(ModelConfig)} - {"vocab_size"}
    found: dict[str, Any] = {}
    for name, value in identity:
        inner = name in fields
        place = found.setdefault(_OVERRIDES, {}) if inner else found
        place[name] = value
    return found
