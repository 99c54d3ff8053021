# SPDX-License-Identifier: Apache-2.0
"""Reading and checking hparams of any kind.

An hparam set is a frozen dataclass whose fields are `hparam(default, doc, role)`. Its
type annotations are the types that values are checked against: int, float, bool, str, a
list, a dict, and `... | None`.
"""

import dataclasses
import difflib
import enum
import functools
import json
import operator
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from electra_tf.errors import LEFT, UserError
from electra_tf.paths import each_path, local_of
from electra_tf.storage.remote import fetch


class Role(enum.Enum):
    """How an hparam relates to the identity of its run."""

    IDENTITY = "identity"  # Another value makes another run, which is not resumed.
    SETTING = "setting"  # May change when a run is resumed; stored with its results.
    PLACE = "place"  # Paths and options of one start: not stored.


IDENTITY, SETTING, PLACE = Role

_TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "an object {...}",
    types.NoneType: "null",
}
_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
SHARE = ">= 0 and <= 1"
# Steps, positions and sizes of arrays are int32 in TensorFlow's programs.
LARGEST = 2**31 - 1


def hparam(
    default: Any,
    doc: str,
    allowed: str | Collection[Any] = "",
    applies_to: Mapping[str, Collection[Any]] = MappingProxyType({}),
    *,
    role: Role,
    if_idle: str = "refuse",
) -> Any:
    """A dataclass field with its documentation, its role and the allowed values.

    A list or dict default is copied for each instance.

    Args:
      allowed: the values to choose from, or limits such as ">= 0 and < 1".
      applies_to: other hparam -> the values with which this one has an effect.
      if_idle: what happens to a value without effect: "refuse", "note" or "ignore".
    """
    metadata = {"doc": doc, "role": role, "allowed": allowed}
    metadata |= {"applies_to": applies_to, "if_idle": if_idle}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


identity, setting, place = (functools.partial(hparam, role=role) for role in Role)


def default_of(field: dataclasses.Field) -> Any:
    """The default of an hparam; a list or dict is a copy."""
    make = field.default_factory
    return field.default if make is dataclasses.MISSING else make()


def names_in_roles(hparams: Any, *roles: Role) -> list[str]:
    """The hparams of a dataclass, or of an instance, that have one of the roles."""
    fields = dataclasses.fields(hparams)
    return [field.name for field in fields if field.metadata["role"] in roles]


def values_in_roles(hparams: Any, *roles: Role) -> dict[str, Any]:
    """The hparams of a dataclass instance that have one of the roles: name -> value."""
    return {name: getattr(hparams, name) for name in names_in_roles(hparams, *roles)}


def defaults(cls: type, *roles: Role) -> dict[str, Any]:
    """The defaults of the hparams of a dataclass, of those with one of the roles."""
    names = names_in_roles(cls, *(roles or Role))
    return {f.name: default_of(f) for f in dataclasses.fields(cls) if f.name in names}


def idle_fields(
    cls: type, values: Mapping[str, Any]
) -> Iterator[tuple[dataclasses.Field, str]]:
    """The hparams without effect, each with the hparam whose value is the reason."""
    for field in dataclasses.fields(cls):
        for name, fitting in field.metadata["applies_to"].items():
            if name in values and values[name] not in fitting:
                yield field, name
                break


def without_effect(config: Any, if_idle: str) -> Iterator[str]:
    """A sentence on each hparam of that kind that was set and has no effect."""
    for field, name in idle_fields(type(config), vars(config)):
        value, other = getattr(config, field.name), getattr(config, name)
        if value != field.default and field.metadata["if_idle"] == if_idle:
            fitting = field.metadata["applies_to"][name]
            few = f", but with {' or '.join(map(show, fitting))}" * (len(fitting) < 3)
            yield (
                f"{field.name} {show(value)} has no effect with {name} {show(other)}"
                f"{few}: leave {field.name} out"
            )


