# SPDX-License-Identifier: Apache-2.0
"""Config fields of a checkpoint on one level: known from files, inferred from shapes.

Sizes, depth, sharing and objective can be inferred from names and shapes of weights.
Attention heads, activation and dropout cannot: they come from files or from the user;
heads that neither gives are one per 64 of width, the original's rule.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from electra_tf.config.hparams import IDENTITY
from electra_tf.config.model import SIZES, ModelConfig, model_config
from electra_tf.config.objectives import (
    DISCRIMINATOR_HEAD,
    ENCODER,
    GENERATORS,
    by_heads,
    by_scopes,
    translated,
)
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError

# The encoder's fields. The last two leave no trace in its weights.
SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "embedding_size",
    "max_position_embeddings",
    "type_vocab_size",
    "num_attention_heads",
    "hidden_act",
)
_OVERRIDES = "model_hparam_overrides"
WORDS = f"{ENCODER}/embeddings/word_embeddings"
# The generator's sizes are fractions of these.
_FRACTIONS = {
    "generator_hidden_size": "hidden_size",
    "generator_layers": "num_hidden_layers",
}
_OF_ENCODER = {f.name for f in dataclasses.fields(ModelConfig)} - {"vocab_size"}
OF_IDENTITY = {
    field.name
    for cls in (PretrainingConfig, ModelConfig)
    for field in dataclasses.fields(cls)
    if field.metadata["role"] is IDENTITY
}
# Of a run: it has the settings of its last phase, and no data. The vocabulary decides
# its own size.
_NOT_OF_WEIGHTS = {"model_size", "phases", "sampling_alpha", "vocab_size"}

Shapes = Mapping[str, list[int]]
Difference = tuple[str, Any, Any]  # field, one value, the other


def of_hparams(hparams: Mapping[str, Any], defaults: bool = True) -> dict[str, Any]:
    """Fields that hparams set, those of `model_size` and the overrides included.

    Args:
      defaults: whether a model_size implies the defaults of `ModelConfig`, too, as in
        the config of a run.
    """
    found = translated(hparams)
    size, overrides = found.get("model_size"), found.pop(_OVERRIDES, None) or {}
    if size:
        implied = model_config(size, 1, overrides).overrides()
        names = implied if defaults else SIZES[size]
        overrides = {name: implied[name] for name in names} | overrides
    found |= overrides
    if defaults and "embedding_size" in found and found["embedding_size"] is None:
        found["embedding_size"] = overrides.get("hidden_size")
    kept = found.keys() - _NOT_OF_WEIGHTS
    return {k: v for k, v in found.items() if k in kept and v is not None}


def as_hparams(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields as a user sets them, those of the encoder in model_hparam_overrides."""
    found: dict[str, Any] = {}
    for name, value in fields:
        place = found.setdefault(_OVERRIDES, {}) if name in _OF_ENCODER else found
        place[name] = value
    return found


def size_hparams(shape: Mapping[str, Any], size: str | None = None) -> dict[str, Any]:
    """The hparams with the fewest overrides that give the SHAPE of an encoder."""
    found = []
    for name in [size] if size else SIZES:
        usual = dataclasses.asdict(
            model_config(name, 1, {"hidden_size": shape["hidden_size"]})
        )
        usual |= SIZES[name]
        overrides = {k: v for k, v in shape.items() if v != usual.get(k, v)}
        hparams = {"model_size": name, "embedding_size": shape["embedding_size"]}
        found.append(hparams | ({_OVERRIDES: overrides} if overrides else {}))
    return min(found, key=lambda hparams: len(hparams.get(_OVERRIDES, ())))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """Where two descriptions of a model contradict each other.

    Compared is what both have and what makes another model. Fractions are equal if they
    give the same size: 0.33333 of 768 is 256.
    """

    def size(name: str, fields: Mapping[str, Any]) -> Any:
        if whole := (one | other).get(_FRACTIONS.get(name)):
            return round(whole * fields[name])
        return fields[name]

    return [
        (name, one[name], other[name])
        for name in sorted(one.keys() & other.keys() & OF_IDENTITY)
        if size(name, one) != size(name, other)
    ]


def text_of(found: Iterable[Difference]) -> str:
    """Differences for a message."""
    return "; ".join(f"{k} is {old!r} there, {new!r} here" for k, old, new in found)


# Inferred from the names and shapes of weights.


