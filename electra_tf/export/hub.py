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
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_tf.config.pretraining import data_folder
from electra_tf.data.record_index import file_beside, folders_of
from electra_tf.errors import EXIT_CANNOT_WRITE, UserError, reason_of
from electra_tf.export.request import ExportRequest
from electra_tf.inference import html_report
from electra_tf.interop import cards, huggingface
from electra_tf.paths import joined
from electra_tf.pretrain import history
from electra_tf.pretrain.metrics import ALL_METRICS, Metric
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.storage.files import names_below
from electra_tf.storage.manifest import MANIFEST, format_of, read_json, verify_folder
from electra_tf.storage.mirror import bring_model

if TYPE_CHECKING:
    from electra_tf.export.signatures import ExportedModel

CARD = "README.md"
_HANDLE = re.compile(r"[\w.-]+/[\w.-]+")
_LIBRARIES = {"kaggle": "kagglehub", "huggingface": "huggingface_hub"}
_KAGGLE_LICENCES = {"apache-2.0": "Apache 2.0", "mit": "MIT", "cc-by-4.0": "CC BY 4.0"}
_OF_UPLOADS = ("format", "output_dir", "handle", "publish", "private", "dry_run")


def check(request: ExportRequest) -> None:
    """Raises `UserError` for an invalid upload, before any work."""
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
        default = ExportRequest(request.format, request.output_dir)
        given = [
            name
            for name, value in request._asdict().items()
            if name not in _OF_UPLOADS and value and value != getattr(default, name)
        ]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UserError(
                f"{request.output_dir} is written already.\nTo upload it unchanged, "
                f"leave {flags} out; to export again, give a new --output-dir."
            )
        if request.format == "hub":
            _licence(request)


def is_written(request: ExportRequest) -> bool:
    """Whether the directory holds an export of the format."""
    bring_model(request.output_dir)
    return bool(_folders(request, Path(request.output_dir)))


def _folders(request: ExportRequest, directory: Path) -> list[Path]:
    """The folders in it that the format writes: SavedModels, networks, a task."""
    form = {"hub": "saved_model", "huggingface": huggingface.FORMAT}[request.format]
    folders = sorted(directory.iterdir()) if directory.is_dir() else []
    return [f for f in folders if f.is_dir() and format_of(f) == form]


def export_hub(request: ExportRequest) -> str:
    """Writes the directory, whole or not at all."""
    from electra_tf.export import saved_model

    found = request.find_model()
    stored = found.read(request.vocab_file, request.hparams)
    source = saved_model.source_of(stored)
    facts = facts_of(source, found.run)
    with atomic_folder(request.output_dir) as folder:
        differences = {}
        for kind in published_kinds(source):
            (folder / kind).mkdir()
            servable = saved_model.WHAT[kind](source)
            differences[kind] = saved_model.fill_folder(
                folder / kind, servable, source, kind
            )
        card = model_card(source.name, facts, request.license, differences)
        cards.write(folder, card)
    return request.output_dir


def publish(request: ExportRequest) -> None:
    """Uploads the directory; with `dry_run` only lists its files.

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
    """Yields (name there, folder, its files) for each upload."""
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

    Prints the names of other files, which are not uploaded.
    """
    listed = {*verify_folder(folder, print)["files"], MANIFEST}
    there = names_below(folder)
    if others := [name for name in there if name not in listed]:
        print(
            f"Note: {folder}: left out, since no export wrote it: {', '.join(others)}"
        )
    return [name for name in there if name in listed]


