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
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from electra_tf import startup
from electra_tf.config.hparams import check
from electra_tf.config.model import ModelConfig
from electra_tf.console import say_nothing
from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.interop import huggingface_files as files
from electra_tf.interop import networks, verification
from electra_tf.interop.checkpoint import CheckpointInfo, Opened, StoredModel
from electra_tf.interop.networks import Network
from electra_tf.storage.checkpoints import of_arrays
from electra_tf.storage.manifest import format_of, read_json, verify_folder
from electra_tf.text.vocabulary import Vocabulary

FORMAT = "huggingface"
CONFIG = "config.json"
PREFIX = "electra."  # before the names of an encoder, except in an ElectraModel
TIED = "generator_lm_head.weight"  # some files repeat the word embeddings
_ENCODER_PARTS = ("embeddings.", "embeddings_project.", "encoder.")
_HEADS = ("discriminator_predictions.", "generator_predictions.", "generator_lm_head.")
# The weights of each head of a task.
_TASK_LAYERS = ({"classifier"}, {"classifier.dense", "classifier.out_proj"})
_TASK_LAYERS += ({"qa_outputs"},)

ARCHITECTURES = {
    networks.DISCRIMINATOR_HEAD: "ElectraForPreTraining",
    networks.GENERATOR_HEAD: "ElectraForMaskedLM",
    networks.CLASSIFIER: "ElectraForTokenClassification",
    networks.TEXT_CLASSIFIER: "ElectraForSequenceClassification",
    networks.SPANS: "ElectraForQuestionAnswering",
    None: "ElectraModel",
}
# Names of activations there -> here; of several for one of ours, the last is written.
_ACTIVATIONS = {name: name for name in ("gelu", "relu", "tanh", "linear")}
_ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "gelu_tanh")
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


def is_directory_of(folder: Path) -> bool:
    """Whether a folder looks like one of transformers."""
    if said := format_of(folder):
        return said == FORMAT
    if files.files_in(folder):
        return True
    config = folder / CONFIG
    return config.is_file() and "model_type" in read_json(config)


