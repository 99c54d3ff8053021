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

import gzip
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

from electra_tf import export, model_card
from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_DAMAGED, UserError
from electra_tf.interop.formats import read_source
from electra_tf.run_directory import PARTIAL, cannot_write, sync_directory
from electra_tf.serving import writing
from electra_tf.serving.exported import Source

CHECKSUMS = "SHA256SUMS"
CARD = "README.md"
_HANDLE = re.compile(r"[\w.-]+/[\w.-]+")
_KAGGLE_LICENCES = {"apache-2.0": "Apache 2.0", "mit": "MIT", "cc-by-4.0": "CC BY 4.0"}


def kinds_of(source: Source) -> list[str]:
    """The SavedModels that are published: a generator only if there is nothing else."""
    kinds = export.kinds_of(source)
    if "detector" in kinds:
        kinds = [kind for kind in kinds if kind != "generator"]
    return kinds


def facts_of(source: Source, run_dir: Path | None = None) -> model_card.RunFacts:
    """What a model card can say.

    Args:
      run_dir: of the pre-training run; None when there is only a checkpoint.
    """
    model = source.pretrainer
    fields = (
        "num_hidden_layers hidden_size num_attention_heads vocab_size "
        "max_position_embeddings"
    ).split()
    sizes = {name: getattr(model.model_config, name) for name in fields}
    hparams = results = data = None
    if run_dir is not None:
        hparams = model_card.read_json(run_dir / "config.json")
        results = model_card.read_json(run_dir / "results" / "unsup_results.json")
        records = (hparams or {}).get("pretrain_tfrecords")
        folder = Path(records).parent if records else None
        folder = folder or run_dir.parent.parent / "pretrain_tfrecords"
        data = model_card.read_json(folder / "manifest.json")
    return model_card.RunFacts(
        step=source.facts.get("step", 0),
        objective=model.objective,
        sizes=sizes | {"embedding_size": model.settings["embedding_size"]},
        tokenizer=str(source.tokenizer_config),
        max_seq_length=source.max_seq_length,
        hparams=hparams,
        results=results,
        data=data,
    )


def check_handle(handle: str | None) -> str:
    """The handle; raises UserError unless it is "owner/model"."""
    if handle is None or not _HANDLE.fullmatch(handle):
        raise UserError(
            f"--handle is {handle!r}; it is the name to publish under, owner/model."
        )
    return handle


def write_hub(
    source: Source,
    facts: model_card.RunFacts,
    handle: str,
    output_dir: str | os.PathLike,
    licence: str = "apache-2.0",
) -> Path:
    """Writes the directory, whole or not at all.

    Raises UserError: 2 for a directory that is there already, 73 when it cannot be
    written, 65 when an archive does not hold what was exported.
    """
    check_handle(handle)
    final = Path(output_dir)
    if final.exists() and any(final.iterdir()):
        raise UserError(
            f"{final} is not empty.\nChoose another --output-dir, or publish what is "
            "there with --publish."
        )
    partial = final.with_name(final.name + PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "docs").mkdir(parents=True)
        sums, differences = [], {}
        for kind in kinds_of(source):
            exported = export.export_saved_model(source, kind, partial / "work")
            manifest = writing.verify_checksums(exported)
            differences[kind] = manifest["max_difference"]
            archive = partial / f"{kind}.tar.gz"
            sums.append(f"{_pack(exported, archive)}  {archive.name}")
            page = model_card.hub_page(kind, handle, 1, facts, licence)
            (partial / "docs" / f"{kind}.md").write_text(page, encoding="utf-8")
        shutil.rmtree(partial / "work")
        (partial / CHECKSUMS).write_text("\n".join(sums) + "\n")
        kinds = list(differences)
        card = model_card.model_card(
            source.name, handle, facts, licence, kinds, differences
        )
        (partial / CARD).write_text(card, encoding="utf-8")
        if final.exists():
            final.rmdir()
        os.replace(partial, final)
        sync_directory(final.parent)
    except OSError as error:
        raise cannot_write(final, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def _pack(directory: Path, archive: Path) -> str:
    """Writes a .tar.gz of a directory's content; returns its sha256.

    Equal content gives equal archives: no times, owners or names of machines in them.
    """

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with open(archive, "wb") as f:
        with gzip.GzipFile("", "wb", 6, f, mtime=0) as compressed:
            with tarfile.open(fileobj=compressed, mode="w") as tar:
                for path in sorted(directory.iterdir()):
                    tar.add(path, path.name, filter=plain)
        f.flush()
        os.fsync(f.fileno())
    with tempfile.TemporaryDirectory(dir=archive.parent) as unpacked:
        unpack(archive, Path(unpacked))
    with open(archive, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def unpack(archive: Path, directory: Path) -> None:
    """Unpacks an archive and checks every file against its manifest.

    Raises UserError (65) when a file is not what was exported.
    """
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="data")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise UserError(f"{archive} is damaged: {error}", EXIT_DAMAGED) from None
    writing.verify_checksums(directory)


def archives_of(directory: Path) -> list[Path]:
    """The archives of a directory that `write_hub` wrote, checked.

    Raises UserError: 2 if it is no such directory, 65 if an archive was damaged.
    """
    try:
        lines = (directory / CHECKSUMS).read_text().splitlines()
    except OSError:
        raise UserError(
            f"{directory} holds no {CHECKSUMS}: it is not what --format hub writes."
        ) from None
    found = []
    for line in lines:
        expected, _, name = line.partition("  ")
        path = directory / os.path.basename(name)
        actual = None
        if path.is_file():
            with open(path, "rb") as f:
                actual = hashlib.file_digest(f, "sha256").hexdigest()
        if actual != expected:
            state = "missing" if actual is None else "not what was written"
            raise UserError(f"{path} is {state}; export it again.", EXIT_DAMAGED)
        found.append(path)
    return found


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


def publish(request) -> str:
    """What export_model.py calls for --format hub: writes, and uploads if asked to.

    With --publish a directory that is there already is uploaded as it is.
    """
    handle = check_handle(request.handle)
    directory = Path(request.output_dir)
    if not (request.publish and (directory / CHECKSUMS).is_file()):
        source = export.source_of(read_source(request))
        run_dir = Path(request.model_dir) if request.model_dir else None
        facts = facts_of(source, run_dir)
        write_hub(source, facts, handle, directory, request.license)
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
