# SPDX-License-Identifier: Apache-2.0
"""ELECTRA and Electric in TensorFlow 2: pre-train, fine-tune, score, serve.

The names below are loaded when they are used, so that importing the package is quick
and does not import TensorFlow.
"""

import importlib.abc
import importlib.util
import sys
from typing import Any

__version__ = "0.1.0"

# Public name -> the module it lives in.
_MODULES = {
    "ElectraPretrainer": "pretrain.pretraining",
    "ModelConfig": "config.model",
    "PretrainedModel": "inference.pretrained_model",
    "PretrainingConfig": "config.pretraining",
    "Tokenizer": "text.tokenization",
    "TokenizerConfig": "text.vocabulary",
    "UserError": "errors",
    "Vocabulary": "text.vocabulary",
    "build_pretrainer": "pretrain.pretraining",
    "TextEncoder": "model.encoder",
    "build_dataset": "api",
    "create_optimizer": "train.optimization",
    "load": "inference.prediction",
    "make_dataset": "api",
    "read_hparams": "config.hparams",
    "score_texts": "inference.pretrained_model",
    "score_tokens": "inference.pretrained_model",
    "train_vocabulary": "api",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Registers our classes with Keras where a program imports that after this package.

    `keras.saving.load_model` then finds them. Our own modules import Keras themselves,
    and register what they define.
    """

    def find_spec(self, name, path, target=None):
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if any(module.startswith(f"{__name__}.") for module in sys.modules):
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module):
            execute(module)
            _register()

        spec.loader.exec_module = execute_and_register
        return spec


def _register() -> None:
    for module in ("pretrain.pretraining", "finetune.model", "train.optimization"):
        importlib.import_module(f"{__name__}.{module}")


if sys.modules.get("keras"):  # None: its import is forbidden
    _register()
else:
    sys.meta_path.insert(0, _AfterKeras())
