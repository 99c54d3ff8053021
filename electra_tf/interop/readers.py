# SPDX-License-Identifier: Apache-2.0
"""The checkpoint at a path: the one answer for training, inference and export.

Runs of this project (pre-training and fine-tuned), the original's checkpoints, and
directories of Hugging Face and of KerasHub; everything else is refused. `find` needs no
TensorFlow: the files are checked before any work begins.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import without_left
from electra_tf.config.objectives import translated
from electra_tf.config.pretraining import PretrainingConfig, started_phases
from electra_tf.console import Log
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import checkpoint, huggingface, keras_hub, tf1
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.interop.networks import FOLDERS
from electra_tf.paths import local_of
from electra_tf.storage import manifest
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.mirror import bring_model
from electra_tf.text.vocabulary import Vocabulary, read_settings, recorded_settings

WRITERS = {
    huggingface.FORMAT: huggingface.write_huggingface,
    keras_hub.FORMAT: keras_hub.write_keras_hub,
    tf1.FORMAT: tf1.write_tf1,
}
_CONFIG = "config.json"  # the hparams of a run
_MADE_WITH = ("max_seq_length", "mask_prob", "temperature", "disallow_correct")
_LFS, _LFS_SIZE = b"version https://git-lfs", 1024
# Names of files and folders that hold no model for this program -> the reason, for {0}
# in the folder {1}. The first match counts.
_OTHERS = {
    r"tf_model\.h5|flax_model\.msgpack": (
        "{0} has the weights of another library.\nConvert it with transformers 4: "
        'AutoModelForPreTraining.from_pretrained("{1}", from_tf=True) or '
        'from_flax=True, then save_pretrained("{1}").'
    ),
    r".*(\.index|-of-00001)": "{0} is a file of a checkpoint: give its prefix.",
    r".*\.(bin|pt|pth|ckpt|pkl)": (
        "{0} is a PyTorch pickle, which can run any code when it is loaded.\n"
        "export_model.py --allow-pytorch-bin reads its weights alone; so does "
        "save_pretrained of transformers (model.safetensors)."
    ),
    r"checkpoint-\d+": "{1} is the output of a Trainer: give one, such as {0}.",
}


class NoModelError(UserError):
    """There is nothing at a path that could be a model."""


def find(
    path: str | os.PathLike, log: Log, allow_pytorch_bin: bool = False
) -> CheckpointInfo:
    """The checkpoint at a path: a prefix, or a directory; of a run the newest intact.

    Args:
      allow_pytorch_bin: whether weights are read from PyTorch's pickles as well.

    Raises `UserError`: 2 for a path without a model, 65 for a damaged one.
    """
    try:
        # An init_checkpoint stays as it was typed, in the settings of its run.
        path = local_of(os.fspath(path))
    except ValueError as error:
        raise UserError(f"{path}: {error}.") from None
    bring_model(path)
    folder = Path(path)
    _check_lfs(folder.parent.glob(f"{glob.escape(folder.name)}.*"))
    if tf1.is_prefix(path):
        return _checkpoint(path)
    if not folder.is_dir():
        raise no_model(folder)
    if is_run(folder):
        checkpoints = Checkpoints(folder, read_only=True, log=log)
        if newest := checkpoints.newest_intact():
            return _checkpoint(checkpoints.prefix(newest.step))
        raise NoModelError(f"{folder} has no checkpoint yet.", EXIT_DAMAGED)
    if prefix := tf1.prefix_in(folder):
        manifest.verify_folder(folder, log)
        return _checkpoint(prefix)
    parts = (folder / name for name in FOLDERS if (folder / name).is_dir())
    for part in (folder, *parts):
        _check_lfs(part.iterdir())
        if huggingface.is_directory_of(part):
            weights = (part / huggingface.WEIGHTS).is_file() or allow_pytorch_bin
            if not weights and not isinstance(why := no_model(part), NoModelError):
                raise why
            return huggingface.info(folder, log, allow_pytorch_bin)
    if keras_hub.is_directory_of(folder):
        return keras_hub.info(folder, log)
    raise no_model(folder)


def original_in(directory: str | os.PathLike, log: Log) -> CheckpointInfo | None:
    """The original's checkpoint that a run in this directory continues from.

    None where there is none, or where this project has saved checkpoints already.
    """
    folder = Path(directory)
    if not folder.is_dir() or is_run(folder) or not tf1.is_original(folder):
        return None
    return find(folder, log)


def is_run(folder: Path) -> bool:
    """Whether a directory is of a run, which may have no whole checkpoint yet."""
    if folder.is_dir() and manifest.complete_steps(os.listdir(folder)):
        return True
    config = folder / _CONFIG
    if not config.is_file() or manifest.format_of(folder) or tf1.is_original(folder):
        return False
    return "model_size" in manifest.read_json(config)


# Checkpoints of TensorFlow: runs of this project, and the original's.


def _checkpoint(prefix: str) -> CheckpointInfo:
    """An original checkpoint, or one of a run of this project."""
    found = tf1.info(prefix)
    path = Path(prefix + manifest.CHECKPOINT_MANIFEST)
    if not path.is_file():
        return found
    saved, run = manifest.read_json(path), path.parent.absolute()
    identity, settings = saved.get("identity", {}), saved.get("settings", {})
    hparams, vocab_file = _config_of(run, found.vocab_file)
    known = checkpoint.fields_of_hparams(hparams) if hparams else dict(found.known)
    # A run's config.json has the values of its last phase, or of a later start.
    phase = started_phases({**hparams, **settings}, saved.get("step", 0))[-1]
    known |= {k: phase[k] for k in _MADE_WITH if phase.get(k) is not None}
    recorded = checkpoint.fields_of_hparams(identity)
    known |= {k: v for k, v in recorded.items() if k in checkpoint.OF_IDENTITY}
    tokenizer = vocab_file and read_settings(vocab_file)
    # The file beside the vocabulary may be lost where the vocabulary was copied.
    tokenizer = recorded_settings(settings, tokenizer, vocab_file, prefix)
    return dataclasses.replace(
        found,
        known=known,
        tokenizer_config=tokenizer,
        vocab_file=vocab_file,
        run=run,
        recorded_sha256=identity.get("vocab_sha256"),
    )


def _config_of(run: Path, beside: str | None) -> tuple[dict[str, Any], str | None]:
    """(hparams of a run or of a fine-tuned model's encoder, its vocabulary)."""
    path = run / _CONFIG
    if not path.is_file():
        return {}, beside
    hparams = manifest.read_json(path)
    model = Path(os.path.normpath(run / "../.."))
    usual = str(model / tf1.VOCABULARY)
    kind = FinetuningConfig if "task_names" in hparams else PretrainingConfig
    hparams = translated(kind.checked(without_left(hparams), str(path)))
    vocab_file = hparams.get("vocab_file")
    if kind is FinetuningConfig:  # in <model>/finetuning_models/
        place = os.path.normpath(model / "../.."), model.name or "model"
        config = FinetuningConfig.from_hparams(*place, dict(hparams))
        usual = config.vocab_file
        hparams = {
            "embedding_size": config.embedding_size,
            "do_lower_case": config.do_lower_case,
            "max_seq_length": config.max_seq_length,
            "model_hparam_overrides": config.model_config().overrides(),
        }
    vocab_file = local_of(vocab_file) if vocab_file else beside
    if vocab_file is None and Vocabulary.load_if_there(usual):
        vocab_file = usual
    hparams.pop("vocab_file", None)
    return hparams | {"model_name": run.name}, vocab_file


# Paths without a model.


def _check_lfs(paths: Iterable[Path]) -> None:
    """Raises a UserError for a file whose content git-lfs has not fetched."""
    for path in paths:
        if path.is_file() and path.stat().st_size < _LFS_SIZE:
            if path.read_bytes().startswith(_LFS):
                raise UserError(
                    f"{path} is a git-lfs pointer, not the file itself.\nRun `git lfs "
                    "pull` in its repository, or download the file again."
                )


def no_model(path: Path) -> UserError:
    """Why no model can be read from a path."""
    if not path.exists():
        message = f"{path} is neither a directory nor the prefix of a checkpoint."
        if not path.is_absolute() and len(path.parts) == 2:
            message += f"\nOn the hub: hf download {path} --local-dir {path.name}"
        return NoModelError(message)
    files = [path] if path.is_file() else path.iterdir()
    # checkpoint-1000 is newer than checkpoint-500.
    files = sorted(files, key=lambda file: (len(file.name), file.name), reverse=True)
    for pattern, text in _OTHERS.items():
        if found := next((f for f in files if re.fullmatch(pattern, f.name)), None):
            return UserError(text.format(found, found.parent))
    if found := path.is_dir() and manifest.saved_model_in(path):
        return UserError(
            f"{found} is a SavedModel, whose weights cannot be read: give the run that "
            "it was exported from.\nrun_inference.py takes it for predict, and with "
            "--output-dir for score and detect."
        )
    if runs := sorted(str(run) for run in path.glob("models/*") if run.is_dir()):
        return NoModelError(
            f"{path} is a data directory. Give one of its runs: {', '.join(runs[:20])}."
        )
    return NoModelError(
        f"{path} holds no model that can be read.\nKnown are checkpoints of the "
        "original (model.ckpt-N.index), runs, and directories of Hugging Face "
        "(config.json, model.safetensors) or one preset of KerasHub."
    )
