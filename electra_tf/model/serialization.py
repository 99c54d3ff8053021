# SPDX-License-Identifier: Apache-2.0
"""Keras layers that are saved as the arguments they were made with."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, TypeVar

import keras

_Class = TypeVar("_Class", bound=type)


def serializable(cls: _Class) -> _Class:
    """Registers a layer with Keras, and takes its config from its constructor.

    Layers and dataclasses among the arguments are saved, too.
    """
    make = cls.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def construct(self, *args, **kwargs):
        if type(self) is cls:
            arguments = signature.bind(self, *args, **kwargs).arguments
            arguments |= arguments.pop("kwargs", {})
            # Not an attribute that Keras tracks: layers among them are others'.
            object.__setattr__(self, "_arguments", dict(list(arguments.items())[1:]))
        make(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = {name: _saved(value) for name, value in self._arguments.items()}
        return config | keras.layers.Layer.get_config(self)

    def from_config(cls, config: dict[str, Any]):
        dtype = {"dtype": config["dtype"]}
        return cls(**{name: _restored(v) for name, v in config.items()} | dtype)

    construct.__signature__ = signature  # Keras looks at it, too.
    cls.__init__, cls.get_config = construct, get_config
    cls.from_config = classmethod(from_config)
    return keras.saving.register_keras_serializable("electra_tf")(cls)


def _saved(value: Any) -> Any:
    if isinstance(value, keras.layers.Layer):
        return keras.saving.serialize_keras_object(value)
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value


def _restored(value: Any) -> Any:
    is_layer = isinstance(value, dict) and "registered_name" in value
    return keras.saving.deserialize_keras_object(value) if is_layer else value
