# SPDX-License-Identifier: Apache-2.0
"""config.json of transformers' ELECTRA: what can be said in it, and what it says here.

The one place that tells what is representable, for reading and for writing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from electra_tf.config.hparams import check
from electra_tf.config.model import ModelConfig
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop.checkpoint import DISCRIMINATOR_HEAD, GENERATOR_HEAD
from electra_tf.interop.networks import CLASSIFIER, SPANS, TEXT_CLASSIFIER, Network

CONFIG = "config.json"
ARCHITECTURES = {
    DISCRIMINATOR_HEAD: "ElectraForPreTraining",
    GENERATOR_HEAD: "ElectraForMaskedLM",
    CLASSIFIER: "ElectraForTokenClassification",
    TEXT_CLASSIFIER: "ElectraForSequenceClassification",
    SPANS: "ElectraForQuestionAnswering",
    None: "ElectraModel",
}
# Our names of activations and theirs; what they read as one of ours.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
_OUR_ACTIVATIONS = {v: k for k, v in _ACTIVATIONS.items()} | {"gelu_new": "gelu_tanh"}
# What changes the computation there and has one value here.
_ALWAYS = {
    "layer_norm_eps": 1e-12,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": None,
    "auto_map": None,  # a program of its own
}
# Keys of config.json that are read, or that change nothing that is computed.
UNDERSTOOD = {
    *(field.name for field in dataclasses.fields(ModelConfig)),
    *_ALWAYS,
    *"_name_or_path architectures bos_token_id classifier_dropout dtype "
    "embedding_size eos_token_id gradient_checkpointing id2label label2id model_type "
    "pad_token_id problem_type summary_activation summary_last_dropout summary_type "
    "summary_use_proj tie_word_embeddings torch_dtype transformers_version "
    "use_cache".split(),
}


def check_representable(network: Network, origin: str) -> None:
    """Raises `UserError` for a network that means something else here and there.

    Their masked language model has gelu in its head whatever its layers have; here
    the head has what the layers have.
    """
    act = network.shape.hidden_act
    if act != "gelu" and network.head() == GENERATOR_HEAD:
        raise UserError(
            f"{origin}: hidden_act is {act}; the head of ElectraForMaskedLM always has "
            "gelu, generators here have one activation throughout.\n"
            "Of a whole model, its discriminator or encoder alone can be converted."
        )


def config_of(network: Network, pad_id: int) -> dict[str, Any]:
    """The config.json of a network."""
    shape = dataclasses.asdict(network.shape)
    shape["hidden_act"] = _ACTIVATIONS[network.shape.hidden_act]
    config = {
        "architectures": [ARCHITECTURES[network.head()]],
        "model_type": "electra",
        "embedding_size": network.embedding_size,
        "layer_norm_eps": _ALWAYS["layer_norm_eps"],
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    }
    if network.labels:
        config["id2label"] = {str(i): label for i, label in enumerate(network.labels)}
        config["label2id"] = {label: i for i, label in enumerate(network.labels)}
    if network.problem_type:
        config["problem_type"] = network.problem_type
    return shape | config


def shape_of(config: dict[str, Any], folder: Path) -> tuple[ModelConfig, int]:
    """(shape, embedding size) by a config.json; `UserError` for other families."""
    place = folder / CONFIG
    family = config.get("model_type")
    if family != "electra":
        raise UserError(
            f"{place} is of the model family {family!r}, not 'electra'.\n"
            "Only ELECTRA models can be read."
        )
    for name, only in _ALWAYS.items():
        if (value := config.get(name, only)) != only:
            raise UserError(
                f"{place}: {name} is {value!r}; this project, like the original, "
                f"computes with {only!r} alone."
            )
    fields = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
    values = {name: config.get(name, default) for name, default in fields.items()}
    for name, default in (fields | {"embedding_size": 128}).items():
        value = config.get(name, default)
        kinds = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise UserError(f"{place}: {name} is {value!r}.", EXIT_DAMAGED)
    act = values["hidden_act"]
    if act not in _OUR_ACTIVATIONS:
        raise UserError(
            f"{place}: hidden_act {act!r} is not known here.\nKnown are "
            f"{', '.join(_OUR_ACTIVATIONS)}."
        )
    values["hidden_act"] = _OUR_ACTIVATIONS[act]
    values = check(ModelConfig, values, str(place))
    return ModelConfig(**values), config.get("embedding_size", 128)
