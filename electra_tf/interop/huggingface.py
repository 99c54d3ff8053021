# SPDX-License-Identifier: Apache-2.0
"""Model directories of Hugging Face's transformers, in and out.

config.json, model.safetensors, the tokenizer's files and a model card; one directory
for each network. Needs the package safetensors; with transformers and torch, exports
are also read and run by them. Weights are one safetensors file; one of PyTorch is read
on request, with `weights_only=True`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from electra_tf import startup
from electra_tf.config.model import ModelConfig
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.console import Log, silent
from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.interop import cards, electra, modernbert, networks, verification
from electra_tf.interop.cards import UNSTATED, Publication
from electra_tf.interop.checkpoint import CheckpointInfo, StoredModel, as_float32
from electra_tf.interop.networks import Network
from electra_tf.interop.task_heads import ONE
from electra_tf.storage import manifest
from electra_tf.storage.checkpoints import StoredTensors, of_arrays
from electra_tf.storage.manifest import read_json, read_json_if_there, verify_folder
from electra_tf.text import vocabulary
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary, write_tokens

FORMAT = "huggingface"
CONFIG = "config.json"
FAMILIES = {electra.MODEL_TYPE: electra, modernbert.MODEL_TYPE: modernbert}
# Keys of config.json that change the computation and have one value here.
_ALWAYS = {"quantization_config": None, "auto_map": None}  # a program of its own


def is_directory_of(folder: Path) -> bool:
    """Whether a folder looks like one of transformers."""
    if form := manifest.format_of(folder):
        return form == FORMAT
    config = read_json_if_there(folder / CONFIG)
    return (folder / WEIGHTS).is_file() or "model_type" in config


# config.json, for reading and for writing.


def family_of(shape: ModelConfig) -> ModuleType:
    """The family that computes what a shape's block does."""
    by_block = {family.BLOCK: family for family in FAMILIES.values()}
    networks.check_block(shape, FORMAT, by_block)
    return by_block[shape.block]


def architecture_of(network: Network) -> str:
    """The class there."""
    if network.task:
        return network.task.architecture
    return family_of(network.shape).ARCHITECTURES[network.head()]


