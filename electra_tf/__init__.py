# SPDX-License-Identifier: Apache-2.0
"""ELECTRA and Electric in TensorFlow 2: pre-train, fine-tune, score, serve.

The names below are loaded when they are used, so that importing the package is quick
and does not import TensorFlow.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module it lives in.
_MODULES = {
    "ElectraPretrainer": "pretraining",
    "ModelConfig": "model_config",
    "PretrainedModel": "detection",
    "PretrainingConfig": "config",
    "Tokenizer": "tokenization",
    "TokenizerConfig": "vocabulary",
    "UserError": "errors",
    "Vocabulary": "vocabulary",
    "build_pretrainer": "pretraining",
    "load": "detection",
    "make_dataset": "pretrain_data",
    "read_hparams": "hparams",
    "score_texts": "detection",
    "score_tokens": "detection",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
