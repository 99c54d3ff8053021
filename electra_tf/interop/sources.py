# SPDX-License-Identifier: Apache-2.0
"""From where a model can be read, and the refusal of everything else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import huggingface, keras_hub, networks, tf1
from electra_tf.interop.stored_model import Contents, StoredModel, assemble
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.manifest import read_json, verify_folder
from electra_tf.text.vocabulary import Vocabulary, read_settings

# Of a fine-tuned model's hparams, those of the encoder.
_OF_FINETUNED = (
    "model_size",
    "model_hparam_overrides",
    "embedding_size",
    "vocab_file",
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read(
    path: str | os.PathLike,
    vocab_file: str | None = None,
    hparams: Mapping[str, Any] | None = None,
    log: Callable[[str], None] = print,
) -> StoredModel:
    """Reads a model from a checkpoint prefix or a directory, whatever its format.

    Args:
      path: an original or own checkpoint prefix; a run's directory; a directory of an
        original checkpoint, of Hugging Face or of KerasHub, or one that holds such
        directories as `discriminator` and `generator`.
      vocab_file: the vocabulary; None: the one beside the weights.
      hparams: what the files cannot say (num_attention_heads); must agree with them.

    Raises `UserError`: 2 for something that is not such a model, 65 for a damaged one.
    """
    path = os.fspath(path)
    hparams = hparams or {}
    found = contents(path, log)
    stored = assemble(found, vocab_file, hparams)
    said = (found.hparams, hparams)  # hparams with a size have heads by its rule
    overrides = [x.get("model_hparam_overrides", {}) for x in said]
    if not any("model_size" in x for x in said) and not any(
        "num_attention_heads" in x for x in overrides
    ):
        heads = stored.config.model_config().num_attention_heads
        log(f"Note: {path} does not say its number of attention heads: {heads} taken.")
    return stored


def contents(path: str, log: Callable[[str], None]) -> Contents:
    """What lies at a path, in our names, not yet checked for completeness.

    Raises `UserError` as `read` does.
    """
    found = _reader(path)(log)
    for note in found.notes:
        log(f"Note: {found.origin}: {note}.")
    return found


def check(path: str) -> None:
    """Raises `UserError` for what is no model at first sight; without TensorFlow."""
    _reader(path)


def _reader(path: str) -> Callable[[Callable[[str], None]], Contents]:
    """What reads the model at a path, when called with a log."""
    if tf1.is_prefix(path):
        return lambda log: _checkpoint(path)
    folder = Path(path)
    if not folder.is_dir():
        raise _no_model(folder)
    if is_run(folder):
        return lambda log: _newest(folder, log)
    if prefix := tf1.prefix_in(folder):
        return lambda log: _exported(folder, prefix)
    for part in (folder, *_parts(folder)):
        if huggingface.is_directory_of(part):
            if not (part / huggingface.WEIGHTS).is_file() and (found := _pickle(part)):
                raise pickle_refused(found)
            return lambda log: huggingface.read(folder)
    if keras_hub.is_directory_of(folder):
        return lambda log: keras_hub.read(folder)
    for part in _parts(folder):
        if keras_hub.is_directory_of(part):
            raise UserError(
                f"{folder} holds presets of single encoders.\nGive one, such as {part}."
            )
    raise _no_model(folder)


def _exported(folder: Path, prefix: str) -> Contents:
    verify_folder(folder, lenient=True)
    return tf1.read(prefix)


def _newest(run: Path, log: Callable[[str], None]) -> Contents:
    """The newest intact checkpoint of a run."""
    checkpoints = Checkpoints(run, read_only=True, log=log)
    return _checkpoint(checkpoints.prefix(checkpoints.newest_intact().step))


def _checkpoint(prefix: str) -> Contents:
    """An original checkpoint, or one of a run of this project."""
    found = tf1.read(prefix)
    manifest = Path(f"{prefix}.json")
    if not manifest.is_file():
        return found
    run = manifest.parent.absolute()
    hparams = read_json(run / "config.json")
    usual = run.parents[1] / tf1.VOCABULARY
    if "task_names" in hparams:  # fine-tuned, in <model>/finetuning_models/
        usual = run.parents[3] / tf1.VOCABULARY
        hparams = {k: v for k, v in hparams.items() if k in _OF_FINETUNED}
    vocab_file = hparams.pop("vocab_file", None) or found.vocab_file
    if vocab_file is None and usual.is_file():
        vocab_file = str(usual)
    if vocab_file is not None:
        identity = read_json(manifest).get("identity", {})
        vocab = Vocabulary.load(vocab_file)
        expected = identity.get("vocab_sha256", vocab.sha256)
        if expected != vocab.sha256:
            raise UserError(
                f"{prefix} was trained with another vocabulary than {vocab_file}:\n"
                f"sha256 {expected[:16]}... there, {vocab.sha256[:16]}... here."
            )
    return found._replace(
        hparams=hparams | {"model_name": run.name},
        vocab_file=vocab_file,
        tokenizer_config=vocab_file and read_settings(vocab_file),
    )


def _parts(folder: Path) -> list[Path]:
    """The folders of single networks in that of a model."""
    names = networks.DISCRIMINATOR, networks.GENERATOR, "encoder"
    return [folder / name for name in names if (folder / name).is_dir()]


def is_run(folder: Path) -> bool:
    """Whether a directory holds checkpoints of this project with their manifests."""
    names = os.listdir(folder)
    return any(re.fullmatch(r"model\.ckpt-\d+\.json", name) for name in names)


def _no_model(path: Path) -> UserError:
    """Why a path is no model that can be read."""
    if path.is_file():
        if path.suffix in _PICKLES or _starts_as_pickle(path):
            return pickle_refused(path)
        if path.suffix == ".index" or ".data-" in path.name:
            prefix = re.sub(r"\.(index|data-.*)$", "", str(path))
            return UserError(
                f"{path} is one file of a checkpoint; give its prefix {prefix}."
            )
        return UserError(
            f"{path} is no checkpoint that can be read.\nGive a checkpoint prefix "
            "(model.ckpt-N) or a model's directory."
        )
    if not path.is_dir():
        data = sorted(path.parent.glob(f"{path.name}.data-*"))
        if data:
            return UserError(
                f"{path}.index is missing beside {data[0].name}; copy it again.",
                EXIT_DAMAGED,
            )
        return UserError(
            f"{path} is neither a directory nor the prefix of a checkpoint."
        )
    if found := _pickle(path):
        return pickle_refused(found)
    return UserError(
        f"{path} holds no model that can be read.\nKnown are checkpoints of the "
        "original (model.ckpt-N.index), runs, and directories of Hugging Face "
        "(config.json, model.safetensors) or KerasHub."
    )


def _pickle(folder: Path) -> Path | None:
    """A file of PyTorch's in a folder."""
    files = sorted(folder.iterdir())
    return next((f for f in files if f.suffix in _PICKLES), None)


def _starts_as_pickle(path: Path) -> bool:
    with open(path, "rb") as f:
        head = f.read(2)
    return head in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")


def pickle_refused(path: Path) -> UserError:
    """Loading a pickle runs the program that is in it."""
    return UserError(
        f"{path} is a PyTorch pickle, which can run any code when it is loaded; it is "
        "not read.\nConvert it to model.safetensors where it is trusted: "
        "save_pretrained of a current transformers writes it."
    )
