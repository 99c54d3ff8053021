# SPDX-License-Identifier: Apache-2.0
"""ELECTRA and Electric in TensorFlow 2: pre-train, fine-tune, score, serve.

Names are loaded on first use, so that importing the package is quick and does not
import TensorFlow.
"""

import importlib
from typing import Any

from electra_tf import startup

__version__ = "0.2.0"

# Public name -> its module.
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
    "train_vocabulary": "api",
}

# Those that import Keras.
_WITH_KERAS = ("model.encoder", "pretrain.pretraining", "train.optimization")

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] in _WITH_KERAS:
        startup.choose_backend()
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
