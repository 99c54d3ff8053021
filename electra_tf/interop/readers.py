# SPDX-License-Identifier: Apache-2.0
"""What model lies at a path? The one answer for training, inference and export.

Runs of this project (pre-training and fine-tuned), the original's checkpoints, and
directories of Hugging Face and of KerasHub; everything else is refused. `find` needs no
TensorFlow: what it says is checked before any work begins.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf import startup
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import applicable
from electra_tf.config.model import model_config
from electra_tf.config.original import translated
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import (
    huggingface,
    huggingface_weights,
    keras_hub,
    networks,
    shapes,
    tf1,
)
from electra_tf.interop.checkpoint import (
    Contents,
    Settings,
    StoredModel,
    assemble,
    check_casing,
    fit_rows,
)
from electra_tf.paths import local_of
from electra_tf.pretrain import history
from electra_tf.storage import checkpoint_manifest, stored_tensors
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.manifest import (
    format_of,
    read_json,
    saved_model_in,
    sha256,
    verify_folder,
)
from electra_tf.storage.remote import fetch_once
from electra_tf.storage.remote_run import bring_model
from electra_tf.text.vocabulary import Vocabulary, read_settings

# What makes weights those of another encoder. The last two leave no trace in them.
SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "embedding_size",
    "max_position_embeddings",
    "type_vocab_size",
    "num_attention_heads",
    "hidden_act",
)
_CONFIG = "config.json"  # the hparams of a run
_MADE_WITH = ("max_seq_length", "mask_prob", "temperature", "disallow_correct")
# Files of weights: of directories, and of a checkpoint behind its prefix.
_WEIGHTS = (".safetensors", ".h5")
_OF_CHECKPOINT = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")


_LFS, _LFS_SIZE = b"version https://git-lfs", 1024
_OF_TRAINER = re.compile(r"checkpoint-\d+")
_CONVERTED = (
    'Convert it with transformers 4: AutoModelForPreTraining.from_pretrained("{0}", '
    '%s=True).save_pretrained("{0}")'
)
_BY_RUN = "Give the run or the checkpoint that it was made from."
# Ends of the names of files that hold no weights for this program: what, remedy.
_OTHERS = {
    "tf_model.h5": ("of transformers 4 with TensorFlow", _CONVERTED % "from_tf"),
    "flax_model.msgpack": ("of transformers 4 with Flax", _CONVERTED % "from_flax"),
    ".keras": ("a model of Keras, for keras.saving.load_model", _BY_RUN),
    ".onnx": ("a graph of ONNX", _BY_RUN),
    ".tflite": ("a graph of LiteRT", _BY_RUN),
    ".index": ("one file of a checkpoint", "Give its prefix, without .index."),
    "-of-00001": ("one file of a checkpoint", "Give its prefix, without .data-..."),
}


class NoModelError(UserError):
    """Nothing that could be a model lies at a path."""


class CheckpointInfo(NamedTuple):
    """A model that was found, and what its files say; no weights are read yet."""

    origin: str  # the checkpoint's prefix or the directory
    settings: Settings
    run: Path | None  # the directory of this project's run that it is of
    identity: dict[str, Any]  # what makes that run the run that it is
    # None: a checkpoint.
    read_directory: Callable[[Settings], Contents] | None = None

    @property
    def vocab_sha256(self) -> str | None:
        """The hash of its vocabulary, if that is known."""
        if "vocab_sha256" in self.identity or self.settings.vocab_file is None:
            return self.identity.get("vocab_sha256")
        return Vocabulary.load(self.settings.vocab_file).sha256

    def weights_sha256(self) -> str:
        """A hash of the files of its weights, of a run as the manifest has theirs."""
        manifest = Path(self.origin + checkpoint_manifest.MANIFEST)
        if self.read_directory is None and manifest.is_file():
            if files := read_json(manifest).get("files"):
                return _sha256([one["sha256"] for _, one in sorted(files.items())])
        folder, start = os.path.split(self.origin)
        if self.read_directory is None:
            names = [n for n in os.listdir(folder or ".") if n.startswith(f"{start}.")]
            paths = [Path(folder, n) for n in names if _OF_CHECKPOINT.search(n)]
        else:
            found = Path(self.origin).rglob("*")
            paths = [p for p in found if p.suffix in _WEIGHTS and p.is_file()]
        return _sha256([_file_sha256(p, *_state_of(p)) for p in sorted(paths)])

    def with_vocabulary(self, vocab_file: str) -> CheckpointInfo:
        """The same with a vocabulary that was named by the user."""
        return self._replace(settings=self.settings._replace(vocab_file=vocab_file))

    def shape(self) -> dict[str, Any]:
        """The encoder's SHAPE, as far as it is known.

        Of the original's checkpoints only the weights say it: that needs TensorFlow.
        """
        if known := {k: self.identity[k] for k in SHAPE if k in self.identity}:
            return known
        hparams = self.settings.hparams
        overrides = hparams.get("model_hparam_overrides", {})
        if "embedding_size" not in hparams:
            startup.import_tensorflow()
            stored = tf1.tensors_of(self.origin).shapes
            found = shapes.hparams_of(stored, self.origin)
            shape = found["model_hparam_overrides"]
            shape["embedding_size"] = found["embedding_size"]
            return shape | {k: v for k, v in overrides.items() if k in SHAPE}
        config = model_config(hparams.get("model_size", "small"), 1, overrides)
        shape = dataclasses.asdict(config)
        shape["embedding_size"] = hparams["embedding_size"] or config.hidden_size
        return {name: shape[name] for name in SHAPE}

    def tensors(self, log: Callable[[str], None]) -> stored_tensors.StoredTensors:
        """Its weights by the original's names; of a fine-tuned run also its heads."""
        if self.read_directory is None:
            stored = tf1.tensors_of(self.origin)
        else:
            contents = self.contents(log)
            contents.compare_with_library(log)
            stored = stored_tensors.of_arrays(self.origin, contents.tensors)
        if self.run is not None or self.settings.vocab_file is None:
            return stored
        return fit_rows(stored, Vocabulary.load(self.settings.vocab_file), log)

    def contents(self, log: Callable[[str], None], slots: bool = True) -> Contents:
        """All that it holds, not yet checked for completeness.

        Args:
          slots: whether the optimizer's are wanted, twice as large as the weights.
        """
        found = self._contents(slots)
        for note in found.notes:
            log(f"Note: {self.origin}: {note}.")
        return found

    def _contents(self, slots: bool) -> Contents:
        if self.read_directory is not None:
            return self.read_directory(self.settings)
        if self.run is not None:
            read_json(self.run / _CONFIG)  # Without it, too much is open.
            if self.settings.vocab_file is not None:
                Vocabulary.load(self.settings.vocab_file).check_same(
                    self.identity.get("vocab_sha256"),
                    f"{self.origin} was trained",
                    "Put its own vocabulary there.",
                )
        return tf1.read(self.origin, slots)._replace(settings=self.settings)

    def read(
        self,
        vocab_file: str | None = None,
        hparams: Mapping[str, Any] | None = None,
        log: Callable[[str], None] = print,
        slots: bool = True,
        strict: bool = True,
    ) -> StoredModel:
        """The whole model, checked from all sides; see the function `read`.

        Args:
          strict: whether a library that computes something else is an error.
        """
        hparams = hparams or {}
        found = self
        if vocab_file is not None:
            vocab, advice = Vocabulary.load(vocab_file), "Give its own vocabulary."
            vocab.check_same(self.vocab_sha256, f"{self.origin} was trained", advice)
            found = self.with_vocabulary(vocab_file)
        contents = found.contents(log, slots)
        stored = assemble(contents, vocab_file, hparams, log)
        if "do_lower_case" not in hparams:
            check_casing(self.settings, stored.vocab, self.origin)
        contents.compare_with_library(log, strict)
        said = (self.settings.hparams, hparams)
        overrides = [x.get("model_hparam_overrides", {}) for x in said]
        # Where a size is given, the heads follow from the width.
        if not any("model_size" in x for x in said) and not any(
            "num_attention_heads" in x for x in overrides
        ):
            width = stored.config.model_config().hidden_size
            log(shapes.note_of_heads(width, self.origin))
        return stored


