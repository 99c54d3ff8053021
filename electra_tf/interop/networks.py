# SPDX-License-Identifier: Apache-2.0
"""The networks of a model, each complete in itself.

In other libraries a model is one encoder with heads. So the discriminator and the
generator of an ELECTRA model are separated: each gets a copy of shared embeddings, and
the names of its weights begin with `electra/`, `discriminator_predictions/`,
`generator_predictions/`, or those of a task's head, whatever scope they come from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from typing import NamedTuple

import numpy as np

from electra_tf.config.model import ModelConfig, generator_config
from electra_tf.config.objectives import GENERATORS, MASKED_LM_HEAD
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import checkpoint
from electra_tf.interop.checkpoint import DISCRIMINATOR_HEAD, GENERATOR_HEAD
from electra_tf.interop.task_heads import BY_LAYER, TransformersHead

ENCODER = "electra/"
EMBEDDINGS = "electra/embeddings/"
DISCRIMINATOR, GENERATOR = "discriminator", "generator"
# Of the networks of a model; the first that is there is its main network.
FOLDERS = (DISCRIMINATOR, "encoder", GENERATOR)
WHAT = ("all", *FOLDERS)


class Network(NamedTuple):
    """One encoder with its head, if it has one."""

    shape: ModelConfig
    embedding_size: int
    tensors: dict[str, np.ndarray]
    task: TransformersHead | None = None  # its head, if that is a task's
    # Of one to write:
    labels: tuple[str, ...] = ()  # of a task's outputs
    num_texts: int = 1  # that it reads together

    def head(self) -> str | None:
        """The prefix of the weights of a head of pre-training, if it has one."""
        for prefix in (DISCRIMINATOR_HEAD, GENERATOR_HEAD):
            if any(name.startswith(prefix) for name in self.tensors):
                return prefix
        return None

    def weight(self, name: str) -> np.ndarray:
        """A weight; `UserError` (65) if it is missing."""
        if name not in self.tensors:
            raise UserError(f"{name} is missing.", EXIT_DAMAGED)
        return self.tensors[name]

    def encoder(self) -> Network:
        """The same without its head."""
        kept = {k: v for k, v in self.tensors.items() if k.startswith(ENCODER)}
        return self._replace(tensors=kept, task=None, labels=())


def split(stored: checkpoint.StoredModel, what: str = "all") -> dict[str, Network]:
    """The networks to write, by the name of their folder.

    Args:
      what: one of WHAT; "encoder" is the discriminator's, or the only one.

    Raises `UserError` for a two-tower generator, which no other library has, and for a
    network that the model lacks.
    """
    if what not in WHAT:
        raise UserError(f"--what is {what}; it is one of {', '.join(WHAT)}.")
    if not any(name.startswith(f"{ENCODER}encoder/") for name in stored.tensors):
        raise UserError(
            f"{stored.origin} consists of two towers: it has no encoder that reads a "
            "whole text.\n--format tf1 exports the whole model."
        )
    if what in ("all", GENERATOR) and not is_representable(stored):
        kind = stored.config.generator.replace("_", "-")
        raise UserError(
            f"{stored.origin} has a {kind} generator, which no other library can "
            "represent.\n--what discriminator exports the discriminator alone, "
            "--format tf1 the whole model."
        )
    config, tensors = stored.config, stored.tensors

    def under(*scopes: str) -> dict[str, np.ndarray]:
        return {k: v for k, v in tensors.items() if k.startswith(scopes)}

    shape, width = config.model_config(), config.embedding_size
    main = Network(shape, width, under(ENCODER, DISCRIMINATOR_HEAD))
    found = {DISCRIMINATOR: main} if main.head() else {}
    main = {"encoder": main.encoder()}
    if under(GENERATOR_HEAD):
        own = under(ENCODER)
        if config.generator_kind.has_own_encoders:
            found = found or dict(main)  # another network than the generator's
            # The generator's own embeddings, if any, replace the shared ones.
            own = under(EMBEDDINGS) | {
                k.replace("generator/", ENCODER, 1): v
                for k, v in under("generator/").items()
            }
            shape = config.generator_config()
            width = own[f"{EMBEDDINGS}word_embeddings"].shape[1]
        found[GENERATOR] = Network(shape, width, own | under(GENERATOR_HEAD))
    if what == "encoder" or not found:
        return main
    if what == "all":
        return found
    if what not in found:
        raise UserError(f"{stored.origin} has no {what}; it has {', '.join(found)}.")
    return {what: found[what]}


def check_block(shape: ModelConfig, format: str, blocks: Container[str]) -> None:
    """Raises `UserError` for a model of a block that a format cannot hold."""
    if shape.block not in blocks:
        raise UserError(
            f"{format} cannot hold a model of the block {shape.block}.\n"
            "--format saved_model can."
        )


def is_representable(stored: checkpoint.StoredModel) -> bool:
    """Whether the generator is a masked language model, which other libraries have."""
    head = GENERATORS[stored.config.generator].head
    has_it = any(name.startswith(f"{head}/") for name in stored.tensors)
    return not has_it or head == MASKED_LM_HEAD


def join(found: dict[str, Network], origin: str) -> dict[str, np.ndarray]:
    """The weights of the whole model, the reverse of `split`.

    Raises `UserError` if generator and discriminator cannot be of one model.
    """
    encoder = found.get("encoder") or found.get(DISCRIMINATOR)
    generator = found.get(GENERATOR)
    if encoder is None or generator is None:
        return dict((encoder or generator).tensors)
    if _same(encoder.encoder().tensors, generator.encoder().tensors):
        return {**generator.tensors, **encoder.tensors}

    def embeddings(network: Network) -> dict[str, np.ndarray]:
        found = network.tensors.items()
        return {k: v for k, v in found if k.startswith(EMBEDDINGS)}

    shared = _same(embeddings(generator), embeddings(encoder))
    theirs = {
        k.replace(ENCODER, "generator/", 1): v
        for k, v in generator.tensors.items()
        if not (shared and k.startswith(EMBEDDINGS))
    }
    # A generator's heads follow from its width, in the original as here.
    width = generator.shape.hidden_size / encoder.shape.hidden_size
    expected = generator_config(encoder.shape, width, 1.0)
    shapes = map(dataclasses.asdict, (generator.shape, expected))
    for name, stored, value in checkpoint.differences(*shapes):
        if name not in ("num_hidden_layers", "type_vocab_size"):
            raise UserError(
                f"{origin}: the generator's {name} is {stored}; beside this "
                f"discriminator it must be {value}.\nGive the folder of one of the two."
            )
    return {**theirs, **encoder.tensors}


def _same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def outputs(network: Network, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a network on a batch of `input_ids`, `input_mask`, `segment_ids`.

    Returns "hidden" [B, L, H] and, by its head, "discriminator" [B, L] logits,
    "generator" [B, L, V] logits, or "logits" of a task: of tokens [B, L, labels], of
    texts [B, labels], of choices [B, 1], of starts and ends [B, L, 2].
    """
    encoder, head = _layers(network)
    for variable in encoder.variables + (head.variables if head else []):
        variable.assign(network.weight(variable.path))
    inputs = (batch[name] for name in ("input_ids", "input_mask", "segment_ids"))
    hidden = encoder(*inputs).sequence_output
    result = {"hidden": hidden.numpy()}
    if network.head() == DISCRIMINATOR_HEAD:
        result[DISCRIMINATOR] = head(hidden).numpy()
    elif network.head() == GENERATOR_HEAD:
        table = encoder.embeddings.word_embeddings.value
        result[GENERATOR] = head.logits(head(hidden), table).numpy()
    elif network.task:
        states = head(hidden) if head else hidden
        result["logits"] = _task_logits(network, states.numpy())
    return result


