# SPDX-License-Identifier: Apache-2.0
"""Preset directories of KerasHub, in and out: ElectraBackbone and ElectraTokenizer.

KerasHub has no heads for ELECTRA, so a preset is an encoder. Two things differ from the
original and cannot be set in a preset. Its GELU is the approximation by tanh: foreign
presets are read with `hidden_act` gelu_tanh; for a model with the exact GELU the
difference is measured, and with the exact GELU put in, outputs must be equal. It has a
pooler (dense layer, tanh), which is written as identity: pooled_output is tanh of the
state at [CLS].
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import startup
from electra_tf.config.hparams import check, without_left
from electra_tf.config.model import ModelConfig
from electra_tf.console import Log
from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.interop import cards, electra, networks, verification
from electra_tf.interop.cards import UNSTATED, Publication
from electra_tf.interop.checkpoint import CheckpointInfo, StoredModel
from electra_tf.interop.networks import Network
from electra_tf.storage import manifest
from electra_tf.storage.checkpoints import StoredTensors, of_arrays
from electra_tf.text.vocabulary import TokenizerConfig, config_of_bert

FORMAT = "keras_hub"
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
TOKENIZER = "tokenizer.json"
VOCABULARY = Path("assets", "tokenizer", "vocabulary.txt")
CLASS = "ElectraBackbone"
_POOLER = "pooled_dense/"
_SHAPE = "model_config"  # in our manifest: all fields, also those a preset lacks

# Their names for the fields of ModelConfig.
_FIELDS = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}


def is_directory_of(folder: Path) -> bool:
    """Whether a folder looks like a preset."""
    if form := manifest.format_of(folder):
        return form == FORMAT
    return "class_name" in manifest.read_json_if_there(folder / CONFIG)


def _names(shape: ModelConfig) -> dict[str, str]:
    """Our names of an encoder's weights -> KerasHub's."""
    known = networks.weight_names(shape.num_hidden_layers)
    return {name.ours: name.keras_hub for name in known if name.keras_hub}


# ------------------------------------------------------------------------- writing


def write_keras_hub(
    stored: StoredModel,
    what: str,
    output_dir: str | os.PathLike,
    log: Log = print,
    publication: Publication = UNSTATED,
) -> Path:
    """Writes the encoder of each network as a preset of its own below `output_dir`.

    Args:
      what: of `networks.WHAT`.

    Raises `UserError`: 2 for what KerasHub cannot represent, 65 if what was written
    does not compute the same, 73 if it cannot be written.
    """
    found = networks.split(stored, what)
    shape = stored.config.model_config()
    networks.check_block(shape, FORMAT, [electra.BLOCK])
    if (act := shape.hidden_act) not in ("gelu", "gelu_tanh"):
        raise UserError(f"hidden_act is {act}; KerasHub's {CLASS} always has gelu.")
    tokens = stored.vocab.tokens
    if len({token.strip() for token in tokens}) < len(tokens):
        raise UserError(
            f"{stored.vocab.path}: KerasHub strips tokens, and takes some lines for "
            "one.\nExport another format, or name unused tokens apart before training."
        )
    if heads := [network.head() for network in found.values() if network.head()]:
        log(f"Left out, KerasHub has no place for them: {', '.join(heads)}")
    write = functools.partial(_write_encoder, stored=stored, publication=publication)
    return verification.write_networks(found, stored, output_dir, FORMAT, write, log)


def _write_encoder(
    network: Network, folder: Path, stored: StoredModel, publication: Publication
) -> tuple[list[verification.Result], dict[str, Any]]:
    with startup.optional("keras-hub", "--format keras_hub", "keras_hub"):
        import keras_hub

    network = network.encoder()
    shape, width = network.shape, network.shape.hidden_size
    backbone = _new_backbone(shape, network.embedding_size)
    names = _names(shape)
    theirs = networks.renamed(network.tensors, names, stored.origin)
    theirs[_POOLER + "kernel"] = np.eye(width, dtype=np.float32)
    theirs[_POOLER + "bias"] = np.zeros(width, np.float32)
    for weight in backbone.weights:
        # Weights of attention are split by head there.
        weight.assign(theirs[weight.path].reshape(weight.shape))
    backbone.save_to_preset(str(folder))
    config = stored.tokenizer_config
    keras_hub.models.ElectraTokenizer(
        vocabulary=list(stored.vocab.distinct),
        lowercase=config.do_lower_case,
        strip_accents=config.do_lower_case and config.strip_accents,
    ).save_to_preset(str(folder))
    length = stored.trained_length or shape.max_position_embeddings
    cards.write(
        folder,
        stored,
        publication,
        {"library_name": "keras-hub", "tags": ["electra"]},
        shape,
        kind=": a preset for KerasHub",
        use=cards.fill(FORMAT, length=str(length)),
        embedding_size=network.embedding_size,
    )
    results, gap = _verify(network, stored, folder)
    return results, {
        "gelu": f"tanh in KerasHub, {shape.hidden_act} in the source",
        "gelu_difference": gap,
        _SHAPE: dataclasses.asdict(shape),
        "pooler": "identity",
    }


def _verify(
    network: Network, stored: StoredModel, folder: Path
) -> tuple[list[verification.Result], float]:
    """Returns the results with the source's GELU, and how far KerasHub's own is off."""
    import keras
    import keras_hub

    again = read_network(folder, network.shape)
    batch, ours, results = verification.reread(network, again, stored.vocab.pad_id)
    backbone = keras_hub.models.ElectraBackbone.from_preset(str(folder))
    unchanged = _run(backbone, batch)
    # Their states at padding depend on how padding is masked, and are not used.
    real = batch["input_mask"]
    gap = verification.difference(ours["hidden"], unchanged["hidden"], real)
    if network.shape.hidden_act == "gelu_tanh":
        results += verification.compare("keras_hub", ours, unchanged, real)
        return results, gap
    exact_gelu = functools.partial(keras.activations.gelu, approximate=False)
    for layer in backbone.transformer_layers:
        layer._feedforward_intermediate_dense.activation = exact_gelu
    exact = _run(backbone, batch)
    results += verification.compare("keras_hub with exact GELU", ours, exact, real)
    return results, gap


def _run(backbone, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    # Called directly: a cached predict function would keep the old activation.
    output = backbone.call(
        {
            "token_ids": batch["input_ids"],
            "segment_ids": batch["segment_ids"],
            "padding_mask": batch["input_mask"],
        }
    )
    return {"hidden": np.asarray(output["sequence_output"])}


# ------------------------------------------------------------------------- reading


def read_network(folder: Path, shape: ModelConfig | None = None) -> Network:
    """The encoder in a preset directory; the pooler is left out.

    Args:
      shape: a preset does not state the activation; None: that of the manifest, or
        gelu_tanh.

    Raises `UserError`: 2 for another model family, 65 for damaged files.
    """
    stored, embedding_size = _shape_in(folder)
    shape = shape or stored
    # From the sizes alone: `from_preset` also makes whatever objects config.json names.
    backbone = _new_backbone(stored, embedding_size)
    try:
        backbone.load_weights(str(folder / WEIGHTS))
    except Exception as error:  # It fails in many ways on damaged files.
        message = f"{folder} cannot be read: {reason_of(error)}\nCopy it again."
        raise UserError(message, EXIT_DAMAGED) from None
    tensors = {
        weight.path: np.asarray(weight, np.float32)
        for weight in backbone.weights
        if not weight.path.startswith(_POOLER)
    }
    names = {theirs: ours for ours, theirs in _names(shape).items()}
    ours = networks.renamed(tensors, names, str(folder / WEIGHTS))
    width = shape.hidden_size
    for name, array in ours.items():
        if "/attention/" in name:  # split by head
            size = (-1,) if array.size == width else (width, width)
            ours[name] = array.reshape(size)
    return Network(shape, embedding_size, ours)


def _new_backbone(shape: ModelConfig, embedding_size: int):
    with startup.optional("keras-hub", "A preset of KerasHub", "keras_hub"):
        import keras_hub

    return keras_hub.models.ElectraBackbone(
        **{theirs: getattr(shape, ours) for theirs, ours in _FIELDS.items()},
        embedding_dim=embedding_size,
        dtype="float32",
        name="electra_backbone",
    )


def _shape_in(folder: Path) -> tuple[ModelConfig, int]:
    """(shape, embedding size) by the config.json of a preset."""
    content = manifest.read_json(folder / CONFIG)
    if content.get("class_name") != CLASS:
        raise UserError(
            f"{folder / CONFIG} is of the class {content.get('class_name')!r}, not "
            f"{CLASS}.\nOnly ELECTRA models can be read."
        )
    config = content.get("config")
    ours = manifest.read_json_if_there(folder / manifest.MANIFEST)
    try:
        if _SHAPE in ours:
            shape = without_left(ours[_SHAPE])
            return ModelConfig(**shape), int(config["embedding_dim"])
        values = {ours: config[theirs] for theirs, ours in _FIELDS.items()}
        values["attention_probs_dropout_prob"] = values["hidden_dropout_prob"]
        values["hidden_act"] = "gelu_tanh"
        values = check(ModelConfig, values, str(folder / CONFIG))
        return ModelConfig(**values), int(config["embedding_dim"])
    except (KeyError, TypeError, ValueError) as error:
        message = f"{folder / CONFIG}: no usable config of an {CLASS} ({error})."
        raise UserError(message, EXIT_DAMAGED) from None


def info(folder: Path, log: Log) -> CheckpointInfo:
    """A preset, by its JSON files, once all its files are verified."""
    manifest.verify_folder(folder, log)
    shape, embedding_size = _shape_in(folder)
    known = {"embedding_size": embedding_size} | shape.overrides()
    # Presets have no place for it.
    if length := verification.trained_length_in(folder):
        known["max_seq_length"] = length
    vocab_file = folder / VOCABULARY
    return CheckpointInfo(
        origin=str(folder),
        known=known,
        tokenizer_config=_tokenizer_config(folder),
        vocab_file=str(vocab_file) if vocab_file.is_file() else None,
        open=functools.partial(_open, folder),
    )


def _open(folder: Path, log: Log) -> StoredTensors:
    log(f"Note: {folder}: left out: the pooler, which the original does not have.")
    if manifest.format_of(folder) is None:
        log(
            f"Note: {folder}: its gelu is the approximation by tanh, hidden_act "
            "gelu_tanh here."
        )
    return of_arrays(str(folder), read_network(folder).tensors)


def _tokenizer_config(folder: Path) -> TokenizerConfig | None:
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    settings = manifest.read_json(path).get("config") or {}
    names = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
    return config_of_bert({k: bool(settings.get(v)) for k, v in names.items()}, path)
