# SPDX-License-Identifier: Apache-2.0
"""The family "modernbert" of transformers: the modern block, with ModernBERT's heads.

A discriminator is a token classifier there, with the logits 0 and its own. Embeddings
narrower than the states are written as their product with the projection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.console import Log
from electra_tf.errors import UserError
from electra_tf.interop import electra, networks, task_heads
from electra_tf.interop.electra import Tensors
from electra_tf.interop.networks import ENCODER, Network
from electra_tf.interop.task_heads import PREDICTION_HEAD, TransformersHead
from electra_tf.text.vocabulary import Vocabulary

MODEL_TYPE, BLOCK = "modernbert", "modern"
ARCHITECTURES = {
    networks.DISCRIMINATOR_HEAD: "ModernBertForTokenClassification",
    networks.GENERATOR_HEAD: "ModernBertForMaskedLM",
    None: "ModernBertModel",
}
HEADS = {
    kind: dataclasses.replace(
        row,
        architecture=row.architecture.replace("Electra", "ModernBert"),
        layers=("classifier",),
    )
    for kind, row in task_heads.HEADS.items()
}
INPUTS = ("input_ids", "attention_mask")  # of its tokenizer
LOGIT = (..., 1)  # where a discriminator's outputs have its logit
REPLACED = "torch.sigmoid(output.logits[..., 1])"  # the probabilities, in PyTorch
LABELS = ("original", "replaced")  # of a discriminator
# Keys of config.json that change the computation and have one value here.
ALWAYS = {
    "norm_eps": 1e-5,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
}
_OF_HEADS = {"decoder_bias": True, "classifier_bias": False}
_POOLED = {"classifier_pooling": "cls"}
# Keys of config.json -> ours and the default there.
_KEYS = {
    "vocab_size": ("vocab_size", 50368),
    "hidden_size": ("hidden_size", 768),
    "intermediate_size": ("intermediate_size", 1152),
    "num_hidden_layers": ("num_hidden_layers", 22),
    "num_attention_heads": ("num_attention_heads", 12),
    "hidden_activation": ("hidden_act", "gelu"),
    "embedding_dropout": ("hidden_dropout_prob", 0.0),
    "attention_dropout": ("attention_probs_dropout_prob", 0.0),
    "max_position_embeddings": ("max_position_embeddings", 8192),
    "initializer_range": ("initializer_range", 0.02),
    "local_attention": ("local_window", 128),
    "global_attn_every_n_layers": ("global_every", 3),
    "global_rope_theta": ("global_rope_theta", 160000.0),
    "local_rope_theta": ("local_rope_theta", 10000.0),
}
_FULL, _LOCAL = "full_attention", "sliding_attention"
_THETAS = {_FULL: "global_rope_theta", _LOCAL: "local_rope_theta"}
_PREFIX = "model."  # before the names of an encoder, except in a ModernBertModel
_TABLE = f"{networks.EMBEDDINGS}word_embeddings"
_CLASSIFIER = ("classifier.weight", "classifier.bias")
_LOGIT = f"{networks.DISCRIMINATOR_HEAD}dense_1/"  # one of the classifier's two rows
# Names there of an encoder's and a layer's weights -> ours, one below the other there.
_ENCODER = {
    "embeddings.tok_embeddings": ["embeddings/word_embeddings"],
    "embeddings.norm": ["embeddings_LayerNorm/gamma"],
    "final_norm": ["final_LayerNorm/gamma"],
}
_LAYER = {
    "attn_norm": ["attention/LayerNorm/gamma"],
    "attn.Wqkv": [f"attention/self/{x}/kernel" for x in ("query", "key", "value")],
    "attn.Wo": ["attention/output/dense/kernel"],
    "mlp_norm": ["intermediate/LayerNorm/gamma"],
    "mlp.Wi": ["intermediate/dense/kernel", "intermediate/gate/kernel"],
    "mlp.Wo": ["output/dense/kernel"],
}


def check_representable(network: Network, origin: str) -> None:
    """Raises `UserError` for a generator whose embeddings are narrower or wider."""
    widths = network.embedding_size, network.shape.hidden_size
    if network.head() == networks.GENERATOR_HEAD and len({*widths}) > 1:
        raise UserError(
            f"{origin}: the masked language model has embeddings {widths[0]} wide and "
            f"states {widths[1]} wide; ModernBertForMaskedLM has one width.\n"
            "--what discriminator or --what encoder exports the rest."
        )


def config_of(network: Network, vocab: Vocabulary, max_length: int) -> dict[str, Any]:
    """The keys of config.json that are this family's own, for transformers 4 and 5."""
    shape = dataclasses.asdict(network.shape)
    shape |= {"max_position_embeddings": max_length}
    shape["hidden_act"] = electra.theirs(network.shape.hidden_act)
    config = {key: shape[ours] for key, (ours, _) in _KEYS.items()}
    config["classifier_activation"] = config["hidden_activation"]
    config["mlp_dropout"] = config["embedding_dropout"]
    config["layer_types"] = _kinds(shape["num_hidden_layers"], shape["global_every"])
    config["rope_parameters"] = {
        kind: {"rope_type": "default", "rope_theta": shape[name]}
        for kind, name in _THETAS.items()
    }
    ids = vocab.pad_id, *(vocab.cls_id, vocab.sep_id) * 2
    names = (f"{name}_token_id" for name in ("pad", "cls", "sep", "bos", "eos"))
    config |= zip(names, ids, strict=True)
    if network.head() == networks.DISCRIMINATOR_HEAD:
        config |= electra.labels(LABELS)
    return config | ALWAYS | _OF_HEADS | _POOLED


