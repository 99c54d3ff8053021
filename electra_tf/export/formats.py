# SPDX-License-Identifier: Apache-2.0
"""The formats of export_model.py, and the checks before TensorFlow is imported.

A new format is an entry of FORMATS and a module with a function.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from electra_tf import startup
from electra_tf.errors import UserError
from electra_tf.export import ExportRequest, hub
from electra_tf.interop import huggingface, networks, readers, tf1
from electra_tf.paths import shown, url_of
from electra_tf.storage.atomic_folder import check_free


class Format(NamedTuple):
    """The properties of a format."""

    function: str  # of electra_tf.export: ExportRequest -> the path of the export
    reads: tuple[str, ...] = ("what",)  # fields of a request that not every format has
    needs_free_dir: bool = True  # False: output_dir may hold other exports


_CARD_FLAGS = ("handle", "license", "language")
FORMATS = {
    "huggingface": Format("formats:write_for_library", reads=("what", *_CARD_FLAGS)),
    "hub": Format("hub:export_hub", reads=_CARD_FLAGS),
    "keras_hub": Format("formats:write_for_library", reads=("what", *_CARD_FLAGS)),
    "onnx": Format("onnx:export_onnx", reads=("what", *_CARD_FLAGS)),
    "saved_model": Format(
        "saved_model:export_saved_model",
        reads=("what", "precision"),
        needs_free_dir=False,
    ),
    "tf1": Format("formats:write_for_library"),
}


def export(request: ExportRequest) -> str:
    """Writes and verifies an export, uploads it with `publish`; returns its path.

    With `publish`, a directory that was written before is uploaded unchanged.

    Raises `UserError`: 2 for an invalid request or a part that the model lacks, 65 for
    damaged files or an export that does not compute the same, 73 if it cannot be
    written.
    """
    known = FORMATS[request.format]
    _check_flags(request)
    hub.check(request)
    written = request.output_dir
    is_new = not request.publish or request.names_model
    if is_new:
        if known.needs_free_dir:
            check_free(request.output_dir)
        _check_model(request)
        startup.import_tensorflow()
        export_model = pkgutil.resolve_name(f"electra_tf.export.{known.function}")
        written = export_model(request)
    if request.publish:
        hub.publish(request)
    done = "Would be uploaded unchanged:" if request.dry_run else "Uploaded unchanged:"
    print(shown(f"{'Written to' if is_new else done} {written}"))
    return str(written)


def write_for_library(request: ExportRequest) -> Path:
    """A folder for each network, or one of a task or of a TF1 checkpoint."""
    what, is_tf1 = request.what or "all", request.format == tf1.FORMAT
    if request.format == huggingface.FORMAT and what not in networks.WHAT:
        from electra_tf.export import finetuned_task

        task = finetuned_task.task_of(request)
        place, stated = request.output_dir, request.publication
        return finetuned_task.write_task(task, place, publication=stated)
    stored = request.read_model(slots=is_tf1)
    write: Callable = readers.WRITERS[request.format]
    more = {} if is_tf1 else {"publication": request.publication}  # It has no card.
    return write(stored, what, request.output_dir, **more)


def _check_flags(request: ExportRequest) -> None:
    """Raises `UserError` for a flag without effect on the format."""
    usual = ExportRequest._field_defaults
    for name in sorted({name for known in FORMATS.values() for name in known.reads}):
        takers = [f for f, known in FORMATS.items() if name in known.reads]
        if getattr(request, name) != usual[name] and request.format not in takers:
            raise UserError(
                f"--{name.replace('_', '-')} does not go with --format "
                f"{request.format}, but with --format {', '.join(takers)}."
            )


def _check_model(request: ExportRequest) -> None:
    """Raises `UserError` unless one model is named, which exists if it is here."""
    run = request.data_dir, request.model_name
    if any(run) if request.init_checkpoint else not all(run):
        raise UserError(
            "Name one model: by --data-dir and --model-name of a run, or by "
            "--init-checkpoint."
        )
    path = Path(request.model_dir or request.init_checkpoint)
    if not (path.exists() or tf1.is_prefix(path) or url_of(path)):
        raise readers.no_model(path)
