# SPDX-License-Identifier: Apache-2.0
"""Model directories of Hugging Face's transformers, in and out.

config.json, model.safetensors, the tokenizer's files and a model card; one directory
for each network. Needs the package safetensors; transformers and torch only add their
own reading of what was written.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import startup
from electra_tf.config.model import ModelConfig
from electra_tf.console import say_nothing
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import (
    huggingface_card,
    huggingface_tokenizer,
    huggingface_weights,
    networks,
    verification,
)
from electra_tf.interop.checkpoint import (
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    Contents,
    Settings,
    StoredModel,
    trained_length_in,
)
from electra_tf.interop.huggingface_config import (
    ARCHITECTURES,
    CONFIG,
    UNDERSTOOD,
    check_representable,
    config_of,
    shape_of,
)
from electra_tf.interop.huggingface_weights import BUFFERS, WEIGHTS
from electra_tf.interop.networks import (
    DISCRIMINATOR,
    EMBEDDINGS,
    GENERATOR,
    TASK_HEADS,
    Entry,
    Network,
)
from electra_tf.storage.manifest import format_of, read_json, verify_folder
from electra_tf.storage.new_folder import new_folder, require_room
from electra_tf.text.vocabulary import Vocabulary

FORMAT = "huggingface"
PREFIX = "electra."  # before the names of an encoder, except in an ElectraModel
TIED = "generator_lm_head.weight"  # some files repeat the word embeddings
_ENCODER_PARTS = ("embeddings.", "embeddings_project.", "encoder.")
_HEADS = ("discriminator_predictions.", "generator_predictions.", "generator_lm_head.")
# The weights of each head of a task.
_TASK_WEIGHTS = [
    {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    for layers in (
        ["classifier"],
        ["classifier.dense", "classifier.out_proj"],
        ["qa_outputs"],
    )
]
_KINDS = {DISCRIMINATOR_HEAD: "discriminator", GENERATOR_HEAD: "generator"}
_MAIN = {"discriminator", "encoder"}

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
    "classifier/dense",
    "classifier/out_proj",
    "qa_outputs",
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
    if huggingface_weights.files_in(folder):
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
    checked: Sequence[verification.Result] = (),
    more: Mapping[str, Any] | None = None,
) -> Path:
    """`write_huggingface` for networks by the names of their folders.

    Args:
      checked: comparisons made before, for the manifest.
      more: facts for it.
    """
    for network in found.values():
        check_representable(network, stored.origin)
    huggingface_weights.safetensors_library()
    words = huggingface_tokenizer.words_tokenized_otherwise(stored)
    facts = {"words_tokenized_otherwise": words._asdict(), **(more or {})}
    with new_folder(output_dir) as parent:
        shown = []
        for name, network in found.items():
            folder = parent / name
            folder.mkdir()
            require_room(folder, network.tensors)
            results = [*checked, *_write_network(network, stored, folder)]
            verification.write_manifest(folder, stored, FORMAT, name, results, facts)
            shown += verification.below(name, results)
    verification.show(shown, log)
    log(f"measured with the package tokenizers: {words}")
    if not _peer_installed():
        log("transformers and torch are not installed: read again by electra_tf only.")
    return Path(output_dir)


def _write_network(
    network: Network, stored: StoredModel, folder: Path
) -> list[verification.Result]:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    theirs = networks.to_theirs(
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
    limit = stored.trained_length or network.shape.max_position_embeddings
    vocab, settings = stored.vocab, stored.tokenizer_config
    huggingface_tokenizer.write_tokenizer(folder, vocab, settings, limit)
    card = huggingface_card.model_card(network, stored, config["architectures"][0])
    (folder / "README.md").write_text(card, encoding="utf-8")

    found = verification.reread(network, read_network(folder), stored.vocab.pad_id)
    if not _peer_installed():
        return found.results
    peer = _peer(folder, config["architectures"][0], found.batch)
    return found.results + verification.compare_with("transformers", found.ours, peer)


def _peer_installed() -> bool:
    """Whether transformers can read and run what was written."""
    return all(importlib.util.find_spec(name) for name in ("transformers", "torch"))


def _peer(
    folder: Path,
    architecture: str,
    batch: Mapping[str, np.ndarray],
    whole: bool = True,
) -> Callable[[bool], dict[str, np.ndarray]]:
    """A function: whether in float64 -> transformers' outputs on a batch.

    Args:
      whole: whether names that are left over are an error.

    Raises `UserError` (65) if it finds names missing or left over.
    """
    startup.keep_triton_out()
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model, loading = getattr(transformers, architecture).from_pretrained(
        str(folder), output_loading_info=True, local_files_only=True
    )
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if loading[kind] and (whole or kind != "unexpected_keys"):
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
    inputs = {k: torch.tensor(batch[v]).long() for k, v in theirs.items()}

    def run(in_double: bool) -> dict[str, np.ndarray]:
        dtype = torch.float64 if in_double else torch.float32
        with torch.no_grad():
            result = model.eval().to(dtype)(**inputs, output_hidden_states=True)
        found = {"hidden": result.hidden_states[-1].numpy()}
        if "start_logits" in result:
            both = [result.start_logits, result.end_logits]
            found["logits"] = torch.stack(both, -1).numpy()
        elif "logits" in result:
            found["logits"] = result.logits.numpy()
        # Of a head of pre-training `networks.outputs` has its name.
        return found | dict.fromkeys((DISCRIMINATOR, GENERATOR), found.get("logits"))

    return run


# ------------------------------------------------------------------------- reading


def read_network(
    folder: Path,
    note: Callable[[str], None] = say_nothing,
    allow_pytorch_bin: bool = False,
) -> Network:
    """The network in a directory, complete with its head.

    Args:
      note: told of what is left out.

    Raises `UserError`: 2 for another model family or what cannot be represented here,
    65 for damaged or incomplete files.
    """
    config = read_json(folder / CONFIG)
    shape, embedding_size = shape_of(config, folder)
    place = folder / WEIGHTS
    tensors = huggingface_weights.read(folder, allow_pytorch_bin)
    if not any(name.startswith(PREFIX) for name in tensors):
        tensors = {
            PREFIX + name if name.startswith(_ENCODER_PARTS) else name: array
            for name, array in tensors.items()
        }
    table = name_table(shape.num_hidden_layers)
    tensors = _known(_without_repetition(tensors, place), note)
    found = networks.to_ours(table, tensors, str(place))
    words = found.get(f"{EMBEDDINGS}word_embeddings")
    if words is not None:
        if (said := config.get("vocab_size", len(words))) != len(words):
            raise UserError(
                f"{folder / CONFIG}: vocab_size is {said}, but {place.name} has "
                f"{len(words)} word embeddings.",
                EXIT_DAMAGED,
            )
        shape = dataclasses.replace(shape, vocab_size=len(words))
    network = Network(shape, embedding_size, found)
    check_representable(network, str(folder / CONFIG))
    return network


def _known(
    tensors: dict[str, np.ndarray], note: Callable[[str], None]
) -> dict[str, np.ndarray]:
    """Without heads that have no equivalent, are not whole or stand beside another."""
    others = {name for name in tensors if not name.startswith((PREFIX, *_HEADS))}
    has_head = any(name.startswith(_HEADS) for name in tensors)
    if not has_head and others in _TASK_WEIGHTS:
        return tensors
    for head in sorted({name.partition(".")[0] for name in others}):
        note(f"left out: the head {head}, which is no part of a pre-trained model")
    return {name: array for name, array in tensors.items() if name not in others}


def _without_repetition(
    tensors: dict[str, np.ndarray], place: Path
) -> dict[str, np.ndarray]:
    """Leaves out index buffers and the second copy of tied weights, once checked."""
    kept = {
        name: array
        for name, array in tensors.items()
        if not name.removeprefix(PREFIX).startswith(BUFFERS)
    }
    repeated = kept.pop(TIED, None)
    words = kept.get("electra.embeddings.word_embeddings.weight")
    if repeated is not None and not np.array_equal(repeated, words):
        raise UserError(
            f"{place}: {TIED} is not the word embeddings; an ELECTRA generator shares "
            "the two."
        )
    return kept


def _parts(folder: Path) -> list[Path]:
    """A directory, or those below it that `write` makes.

    One of them that lost a file is not passed over: the others are another model.
    """
    parts = [folder / name for name in networks.FOLDERS]
    return [part for part in parts if is_directory_of(part)] or [folder]


def settings_of(folder: Path, log: Callable[[str], None]) -> Settings:
    """What the JSON files of a directory say, once all its files are verified."""
    first, *others = _parts(folder)
    for part in (first, *others):
        verify_folder(part, log)
    shape, embedding_size = shape_of(read_json(first / CONFIG), first)
    hparams: dict[str, Any] = {"embedding_size": embedding_size}
    hparams["model_hparam_overrides"] = shape.overrides()
    lengths = [_trained_length(part, shape) for part in (first, *others)]
    if any(lengths):
        hparams["max_seq_length"] = min(filter(None, lengths))
    tokenizer, vocab_file = huggingface_tokenizer.read(first)
    for part in others:
        other, file = huggingface_tokenizer.read(part)
        if vocab_file and file:
            vocab, advice = Vocabulary.load(file), "Give the folder of one of the two."
            sha256 = Vocabulary.load(vocab_file).sha256
            vocab.check_same(sha256, f"{first} was trained", advice)
        if tokenizer and other and not tokenizer.equivalent(other):
            raise UserError(f"text is {tokenizer} in {first}, {other} in {part}.")
    return Settings(hparams, tokenizer, vocab_file)


def _trained_length(folder: Path, shape: ModelConfig) -> int | None:
    """`StoredModel.trained_length`, as far as the files say it.

    What others write there is the number of positions, or a very large one, whatever
    was trained.
    """
    said = huggingface_tokenizer.max_length(folder)
    said = said if said and said < shape.max_position_embeddings else None
    return trained_length_in(folder) or said


def read(folder: Path, settings: Settings, allow_pytorch_bin: bool = False) -> Contents:
    """A directory, or one with directories `discriminator` and `generator`.

    What others wrote is compared with what transformers computes of it.
    """
    found: dict[str, Network] = {}
    notes: list[str] = []
    foreign: dict[Path, Network] = {}
    for part in _parts(folder):
        network = read_network(part, notes.append, allow_pytorch_bin)
        if format_of(part) is None:
            foreign[part] = network
        if network.head() in TASK_HEADS:
            notes.append(f"left out: the head of {ARCHITECTURES[network.head()]}")
            network = network.encoder()
        kind = _KINDS.get(network.head(), "encoder")
        # An encoder and a discriminator are the same part of a model.
        for other in found.keys() & (_MAIN if kind in _MAIN else {kind}):
            raise UserError(
                f"{part} holds the weights of a model's {kind}, a folder beside it "
                f"those of its {other}: one of them is too many.\nGive the folder of "
                "the one that is meant."
            )
        found[kind] = network
    tensors = networks.join(found, str(folder))
    if any(name.startswith("generator/embeddings/") for name in tensors):
        notes.append("generator and discriminator have embeddings of their own")
    return Contents(
        origin=str(folder),
        tensors=tensors,
        slots={},
        step=0,
        settings=settings,
        notes=notes,
        compare=functools.partial(_compare_all, foreign) if foreign else None,
    )


def _compare_all(found: Mapping[Path, Network]) -> str:
    return "; ".join(_compared(folder, network) for folder, network in found.items())


def _compared(folder: Path, network: Network) -> str:
    """How far transformers is from what was read; `UserError` (65) if far."""
    if not _peer_installed():
        more = sorted(set(read_json(folder / CONFIG)) - UNDERSTOOD)
        return (
            "transformers and torch are not installed: not compared with what they "
            f"compute; not understood in {CONFIG}: {', '.join(more) or 'nothing'}"
        )
    batch = verification.fixed_batch(network.shape, 0)
    [ours] = networks.outputs([network], batch)
    architecture = ARCHITECTURES[network.head()]
    try:
        peer = _peer(folder, architecture, batch, whole=False)
        results = verification.compare_with("transformers", ours, peer)
    except UserError:
        raise
    except Exception as error:  # What it does not check, it fails with in many ways.
        reason = (str(error).strip() or repr(error)).splitlines()[0][:100]
        return f"transformers cannot read it ({reason}): not compared"
    gap = max(result.difference for result in results)
    return f"computes what transformers does, max difference {gap:.3g}"
