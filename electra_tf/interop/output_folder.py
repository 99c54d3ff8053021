# SPDX-License-Identifier: Apache-2.0
"""A folder of files that appears whole or not at all, with a manifest that is checked.

Nothing that exists is overwritten or deleted.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_DAMAGED, UserError
from electra_tf.interop.stored_model import Settings, StoredModel
from electra_tf.storage.files import PARTIAL, cannot_write, sync_directory
from electra_tf.storage.versions import installed_versions
from electra_tf.text.vocabulary import read_settings as read_tokenizer
from electra_tf.text.vocabulary import write_settings as write_tokenizer
from electra_tf.text.vocabulary import write_tokens

MANIFEST = "manifest.json"
HPARAMS = "hparams.json"
VOCABULARY = "vocab.txt"
_PACKAGES = (
    "electra-tf", "tensorflow", "keras", "keras-hub", "numpy", "safetensors",
    "tokenizers", "torch", "transformers",
)  # fmt: skip


def check_free(output_dir: str | os.PathLike) -> None:
    """Raises `UserError` (73) unless the directory is absent or empty."""
    path = Path(output_dir)
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        found = next(path.iterdir()).name if path.is_dir() else "it is a file"
        raise UserError(
            f"{path} is in use already ({found}); nothing is overwritten.\nGive a new "
            "or empty --output-dir.",
            EXIT_CANNOT_WRITE,
        )


@contextlib.contextmanager
def new(output_dir: str | os.PathLike) -> Iterator[Path]:
    """A temporary folder that becomes `output_dir` when the block ends well.

    Raises `UserError` (73) if the directory is in use or cannot be written.
    """
    check_free(output_dir)
    final = Path(output_dir).absolute()
    partial = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        name = tempfile.mkdtemp(PARTIAL, f".{final.name}.", final.parent)
        partial = Path(name)
        partial.chmod(0o755)
        yield partial
        os.replace(partial, final)
        sync_directory(final.parent)
    except OSError as error:
        raise cannot_write(final, error) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def require_room(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Raises `OSError` unless there is room for tensors and what comes with them.

    To be asked before a library writes that does not survive a full disk: h5py crashes.
    """
    size = sum(tensor.nbytes + 20_000 for tensor in tensors.values()) + 4_000_000
    path = folder / f"room{PARTIAL}"
    try:
        with open(path, "wb") as f:
            os.posix_fallocate(f.fileno(), 0, size)
    finally:
        path.unlink(missing_ok=True)


def write_settings(folder: Path, stored: StoredModel) -> None:
    """Vocabulary, tokenizer settings and hparams, as our own readers want them."""
    vocab = write_tokens(folder / VOCABULARY, stored.vocab.tokens)
    write_tokenizer(vocab, stored.tokenizer_config)
    stored.config.save(str(folder / HPARAMS))
    hparams = json.loads((folder / HPARAMS).read_text(encoding="utf-8"))
    for name in ("vocab_file", "model_dir", "init_checkpoint"):
        hparams.pop(name, None)
    text = json.dumps(hparams, indent=2) + "\n"
    (folder / HPARAMS).write_text(text, encoding="utf-8")


def read_settings(folder: Path) -> Settings:
    """What lies beside a checkpoint."""
    path = folder / HPARAMS
    hparams = read_json(path) if path.is_file() else {}
    vocab_file = str(folder / VOCABULARY)
    if not os.path.isfile(vocab_file):
        return Settings(hparams, None, None)
    return Settings(hparams, read_tokenizer(vocab_file), vocab_file)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `UserError` (65) if there is none in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}.", EXIT_DAMAGED) from None
    return content


def finish(
    folder: Path,
    stored: StoredModel,
    kind: str,
    what: str,
    results: list,
    facts: dict[str, Any] | None = None,
) -> None:
    """Writes the manifest: what this is, how it was verified, every file's checksum."""
    files = {}
    umask = os.umask(0)
    os.umask(umask)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            path.chmod(0o666 & ~umask)  # some libraries make private files
            with open(path, "rb+") as f:
                os.fsync(f.fileno())
            files[path.relative_to(folder).as_posix()] = _record(path)
    content = {
        "format": kind,
        "what": what,
        "model": stored.name,
        "step": stored.step,
        "vocab_sha256": stored.vocab.sha256,
        **stored.tokenizer_config._asdict(),
        **(facts or {}),
        "max_difference": max((r.difference for r in results), default=0.0),
        "verification": [r._asdict() for r in results],
        "versions": installed_versions(*_PACKAGES),
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "files": files,
    }
    with open(folder / MANIFEST, "w", encoding="utf-8") as f:
        f.write(json.dumps(content, indent=1) + "\n")
        f.flush()
        os.fsync(f.fileno())
    sync_directory(folder)


def format_of(folder: Path) -> str | None:
    """The format that a folder's manifest names, if it has one."""
    path = folder / MANIFEST
    return read_json(path).get("format") if path.is_file() else None


def verify(folder: Path) -> None:
    """Checks a folder against its manifest; folders without one pass.

    Raises `UserError` (65) naming the first file that is missing or changed.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return
    files = read_json(path).get("files")
    if not isinstance(files, dict):
        raise UserError(f"{path} has no list of files.", EXIT_DAMAGED)
    for name, promised in files.items():
        file = folder / name
        if not file.is_file():
            state = "is missing"
        elif _record(file) != promised:
            state = "is not what was written: its checksum differs"
        else:
            continue
        raise UserError(
            f"{file} {state} ({MANIFEST} beside it).\nExport or copy it again.",
            EXIT_DAMAGED,
        )


def _record(path: Path) -> dict[str, Any]:
    with open(path, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