def _licence(request: ExportRequest) -> str | None:
    """The licence in the card of a directory of --format hub.

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


REPOSITORY = "electra_tf"
LICENCE = "apache-2.0"  # of weights, if none is chosen

_HPARAMS = (
    "num_train_steps train_batch_size max_seq_length learning_rate num_warmup_steps "
    "weight_decay_rate mask_prob gen_weight disc_weight precision seed"
).split()


class RunFacts(NamedTuple):
    """The origin of a model, as far as known."""

    source: ExportedModel
    hparams: dict[str, Any] | None = None  # config.json of the run
    results: Mapping[str, Any] = MappingProxyType({})  # of its evaluation
    data: Sequence[dict[str, Any] | None] = ()  # manifests of its data, by phase

    @property
    def step(self) -> int:
        """Of the checkpoint."""
        return self.source.facts.get("step", 0)

    @property
    def metrics(self) -> list[tuple[Metric, float]]:
        """The known metrics of its evaluation."""
        numbers = self.results.get("metrics", {})
        found = [(metric, numbers.get(metric.name)) for metric in ALL_METRICS]
        return [pair for pair in found if isinstance(pair[1], (int, float))]

    @property
    def initial_weights(self) -> str | None:
        """The last two parts of init_checkpoint."""
        path = (self.hparams or {}).get("init_checkpoint")
        return path and "/".join(Path(path).parts[-2:])


def published_kinds(source: ExportedModel) -> list[str]:
    """The SavedModels that are published: a generator only if there is nothing else.

    And a preprocessor only beside the encoder whose inputs it packs.
    """
    from electra_tf.export import saved_model

    kinds = saved_model.kinds_of(source)
    if "encoder" not in kinds:
        kinds.remove("preprocessor")
    if "detector" in kinds:
        kinds = [kind for kind in kinds if kind != "generator"]
    return kinds


def facts_of(source: ExportedModel, run_dir: Path | None = None) -> RunFacts:
    """The facts for a model card.

    Args:
      run_dir: of the run; None for a checkpoint alone. A fine-tuning run has no facts
        on pre-training.
    """
    facts, path = RunFacts(source), run_dir and run_dir / "config.json"
    hparams = read_json(path) if path and path.is_file() else None
    if run_dir is None or "task_names" in (hparams or {}):
        return facts
    data = _manifests(hparams or {}, run_dir, facts.step)
    return RunFacts(source, hparams, html_report.results_of(run_dir), data)


def _manifests(hparams, run_dir: Path, step: int) -> list[dict[str, Any] | None]:
    """The manifests of the data that a run has read; None if missing."""
    found = []
    for part in history.started_phases(hparams, step):
        usual = data_folder(part, hparams.get("phases", []))
        folders = folders_of(joined(part.get("pretrain_tfrecords") or ""))
        found += folders or [str(run_dir.parent.parent / usual)]
    paths = [file_beside(folder, MANIFEST) for folder in dict.fromkeys(found)]
    return [read_json(path) if path else None for path in paths]


def model_card(
    name: str, facts: RunFacts, licence: str | None, differences: dict[str, float]
) -> str:
    """README.md of the model, with the front matter that Hugging Face reads.

    Args:
      licence: of the weights; None: LICENCE.
      differences: of each SavedModel beside it from the model it was exported from.
    """
    model, licence = facts.source.pretrainer, licence or LICENCE
    shape, length = facts.source.shape, facts.source.facts.get("trained_length")

    def parts(part: str) -> list[str]:
        return [cards.fill("hub", f"{kind}: {part}") for kind in differences]

    rows = zip(parts("row"), differences.values(), strict=True)
    return cards.fill(
        "hub",
        "card",
        front_matter=_front_matter(name, facts, licence),
        name=name,
        description=model.objective.description,
        origin=_origin(facts),
        layers=shape.num_hidden_layers,
        width=shape.hidden_size,
        heads=shape.num_attention_heads,
        embedding_size=model.settings.embedding_size,
        vocab_size=f"{shape.vocab_size:,}",
        tokenizer=facts.source.tokenizer_config,
        files="\n".join(f"{row} {difference:.1e} |" for row, difference in rows),
        programs="\n".join(parts("program")),
        data="\n\n".join(_data(facts)),
        training=_training(facts),
        evaluation=_evaluation(facts),
        licence=licence,
        positions=shape.max_position_embeddings,
        length=f"of {length}" if length else "whose length is not known",
        limits="\n".join(filter(None, parts("limits"))),
    )


def _front_matter(name: str, facts: RunFacts, licence: str) -> str:
    """The card's metadata, with the results that the Hub shows beside the model."""
    from huggingface_hub import EvalResult, ModelCardData

    tag = facts.source.pretrainer.objective.tag
    results = [
        EvalResult(
            task_type="feature-extraction",
            dataset_type="pre-training",
            dataset_name=html_report.data_of(facts.results),
            metric_type=metric.name,
            metric_name=metric.label,
            metric_value=value,
        )
        for metric, value in facts.metrics
    ]
    data = ModelCardData(
        license=licence,
        library_name="tensorflow",
        tags=["electra", *filter(None, [tag]), "tf-keras"],
        model_name=name if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _origin(facts: RunFacts) -> str:
    origin = f"Exported with {REPOSITORY}"
    if facts.hparams is not None:
        origin = f"Pre-trained for {facts.step:,} steps with {REPOSITORY}"
    start = facts.initial_weights
    return origin + (f", from the weights of {start}" if start else "")


def _data(facts: RunFacts) -> Iterator[str]:
    for manifest in facts.data or [None]:
        corpus = (manifest or {}).get("corpus")
        if not manifest or not corpus:
            yield "Not recorded: no manifest of the training data describes the corpus."
            continue
        names = corpus["names"]
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        yield cards.fill(
            "hub",
            "corpus",
            files=corpus["files"],
            megabytes=f"{corpus['bytes'] / 1e6:,.1f}",
            names=shown,
            tokens=f"{corpus['tokens_kept']:,}",
            examples=f"{corpus['examples']:,}",
            max_seq_length=manifest["max_seq_length"],
            sha256=corpus["sha256"],
        )
    if start := facts.initial_weights:
        yield f"What {start} was trained on before is not listed here."


def _training(facts: RunFacts) -> str:
    if facts.hparams is None:
        return "Not recorded: the files of the model do not say it."
    parts, rows = history.started_phases(facts.hparams, facts.step), []
    for name in _HPARAMS:
        if name in facts.hparams:
            values = [str(part[name]) for part in parts]
            shown = values if len(set(values)) > 1 else values[:1]
            rows.append((name, ", then ".join(shown)))
    return _table("setting", rows)


def _evaluation(facts: RunFacts) -> str:
    if not facts.metrics:
        return "Not evaluated, as far as the files of the model say."
    step, data = facts.results.get("global_step"), html_report.data_of(facts.results)
    rows = [(metric.label, f"{value:.4f}") for metric, value in facts.metrics]
    head = f"Pre-training metrics at step {step}, on {data}.\n\n"
    return head + _table("metric", rows)


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = (f"| {name} | {value} |" for name, value in rows)
    return "\n".join([f"| {title} | value |", "|---|---|", *lines])