def find(
    path: str | os.PathLike,
    log: Callable[[str], None],
    allow_pytorch_bin: bool = False,
) -> CheckpointInfo:
    """The model at a path: a checkpoint prefix, or a directory.

    Of a run it is the newest intact checkpoint.

    Args:
      allow_pytorch_bin: whether weights are read from PyTorch's pickles as well.

    Raises `UserError`: 2 for what is no
    model, 65 for a damaged one.
    """
    return _finder(os.fspath(path), allow_pytorch_bin)(log)


def read(
    path: str | os.PathLike,
    vocab_file: str | None = None,
    hparams: Mapping[str, Any] | None = None,
    log: Callable[[str], None] = print,
    allow_pytorch_bin: bool = False,
) -> StoredModel:
    """Reads a model from a checkpoint prefix or a directory, whatever its format.

    Args:
      path: an original or own checkpoint prefix; a run's directory; a directory of an
        original checkpoint, of Hugging Face or of KerasHub, or one that holds such
        directories as `discriminator` and `generator`.
      vocab_file: the vocabulary; None: the one beside the weights.
      hparams: what the files cannot say (num_attention_heads); must agree with them.
      allow_pytorch_bin: see `find`.

    Raises `UserError`: 2 for something that is not such a model, 65 for a damaged one.
    """
    return find(path, log, allow_pytorch_bin).read(vocab_file, hparams, log)


