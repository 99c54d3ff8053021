# SPDX-License-Identifier: Apache-2.0
"""Lets `keras.models.load_model` find our classes after `import electra_tf` alone.

Keras looks a class up by its registered name and imports no module for it. A stand-in
under each name imports the module when a file needs it, so that importing the package
stays quick.
"""

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from electra_tf.startup import on_import

PACKAGE = "electra_tf"
# Module -> the classes in it that are registered.
CLASSES = {
    "finetune.model": "ClassificationHead FinetuningModel MultilabelHead "
    "QuestionAnsweringHead RegressionHead TaggingHead",
    "model.encoder": "DisentangledEmbeddings Embeddings Encoder TextEncoder",
    "model.transformer_layer": "Attention Intermediate LayerNorm Residual "
    "SelfAttention TransformerLayer _Dense",
    "pretrain.generators": "MaskedLMGenerator TiedGenerator TwoTowerGenerator "
    "UniformGenerator UnigramGenerator",
    "pretrain.heads": "DiscriminatorPredictions MaskedLMHead Transform",
    "pretrain.pretraining": "ElectraPretrainer",
    "train.optimization": "AdamWeightDecay InPhases LayerwiseDecay ScopedRate "
    "WarmupPolynomialDecay WarmupStableDecay",
}


class _StandIn(NamedTuple):
    """Stands in Keras's registry for a class whose module is not imported yet."""

    module: str
    name: str

    def from_config(self, config: dict, **options) -> Any:
        module = importlib.import_module(f"{PACKAGE}.{self.module}")
        return getattr(module, self.name).from_config(config, **options)


def _register(keras: Any) -> None:
    registry = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names.split():
            registry.setdefault(f"{PACKAGE}>{name}", _StandIn(module, name))


def _execute_and_register(execute: Callable, keras: types.ModuleType) -> None:
    execute(keras)
    _register(keras)


def install() -> None:
    """Registers the classes, at once or when Keras is imported."""
    if sys.modules.get("keras"):
        _register(sys.modules["keras"])
    else:
        on_import("keras", _execute_and_register)