def _task_logits(network: Network, hidden: np.ndarray) -> np.ndarray:
    from electra_tf.model.layers import gelu

    def dense(states, name):
        kernel, bias = (network.weight(f"{name}/{x}") for x in ("kernel", "bias"))
        return states @ kernel + bias

    *before, last = network.task.layers
    if network.task.is_of_text:
        hidden = hidden[:, 0]
    for name in before:
        hidden = np.asarray(gelu(dense(hidden, name)))
    return dense(hidden, last)


def _layers(network: Network):
    """(encoder, its head as a layer or None), built."""
    from electra_tf.model import heads
    from electra_tf.model.encoder import TextEncoder

    shape, embedding_size = network.shape, network.embedding_size
    encoder = TextEncoder(shape, embedding_size, dtype="float32")
    encoder.build(None)
    layer = None
    if network.head() == DISCRIMINATOR_HEAD:
        layer = heads.DiscriminatorPredictions(shape, dtype="float32")
        layer.build()
    elif network.head() == GENERATOR_HEAD:
        layer = heads.MaskedLMHead(
            shape, embedding_size, "generator_predictions", dtype="float32"
        )
    elif network.task and shape.kind.is_pre_norm:
        layer = heads.PredictionHead(shape, dtype="float32")
        layer.build((None, shape.hidden_size))
    return encoder, layer


