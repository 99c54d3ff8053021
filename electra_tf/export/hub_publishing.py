# SPDX-License-Identifier: Apache-2.0
"""A directory ready to publish, and its upload to Kaggle Models or Hugging Face.

    README.md                   the model card
    encoder.tar.gz, ...         SavedModels, saved_model.pb at the top of each archive
    docs/encoder.md, ...        pages in TensorFlow Hub's markdown
    SHA256SUMS                  of the archives; `sha256sum -c SHA256SUMS` checks them

What --format huggingface writes is uploaded as well, a repository for each network.
Credentials are those of kagglehub and huggingface_hub, which find them by themselves;
nothing here reads, prints or stores them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from electra_tf import startup
from electra_tf.errors import EXIT_CANNOT_WRITE, UserError
from electra_tf.export.formats import ExportRequest
from electra_tf.export.hub_archives import (
    CARD,
    CHECKSUMS,
    archives_of,
    check_empty,
    check_handle,
    manifest_in,
    unpack,
)
from electra_tf.interop import huggingface
from electra_tf.storage.manifest import MANIFEST, format_of, read_json, verify_folder
from electra_tf.storage.remote import fetch_once

_KAGGLE_LICENCES = {"apache-2.0": "Apache 2.0", "mit": "MIT", "cc-by-4.0": "CC BY 4.0"}


def check(request: ExportRequest) -> None:
    """Raises `UserError` for an upload that makes no sense, before any work."""
    if not request.publish:
        for flag, given in (("private", request.private), ("dry-run", request.dry_run)):
            if given:
                raise UserError(f"--{flag} goes with --publish.")
        return
    allowed = {"hub": ("kaggle", "huggingface"), "huggingface": ("huggingface",)}
    if request.publish not in allowed.get(request.format, ()):
        raise UserError(
            f"--publish {request.publish} does not go with --format {request.format}: "
            "Kaggle takes hub, Hugging Face takes hub and huggingface."
        )
    check_handle(request.handle)
    if is_written(request):
        for flag in ("init_checkpoint", "what"):
            if getattr(request, flag):
                raise UserError(
                    f"{request.output_dir} is written already.\n"
                    f"To upload it as it is, leave --{flag.replace('_', '-')} out; "
                    "to export again, give a new --output-dir."
                )


def is_written(request: ExportRequest) -> bool:
    """Whether the directory holds what the format writes."""
    directory = Path(fetch_once(request.output_dir))
    if request.format == "hub":
        return (directory / CHECKSUMS).is_file()
    return bool(_networks_in(directory))


def _networks_in(directory: Path) -> list[Path]:
    """The folders of --format huggingface: of networks, or of a task."""
    folders = sorted(directory.iterdir()) if directory.is_dir() else []
    return [f for f in folders if f.is_dir() and format_of(f) == huggingface.FORMAT]


def export_hub(request: ExportRequest) -> str:
    """Writes the directory."""
    handle = check_handle(request.handle)
    directory = Path(request.output_dir)
    check_empty(directory)
    startup.import_tensorflow()
    from electra_tf.export import hub_directory, saved_models

    source = saved_models.source_of(request.read_model())
    run_dir = Path(request.model_dir) if request.model_dir else None
    facts = hub_directory.facts_of(source, run_dir)
    hub_directory.write_hub_directory(source, facts, handle, directory, request.license)
    return str(directory)


def publish(request: ExportRequest) -> None:
    """Uploads what lies in the directory; with `dry_run` it only says what would be.

    Raises `UserError`: 2 if it is of another model than the one that is named, 65 if it
    is damaged, 73 if the upload fails.
    """
    directory = Path(request.output_dir)
    with tempfile.TemporaryDirectory() as folder:
        for target, content in _uploads(request, directory, Path(folder)):
            if request.dry_run:
                files = sorted(p for p in content.rglob("*") if p.is_file())
                size = sum(p.stat().st_size for p in files)
                print(f"Would upload to {target}: {len(files)} files, {size:,} bytes")
                for path in files:
                    print(f"  {path.relative_to(content)}")
                continue
            notes = f"Uploaded by electra_tf from {directory.name}"
            upload = _to_kaggle if request.publish == "kaggle" else _to_huggingface
            print(f"Uploaded: {upload(request, target, content, notes)}")


def _uploads(
    request: ExportRequest, directory: Path, work: Path
) -> Iterator[tuple[str, Path]]:
    """What goes where: (name there, folder with the content)."""
    handle = check_handle(request.handle)
    if request.format == "huggingface":
        folders = _networks_in(directory)
        for folder in folders:
            _check_model(request, read_json(folder / MANIFEST), folder)
            verify_folder(folder, print)
        for folder in folders:
            several = len(folders) > 1
            yield (f"{handle}-{folder.name}" if several else handle), folder
        return
    archives = archives_of(directory)
    for archive in archives:
        _check_model(request, manifest_in(archive), directory)
        content = work / archive.name.removesuffix(".tar.gz")
        content.mkdir()
        unpack(archive, content)
    if request.publish == "kaggle":
        for content in sorted(work.iterdir()):
            yield f"{handle}/tensorFlow2/{content.name}", content
        return
    shutil.copy(directory / CARD, work)
    shutil.copytree(directory / "docs", work / "docs")
    yield handle, work


def _check_model(request: ExportRequest, manifest: dict, folder: Path) -> None:
    """A directory of another model is not what was asked for."""
    there = manifest.get("model")
    if request.model_name not in (None, there):
        raise UserError(
            f"{folder} holds the model {there!r}, --model-name is "
            f"{request.model_name!r}.\nTo upload it as it is, leave --model-name out; "
            "to export again, give a new --output-dir."
        )


def _to_kaggle(request, target: str, content: Path, notes: str) -> str:
    """Uploads a variation, or its new version; a new model is private there."""
    kagglehub = _library("kagglehub")
    name = _KAGGLE_LICENCES.get(request.license, request.license)
    with _reported(f"upload of {target} to Kaggle"):
        kagglehub.model_upload(
            target, str(content), license_name=name, version_notes=notes
        )
    return target


def _to_huggingface(request, target: str, content: Path, notes: str) -> str:
    """Uploads a folder in one commit; returns its URL."""
    hub = _library("huggingface_hub")
    with _reported(f"upload of {target} to Hugging Face"):
        api = hub.HfApi()
        api.create_repo(target, exist_ok=True, private=request.private or None)
        if request.private and not api.model_info(target).private:
            raise ValueError("it is public already, and --private was asked for")
        commit = api.upload_folder(
            repo_id=target, folder_path=content, commit_message=notes
        )
    return str(commit.commit_url)


def _library(name: str):
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"publishing needs {name}: pip install {name}") from None


class _reported:
    """Turns what a library raises into a UserError that says what failed."""

    def __init__(self, what: str):
        self.what = what

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is None or not isinstance(error, Exception):
            return
        reason = str(error).strip() or kind.__name__
        raise UserError(
            f"the {self.what} failed: {reason.splitlines()[0][:300]}\nThe directory is "
            "intact; run the command again with --publish.",
            EXIT_CANNOT_WRITE,
        ) from error
