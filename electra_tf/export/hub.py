# SPDX-License-Identifier: Apache-2.0
"""A directory ready to publish, its model card, and its upload.

    README.md                   the model card
    encoder/, ...               SavedModels, each with its manifest.json

What --format huggingface writes is uploaded as well, a repository for each network.
kagglehub and huggingface_hub find their credentials themselves; this module neither
reads, prints nor stores them.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

from electra_tf.errors import EXIT_CANNOT_WRITE, UserError, reason_of
from electra_tf.export import ExportRequest
from electra_tf.inference.pretrained_model import PretrainedModel
from electra_tf.interop import cards, huggingface
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.storage.files import names_below
from electra_tf.storage.manifest import MANIFEST, format_of, verify_folder
from electra_tf.storage.mirror import bring_model

_HANDLE = re.compile(r"[\w.-]+/[\w.-]+")
_KAGGLE_LICENSES = {"apache-2.0": "Apache 2.0", "mit": "MIT", "cc-by-4.0": "CC BY 4.0"}
# Format -> its name in manifests.
_UPLOADED = {"hub": "saved_model", "huggingface": huggingface.FORMAT}
_TAKES = {"kaggle": ("hub",), "huggingface": tuple(_UPLOADED)}
_OF_EXPORTS = ("what", "vocab_file", "hparams", "license", "language")


def check(request: ExportRequest) -> None:
    """Raises `UserError` for an invalid name or upload, before any work."""
    publish, form, handle = request.publish, request.format, request.handle
    if (publish or handle) and not _HANDLE.fullmatch(handle or ""):
        raise UserError(f"--handle is {handle!r}; it is owner/model.")
    if not publish and (request.private or request.dry_run):
        raise UserError("--private and --dry-run go with --publish.")
    is_kaggle = publish == "kaggle"
    if publish and form not in _TAKES[publish] or is_kaggle and request.private:
        raise UserError(
            f"--publish {publish} does not take --format {form} or --private: Kaggle "
            "takes hub\n(a new model is private there), Hugging Face hub, huggingface."
        )
    if not publish or request.names_model:
        return
    given = [f"--{n.replace('_', '-')}" for n in _OF_EXPORTS if getattr(request, n)]
    if given:
        raise UserError(
            f"Without a model {request.output_dir} is uploaded unchanged: leave "
            f"{', '.join(given)} out."
        )
    bring_model(request.output_dir)
    if not _folders(request):
        raise UserError(f"{request.output_dir} holds no export of --format {form}.")


def _folders(request: ExportRequest) -> list[Path]:
    """The folders that the format has written: SavedModels, networks, a task."""
    folders, form = Path(request.output_dir).glob("*/"), _UPLOADED[request.format]
    return [folder for folder in sorted(folders) if format_of(folder) == form]


def export_hub(request: ExportRequest) -> str:
    """Writes the SavedModels and their card, whole or not at all.

    The generator is only published if there is nothing else.
    """
    from electra_tf.export import saved_model
    from electra_tf.pretrain.objectives import objective_of

    stored, parts = request.read_model(), []
    source = PretrainedModel.of(stored)
    kinds = saved_model.kinds_of(source)
    objective = objective_of(stored.config.objective, stored.config)
    tags = ["electra", *filter(None, [objective.tag]), "tf-keras"]
    with atomic_folder(request.output_dir) as folder:
        for kind in kinds:
            if kind == "generator" and "detector" in kinds:
                continue
            (folder / kind).mkdir()
            servable = saved_model.WHAT[kind](source)
            gap = saved_model.fill_folder(folder / kind, servable, source, kind)
            parts.append(cards.fill(f"hub: {kind}", gap=f"{gap:.1e}"))
        stated = request.publication._replace(license=request.license or "apache-2.0")
        metadata = {"library_name": "tensorflow", "tags": tags}
        facts = {"description": objective.description, "parts": "\n\n".join(parts)}
        use = cards.fill("hub", **facts)
        cards.write(folder, stored, stated, metadata, use=use)
    return request.output_dir


def publish(request: ExportRequest) -> None:
    """Uploads the directory; with `dry_run` only lists its files.

    Raises `UserError`: 65 if it is damaged, 73 if the upload fails.
    """
    upload = _to_kaggle if request.publish == "kaggle" else _to_huggingface
    for target, content, files in _uploads(request):
        if request.dry_run:
            size = sum((content / name).stat().st_size for name in files)
            what = f"Would upload to {target}: {len(files)} files, {size:,} bytes"
            print(what, *files, sep="\n  ")
            continue
        try:
            print(f"Uploaded: {upload(request, target, content, files)}")
        except Exception as error:  # whatever the library raises
            raise UserError(
                f"the upload of {target} failed: {reason_of(error)}\n"
                f"{request.output_dir} is intact. Upload it by --format "
                f"{request.format} --output-dir, --handle and --publish, without a "
                "model.",
                EXIT_CANNOT_WRITE,
            ) from error


def _uploads(request: ExportRequest) -> Iterator[tuple[str, Path, list[str]]]:
    """Yields (name there, folder, its files) for each upload.

    The files are those that the export has written, verified.
    """
    files = {}
    for folder in _folders(request):
        listed = {MANIFEST, *verify_folder(folder, print)["files"]}
        files[folder] = [name for name in names_below(folder) if name in listed]
    if (request.format, request.publish) == ("hub", "huggingface"):
        every = [f"{f.name}/{name}" for f, names in files.items() for name in names]
        yield str(request.handle), Path(request.output_dir), [cards.CARD, *every]
        return
    for folder, names in files.items():
        end = f"-{folder.name}" if len(files) > 1 else ""
        if request.publish == "kaggle":
            end = f"/tensorFlow2/{folder.name}"
        yield f"{request.handle}{end}", folder, names


def _to_kaggle(request: ExportRequest, target: str, content: Path, files) -> str:
    """Uploads a variation, or its new version; a new model is private there."""
    import kagglehub
    from huggingface_hub import ModelCard

    card = ModelCard.load(content.parent / cards.CARD, ignore_metadata_errors=True)
    if not (license := card.data.license):
        raise ValueError(f"{cards.CARD} has no license: in its front matter")
    others = [glob.escape(n) for n in names_below(content) if n not in files]
    kagglehub.model_upload(
        target,
        str(content),
        license_name=_KAGGLE_LICENSES.get(license, license),
        ignore_patterns=others or None,
    )
    return target


def _to_huggingface(request: ExportRequest, target: str, content: Path, files) -> str:
    """Uploads files of a folder in one commit; returns its URL."""
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(target, exist_ok=True, private=request.private or None)
    if request.private and not api.model_info(target).private:
        raise ValueError("it is public already, and --private was asked for")
    commit = api.upload_folder(
        repo_id=target,
        folder_path=content,
        allow_patterns=[glob.escape(name) for name in files],
        commit_message="Uploaded by electra_tf",
    )
    return str(commit.commit_url)
