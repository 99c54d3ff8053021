# SPDX-License-Identifier: Apache-2.0
"""Model directories of Hugging Face's transformers, in and out.

config.json, model.safetensors, the tokenizer's files and a model card; one directory
for each network. Needs the package safetensors; transformers and torch only add their
own reading of what was written.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import (
    huggingface_card,
    huggingface_tokenizer,
    names,
    networks,
    verification,
)
from electra_tf.interop.names import Entry
from electra_tf.interop.networks import CLASSIFIER, Network
from electra_tf.interop.stored_model import (
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    Contents,
    Settings,
    StoredModel,
)
from electra_tf.storage.manifest import format_of, read_json, verify_folder
from electra_tf.storage.new_folder import new_folder, require_room

FORMAT = "huggingface"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
ARCHITECTURES = {
    DISCRIMINATOR_HEAD: "ElectraForPreTraining",
    GENERATOR_HEAD: "ElectraForMaskedLM",
    CLASSIFIER: "ElectraForTokenClassification",
    None: "ElectraModel",
}
PREFIX = "electra."  # before the names of an encoder, except in an ElectraModel
TIED = "generator_lm_head.weight"  # some files repeat the word embeddings
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_TASK_HEADS = ("classifier.", "qa_outputs.", "sequence_summary.")
_LAYER_NORM_EPSILON = 1e-12

# Our names of the weights; `name_table` has theirs.
_TABLES = (
    "electra/embeddings/word_embeddings",
    "electra/embeddings/position_embeddings",
    "electra/embeddings/token_type_embeddings",
)
_DENSE = (
    "electra/embeddings_project",
    "discriminator_predictions/dense",
    "discriminator_predictions/dense_1",
    "generator_predictions/dense",
    "classifier",
)
_NORMS = ("electra/embeddings/LayerNorm", "generator_predictions/LayerNorm")
_LAYER_DENSE = (
    "attention/self/query",
    "attention/self/key",
    "attention/self/value",
    "attention/output/dense",
    "intermediate/dense",
    "output/dense",
)
_LAYER_NORMS = ("attention/output/LayerNorm", "output/LayerNorm")
# The scores of the vocabulary are the word embeddings transposed, plus this bias.
_OUTPUT_BIAS = Entry("generator_predictions/output_bias", "generator_lm_head.bias")


def is_directory_of(folder: Path) -> bool:
    """Whether a folder looks like one of transformers."""
    if said := format_of(folder):
        return said == FORMAT
    if (folder / WEIGHTS).is_file():
        return True
    config = folder / CONFIG
    return config.is_file() and "model_type" in read_json(config)


def name_table(num_layers: int) -> list[Entry]:
    """Every weight that a network of `num_layers` can have.

    Kernels of dense layers are transposed.
    """
    layers = [f"electra/encoder/layer_{i}/" for i in range(num_layers)]
    dense = [*_DENSE, *(layer + name for layer in layers for name in _LAYER_DENSE)]
    norms = [*_NORMS, *(layer + name for layer in layers for name in _LAYER_NORMS)]
    table = [Entry(ours, f"{_their_name(ours)}.weight") for ours in _TABLES]
    table.append(_OUTPUT_BIAS)
    flip = np.transpose
    for ours in dense:
        theirs = _their_name(ours)
        table.append(Entry(f"{ours}/kernel", f"{theirs}.weight", flip, flip))
        table.append(Entry(f"{ours}/bias", f"{theirs}.bias"))
    for ours in norms:
        theirs = _their_name(ours)
        table.append(Entry(f"{ours}/gamma", f"{theirs}.weight"))
        table.append(Entry(f"{ours}/beta", f"{theirs}.bias"))
    return table


def _their_name(ours: str) -> str:
    theirs = ours.replace("/layer_", "/layer/").replace("dense_1", "dense_prediction")
    return theirs.replace("/", ".")


# ------------------------------------------------------------------------- writing


def write_huggingface(
    stored: StoredModel,
    what: str,
    output_dir: str | os.PathLike,
    log: Callable[[str], None] = print,
) -> Path:
    """Writes each network into a directory of its own below `output_dir`.

    Args:
      what: of `networks.WHAT`.

    Raises `UserError`: 2 for what Hugging Face cannot represent, 65 if what was
    written does not compute the same, 73 if it cannot be written.
    """
    found = networks.split(stored, what)
    return write_networks(found, stored, output_dir, log)


def write_networks(
    found: dict[str, Network],
    stored: StoredModel,
    output_dir: str | os.PathLike,
    log: Callable[[str], None],
) -> Path:
    """`write_huggingface` for networks by the names of their folders."""
    for network in found.values():
        _check_representable(network)
    safetensors_library()
    words = huggingface_tokenizer.words_tokenized_otherwise(stored)
    facts = {"words_tokenized_otherwise": words._asdict()}
    with new_folder(output_dir) as parent:
        shown = []
        for name, network in found.items():
            folder = parent / name
            folder.mkdir()
            require_room(folder, network.tensors)
            results = _write_network(network, stored, folder)
            verification.write_manifest(folder, stored, FORMAT, name, results, facts)
            shown += verification.below(name, results)
    verification.show(shown, log)
    log(f"measured with the package tokenizers: {words}")
    if not _peer_installed():
        log("transformers and torch are not installed: read again by electra_tf only.")
    return Path(output_dir)


def _check_representable(network: Network) -> None:
    act = network.shape.hidden_act
    if act != "gelu" and network.head() == GENERATOR_HEAD:
        raise UserError(
            f"hidden_act is {act}; the head of ElectraForMaskedLM always has gelu.\n"
            "--what encoder or --what discriminator can be exported."
        )


def _write_network(
    network: Network, stored: StoredModel, folder: Path
) -> list[verification.Result]:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    theirs = names.to_theirs(
        name_table(network.shape.num_hidden_layers), network.tensors
    )
    if network.head() is None:
        theirs = {k.removeprefix(PREFIX): v for k, v in theirs.items()}
    try:
        save_file(theirs, folder / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(None, str(error)) from error
    config = config_of(network, stored.vocab.pad_id)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    limit = network.shape.max_position_embeddings
    vocab, settings = stored.vocab, stored.tokenizer_config
    huggingface_tokenizer.write_tokenizer(folder, vocab, settings, limit)
    card = huggingface_card.model_card(network, stored, config["architectures"][0])
    (folder / "README.md").write_text(card, encoding="utf-8")

    found = verification.reread(network, read_network(folder), stored.vocab.pad_id)
    if not _peer_installed():
        return found.results
    theirs = _peer_outputs(folder, config["architectures"][0], found)
    return found.results + verification.compare("transformers", found.ours, theirs)


def _peer_installed() -> bool:
    """Whether transformers can read and run what was written."""
    return all(importlib.util.find_spec(name) for name in ("transformers", "torch"))


def _peer_outputs(
    folder: Path, architecture: str, found: verification.Reread
) -> dict[str, np.ndarray]:
    """The outputs `found.ours` by transformers, on the same batch.

    Raises `UserError` (65) if it finds names missing or left over.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model, loading = getattr(transformers, architecture).from_pretrained(
        str(folder), output_loading_info=True, local_files_only=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading[kind]:
            raise UserError(
                f"{folder}: transformers finds {kind.replace('_', ' ')} "
                f"{sorted(loading[kind])[0]}.",
                EXIT_DAMAGED,
            )
    theirs = {
        "input_ids": "input_ids",
        "attention_mask": "input_mask",
        "token_type_ids": "segment_ids",
    }
    inputs = {k: torch.tensor(found.batch[v]).long() for k, v in theirs.items()}
    with torch.no_grad():
        result = model.eval()(**inputs, output_hidden_states=True)
    hidden = result.hidden_states[-1].numpy()
    return {k: hidden if k == "hidden" else result.logits.numpy() for k in found.ours}


def config_of(network: Network, pad_id: int) -> dict[str, Any]:
    """The config.json of a network."""
    shape = dataclasses.asdict(network.shape)
    config = {
        "architectures": [ARCHITECTURES[network.head()]],
        "model_type": "electra",
        "embedding_size": network.embedding_size,
        "layer_norm_eps": _LAYER_NORM_EPSILON,
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
    return shape | config


# ------------------------------------------------------------------------- reading


def safetensors_library():
    """The package safetensors; `UserError` saying how to get it."""
    try:
        import safetensors
    except ImportError:
        raise UserError(
            "Hugging Face directories need the package safetensors.\n"
            "pip install safetensors"
        ) from None
    return safetensors


def read_network(folder: Path) -> Network:
    """The network in a directory, complete with its head.

    Raises `UserError`: 2 for another model family or a head without equivalent here, 65
    for damaged or incomplete files.
    """
    config = read_json(folder / CONFIG)
    shape, embedding_size = shape_of(config, folder)
    tensors = _without_repetition(_read_weights(folder / WEIGHTS), folder)
    if not any(name.startswith(PREFIX) for name in tensors):
        tensors = {
            name if name.startswith(_TASK_HEADS) else PREFIX + name: array
            for name, array in tensors.items()
        }
    ours = names.to_ours(
        name_table(shape.num_hidden_layers), tensors, str(folder / WEIGHTS)
    )
    labels = config.get("id2label") or {}
    network = Network(shape, embedding_size, ours)
    if network.head() == CLASSIFIER:
        order = sorted(labels, key=int)
        network = network._replace(labels=tuple(labels[i] for i in order))
    return network


def shape_of(config: dict[str, Any], folder: Path) -> tuple[ModelConfig, int]:
    """(shape, embedding size) by a config.json; `UserError` for other families."""
    family = config.get("model_type")
    if family != "electra":
        raise UserError(
            f"{folder / CONFIG} is of the model family {family!r}, not 'electra'.\n"
            "Only ELECTRA models can be read."
        )
    fields = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
    values = {name: config.get(name, default) for name, default in fields.items()}
    epsilon = config.get("layer_norm_eps", _LAYER_NORM_EPSILON)
    if epsilon != _LAYER_NORM_EPSILON:
        raise UserError(
            f"{folder / CONFIG}: layer_norm_eps is {epsilon}; this project, like the "
            f"original, computes with {_LAYER_NORM_EPSILON}."
        )
    for name, default in fields.items():
        kinds = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(values[name], kinds) or isinstance(values[name], bool):
            raise UserError(
                f"{folder / CONFIG}: {name} is {values[name]!r}.", EXIT_DAMAGED
            )
    if values["hidden_act"] not in ("gelu", "relu", "tanh", "linear"):
        raise UserError(
            f"{folder / CONFIG}: hidden_act {values['hidden_act']!r} is not known here."
        )
    return ModelConfig(**values), config.get("embedding_size", 128)


def _read_weights(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a safetensors file as float32."""
    library = safetensors_library()
    if not path.is_file():
        raise UserError(
            f"{path} is missing.\nWeights are read from safetensors only; "
            "save_pretrained of a current transformers writes it.",
            EXIT_DAMAGED,
        )
    tensors = {}
    try:
        with library.safe_open(path, framework="numpy") as file:
            for name in file.keys():
                tensors[name] = file.get_tensor(name)
    except (library.SafetensorError, TypeError, ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {str(error).splitlines()[0][:120]}\nIt is "
            "damaged, cut off or neither float32 nor float16; copy it again.",
            EXIT_DAMAGED,
        ) from None
    return {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in tensors.items()
    }


def _without_repetition(
    tensors: dict[str, np.ndarray], folder: Path
) -> dict[str, np.ndarray]:
    """Leaves out index buffers and the second copy of tied weights, once checked."""
    kept = {
        name: array
        for name, array in tensors.items()
        if not name.removeprefix(PREFIX).startswith(_BUFFERS)
    }
    repeated = kept.pop(TIED, None)
    words = kept.get("electra.embeddings.word_embeddings.weight")
    if repeated is not None and not np.array_equal(repeated, words):
        raise UserError(
            f"{folder / WEIGHTS}: {TIED} is not the word embeddings; an ELECTRA "
            "generator shares the two."
        )
    return kept


def _parts(folder: Path) -> list[Path]:
    """A directory, or those below it that `write` makes."""
    parts = [folder / name for name in networks.FOLDERS]
    return [part for part in parts if (part / CONFIG).is_file()] or [folder]


def settings_of(folder: Path) -> Settings:
    """What the JSON files of a directory say, once all its files are verified."""
    for part in reversed(_parts(folder)):
        verify_folder(part, lenient=True)
    config = read_json(part / CONFIG)
    shape, embedding_size = shape_of(config, part)
    overrides = dataclasses.asdict(shape)
    del overrides["vocab_size"]
    hparams = {"embedding_size": embedding_size, "model_hparam_overrides": overrides}
    return Settings(hparams, *huggingface_tokenizer.read(part))


def read(folder: Path, settings: Settings) -> Contents:
    """A directory, or one with directories `discriminator` and `generator`."""
    found, notes = {}, []
    for part in _parts(folder):
        network = read_network(part)
        if network.head() == CLASSIFIER:
            notes.append("left out: the token classifier")
            network = network.encoder()
        kind = {DISCRIMINATOR_HEAD: "discriminator", GENERATOR_HEAD: "generator"}
        found[kind.get(network.head(), "encoder")] = network
    return Contents(
        origin=str(folder),
        tensors=networks.join(found, str(folder)),
        slots={},
        step=0,
        settings=settings,
        notes=notes,
    )