def _kinds(layers: int, every: int) -> list[str]:
    """How each layer attends."""
    return [_LOCAL if i % every else _FULL for i in range(layers)]


def shape_of(config: dict[str, Any], place) -> tuple[ModelConfig, int]:
    """(shape, embedding size) by a config.json."""
    electra.check_fixed(config, ALWAYS, place)
    values = {ours: config.get(key, usual) for key, (ours, usual) in _KEYS.items()}
    for kind, name in _THETAS.items():
        rope = dict((config.get("rope_parameters") or {}).get(kind) or {})
        values[name] = values[name] or values["global_rope_theta"]  # None: the same
        values[name] = rope.pop("rope_theta", values[name])
        electra.check_fixed(rope, {"rope_type": "default"}, f"{place}: {kind}")
    layers, every = values["num_hidden_layers"], values["global_every"]
    kinds = config.get("layer_types") or _kinds(layers, every)
    if kinds != _kinds(layers, every):
        every = kinds.index(_FULL, 1) if _FULL in kinds[1:] else len(kinds)
    only = {"layer_types": _kinds(layers, every)}
    electra.check_fixed({"layer_types": kinds}, only, place)
    values |= {"block": BLOCK, "global_every": every}
    shape = electra.checked_shape(values, place)
    return shape, shape.hidden_size


def _names(layers: int, head: str | None, is_task: bool) -> dict[str, list[str]]:
    """Every name there -> ours, one below the other there."""
    names = {f"{_PREFIX}{theirs}": ours for theirs, ours in _ENCODER.items()}
    for i in range(layers):
        for theirs, ours in _LAYER.items():
            scoped = [f"encoder/layer_{i}/{name}" for name in ours]
            names[f"{_PREFIX}layers.{i}.{theirs}"] = scoped
    del names[f"{_PREFIX}layers.0.attn_norm"]
    names = {f"{k}.weight": [f"{ENCODER}{x}" for x in v] for k, v in names.items()}
    if scope := PREDICTION_HEAD if is_task else head:
        names["head.dense.weight"] = [f"{scope}dense/kernel"]
        names["head.norm.weight"] = [f"{scope}LayerNorm/gamma"]
        last = "classifier/" if is_task else f"{scope}dense_1/"
        if head == networks.GENERATOR_HEAD:
            names["decoder.bias"] = [f"{scope}output_bias"]
        else:
            parts = [f"{last}kernel"], [f"{last}bias"]
            names |= zip(_CLASSIFIER, parts, strict=True)
    return names


def write(network: Network, origin: str) -> Tensors:
    """The weights of a network by their names there."""
    ours, head = dict(network.tensors), network.head()
    project = ours.pop(f"{ENCODER}embeddings_project/kernel", None)
    if project is not None:
        ours[_TABLE] = (ours[_TABLE].astype(float) @ project).astype(np.float32)
    for name in ours:
        if name.startswith(_LOGIT):
            ours[name] = np.concatenate([0 * ours[name], ours[name]], -1)
    names = _names(network.shape.num_hidden_layers, head, network.task is not None)
    networks.renamed(ours, {x: x for parts in names.values() for x in parts}, origin)
    ours = electra.transposed(ours)
    found = {k: np.concatenate([ours[x] for x in parts]) for k, parts in names.items()}
    if head or network.task:
        return found
    return {name.removeprefix(_PREFIX): array for name, array in found.items()}


def read(
    tensors: Tensors, config: Mapping[str, Any], shape: ModelConfig, place, note: Log
) -> tuple[Tensors, TransformersHead | None]:
    """(weights by our names, the task's head), of weights in the file `place`."""
    if not any(name.startswith(_PREFIX) for name in tensors):  # a ModernBertModel
        tensors = {f"{_PREFIX}{name}": array for name, array in tensors.items()}
    words = f"{_PREFIX}embeddings.tok_embeddings.weight"
    electra.drop_copy(tensors, "decoder.weight", words, place)
    head, task = _head(tensors, config)
    names = _names(shape.num_hidden_layers, head, task is not None)
    others = {name for name in tensors if not name.startswith(_PREFIX)}
    if others != {name for name in names if not name.startswith(_PREFIX)}:
        tensors, head, task = electra.without_heads(tensors, others, note), None, None
    elif others:
        fixed = _OF_HEADS | (_POOLED if task and task.is_of_text else {})
        fixed["classifier_activation"] = config.get("hidden_activation", "gelu")
        electra.check_fixed({"classifier_activation": "gelu", **config}, fixed, place)
    networks.renamed(tensors, dict.fromkeys(names, ""), str(place))
    found: Tensors = {}
    for name, array in tensors.items():
        found |= zip(names[name], np.array_split(array, len(names[name])), strict=True)
    found = electra.transposed(found)
    for name in found:
        if name.startswith(_LOGIT):
            found[name] = found[name][..., 1:]
    return found, task


def _head(
    tensors: Tensors, config: Mapping[str, Any]
) -> tuple[str | None, TransformersHead | None]:
    """The head that a config.json names: the scope of a pre-trained one, or a task's.

    A discriminator is a token classifier of LABELS whose first logit is 0.
    """
    [architecture] = (config.get("architectures") or [None])[:1]
    if architecture == ARCHITECTURES[networks.GENERATOR_HEAD]:
        return networks.GENERATOR_HEAD, None
    rows = [row for row in HEADS.values() if row.architecture == architecture]
    if rows and config.get("id2label") == electra.labels(LABELS)["id2label"]:
        if not any(tensors[x][0].any() for x in _CLASSIFIER if x in tensors):
            return networks.DISCRIMINATOR_HEAD, None
    return None, rows[0] if rows else None