def applicable(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of hparams that have an effect."""
    idle = {field.name for field, _ in idle_fields(cls, values)}
    return {name: value for name, value in values.items() if name not in idle}


def without_left(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Saved hparams without those that have left, which change no weights."""
    kept = {name: value for name, value in hparams.items() if name not in LEFT}
    shape = kept.get("model_hparam_overrides")
    if isinstance(shape, dict):
        kept["model_hparam_overrides"] = without_left(shape)
    return kept


def read_hparams(text_or_path: str) -> dict[str, Any]:
    """Parses JSON text (`{...}`) or a JSON file into a dict.

    Duplicate keys, NaN and Infinity are refused, because one of two values, or a
    value that compares with nothing, would silently shape a run of days.

    Raises:
        UserError: naming the line and column where the JSON goes wrong.
    """
    text, name = text_or_path, "hparams"
    if not text.lstrip().startswith(("{", "[")):
        name = text_or_path
        try:
            name = fetch(local_of(name))
            with open(name, encoding="utf-8-sig") as f:
                text = f.read()
        except FileNotFoundError:
            raise UserError(
                f"hparams {name!r} are neither JSON text nor a file that exists.\n"
                'JSON text looks like \'{"model_size": "base"}\'.'
            ) from None
        except (OSError, ValueError) as e:
            raise UserError(f"cannot read hparams {name}: {e}") from None
    try:
        found = json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except ValueError as e:
        raise UserError(
            f"{name}: {e}.\n"
            'JSON requires "double quotes", true/false/null, and no trailing comma.'
        ) from None
    if not isinstance(found, dict):
        raise UserError(f"{name}: found {show(found)}; it must be an object {{...}}")
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(
                f"{show(key)} is given twice, as {show(result[key])} and as "
                f"{show(value)}; keep one"
            )
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a value an hparam can have")


def check(cls: type, hparams: dict[str, Any], source: str) -> dict[str, Any]:
    """Checks each hparam by itself: its name, type and range.

    Args:
        cls: the dataclass with the fields.
        hparams: name -> value, for any of the fields.
        source: where they come from, for the message ("--hparams").

    Returns:
        A copy; whole numbers given for a float field have become floats.

    Raises:
        UserError: naming the hparam, its value and what is allowed.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    result = {}
    for name, value in hparams.items():
        if name in LEFT and name not in fields:
            former = LEFT[name].default
            if value in (former if isinstance(former, tuple) else (former,)):
                continue
            raise UserError(f"{name} in {source} {LEFT[name].message}.")
        if name not in fields:
            close = difflib.get_close_matches(name.lower(), list(fields), n=1)
            hint = f"did you mean {show(close[0])}?" if close else "see docs/hparams.md"
            raise UserError(f"unknown hparam {show(name)} in {source}; {hint}")
        result[name] = _checked(fields[name], hints[name], value, source)
    return result


def _checked(field: dataclasses.Field, hint: Any, value: Any, source: str) -> Any:
    allowed, wrong = field.metadata["allowed"], ""
    converted = _of_type(hint, value)
    if not isinstance(allowed, str):
        if left := LEFT.get(f"{field.name} {value}"):
            raise UserError(f"{field.name} {value} in {source} {left.message}.")
        if converted not in allowed:
            wrong = " or ".join(map(show, allowed))
    elif converted is _WRONG or not _is_within(allowed, converted):
        first, *others = (_TYPE_NAMES[kind] for kind in _kinds(hint))
        wrong = " or ".join([f"{first} {allowed}".strip(), *others])
    elif type(converted) is int and converted > LARGEST:
        wrong = f"at most {LARGEST:,}"
    if wrong:
        raise UserError(
            f"{field.name} in {source} is {show(value)}; it must be {wrong}\n"
            f"({field.metadata['doc']})"
        )
    if field.metadata["role"] is PLACE and isinstance(value, str | list | dict):
        try:
            return each_path(value, local_of)
        except ValueError as e:
            raise UserError(
                f"{field.name} in {source} is {show(value)}: {e}."
            ) from None
    return converted


def _is_within(limits: str, value: Any) -> bool:
    """Whether a number is within limits such as ">= 0 and < 1"; null is."""
    if not limits or value is None:
        return True
    pairs = (limit.split() for limit in limits.split(" and "))
    return all(_COMPARE[sign](value, float(number)) for sign, number in pairs)


_WRONG = object()


def _of_type(hint: Any, value: Any) -> Any:
    """The value in the annotated type, or _WRONG."""
    for kind in _kinds(hint):
        if kind is float and type(value) in (int, float):
            return float(value) if abs(value) <= sys.float_info.max else _WRONG
        if kind is int and type(value) is float and value.is_integer():
            return int(value)  # 1e6 is how people write a million in JSON.
        if type(value) is kind:
            return value
    return _WRONG


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The plain types of an annotation: `int | None` -> (int, NoneType)."""
    union = isinstance(hint, types.UnionType)
    parts = typing.get_args(hint) if union else (hint,)
    return tuple(typing.get_origin(part) or part for part in parts)


def show(value: Any) -> str:
    """A value as the user wrote it in JSON, shortened."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."
