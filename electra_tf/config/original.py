# SPDX-License-Identifier: Apache-2.0
"""The original's spelling of `objective`, `generator` and `embedding_sharing`.

Its booleans are accepted wherever hparams are read, and translated there, once.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from electra_tf.config.generators import GENERATORS
from electra_tf.config.hparams import identity, show
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class OriginalHparams:
    """The booleans; `translated` gives what they stand for."""

    electra_objective: bool = identity(True, "`objective` electra; false: mlm.")
    electric_objective: bool = identity(False, "`objective` electric.")
    uniform_generator: bool = identity(False, "`generator` uniform.")
    two_tower_generator: bool = identity(False, "`generator` two_tower.")
    untied_generator: bool = identity(True, "The usual `generator`; false: tied.")
    untied_generator_embeddings: bool = identity(False, "`embedding_sharing` untied.")


NAMES = frozenset(field.name for field in dataclasses.fields(OriginalHparams))
# (boolean, its value, what it chooses); the first that is given counts. None: usual.
_CHOICES = {
    "objective": (
        ("electric_objective", True, "electric"),
        ("electra_objective", False, "mlm"),
        ("electra_objective", True, "electra"),
    ),
    "generator": (
        ("uniform_generator", True, "uniform"),
        ("two_tower_generator", True, "two_tower"),
        ("untied_generator", False, "tied"),
        ("untied_generator", True, None),
    ),
    "embedding_sharing": (
        ("untied_generator_embeddings", True, "untied"),
        ("untied_generator_embeddings", False, "shared"),
    ),
}


def translated(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """The same hparams without the original's booleans.

    Raises a UserError for objective, generator and booleans that contradict each other.
    """
    given = {n: v for n, v in hparams.items() if n in NAMES or n in _CHOICES and v}
    found = {name: v for name, v in hparams.items() if name not in NAMES}
    for name, choices in _CHOICES.items():
        fitting = [c for boolean, v, c in choices if hparams.get(boolean) is v]
        if fitting and not found.get(name):
            found[name] = fitting[0]
    objective = found.get("objective") or "electra"
    kind = OBJECTIVES[objective]
    if "generator" in found and found["generator"] is None:
        found["generator"] = kind.generator
    generator = found.get("generator", kind.generator)
    if objective not in GENERATORS[generator].objectives:
        takes = [n for n, kind in GENERATORS.items() if objective in kind.objectives]
        raise UserError(
            f"{_shown(given)} exclude each other: with objective {objective} goes "
            f"generator {' or '.join(takes)}"
        )
    usual = kind.needs.get("embedding_sharing", found.get("embedding_sharing"))
    sharing = hparams.get("embedding_sharing", usual)
    expected = kind.original | {"untied_generator_embeddings": sharing == "untied"}
    if objective != "mlm":
        expected |= GENERATORS[generator].original
    for name, value in expected.items():
        if hparams.get(name, value) != value:
            implied = {"objective": objective, "generator": generator}
            others = {**implied, **given}
            wrong = {name: others.pop(name)}
            raise UserError(
                f"{_shown(others)} exclude {_shown(wrong)}: leave {name} out"
            )
    return found


def overridden(
    config: Mapping[str, Any], hparams: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The checked hparams of --config without what booleans in --hparams change."""
    found, hparams = dict(config), hparams or {}

    def differs(booleans: Mapping[str, bool]) -> bool:
        return any(
            hparams.get(name, value) != value for name, value in booleans.items()
        )

    kind = OBJECTIVES[found.get("objective", "electra")]
    if differs(kind.original):
        found.pop("objective", None)
        if found.get("generator") == kind.generator:
            del found["generator"]
    generator = found.get("generator")
    if generator and differs(GENERATORS[generator].original):
        del found["generator"]
    if "untied_generator_embeddings" in hparams:
        found.pop("embedding_sharing", None)
    return found


def _shown(hparams: Mapping[str, Any]) -> str:
    return " and ".join(f"{name} {show(value)}" for name, value in hparams.items())