def check(path: str, allow_pytorch_bin: bool = False) -> None:
    """Raises `UserError` for what is no model at first sight; without TensorFlow."""
    _finder(path, allow_pytorch_bin)


def original_in(
    directory: str | os.PathLike, log: Callable[[str], None]
) -> CheckpointInfo | None:
    """The original's checkpoint that a run in this directory continues from.

    None where there is none, or where this project has saved checkpoints already.
    """
    folder = Path(directory)
    bring_model(folder)
    if not folder.is_dir() or is_run(folder) or not tf1.is_original(folder):
        return None
    return find(folder, log)


def _finder(
    path: str, allow_pytorch_bin: bool
) -> Callable[[Callable[[str], None]], CheckpointInfo]:
    """What finds the model at a path, when called with a log."""
    try:
        # An init_checkpoint stays as it was typed, in the settings of its run.
        path = local_of(path)
    except ValueError as error:
        raise UserError(f"{path}: {error}.") from None
    bring_model(path)
    folder = Path(path)
    _check_lfs(folder.parent.glob(f"{glob.escape(folder.name)}.*"))
    if tf1.is_prefix(path):
        return lambda log: _checkpoint(path)
    if not folder.is_dir():
        raise _no_model(folder)
    if is_run(folder):
        return lambda log: _newest(folder, log)
    if prefix := tf1.prefix_in(folder):
        return lambda log: _exported(folder, prefix, log)
    for part in (folder, *_parts(folder)):
        _check_lfs(part.iterdir())
        if huggingface.is_directory_of(part):
            weights = huggingface_weights.files_in(part) or allow_pytorch_bin
            if not weights and not isinstance(why := _no_model(part), NoModelError):
                raise why
            options = {"allow_pytorch_bin": True} if allow_pytorch_bin else {}
            return lambda log: _directory(folder, huggingface, log, **options)
    if keras_hub.is_directory_of(folder):
        return lambda log: _directory(folder, keras_hub, log)
    for part in _parts(folder):
        if keras_hub.is_directory_of(part):
            raise UserError(
                f"{folder} holds presets of single encoders.\nGive one, such as {part}."
            )
    raise _no_model(folder)


def is_run(folder: Path) -> bool:
    """Whether a directory is of a run, which may have no whole checkpoint yet."""
    if folder.is_dir() and checkpoint_manifest.has_manifests(folder):
        return True
    config = folder / _CONFIG
    if not config.is_file() or format_of(folder) or tf1.is_original(folder):
        return False
    return "model_size" in read_json(config)


def _directory(folder: Path, form, log, **options) -> CheckpointInfo:
    """Of Hugging Face or KerasHub, `form` being its module."""
    settings = form.settings_of(folder, log)
    read_directory = functools.partial(form.read, folder, **options)
    return CheckpointInfo(str(folder), settings, None, {}, read_directory)


def _exported(folder: Path, prefix: str, log) -> CheckpointInfo:
    verify_folder(folder, log)
    return _checkpoint(prefix)


def _newest(run: Path, log: Callable[[str], None]) -> CheckpointInfo:
    """The newest intact checkpoint of a run."""
    checkpoints = Checkpoints(run, read_only=True, log=log)
    newest = checkpoints.newest_intact()
    if newest is None:
        raise NoModelError(f"{run} has no checkpoint yet.", EXIT_DAMAGED)
    return _checkpoint(checkpoints.prefix(newest.step))


def _checkpoint(prefix: str) -> CheckpointInfo:
    """An original checkpoint, or one of a run of this project."""
    settings = tf1.settings_of(prefix)
    manifest = Path(prefix + checkpoint_manifest.MANIFEST)
    if not manifest.is_file():
        return CheckpointInfo(prefix, settings, None, {})
    content, run = read_json(manifest), manifest.parent.absolute()
    settings = _settings_of_run(run, settings).as_recorded(content, prefix)
    settings.hparams.update(_made_with(settings.hparams, content))
    identity = translated(content.get("identity", {}))
    return CheckpointInfo(
        prefix, settings, run, applicable(PretrainingConfig, identity)
    )


