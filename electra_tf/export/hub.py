# SPDX-License-Identifier: Apache-2.0
"""A directory ready to publish, and its upload to Kaggle Models or Hugging Face.

    README.md                   the model card
    encoder/, ...               SavedModels, each with its manifest.json

What --format huggingface writes is uploaded as well, a repository for each network.
Credentials are those of kagglehub and huggingface_hub, which find them by themselves;
nothing here reads, prints or stores them.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from electra_tf.errors import EXIT_CANNOT_WRITE, UserError
from electra_tf.export.formats import ExportRequest, check_model
from electra_tf.interop import huggingface, readers
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.storage.manifest import (
    MANIFEST,
    format_of,
    read_json,
    split_name,
    verify_folder,
)
from electra_tf.storage.remote import fetch_once, names_below
from electra_tf.storage.remote_run import bring_model

CARD = "README.md"
_HANDLE = re.compile(r"[\w.-]+/[\w.-]+")
_LIBRARIES = {"kaggle": "kagglehub", "huggingface": "huggingface_hub"}
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
    if request.private and request.publish == "kaggle":
        raise UserError(
            "--private goes with --publish huggingface: on Kaggle a new model is "
            "private until you publish it,\non the model's page there."
        )
    check_handle(request.handle)
    library = _LIBRARIES[request.publish]
    if not request.dry_run and importlib.util.find_spec(library) is None:
        raise UserError(f"publishing needs {library}: pip install {library}")
    if is_written(request):
        for flag in ("init_checkpoint", "what"):
            if getattr(request, flag):
                raise UserError(
                    f"{request.output_dir} is written already.\n"
                    f"To upload it unchanged, leave --{flag.replace('_', '-')} out; "
                    "to export again, give a new --output-dir."
                )
        if bool(request.data_dir) != bool(request.model_name):
            check_model(request)  # which says that both name a run
        if request.format == "hub":
            _licence(request, Path(request.output_dir))
            _check_name(request, Path(request.output_dir))


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

    handle = check_handle(request.handle)
    found = request.find_model()
    source = saved_model.source_of(request.read_model(found))
    facts = hub_card.facts_of(source, found.run)
    licence = request.license or hub_card.LICENCE
    with atomic_folder(request.output_dir) as folder:
        differences = {}
        for kind in hub_card.kinds_of(source):
            (folder / kind).mkdir()
            servable = saved_model.servable_of(source, kind)
            differences[kind] = saved_model.fill_folder(
                folder / kind, servable, source, kind
            )
        card = hub_card.model_card(source.name, handle, facts, licence, differences)
        (folder / CARD).write_text(card, encoding="utf-8")
    return request.output_dir


def publish(request: ExportRequest, is_new: bool) -> None:
    """Uploads what lies in the directory; with `dry_run` it only says what would be.

    Args:
      is_new: whether this process has just written it, of the model that is named.

    Raises `UserError`: 2 if it is of another model than the one that is named, 65 if it
    is damaged, 73 if the upload fails.
    """
    directory = Path(request.output_dir)
    if is_new:
        request = request._replace(data_dir=None, model_name=None)
    for target, content, files in _uploads(request, directory):
        if request.dry_run:
            size = sum((content / name).stat().st_size for name in files)
            print(f"Would upload to {target}: {len(files)} files, {size:,} bytes")
            for name in files:
                print(f"  {name}")
            continue
        notes = f"Uploaded by electra_tf from {directory.name}"
        if request.publish == "kaggle":
            done = _to_kaggle(request, target, content, notes)
        else:
            done = _to_huggingface(request, target, content, files, notes)
        print(f"Uploaded: {done}")


def _uploads(
    request: ExportRequest, directory: Path
) -> Iterator[tuple[str, Path, list[str]]]:
    """What goes where: (name there, folder with the content, files of it)."""
    handle, folders = check_handle(request.handle), _folders(request, directory)
    _check_models(request, {f: read_json(f / MANIFEST) for f in folders})
    if request.format == "huggingface":
        written = [_written_in(folder) for folder in folders]
        for folder, files in zip(folders, written, strict=True):
            several = len(folders) > 1
            yield (f"{handle}-{folder.name}" if several else handle), folder, files
        return
    files = {f: sorted([*verify_folder(f)["files"], MANIFEST]) for f in folders}
    if request.publish == "kaggle":
        for folder in folders:
            yield f"{handle}/tensorFlow2/{folder.name}", folder, files[folder]
        return
    names = [f"{f.name}/{name}" for f in folders for name in files[f]]
    docs = [f"docs/{name}" for name in names_below(directory / "docs")]
    yield handle, directory, [CARD, *docs, *names]


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


def _check_models(request: ExportRequest, found: dict[Path, dict]) -> None:
    """What lies there has to be of the run that is named, and of its newest step.

    Args:
      found: the manifests, by the folder that each is of.
    """
    if not request.model_name:
        return
    advice = (
        "To upload it unchanged, leave --data-dir and --model-name out; to export "
        "again, give a new --output-dir."
    )
    newest: dict[Path, CheckpointInfo] = {}
    for place, manifest in found.items():
        there = manifest.get("run", manifest.get("model"))
        if there != request.model_name:
            raise UserError(
                f"{place} holds the model {there!r}, --model-name is "
                f"{request.model_name!r}.\n{advice}"
            )
        run = Path(request.model_dir)
        if "run" in manifest:  # of a task: the folder in the run is the "model"
            run = run / "finetuning_models" / str(manifest.get("model"))
        if run not in newest:
            check_model(request)
            bring_model(run)
            newest[run] = readers.find(run, print)
        step, _ = split_name(Path(newest[run].origin).name) or (None, "")
        vocab = newest[run].vocab_sha256
        if manifest.get("step") != step:
            state = f"step {manifest.get('step')}, the newest of {run} is {step}"
        elif vocab not in (None, manifest.get("vocab_sha256")):
            state = f"another vocabulary than that of {run}"
        else:
            continue
        raise UserError(f"{place} holds {state}.\n{advice}")


def _licence(request: ExportRequest, directory: Path) -> str | None:
    """The licence of what lies in a directory of --format hub, as its card says.

    Raises UserError without a card, where another is asked for, and where Kaggle, which
    wants one, gets none.
    """
    from huggingface_hub import metadata_load

    card_in(directory)
    try:
        there = (metadata_load(directory / CARD) or {}).get("license")
    except Exception as error:  # PyYAML's or ValueError
        raise UserError(
            f"{directory / CARD}: its front matter is not YAML.\nCorrect the lines "
            "between ---, or export again."
        ) from error
    if request.license not in (None, there) and there:
        raise UserError(
            f"{directory / CARD} says license: {there}, --license is "
            f"{request.license}.\nTo upload it unchanged, leave --license out; to "
            "export under another, give a new --output-dir."
        )
    found = there or request.license
    if request.publish == "kaggle" and not found:
        raise UserError(
            f"{directory / CARD} names no licence in its front matter.\nAdd a line "
            "such as license: apache-2.0 between its --- lines, or give --license."
        )
    return found


def _check_name(request: ExportRequest, directory: Path) -> None:
    """Raises UserError where the card names another model than is uploaded.

    It may name several, such as one on each hub.
    """
    published = re.findall(r"published as (`.*)", card_in(directory))
    names = re.findall(r"`([\w.-]+/[\w.-]+)`", " ".join(published))
    if names and request.handle not in names:
        raise UserError(
            f"{directory / CARD} says that it is published as {names[0]}, --handle "
            f"is {request.handle}.\nGive that handle, or write this one there; to "
            "export again, give a new --output-dir."
        )


def _to_kaggle(request, target: str, content: Path, notes: str) -> str:
    """Uploads a variation, or its new version; a new model is private there."""
    kagglehub = importlib.import_module(_LIBRARIES["kaggle"])
    licence = _licence(request, Path(request.output_dir))
    name = _KAGGLE_LICENCES.get(licence, licence)
    with _reported(request, f"upload of {target} to Kaggle"):
        kagglehub.model_upload(
            target, str(content), license_name=name, version_notes=notes
        )
    return target


def _to_huggingface(request, target: str, content: Path, files, notes: str) -> str:
    """Uploads files of a folder in one commit; returns its URL."""
    hub = importlib.import_module(_LIBRARIES["huggingface"])
    with _reported(request, f"upload of {target} to Hugging Face"):
        api = hub.HfApi()
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


def _again(request: ExportRequest) -> str:
    """The command that uploads what was written; a model is not to be named again."""
    words = ["python3 export_model.py"]
    for flag in ("format", "handle", "license", "output_dir", "publish"):
        if given := getattr(request, flag):
            words += [f"--{flag.replace('_', '-')}", shlex.quote(given)]
    return " ".join(words + ["--private"] * request.private)


@contextlib.contextmanager
def _reported(request: ExportRequest, what: str) -> Iterator[None]:
    """Turns what a library raises into a UserError that says what failed."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise UserError(
            f"the {what} failed: {reason.splitlines()[0][:300]}\nThe directory is "
            f"intact; upload it unchanged: {_again(request)}",
            EXIT_CANNOT_WRITE,
        ) from error


def check_handle(handle: str | None) -> str:
    """The handle; raises UserError unless it is "owner/model"."""
    if handle is None or not _HANDLE.fullmatch(handle):
        raise UserError(
            f"--handle is {handle!r}; it is the name to publish under, owner/model."
        )
    return handle


def card_in(directory: Path) -> str:
    """The text of a directory's card; raises UserError if there is none."""
    try:
        return (directory / CARD).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"{directory / CARD} cannot be read ({error.strerror}): the model card, "
            "with the licence.\nPut it back, or export again."
        ) from None