def of_shapes(shapes: Shapes, origin: str) -> dict[str, Any]:
    """Fields that the weights of an ELECTRA model show.

    An encoder without heads counts as one with a uniform generator. Raises `UserError`
    for weights of another model.
    """
    try:
        vocab_size, embedding_size = shapes[WORDS]
        main = _main_scope(shapes)
        hidden, intermediate = shapes[
            f"{main}/encoder/layer_0/intermediate/dense/kernel"
        ]
        positions = shapes["electra/embeddings/position_embeddings"][0]
        types = shapes["electra/embeddings/token_type_embeddings"][0]
    except (KeyError, ValueError):
        names = [name for name in sorted(shapes) if "/" in name]
        first = f"its first name is {names[0]}" if names else "it holds no weights"
        raise UserError(
            f"{origin} is not an ELECTRA model: {first}.\nAn ELECTRA model has an "
            "encoder under electra/ with word, position and segment embeddings."
        ) from None
    found = {
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "max_seq_length": positions,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": _depth(shapes, main),
        "max_position_embeddings": positions,
        "type_vocab_size": types,
    }
    return found | _objective_and_generator(shapes, found)


def assumed(shapes: Shapes) -> set[str]:
    """Fields of `of_shapes` that no weight shows.

    How many positions were trained is in no shape; a generator without weights may be
    a uniform one, or one that lies elsewhere.
    """
    scopes = _scopes(shapes)
    if GENERATORS[by_scopes(scopes)].scopes:
        return {"max_seq_length"}
    unknown = set() if by_heads(scopes) else {"objective"}
    return {"max_seq_length", "generator"} | unknown


def contradictions(
    inferred: Mapping[str, Any], stated: Mapping[str, Any]
) -> list[Difference]:
    """`differences` from what files or users state, but for what no weight shows."""
    found = []
    for name, seen, value in differences(inferred, stated):
        if name == "objective" and seen in ("electra", "electric"):
            if value in GENERATORS[inferred["generator"]].objectives:
                continue
        # Of one width, both have the same shapes.
        if name == "embedding_sharing" and (seen, value) == ("untied", "disentangled"):
            continue
        found.append((name, seen, value))
    return found


def note_of_heads(width: int, origin: str) -> str:
    """The note on heads that are inferred from the width, one per 64.

    Raises `UserError` asking for them where that gives no whole number.
    """
    if width % 64:
        hparams = '{"model_hparam_overrides": {"num_attention_heads": N}}'
        raise UserError(
            f"{origin} does not say its number of attention heads, and its width, "
            f"{width}, is not a multiple of 64.\nSet num_attention_heads in the "
            f"hparams: {hparams}; or write that into hparams.json beside it."
        )
    return (
        f"Note: {origin} does not say its number of attention heads: {width // 64} "
        "inferred, one per 64 of its width."
    )


def _scopes(shapes: Shapes) -> set[str]:
    return {name.partition("/")[0] for name in shapes}


def _has(shapes: Shapes, prefix: str) -> bool:
    return any(name.startswith(f"{prefix}/") for name in shapes)


def _main_scope(shapes: Shapes) -> str:
    """The scope of the main encoder; a tower's where there are only towers."""
    tower = GENERATORS["two_tower"].encoders[0]
    only_towers = not _has(shapes, f"{ENCODER}/encoder") and _has(shapes, tower)
    return tower if only_towers else ENCODER


def _depth(shapes: Shapes, scope: str) -> int:
    pattern = re.compile(re.escape(scope) + r"/encoder/layer_(\d+)/")
    found = {int(m[1]) for m in map(pattern.match, shapes) if m}
    return 1 + max(found, default=-1)


def _objective_and_generator(
    shapes: Shapes, found: Mapping[str, Any]
) -> dict[str, Any]:
    scopes = _scopes(shapes)
    name = by_scopes(scopes)
    kind = GENERATORS[name]
    objective = by_heads(scopes) or kind.objectives[0]
    if name == "tied" and not _has(shapes, DISCRIMINATOR_HEAD):
        objective = by_heads(scopes) or "mlm"
    if _main_scope(shapes) != ENCODER:
        objective = "two_tower"
    if not kind.has_own_encoders:
        return {"objective": objective, "generator": name}
    scope = kind.encoders[0]
    query = shapes[f"{scope}/encoder/layer_0/attention/self/query/kernel"]
    sharing = "shared"
    if _has(shapes, f"{scope}/embeddings"):
        # Those of an untied generator have its width.
        summed = _has(shapes, f"{scope}/embeddings_project")
        sharing = "disentangled" if summed else "untied"
    return {
        "objective": objective,
        "generator": name,
        "embedding_sharing": sharing,
        "generator_hidden_size": query[0] / found["hidden_size"],
        "generator_layers": _depth(shapes, scope) / found["num_hidden_layers"],
    }