# The table of weight names: ours and those of the other libraries.


class WeightName(NamedTuple):
    """A weight here and there."""

    ours: str
    huggingface: str
    keras_hub: str | None  # None: of a head, which KerasHub does not have


# Modules of the encoder with weights, and of one layer, and their names in KerasHub.
_MODULES = {
    "embeddings/word_embeddings": "token_embedding",
    "embeddings/position_embeddings": "position_embedding",
    "embeddings/token_type_embeddings": "segment_embedding",
    "embeddings/LayerNorm": "embeddings_layer_norm",
    "embeddings_project": "embeddings_projection",
}
_MODULES_OF_LAYER = {
    "attention/self/query": "self_attention_layer/query",
    "attention/self/key": "self_attention_layer/key",
    "attention/self/value": "self_attention_layer/value",
    "attention/output/dense": "self_attention_layer/attention_output",
    "attention/output/LayerNorm": "self_attention_layer_norm",
    "intermediate/dense": "feedforward_intermediate_dense",
    "output/dense": "feedforward_output_dense",
    "output/LayerNorm": "feedforward_layer_norm",
}
_MODULES_OF_HEADS = (
    "discriminator_predictions/dense",
    "discriminator_predictions/dense_1",
    "generator_predictions/dense",
    "generator_predictions/LayerNorm",
    *(layer for head in BY_LAYER.values() for layer in head.layers),
)
# The weights of a module: our names and Hugging Face's.
_DENSE = {"kernel": "weight", "bias": "bias"}
_LAYER_NORM = {"gamma": "weight", "beta": "bias"}


def weight_names(num_layers: int) -> list[WeightName]:
    """Every weight that a network of `num_layers` can have.

    Kernels are transposed in Hugging Face; KerasHub splits those of attention by head.
    """
    modules = {f"{ENCODER}{ours}": theirs for ours, theirs in _MODULES.items()}
    for i in range(num_layers):
        for ours, theirs in _MODULES_OF_LAYER.items():
            ours = f"{ENCODER}encoder/layer_{i}/{ours}"
            modules[ours] = f"transformer_layer_{i}/{theirs}"
    # The scores of the vocabulary are the word embeddings transposed, plus this bias.
    bias = "generator_predictions/output_bias", "generator_lm_head.bias"
    found = [WeightName(*bias, None)]
    for ours, in_keras_hub in {**modules, **dict.fromkeys(_MODULES_OF_HEADS)}.items():
        there = ours.replace("/layer_", "/layer/").replace("/", ".")
        there = there.replace("dense_1", "dense_prediction")
        if ours.endswith("_embeddings"):  # a table; here it is not a module
            found.append(
                WeightName(ours, f"{there}.weight", f"{in_keras_hub}/embeddings")
            )
            continue
        for part, name in (_LAYER_NORM if ours.endswith("Norm") else _DENSE).items():
            theirs = f"{in_keras_hub}/{part}" if in_keras_hub else None
            found.append(WeightName(f"{ours}/{part}", f"{there}.{name}", theirs))
    return found


def renamed(
    tensors: Mapping[str, np.ndarray], names: Mapping[str, str], origin: str
) -> dict[str, np.ndarray]:
    """Weights under other names; `UserError` (65) for one whose name is unknown.

    The caller checks that none is missing.
    """
    if unknown := sorted(tensors.keys() - names):
        raise UserError(
            f"{origin} holds {unknown[0]}, which a model of its configuration does not "
            "have.",
            EXIT_DAMAGED,
        )
    return {names[name]: array for name, array in tensors.items()}