def _transposed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our weights with the kernels of dense layers transposed, as they are there."""
    return {
        name: np.ascontiguousarray(array.T) if name.endswith("/kernel") else array
        for name, array in tensors.items()
    }


# What config.json can state: the one place for reading and for writing.


def check_representable(network: Network, origin: str) -> None:
    """Raises `UserError` for a network that means something else here and there.

    Their masked language model has gelu in its head whatever its layers have; here
    the head has what the layers have.
    """
    act = network.shape.hidden_act
    if act != "gelu" and network.head() == networks.GENERATOR_HEAD:
        raise UserError(
            f"{origin}: hidden_act is {act}; the head of ElectraForMaskedLM always has "
            "gelu, generators here have one activation throughout.\n"
            "Of a whole model, its discriminator or encoder alone can be converted."
        )


def config_of(network: Network, pad_id: int) -> dict[str, Any]:
    """The config.json of a network."""
    shape = dataclasses.asdict(network.shape)
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    shape["hidden_act"] = names[network.shape.hidden_act]
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
    act = str(values["hidden_act"])
    if act not in _ACTIVATIONS:
        raise UserError(
            f"{place}: hidden_act {act} is not known here.\nKnown are "
            f"{', '.join(_ACTIVATIONS)}."
        )
    values["hidden_act"] = _ACTIVATIONS[act]
    values = check(ModelConfig, values, str(place))
    return ModelConfig(**values), config.get("embedding_size", 128)


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
    words = files.words_tokenized_otherwise(stored)
    facts = {"words_tokenized_otherwise": words._asdict(), **(more or {})}

    def write(network: Network, folder: Path):
        return [*checked, *_write_network(network, stored, folder)], facts

    verification.write_networks(found, stored, output_dir, FORMAT, write, log)
    log(f"measured with the package tokenizers: {words}")
    if not _peer_installed():
        log("transformers and torch are not installed: read again by electra_tf only.")
    return Path(output_dir)


def _write_network(
    network: Network, stored: StoredModel, folder: Path
) -> list[verification.Result]:
    known = networks.weight_names(network.shape.num_hidden_layers)
    theirs = {name.ours: name.huggingface for name in known}
    theirs = networks.renamed(_transposed(network.tensors), theirs, stored.origin)
    if network.head() is None:
        theirs = {k.removeprefix(PREFIX): v for k, v in theirs.items()}
    try:
        save_file(theirs, folder / files.WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(None, str(error)) from error
    config = config_of(network, stored.vocab.pad_id)
    files.write_json(folder / CONFIG, dict(sorted(config.items())))
    limit = stored.trained_length or network.shape.max_position_embeddings
    files.write_tokenizer(folder, stored.vocab, stored.tokenizer_config, limit)
    architecture = ARCHITECTURES[network.head()]
    card = files.model_card(network, stored, architecture)
    (folder / "README.md").write_text(card, encoding="utf-8")
    again = read_network(folder)
    batch, ours, results = verification.reread(network, again, stored.vocab.pad_id)
    if not _peer_installed():
        return results
    return results + _compare_with(_peer(folder, architecture, batch), ours)


def _compare_with(
    run: Callable[[bool], dict[str, np.ndarray]], ours: dict[str, np.ndarray]
) -> list[verification.Result]:
    """The outputs of transformers, see `_peer`, beside ours."""
    in_float64 = functools.partial(run, True)
    return verification.compare("transformers", ours, run(False), None, in_float64)


def _peer_installed() -> bool:
    """Whether transformers can read and run what was written."""
    return all(importlib.util.find_spec(name) for name in ("transformers", "torch"))


def _peer(
    folder: Path, architecture: str, batch: Mapping[str, np.ndarray], whole: bool = True
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
        return found | dict.fromkeys(
            (networks.DISCRIMINATOR, networks.GENERATOR), found.get("logits")
        )

    return run


# ------------------------------------------------------------------------- reading


def read_network(
    folder: Path,
    note: Callable[[str], None] = say_nothing,
    allow_pytorch_bin: bool = False,
) -> Network:
    """The network in a directory, complete with its head.

    Args:
      note: called with a line on what is left out.

    Raises `UserError`: 2 for another model family or what cannot be represented here,
    65 for damaged or incomplete files.
    """
    config = read_json(folder / CONFIG)
    shape, embedding_size = shape_of(config, folder)
    place = folder / files.WEIGHTS
    tensors = files.read_tensors(folder, allow_pytorch_bin)
    if not any(name.startswith(PREFIX) for name in tensors):
        tensors = {
            PREFIX + name if name.startswith(_ENCODER_PARTS) else name: array
            for name, array in tensors.items()
        }
    tensors = _known(_without_repetition(tensors, place), note)
    known = networks.weight_names(shape.num_hidden_layers)
    ours = {name.huggingface: name.ours for name in known}
    found = _transposed(networks.renamed(tensors, ours, str(place)))
    words = found.get(f"{networks.EMBEDDINGS}word_embeddings")
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
    layers = {name.rpartition(".")[0] for name in others}
    if not has_head and layers in _TASK_LAYERS and len(others) == 2 * len(layers):
        return tensors
    for head in sorted({name.partition(".")[0] for name in others}):
        note(f"left out: the head {head}, which does not belong to a pre-trained model")
    return {name: array for name, array in tensors.items() if name not in others}


def _without_repetition(
    tensors: dict[str, np.ndarray], place: Path
) -> dict[str, np.ndarray]:
    """Leaves out index buffers and the second copy of tied weights, once checked."""
    kept = {
        name: array
        for name, array in tensors.items()
        if not name.removeprefix(PREFIX).startswith(files.BUFFERS)
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


def info(
    folder: Path, log: Callable[[str], None], allow_pytorch_bin: bool = False
) -> CheckpointInfo:
    """A directory, by its JSON files, once all its files are verified."""
    first, *others = _parts(folder)
    for part in (first, *others):
        verify_folder(part, log)
    shape, embedding_size = shape_of(read_json(first / CONFIG), first)
    known = {"embedding_size": embedding_size} | shape.overrides()
    lengths = [_trained_length(part, shape) for part in (first, *others)]
    if any(lengths):
        known["max_seq_length"] = min(filter(None, lengths))
    tokenizer, vocab_file = files.read_tokenizer(first)
    for part in others:
        other, file = files.read_tokenizer(part)
        if vocab_file and file:
            vocab, advice = Vocabulary.load(file), "Give the folder of one of the two."
            sha256 = Vocabulary.load(vocab_file).sha256
            vocab.check_same(sha256, f"{first} was trained", advice)
        if tokenizer and other and not tokenizer.equivalent(other):
            raise UserError(f"text is {tokenizer} in {first}, {other} in {part}.")
    return CheckpointInfo(
        origin=str(folder),
        known=known,
        tokenizer_config=tokenizer,
        vocab_file=vocab_file,
        open=lambda: read(folder, allow_pytorch_bin),
    )


def _trained_length(folder: Path, shape: ModelConfig) -> int | None:
    """`StoredModel.trained_length`, as far as the files say it.

    What others write there is the number of positions, or a very large one, whatever
    was trained.
    """
    said = files.max_length(folder)
    said = said if said and said < shape.max_position_embeddings else None
    return verification.trained_length_in(folder) or said


def read(folder: Path, allow_pytorch_bin: bool = False) -> Opened:
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
        if network.head() in networks.TASK_HEADS:
            notes.append(f"left out: the head of {ARCHITECTURES[network.head()]}")
            network = network.encoder()
        # An encoder and a discriminator are the same part of a model.
        kind = (
            networks.GENERATOR
            if network.head() == networks.GENERATOR_HEAD
            else networks.DISCRIMINATOR
        )
        if kind in found:
            raise UserError(
                f"{part} is not the only folder with the weights of a {kind} in "
                f"{folder}.\nGive the folder of the one that is meant."
            )
        found[kind] = network
    tensors = networks.join(found, str(folder))
    if any(name.startswith("generator/embeddings/") for name in tensors):
        notes.append("generator and discriminator have embeddings of their own")
    compare = functools.partial(_compare_all, foreign) if foreign else None
    return Opened(of_arrays(str(folder), tensors), tuple(notes), compare)


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
        results = _compare_with(_peer(folder, architecture, batch, whole=False), ours)
    except UserError:
        raise
    except Exception as error:  # What it does not check, it fails with in many ways.
        return f"transformers cannot read it ({reason_of(error)}): not compared"
    gap = max(result.difference for result in results)
    return f"computes what transformers does, max difference {gap:.3g}"