def _made_with(hparams: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict:
    """Length of the sequences and their noise, by a checkpoint's manifest.

    A run's config.json has those of its last phase, or of a later start.
    """
    said = {**hparams, **manifest.get("settings", {})}
    found = history.begun(said, manifest.get("step", 0))[-1]
    return {k: found[k] for k in _MADE_WITH if found.get(k) is not None}


def _settings_of_run(run: Path, beside: Settings) -> Settings:
    """The hparams of a run, and the vocabulary where it usually is."""
    if not (run / _CONFIG).is_file():
        return beside
    hparams = read_json(run / _CONFIG)
    usual = _above(run, 2) / tf1.VOCABULARY
    kind = FinetuningConfig if "task_names" in hparams else PretrainingConfig
    hparams = translated(kind.checked(hparams, str(run / _CONFIG)))
    if kind is FinetuningConfig:  # in <model>/finetuning_models/
        place = str(_above(run, 4)), _above(run, 2).name or "model"
        config = FinetuningConfig.from_hparams(*place, dict(hparams))
        usual, hparams = config.vocab_file, _of_finetuned(config, hparams)
    vocab_file = hparams.pop("vocab_file", None)
    vocab_file = local_of(vocab_file) if vocab_file else beside.vocab_file
    if vocab_file is None and Path(fetch_once(str(usual))).is_file():
        vocab_file = str(usual)
    hparams["model_name"] = run.name
    return Settings(hparams, vocab_file and read_settings(vocab_file), vocab_file)


def _above(folder: Path, levels: int) -> Path:
    """The folder so many levels above; the root where there are not as many."""
    return [folder, *folder.parents][: levels + 1][-1]


def _of_finetuned(config: FinetuningConfig, hparams) -> dict[str, Any]:
    """The hparams of a fine-tuned model's encoder."""
    return {
        "vocab_file": hparams.get("vocab_file"),
        "embedding_size": config.embedding_size,
        "do_lower_case": config.do_lower_case,
        "max_seq_length": config.max_seq_length,
        "model_hparam_overrides": config.model_config().overrides(),
    }


def _sha256(texts: list[str]) -> str:
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()


def _state_of(path: Path) -> tuple[int, int]:
    """What changes when a file is written anew."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@functools.cache
def _file_sha256(path: Path, *state: int) -> str:
    del state  # part of the key
    return sha256(path)


def _parts(folder: Path) -> list[Path]:
    """The folders of single networks in that of a model."""
    parts = [folder / name for name in networks.FOLDERS]
    return [part for part in parts if part.is_dir()]


def _check_lfs(paths: Iterable[Path]) -> None:
    """Raises a UserError for a file whose content git-lfs has not fetched."""
    for path in paths:
        if path.is_file() and path.stat().st_size < _LFS_SIZE:
            if path.read_bytes().startswith(_LFS):
                raise UserError(
                    f"{path} is a git-lfs pointer, not the file itself.\nRun `git lfs "
                    "pull` in its repository, or download the file again."
                )


def _no_model(path: Path) -> UserError:
    """Why a path is no model that can be read."""
    if not path.exists():
        return _missing(path)
    files = [path] if path.is_file() else sorted(path.iterdir())
    for name, (what, remedy) in _OTHERS.items():
        if found := next((f for f in files if f.name.endswith(name)), None):
            return UserError(f"{found} is {what}.\n{remedy.format(found.parent)}")
    if found := next(filter(huggingface_weights.is_pickle, files), None):
        return huggingface_weights.pickle_refused(found)
    if path.is_file():
        return UserError(
            f"{path} is no checkpoint that can be read.\nGive a checkpoint prefix "
            "(model.ckpt-N) or a model's directory."
        )
    if saved := [f for f in files if _OF_TRAINER.fullmatch(f.name)]:
        newest = max(saved, key=lambda f: int(f.name.partition("-")[2]))
        return UserError(
            f"{path} is the output folder of a Trainer of transformers.\nGive one of "
            f"its checkpoints, such as {newest}."
        )
    if found := saved_model_in(path):
        return UserError(
            f"{found} is a SavedModel, whose weights cannot be read.\nOf run_inference"
            ".py it can do predict, and with --output-dir score and detect; for all "
            "else give the run that it was exported from."
        )
    return NoModelError(
        f"{path} holds no model that can be read.\nKnown are checkpoints of the "
        "original (model.ckpt-N.index), runs, and directories of Hugging Face "
        "(config.json, model.safetensors) or KerasHub."
    )


def _missing(path: Path) -> UserError:
    if data := sorted(path.parent.glob(f"{path.name}.data-*")):
        return UserError(
            f"{path}.index is missing beside {data[0].name}; copy it again.",
            EXIT_DAMAGED,
        )
    message = f"{path} is neither a directory nor the prefix of a checkpoint."
    if not path.is_absolute() and len(path.parts) == 2:  # may be a name on the hub
        message += (
            f"\nIf it is a name on Hugging Face's hub: hf download {path} --local-dir "
            f"{path.name}"
        )
    return NoModelError(message)
