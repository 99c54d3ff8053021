# SPDX-License-Identifier: Apache-2.0
"""The family "electra" of transformers: BERT's block, with ELECTRA's heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.hparams import applicable, check
from electra_tf.config.model import ModelConfig
from electra_tf.console import Log
from electra_tf.errors import UserError
from electra_tf.interop import networks, task_heads
from electra_tf.interop.networks import Network
from electra_tf.interop.task_heads import BY_LAYER, TransformersHead
from electra_tf.text.vocabulary import Vocabulary

Tensors = dict[str, np.ndarray]
MODEL_TYPE, BLOCK = "electra", "bert"
ARCHITECTURES = {
    networks.DISCRIMINATOR_HEAD: "ElectraForPreTraining",
    networks.GENERATOR_HEAD: "ElectraForMaskedLM",
    None: "ElectraModel",
}
HEADS = task_heads.HEADS
INPUTS = ("input_ids", "token_type_ids", "attention_mask")  # of its tokenizer
LOGIT = ...  # where a discriminator's outputs have its logit
REPLACED = "torch.sigmoid(output.logits)"  # the probabilities, in PyTorch
# Keys of config.json that change the computation and have one value here.
ALWAYS = {
    "layer_norm_eps": 1e-12,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
}
# Names of activations there -> here; of several for one of ours, the last is written.
ACTIVATIONS = {name: name for name in ("gelu", "relu", "tanh", "linear")}
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "gelu_tanh")
_PREFIX = "electra."  # before the names of an encoder, except in an ElectraModel
_TIED = "generator_lm_head.weight"
_WORDS = f"{_PREFIX}embeddings.word_embeddings.weight"
_HEADS = ("discriminator_predictions.", "generator_predictions.", "generator_lm_head.")


def check_representable(network: Network, origin: str) -> None:
    """Raises `UserError` for a network that transformers would compute differently.

    Its masked language model always has gelu in the head; here the head has the
    activation of the layers.
    """
    act = network.shape.hidden_act
    if act != "gelu" and network.head() == networks.GENERATOR_HEAD:
        raise UserError(
            f"{origin}: hidden_act is {act}; the head of ElectraForMaskedLM always has "
            "gelu, generators here have one activation throughout.\n"
            "Of a whole model, its discriminator or encoder alone can be converted."
        )


def config_of(network: Network, vocab: Vocabulary, max_length: int) -> dict[str, Any]:
    """The keys of config.json that are this family's own."""
    shape = applicable(ModelConfig, dataclasses.asdict(network.shape))
    del shape["block"]
    return shape | {
        "hidden_act": theirs(network.shape.hidden_act),
        "embedding_size": network.embedding_size,
        "layer_norm_eps": ALWAYS["layer_norm_eps"],
        "pad_token_id": vocab.pad_id,
    }


def theirs(activation: str) -> str:
    """The name of an activation there."""
    return {ours: theirs for theirs, ours in ACTIVATIONS.items()}[activation]


def labels(names: Sequence[str]) -> dict[str, Any]:
    """The keys of config.json that name the outputs."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def check_fixed(config: Mapping[str, Any], always: Mapping[str, Any], place) -> None:
    """Raises `UserError` for a key of config.json with another value than here."""
    for name, only in always.items():
        if (value := config.get(name, only)) != only:
            raise UserError(
                f"{place}: {name} is {value!r}; this project computes with {only!r} "
                "alone."
            )


def checked_shape(values: dict[str, Any], place) -> ModelConfig:
    """The shape of these values, with the activation by its name there."""
    act = values["hidden_act"]
    known = values | {"hidden_act": ACTIVATIONS.get(act, act)}
    return ModelConfig(**check(ModelConfig, known, str(place)))


def shape_of(config: dict[str, Any], place: Path) -> tuple[ModelConfig, int]:
    """(shape, embedding size) by a config.json."""
    check_fixed(config, ALWAYS, place)
    fields = dataclasses.fields(ModelConfig)
    values = {field.name: config.get(field.name, field.default) for field in fields}
    return checked_shape(values, place), config.get("embedding_size", 128)


def transposed(tensors: Tensors) -> Tensors:
    """Our weights with the kernels of dense layers transposed, as they are there."""
    return {
        name: np.ascontiguousarray(array.T) if name.endswith("/kernel") else array
        for name, array in tensors.items()
    }


def write(network: Network, origin: str) -> Tensors:
    """The weights of a network by their names there."""
    known = networks.weight_names(network.shape.num_hidden_layers)
    names = {name.ours: name.huggingface for name in known}
    found = networks.renamed(transposed(network.tensors), names, origin)
    if network.head() is None and network.task is None:
        return {name.removeprefix(_PREFIX): array for name, array in found.items()}
    return found


def read(
    tensors: Tensors, config: Mapping[str, Any], shape: ModelConfig, place, note: Log
) -> tuple[Tensors, TransformersHead | None]:
    """(weights by our names, the task's head), of weights in the file `place`."""
    if not any(name.startswith(_PREFIX) for name in tensors):  # an ElectraModel
        parts = ("embeddings.", "embeddings_project.", "encoder.")
        tensors = {
            _PREFIX + name if name.startswith(parts) else name: array
            for name, array in tensors.items()
        }
    drop_copy(tensors, _TIED, _WORDS, place)
    tensors = _known(tensors, note)
    known = networks.weight_names(shape.num_hidden_layers)
    ours = {name.huggingface: name.ours for name in known}
    found = transposed(networks.renamed(tensors, ours, str(place)))
    for task in BY_LAYER.values():
        if all(f"{layer}/kernel" in found for layer in task.layers):
            return found, task
    return found, None


def drop_copy(tensors: Tensors, copy: str, words: str, place) -> None:
    """Drops a second copy of the word embeddings, which some files have.

    Raises `UserError` if it is another table: a generator shares the two.
    """
    table = tensors.pop(copy, None)
    if table is not None and not np.array_equal(table, tensors.get(words)):
        raise UserError(f"{place}: {copy} is not the word embeddings.")


def _known(tensors: Tensors, note: Log) -> Tensors:
    """The tensors without heads that are unknown, incomplete or beside another head."""
    others = {name for name in tensors if not name.startswith((_PREFIX, *_HEADS))}
    has_head = any(name.startswith(_HEADS) for name in tensors)
    layers = {name.rpartition(".")[0] for name in others}
    known = [{x.replace("/", ".") for x in head.layers} for head in BY_LAYER.values()]
    if not has_head and layers in known and len(others) == 2 * len(layers):
        return tensors
    return without_heads(tensors, others, note)


def without_heads(tensors: Tensors, others: set[str], note: Log) -> Tensors:
    """The tensors without those of heads that are not read, with a note of each."""
    for head in sorted({name.partition(".")[0] for name in others}):
        note(f"left out: the head {head}, which does not belong to a pre-trained model")
    return {name: array for name, array in tensors.items() if name not in others}
