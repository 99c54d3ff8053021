# SPDX-License-Identifier: Apache-2.0
"""A directory ready to publish, and its upload to Kaggle Models or Hugging Face.

    README.md                   the model card
    encoder/, ...               SavedModels, each with its manifest.json

What --format huggingface writes is uploaded as well, a repository for each network.
Credentials are those of kagglehub and huggingface_hub, which find them by themselves;
nothing here reads, prints or stores them.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from electra_tf.errors import EXIT_CANNOT_WRITE, UserError, reason_of
from electra_tf.export.formats import ExportRequest
from electra_tf.interop import huggingface
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.storage.manifest import MANIFEST, format_of, verify_folder
from electra_tf.storage.remote import fetch_once, names_below

CARD = "README.md"
_HANDLE = re.compile(r"[\w.-]+/[\w.-]+")
_LIBRARIES = {"kaggle": "kagglehub", "huggingface": "huggingface_hub"}
_KAGGLE_LICENCES = {"apache-2.0": "Apache 2.0", "mit": "MIT", "cc-by-4.0": "CC BY 4.0"}
_OF_NEW_EXPORTS = ("data_dir", "model_name", "init_checkpoint", "what", "license")


def check(request: ExportRequest) -> None:
    """Raises `UserError` for an upload that makes no sense, before any work."""
    if not request.publish:
        if request.private or request.dry_run:
            raise UserError("--private and --dry-run go with --publish.")
        return
    allowed = {"hub": ("kaggle", "huggingface"), "huggingface": ("huggingface",)}
    if request.publish not in allowed.get(request.format, ()):
        raise UserError(
            f"--publish {request.publish} does not go with --format {request.format}: "
            "Kaggle takes hub, Hugging Face takes hub and huggingface."
        )
    if request.private and request.publish == "kaggle":
        raise UserError(
            "--private goes with --publish huggingface: on Kaggle a new model is "
            "private until you publish it,\non the model's page there."
        )
    if not _HANDLE.fullmatch(request.handle or ""):
        raise UserError(
            f"--handle is {request.handle!r}; it is the name to publish under, "
            "owner/model."
        )
    library = _LIBRARIES[request.publish]
    if not request.dry_run and importlib.util.find_spec(library) is None:
        raise UserError(f"publishing needs {library}: pip install {library}")
    if is_written(request):
        if given := [name for name in _OF_NEW_EXPORTS if getattr(request, name)]:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UserError(
                f"{request.output_dir} is written already.\nTo upload it unchanged, "
                f"leave {flags} out; to export again, give a new --output-dir."
            )
        if request.format == "hub":
            _licence(request)


def is_written(request: ExportRequest) -> bool:
    """Whether the directory holds what the format writes."""
    return bool(_folders(request, Path(fetch_once(request.output_dir))))


def _folders(request: ExportRequest, directory: Path) -> list[Path]:
    """The folders in it that the format writes: SavedModels, networks, a task."""
    form = {"hub": "saved_model", "huggingface": huggingface.FORMAT}[request.format]
    folders = sorted(directory.iterdir()) if directory.is_dir() else []
    return [f for f in folders if f.is_dir() and format_of(f) == form]


def export_hub(request: ExportRequest) -> str:
    """Writes the directory, whole or not at all."""
    from electra_tf.export import hub_card, saved_model

    found = request.find_model()
    source = saved_model.source_of(request.read_model(found))
    facts = hub_card.facts_of(source, found.run)
    with atomic_folder(request.output_dir) as folder:
        differences = {}
        for kind in hub_card.kinds_of(source):
            (folder / kind).mkdir()
            servable = saved_model.servable_of(source, kind)
            differences[kind] = saved_model.fill_folder(
                folder / kind, servable, source, kind
            )
        card = hub_card.model_card(source.name, facts, request.license, differences)
        (folder / CARD).write_text(card, encoding="utf-8")
    return request.output_dir


def publish(request: ExportRequest) -> None:
    """Uploads what lies in the directory; with `dry_run` it only says what would be.

    Raises `UserError`: 65 if it is damaged, 73 if the upload fails.
    """
    directory = Path(request.output_dir)
    upload = {"kaggle": _to_kaggle, "huggingface": _to_huggingface}[request.publish]
    for target, content, files in _uploads(request, directory):
        if request.dry_run:
            size = sum((content / name).stat().st_size for name in files)
            print(f"Would upload to {target}: {len(files)} files, {size:,} bytes")
            for name in files:
                print(f"  {name}")
            continue
        notes = f"Uploaded by electra_tf from {directory.name}"
        try:
            done = upload(request, target, content, files, notes)
        except Exception as error:  # whatever the library raises
            raise UserError(
                f"the upload of {target} failed: {reason_of(error)}\n"
                f"{directory} is intact. Upload it by --format {request.format} "
                "--output-dir, --handle and --publish, without a model.",
                EXIT_CANNOT_WRITE,
            ) from error
        print(f"Uploaded: {done}")


def _uploads(
    request: ExportRequest, directory: Path
) -> Iterator[tuple[str, Path, list[str]]]:
    """What goes where: (name there, folder with the content, files of it)."""
    handle = str(request.handle)
    files = {f: _written_in(f) for f in _folders(request, directory)}
    for folder, names in files.items():
        if request.format == "huggingface":
            several = len(files) > 1
            yield (f"{handle}-{folder.name}" if several else handle), folder, names
        elif request.publish == "kaggle":
            yield f"{handle}/tensorFlow2/{folder.name}", folder, names
    if request.format == "hub" and request.publish == "huggingface":
        every = [f"{f.name}/{name}" for f, names in files.items() for name in names]
        yield handle, directory, [CARD, *every]


def _written_in(folder: Path) -> list[str]:
    """The files that an export has written into a folder, verified.

    What users put beside them stays theirs; it is named.
    """
    listed = {*verify_folder(folder, print)["files"], MANIFEST}
    there = names_below(folder)
    if others := [name for name in there if name not in listed]:
        print(
            f"Note: {folder}: left out, since no export wrote it: {', '.join(others)}"
        )
    return [name for name in there if name in listed]


def _licence(request: ExportRequest) -> str | None:
    """The licence of what lies in a directory of --format hub, as its card says.

    Raises UserError without a card, and where Kaggle, which wants one, gets none.
    """
    from huggingface_hub import ModelCard

    path = Path(request.output_dir) / CARD
    try:
        found = ModelCard.load(path, ignore_metadata_errors=True).data.license
    except Exception as error:  # OSError, PyYAML's or ValueError
        raise UserError(
            f"{path}, the model card with the licence, cannot be read: "
            f"{reason_of(error)}.\nCorrect it, or export again."
        ) from error
    if request.publish == "kaggle" and not found:
        raise UserError(
            f"{path} names no licence in its front matter.\nAdd a line such as "
            "license: apache-2.0 between its --- lines."
        )
    return found


def _to_kaggle(request, target: str, content: Path, files, notes: str) -> str:
    """Uploads a variation, or its new version; a new model is private there."""
    kagglehub = importlib.import_module(_LIBRARIES["kaggle"])
    others = [glob.escape(n) for n in names_below(content) if n not in files]
    licence = _licence(request)
    kagglehub.model_upload(
        target,
        str(content),
        license_name=_KAGGLE_LICENCES.get(licence, licence),
        version_notes=notes,
        ignore_patterns=others or None,
    )
    return target


def _to_huggingface(request, target: str, content: Path, files, notes: str) -> str:
    """Uploads files of a folder in one commit; returns its URL."""
    api = importlib.import_module(_LIBRARIES["huggingface"]).HfApi()
    api.create_repo(target, exist_ok=True, private=request.private or None)
    if request.private and not api.model_info(target).private:
        raise ValueError("it is public already, and --private was asked for")
    commit = api.upload_folder(
        repo_id=target,
        folder_path=content,
        allow_patterns=[glob.escape(name) for name in files],
        commit_message=notes,
    )
    return str(commit.commit_url)