def config_of(network: Network, vocab: Vocabulary, max_length: int) -> dict[str, Any]:
    """The config.json of a network."""
    family = family_of(network.shape)
    config: dict[str, Any] = {
        "architectures": [architecture_of(network)],
        "model_type": family.MODEL_TYPE,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    if network.labels:
        config |= electra.labels(network.labels)
    if network.task and network.task.problem_type:
        config["problem_type"] = network.task.problem_type
    return family.config_of(network, vocab, max_length) | config


def shape_of(
    config: dict[str, Any], folder: Path
) -> tuple[ModuleType, ModelConfig, int]:
    """(family, shape, embedding size) by a config.json; `UserError` for others."""
    place, name = folder / CONFIG, config.get("model_type")
    if name not in FAMILIES:
        raise UserError(
            f"{place} is of the model family {name!r}, not {' or '.join(FAMILIES)}.\n"
            "No other can be read."
        )
    electra.check_fixed(config, _ALWAYS, place)
    return FAMILIES[name], *FAMILIES[name].shape_of(config, place)


# ------------------------------------------------------------------------- writing


def write_huggingface(
    stored: StoredModel,
    what: str,
    output_dir: str | os.PathLike,
    log: Log = print,
    publication: Publication = UNSTATED,
) -> Path:
    """Writes each network into a directory of its own below `output_dir`.

    Args:
      what: of `networks.WHAT`.

    Raises `UserError`: 2 for what Hugging Face cannot represent, 65 if what was
    written does not compute the same, 73 if it cannot be written.
    """
    found = networks.split(stored, what)
    return write_networks(found, stored, output_dir, log, publication)


def write_networks(
    found: dict[str, Network],
    stored: StoredModel,
    output_dir: str | os.PathLike,
    log: Log,
    publication: Publication,
    checked: Sequence[verification.Result] = (),
    more: Mapping[str, Any] | None = None,
) -> Path:
    """`write_huggingface` for networks by the names of their folders.

    Args:
      checked: comparisons made before, for the manifest.
      more: facts for it.
    """
    for network in found.values():
        family_of(network.shape).check_representable(network, stored.origin)

    def write(network: Network, folder: Path):
        results = _write_network(network, stored, folder, publication)
        return [*checked, *results], more or {}

    verification.write_networks(found, stored, output_dir, FORMAT, write, log)
    if not _peer_installed():
        log("transformers and torch are not installed: read again by electra_tf only.")
    return Path(output_dir)


def _write_network(
    network: Network, stored: StoredModel, folder: Path, publication: Publication
) -> list[verification.Result]:
    family = family_of(network.shape)
    theirs = family.write(network, stored.origin)
    try:
        save_file(theirs, folder / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(None, str(error)) from error
    limit = stored.trained_length or network.shape.max_position_embeddings
    config = config_of(network, stored.vocab, limit)
    _write_json(folder / CONFIG, dict(sorted(config.items())))
    tokenizer = stored.vocab, stored.tokenizer_config
    write_tokenizer(folder, *tokenizer, limit, family.INPUTS)
    again = read_network(folder)
    written = network._replace(embedding_size=again.embedding_size)
    _write_card(written, stored, folder, publication)
    batch, ours, results = verification.reread(network, again, stored.vocab.pad_id)
    if _peer_installed():
        results += _compare_with_peer(folder, network, batch, ours)
    return results


def _peer_installed() -> bool:
    """Whether transformers can read and run what was written."""
    return all(importlib.util.find_spec(name) for name in ("transformers", "torch"))


def _compare_with_peer(
    folder: Path,
    network: Network,
    batch: Mapping[str, np.ndarray],
    ours: dict[str, np.ndarray],
) -> list[verification.Result]:
    """The outputs of transformers on a batch beside ours; `UserError` (65) if far."""
    startup.keep_triton_out()
    import torch
    import transformers
    import transformers.utils.logging

    transformers.utils.logging.disable_progress_bar()
    model = getattr(transformers, architecture_of(network)).from_pretrained(
        str(folder),
        local_files_only=True,
        attn_implementation="eager",  # config.json may name a program of the hub.
    )
    names = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    family = family_of(network.shape)
    inputs = {x: torch.tensor(batch[names.get(x, x)]).long() for x in family.INPUTS}
    given = inputs
    if network.task and network.task.has_choices:  # of one choice each
        given = {name: tensor[:, None] for name, tensor in inputs.items()}

    def run(dtype) -> dict[str, np.ndarray]:
        with torch.no_grad():
            result = model.eval().to(dtype)(**given)
            hidden = model.base_model(**inputs).last_hidden_state
        found = {"hidden": hidden.numpy()}
        if "start_logits" in result:
            both = [result.start_logits, result.end_logits]
            found["logits"] = torch.stack(both, -1).numpy()
        elif "logits" in result:
            found["logits"] = result.logits.numpy()
            if network.head() == networks.DISCRIMINATOR_HEAD:
                found["logits"] = found["logits"][family.LOGIT]
        # Of a head of pre-training `networks.outputs` has its name.
        return found | dict.fromkeys(
            (networks.DISCRIMINATOR, networks.GENERATOR), found.get("logits")
        )

    in_float64 = functools.partial(run, torch.float64)
    theirs = run(torch.float32)
    return verification.compare(
        *("transformers", ours, theirs, batch["input_mask"], in_float64)
    )


# ------------------------------------------------------------------------- reading


def read_network(
    folder: Path, note: Log = silent, allow_pytorch_bin: bool = False
) -> Network:
    """The network in a directory, complete with its head.

    Args:
      note: called with a line for each part that is left out.

    Raises `UserError`: 2 for another model family or what cannot be represented here,
    65 for damaged or incomplete files.
    """
    config = read_json(folder / CONFIG)
    family, shape, embedding_size = shape_of(config, folder)
    place, tensors = folder / WEIGHTS, read_tensors(folder, allow_pytorch_bin)
    found, task = family.read(tensors, config, shape, place, note)
    words = found.get(f"{networks.EMBEDDINGS}word_embeddings")
    if words is not None:
        shape = dataclasses.replace(shape, vocab_size=len(words))
    network = Network(shape, embedding_size, found, task)
    family.check_representable(network, str(folder / CONFIG))
    return network


def _parts(folder: Path) -> list[Path]:
    """A directory, or those below it that `write_huggingface` makes.

    Incomplete folders are included, so that reading them raises.
    """
    parts = [folder / name for name in networks.FOLDERS]
    return [part for part in parts if is_directory_of(part)] or [folder]


def info(folder: Path, log: Log, allow_pytorch_bin: bool = False) -> CheckpointInfo:
    """A directory, by its JSON files, once all its files are verified."""
    parts = _parts(folder)
    for part in parts:
        verify_folder(part, log)
    _, shape, embedding_size = shape_of(read_json(parts[0] / CONFIG), parts[0])
    known = {"embedding_size": embedding_size} | shape.overrides()
    lengths = [
        verification.trained_length_in(part) or max_length(part, shape)
        for part in parts
    ]
    if any(lengths):
        known["max_seq_length"] = min(filter(None, lengths))
    tokenizer = vocab_file = None
    for part in parts:  # Not every one need have both.
        other, file = read_tokenizer(part)
        tokenizer, vocab_file = tokenizer or other, vocab_file or file
        if file:
            user, advice = f"{part} was trained", "Give the folder of one of the two."
            sha256 = Vocabulary.load(file).sha256
            Vocabulary.load(vocab_file).check_same(sha256, user, advice)
        if other and not tokenizer.equivalent(other):
            raise UserError(f"text is {tokenizer} in {parts[0]}, {other} in {part}.")
    return CheckpointInfo(
        origin=str(folder),
        known=known,
        tokenizer_config=tokenizer,
        vocab_file=vocab_file,
        open=lambda log: _open(folder, allow_pytorch_bin, log),
        run_library=lambda: "; ".join(
            _compared(part, allow_pytorch_bin)
            for part in parts
            if manifest.format_of(part) is None  # We have compared our own.
        ),
    )


def _open(folder: Path, allow_pytorch_bin: bool, log: Log) -> StoredTensors:
    """A directory, or one with directories `discriminator` and `generator`."""

    def note(text: str) -> None:
        log(f"Note: {folder}: {text}.")

    found: dict[str, Network] = {}
    for part in _parts(folder):
        network = read_network(part, note, allow_pytorch_bin)
        if network.task:
            note(f"left out: the head of {architecture_of(network)}")
            network = network.encoder()
        # An encoder and a discriminator are the same part of a model.
        kind = networks.DISCRIMINATOR
        if network.head() == networks.GENERATOR_HEAD:
            kind = networks.GENERATOR
        if kind in found:
            raise UserError(
                f"{part} is not the only folder with the weights of a {kind} in "
                f"{folder}.\nGive the right folder."
            )
        found[kind] = network
    tensors = networks.join(found, str(folder))
    if any(name.startswith("generator/embeddings/") for name in tensors):
        note("generator and discriminator have embeddings of their own")
    return of_arrays(str(folder), tensors)


def _compared(folder: Path, allow_pytorch_bin: bool) -> str:
    """A note on the difference from transformers; `UserError` (65) if it is large."""
    if not _peer_installed():
        return "transformers and torch are not installed: not compared with them"
    network = read_network(folder, silent, allow_pytorch_bin)
    batch = verification.fixed_batch(network.shape, 0)
    ours = networks.outputs(network, batch)
    try:
        results = _compare_with_peer(folder, network, batch, ours)
    except UserError:
        raise
    except Exception as error:  # It fails in many ways on files that it cannot read.
        return f"transformers cannot read it ({reason_of(error)}): not compared"
    gap = max(result.difference for result in results)
    return f"computes what transformers does, max difference {gap:.3g}"


# Tensors.

WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
# As safetensors names them; integers are in buffers.
_FLOATS = ("F64", "F32", "F16", "BF16")
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")

TOKENIZER_CONFIG, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
VOCABULARY = "vocab.txt"
ADDED, SPECIAL_TOKENS = "added_tokens.json", "special_tokens_map.json"
SHORTEST = 8  # tokens; a model_max_length below is not a real limit
_ADDED_KEYS = (
    "added_tokens_decoder",
    "additional_special_tokens",
    "extra_special_tokens",
)
# Classes that take tokenizer.json unchanged. ElectraTokenizer and its predecessors
# build another tokenizer from vocab.txt, with words of at most 100 characters and
# the character tables of another version of Unicode.
_UNCHANGED = ("PreTrainedTokenizerFast", "TokenizersBackend")
_BERTS = ("ElectraTokenizer", "ElectraTokenizerFast", "BertTokenizer")
_BERTS += ("BertTokenizerFast", "AutoTokenizer")  # the last: the family decides


def read_tensors(
    folder: Path, allow_pytorch_bin: bool = False
) -> dict[str, np.ndarray]:
    """Every tensor but constants, numbers with a point as float32.

    Raises `UserError` (65) for files that are missing or damaged.
    """
    path, read_file = folder / WEIGHTS, _of_safetensors
    if not path.is_file():
        path, read_file = folder / PICKLED, _of_pickle
        if not (allow_pytorch_bin and path.is_file()):
            raise UserError(
                f"{folder / WEIGHTS} is missing.\nWeights are read from one file of "
                "safetensors, as save_pretrained(..., max_shard_size='5GB') writes it.",
                EXIT_DAMAGED,
            )
    return {
        name: as_float32(array)
        for name, array in read_file(path).items()
        if not name.endswith(BUFFERS)
    }


def _of_safetensors(path: Path) -> dict[str, np.ndarray]:
    tensors = {}
    try:
        # NumPy lacks bfloat16.
        with safe_open(path, framework="tf", device="cpu") as file:
            for name in file.keys():
                kind = file.get_slice(name).get_dtype()
                if kind not in _FLOATS and not name.endswith(BUFFERS):
                    raise ValueError(f"{name} has numbers of the type {kind}")
                tensors[name] = file.get_tensor(name).numpy()
    except (SafetensorError, TypeError, ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {reason_of(error)}\nCopy it again.", EXIT_DAMAGED
        ) from None
    return tensors


def _of_pickle(path: Path) -> dict[str, np.ndarray]:
    startup.keep_triton_out()
    with startup.optional("torch", f"--allow-pytorch-bin: {path}"):
        import torch
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in found.items()}
    except Exception as error:  # whatever a damaged pickle makes it raise
        raise UserError(
            f"{path} cannot be read as weights alone: {reason_of(error)}", EXIT_DAMAGED
        ) from None


# The tokenizer.


def write_tokenizer(
    folder: Path,
    vocab: Vocabulary,
    config: TokenizerConfig,
    max_length: int,
    inputs: Sequence[str] = electra.INPUTS,
) -> None:
    """Writes vocab.txt, tokenizer.json and the two files of settings.

    Args:
      inputs: what the model takes, by their names there.
    """
    write_tokens(folder / VOCABULARY, vocab.tokens)
    vocabulary.fast_tokenizer(vocab.distinct, config).save(str(folder / TOKENIZER))
    settings = {
        "tokenizer_class": _UNCHANGED[0],
        "do_lower_case": config.do_lower_case,
        "strip_accents": vocabulary.strips_accents(config),
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        "model_input_names": [*inputs],
        **vocabulary.SPECIAL_NAMES,
    }
    _write_json(folder / TOKENIZER_CONFIG, settings)
    _write_json(folder / SPECIAL_TOKENS, vocabulary.SPECIAL_NAMES)


def read_tokenizer(folder: Path) -> tuple[TokenizerConfig | None, str | None]:
    """(settings, vocabulary) of a directory, each None if it is missing.

    Raises `UserError`: 2 for a tokenizer that does something else than those here, or
    for files that contradict each other, 65 for damaged ones.
    """
    place, fixed = folder / TOKENIZER_CONFIG, folder / TOKENIZER
    settings = read_json_if_there(place)
    kind = settings.get("tokenizer_class") or _BERTS[0]
    if kind not in (*_BERTS, *_UNCHANGED):
        remedy = f"If it splits words as BERT does, write {_BERTS[0]!r} there."
        raise vocabulary.refused_tokenizer(
            place, f"tokenizer_class is {kind!r}", remedy
        )
    _check_added(folder, settings)
    by_config = by_json = None
    if settings and (kind in _BERTS or "do_lower_case" in settings):
        by_config = vocabulary.config_of_bert(settings, place)
        if not settings.keys() & {*TokenizerConfig._fields}:
            by_config = None  # It only has defaults.
    if fixed.is_file():
        by_json = vocabulary.config_of_json(read_json(fixed), fixed)
    if by_config and by_json and not by_config.equivalent(by_json):
        raise UserError(
            f"{place} says {by_config}, {fixed.name} beside it {by_json}.\nRemove the "
            "wrong one."
        )
    found = [folder / name for name in (VOCABULARY, TOKENIZER)]
    found = [path for path in found if path.is_file()]
    if len(found) == 2:
        vocab, other = map(Vocabulary.load, found)
        if vocab.distinct != other.distinct:
            user, advice = f"{found[1]} was made", "Remove one of the two."
            vocab.check_same(other.sha256, user, advice)
    return by_config or by_json, str(found[0]) if found else None


def max_length(folder: Path, shape: ModelConfig) -> int | None:
    """The longest sequence that the settings allow; None if unknown.

    Other programs write the number of positions, or a very large one.
    """
    length = read_json_if_there(folder / TOKENIZER_CONFIG).get("model_max_length")
    is_known = isinstance(length, int) and SHORTEST <= length < shape.max_length
    return length if is_known else None


def _check_added(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuses added tokens in any file where versions of transformers put them.

    `config_of_json` checks those of a tokenizer.json.
    """
    special = read_json_if_there(folder / SPECIAL_TOKENS)
    vocabulary.check_added_tokens(read_json_if_there(folder / ADDED), folder / ADDED)
    for file, content in ((TOKENIZER_CONFIG, settings), (SPECIAL_TOKENS, special)):
        for name in _ADDED_KEYS:
            added = content.get(name) or ()
            added = added.values() if isinstance(added, Mapping) else added
            vocabulary.check_added_tokens(added, folder / file)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# The model card.

_TAGS = ["electra", "electra-tf"]


def _write_card(
    network: Network, stored: StoredModel, folder: Path, publication: Publication
) -> None:
    architecture, task = architecture_of(network), None
    kind = electra.ARCHITECTURES[network.head()].removeprefix("Electra")
    if network.task:
        kind = f"For{architecture.partition('For')[2]}"
        task = network.task.hub_task
        example = network.task.example(network.labels, network.num_texts)
    elif network.head() == networks.GENERATOR_HEAD:
        task, example = "fill-mask", {"inputs": '"The chef [MASK] the meal."'}
    else:
        example = {"texts": ONE}
    facts = {"does": cards.fill(kind)}
    if "texts" in example:
        names = {"replaced": family_of(network.shape).REPLACED, **example}
        rest = cards.fill(f"{kind}: rest", **names)
        facts |= {"architecture": architecture, "rest": rest, "batch": "inputs"}
    else:
        facts |= {"task": task, "options": ""}
    use = "model" if "texts" in example else "pipeline"
    limits = []
    if network.head() == networks.DISCRIMINATOR_HEAD:
        is_energy = OBJECTIVES[stored.config.objective].is_energy
        limits = ["detector", *(["electric"] if is_energy else [])]
    cards.write(
        folder,
        stored,
        publication,
        {"library_name": "transformers", "pipeline_tag": task, "tags": _TAGS},
        network.shape,
        kind=f": {architecture}",
        use=cards.fill(f"transformers: {use}", **facts | example),
        embedding_size=network.embedding_size,
        limits="\n".join(cards.fill(f"limits: {name}") for name in limits),
    )
