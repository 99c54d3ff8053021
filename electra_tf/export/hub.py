# SPDX-License-Identifier: Apache-2.0
"""A directory ready to publish, its model card, and its upload.

    README.md                   the model card
    encoder/, ...               SavedModels, each with its manifest.json

What --format huggingface writes is uploaded as well, a repository for each network.
kagglehub and huggingface_hub find their credentials themselves; this module neither
reads, prints nor stores them. The facts of the card come from the run's files; missing
ones are marked.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_tf.config.pretraining import data_folder
from electra_tf.data.record_index import file_beside, folders_of
from electra_tf.errors import EXIT_CANNOT_WRITE, UserError, reason_of
from electra_tf.export.request import ExportRequest
from electra_tf.interop import cards, huggingface
from electra_tf.interop.cards import UNSTATED, Publication
from electra_tf.paths import joined
from electra_tf.pretrain import history
from electra_tf.pretrain.metrics import ALL_METRICS
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.storage.files import names_below
from electra_tf.storage.manifest import MANIFEST, format_of, read_json, verify_folder
from electra_tf.storage.mirror import bring_model

if TYPE_CHECKING:
    from electra_tf.export.signatures import ExportedModel
    from electra_tf.interop.checkpoint import StoredModel
    from electra_tf.pretrain.objectives import Objective

_HANDLE = re.compile(r"[\w.-]+/[\w.-]+")
_KAGGLE_LICENSES = {"apache-2.0": "Apache 2.0", "mit": "MIT", "cc-by-4.0": "CC BY 4.0"}
# Format -> its name in manifests.
_UPLOADED = {"hub": "saved_model", "huggingface": huggingface.FORMAT}
_OF_EXPORTS = ("what", "vocab_file", "hparams", "license", "language")
_UNKNOWN = "Not recorded: the files of the model do not say it."
LICENSE = "apache-2.0"  # of weights to publish, if none is chosen
_HPARAMS = (
    "num_train_steps train_batch_size max_seq_length learning_rate num_warmup_steps "
    "weight_decay_rate mask_prob gen_weight disc_weight precision seed phases"
).split()


def check(request: ExportRequest) -> None:
    """Raises `UserError` for an invalid upload, before any work."""
    publish, form = request.publish, request.format
    if not publish and (request.private or request.dry_run):
        raise UserError("--private and --dry-run go with --publish.")
    if not publish:
        return
    is_kaggle = publish == "kaggle"
    if form not in _UPLOADED or is_kaggle and (form != "hub" or request.private):
        raise UserError(
            f"--publish {publish} does not go with --format {form}, or with --private: "
            "Kaggle takes\n--format hub, and a new model is private until you publish "
            "it there; Hugging Face takes hub and huggingface."
        )
    if not _HANDLE.fullmatch(request.handle or ""):
        raise UserError(f"--handle is {request.handle!r}; it is owner/model.")
    if is_kaggle and importlib.util.find_spec("kagglehub") is None:
        raise UserError("publishing needs kagglehub: pip install kagglehub")
    given = [f"--{n.replace('_', '-')}" for n in _OF_EXPORTS if getattr(request, n)]
    if request.names_model:
        return
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
    directory = Path(request.output_dir)
    folders = sorted(directory.iterdir()) if directory.is_dir() else []
    form = _UPLOADED[request.format]
    return [f for f in folders if f.is_dir() and format_of(f) == form]


def export_hub(request: ExportRequest) -> str:
    """Writes the directory, whole or not at all."""
    from electra_tf.export import saved_model

    found = request.find_model()
    stored = found.read(request.vocab_file, request.hparams)
    source, gaps = saved_model.source_of(stored), {}
    with atomic_folder(request.output_dir) as folder:
        for kind in published_kinds(source):
            (folder / kind).mkdir()
            servable = saved_model.WHAT[kind](source)
            gaps[kind] = saved_model.fill_folder(folder / kind, servable, source, kind)
        objective = source.pretrainer.objective
        write_card(folder, stored, objective, gaps, found.run, request.publication)
    return request.output_dir


def publish(request: ExportRequest) -> None:
    """Uploads the directory; with `dry_run` only lists its files.

    Raises `UserError`: 65 if it is damaged, 73 if the upload fails.
    """
    directory = Path(request.output_dir)
    upload = _to_kaggle if request.publish == "kaggle" else _to_huggingface
    for target, content, files in _uploads(request, directory):
        if request.dry_run:
            size = sum((content / name).stat().st_size for name in files)
            print(f"Would upload to {target}: {len(files)} files, {size:,} bytes")
            print("".join(f"  {name}\n" for name in files), end="")
            continue
        try:
            done = upload(request, target, content, files)
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
    """Yields (name there, folder, its files) for each upload."""
    handle, files = request.handle, {f: _written_in(f) for f in _folders(request)}
    if (request.format, request.publish) == ("hub", "huggingface"):
        every = [f"{f.name}/{name}" for f, names in files.items() for name in names]
        yield str(handle), directory, [cards.CARD, *every]
        return
    for folder, names in files.items():
        target = f"{handle}-{folder.name}" if len(files) > 1 else str(handle)
        if request.publish == "kaggle":
            target = f"{handle}/tensorFlow2/{folder.name}"
        yield target, folder, names


def _written_in(folder: Path) -> list[str]:
    """The files that an export has written into a folder, verified."""
    listed = {*verify_folder(folder, print)["files"], MANIFEST}
    there = names_below(folder)
    if others := ", ".join(name for name in there if name not in listed):
        print(f"Note: {folder}: left out, since no export wrote it: {others}")
    return [name for name in there if name in listed]


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
        version_notes="Uploaded by electra_tf",
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


def published_kinds(source: ExportedModel) -> list[str]:
    """The SavedModels that are published: a generator only if there is nothing else.

    And a preprocessor only beside the encoder whose inputs it packs.
    """
    from electra_tf.export import saved_model

    kinds = saved_model.kinds_of(source)
    if "encoder" not in kinds:
        kinds.remove("preprocessor")
    return [kind for kind in kinds if kind != "generator" or "detector" not in kinds]


def write_card(
    folder: Path,
    stored: StoredModel,
    objective: Objective,
    gaps: dict[str, float],
    run_dir: Path | None = None,
    publication: Publication = UNSTATED,
) -> None:
    """Writes README.md of the model.

    Args:
      gaps: of each SavedModel beside it the difference from the model.
      run_dir: of its run; None for a checkpoint alone.
    """
    path = run_dir and run_dir / "config.json"
    hparams = read_json(path) if path and path.is_file() else {}
    if run_dir is None or "task_names" in hparams:  # not of its pre-training
        hparams, results, data = {}, {}, []
    else:
        results = history.results_of(run_dir)
        data = list(_data(hparams, run_dir, stored.step))
    origin = f"Pre-trained for {stored.step:,} steps" if hparams else "Exported"
    start = Path(hparams.get("init_checkpoint") or "").parts[-2:]
    settings = {name: hparams[name] for name in _HPARAMS if hparams.get(name)}
    numbers = results.get("metrics", {})
    rows = [
        f"| {metric.label} | {numbers[metric.name]:.4f} |"
        for metric in ALL_METRICS
        if isinstance(numbers.get(metric.name), (int, float))
    ]

    def parts(part: str) -> str:
        found = [cards.fill(f"{k}: {part}", gap=f"{gaps[k]:.1e}") for k in gaps]
        return "\n".join(filter(None, found))

    use = cards.fill(
        "hub",
        description=objective.description,
        origin=f"{origin} with electra_tf",
        start=f", from the weights of {'/'.join(start)}" if start else "",
        files=parts("row"),
        programs=parts("program"),
    )
    more = cards.fill(
        "hub: sections",
        data="\n".join(data or [_UNKNOWN]),
        training=json.dumps(settings or _UNKNOWN, indent=2),
        evaluation="\n".join(rows) or "| not evaluated | |",
        where=f"step {results.get('global_step', '?')}, {history.data_of(results)}",
        limits=parts("limits"),
    )
    tags = ["electra", *filter(None, [objective.tag]), "tf-keras"]
    cards.write(
        folder,
        stored,
        publication._replace(license=publication.license or LICENSE),
        {"library_name": "tensorflow", "tags": tags},
        use=use,
        more=more,
    )


def _data(hparams: dict[str, Any], run_dir: Path, step: int) -> Iterator[str]:
    """What the manifests of the data that a run has read say of each corpus."""
    for part in history.started_phases(hparams, step):
        usual = str(
            run_dir.parent.parent / data_folder(part, hparams.get("phases", []))
        )
        folders = folders_of(joined(part.get("pretrain_tfrecords") or ""))
        for folder in folders or [usual]:
            path = file_beside(folder, MANIFEST)
            manifest = read_json(path) if path else {}
            if corpus := manifest.get("corpus"):
                facts = {
                    name: f"{value:,}" if isinstance(value, int) else value
                    for name, value in corpus.items()
                }
                facts["names"] = ", ".join(corpus["names"][:10])
                yield cards.fill("corpus", **facts, length=manifest["max_seq_length"])
            else:
                yield _UNKNOWN
