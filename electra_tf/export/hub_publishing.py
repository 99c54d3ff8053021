# SPDX-License-Identifier: Apache-2.0
"""A directory ready to publish, and its upload to Kaggle Models or Hugging Face.

    README.md                   the model card
    encoder.tar.gz, ...         SavedModels, saved_model.pb at the top of each archive
    docs/encoder.md, ...        pages in TensorFlow Hub's markdown
    SHA256SUMS                  of the archives; `sha256sum -c SHA256SUMS` checks them

Credentials are those of kagglehub and huggingface_hub, which find them by themselves;
nothing here reads, prints or stores them.
"""

from __future__ import annotations

import shutil
import tempfile
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
    unpack,
)

_KAGGLE_LICENCES = {"apache-2.0": "Apache 2.0", "mit": "MIT", "cc-by-4.0": "CC BY 4.0"}


def publish_kaggle(directory: Path, handle: str, licence: str, notes: str) -> list[str]:
    """Uploads each archive as a variation `<handle>/tensorFlow2/<kind>`.

    A variation that exists gets a new version.  Returns the variations' handles.
    """
    kagglehub = _library("kagglehub")
    archives = archives_of(directory)
    handles = []
    with tempfile.TemporaryDirectory() as folder:
        for archive in archives:
            kind = archive.name.removesuffix(".tar.gz")
            content = Path(folder) / kind
            content.mkdir()
            unpack(archive, content)
            variation = f"{check_handle(handle)}/tensorFlow2/{kind}"
            name = _KAGGLE_LICENCES.get(licence, licence)
            with _reported(f"upload of {variation} to Kaggle"):
                kagglehub.model_upload(
                    variation, str(content), license_name=name, version_notes=notes
                )
            handles.append(variation)
    return handles


def publish_huggingface(directory: Path, handle: str, notes: str) -> str:
    """Uploads card, pages and unpacked SavedModels in one commit; returns its URL."""
    hub = _library("huggingface_hub")
    archives = archives_of(directory)
    with tempfile.TemporaryDirectory() as folder:
        for archive in archives:
            content = Path(folder) / archive.name.removesuffix(".tar.gz")
            content.mkdir()
            unpack(archive, content)
        shutil.copy(directory / CARD, folder)
        shutil.copytree(directory / "docs", Path(folder) / "docs")
        with _reported(f"upload of {handle} to Hugging Face"):
            api = hub.HfApi()
            api.create_repo(check_handle(handle), exist_ok=True)
            commit = api.upload_folder(
                repo_id=handle, folder_path=folder, commit_message=notes
            )
    return str(commit.commit_url)


def _library(name: str):
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"publishing needs {name}: pip install {name}") from None


def export_hub(request: ExportRequest) -> str:
    """Writes the directory, and uploads it if asked to.

    With --publish a directory that is there already is uploaded as it is.
    """
    handle = check_handle(request.handle)
    directory = Path(request.output_dir)
    if not (request.publish and (directory / CHECKSUMS).is_file()):
        check_empty(directory)
        startup.import_tensorflow()
        from electra_tf.export import hub_directory, saved_models

        source = saved_models.source_of(request.read_model())
        run_dir = Path(request.model_dir) if request.model_dir else None
        facts = hub_directory.facts_of(source, run_dir)
        hub_directory.write_hub_directory(
            source, facts, handle, directory, request.license
        )
    notes = f"Uploaded by electra_tf from {directory.name}"
    if request.publish == "kaggle":
        for variation in publish_kaggle(directory, handle, request.license, notes):
            print(f"Uploaded {variation}")
    elif request.publish == "huggingface":
        print(f"Uploaded: {publish_huggingface(directory, handle, notes)}")
    return str(directory)


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
