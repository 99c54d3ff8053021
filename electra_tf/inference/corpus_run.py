# SPDX-License-Identifier: Apache-2.0
"""A model's answers for a whole corpus: shards of JSON lines, a manifest last.

A shard holds the answers for a fixed stretch of the input, in its order. One process
makes it from beginning to end, and batches what is in it: neither the number of workers
nor an interruption has a say in what a batch holds, or in a byte of the result.
"""

from __future__ import annotations

import collections
import functools
import glob
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import electra_tf
from electra_tf import processes
from electra_tf.errors import UserError
from electra_tf.jobs import folder as job_folder
from electra_tf.jobs import job
from electra_tf.jobs.folder import JobFolder
from electra_tf.jobs.job import Runner
from electra_tf.storage.manifest import (
    MANIFEST,
    installed_versions,
    read_json,
)
from electra_tf.storage.remote_run import bring_model
from electra_tf.text import corpus
from electra_tf.text.json_lines import json_line
from electra_tf.text.units import Unit, portions

SCHEMA_VERSION = 2
# A thousand shards of a small corpus; of a large one, what a core does in some minutes.
_SHARDS, _LEAST_BYTES, _MOST_BYTES = 1024, 1 << 20, 64 << 20
_PACKAGES = ("tensorflow", "tensorflow-text", "keras")


class Plan(NamedTuple):
    """What every process of a run needs.

    Attributes:
      folder: where the shards go.
      load: gives a model of `corpus_models` for settings["options"].
      num_shards: how many there are.
      settings: all that makes two runs the same, in JSON.
    """

    folder: str
    load: Callable[[dict[str, Any]], Any]
    num_shards: int
    settings: dict[str, Any]


def before_tensorflow() -> None:
    """Lets this process compute with one core, and share a GPU.

    Sums of several threads may be rounded otherwise than those of one, and one process
    per core is the faster use of many. TensorFlow would take all memory of a GPU. What
    the environment has overrules both.
    """
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def run(
    command: str,
    load: Callable[[dict[str, Any]], Any],
    options: dict[str, Any],
    source: str,
    folder: str,
    workers: int | None = None,
    beam_args: str | None = None,
    shard_bytes: int | None = None,
) -> dict[str, Any]:
    """Writes the answers for a corpus; returns the manifest.

    An unfinished run of the same input, model and options is resumed, with the
    checkpoint that it began with; a finished one is left unchanged.

    Args:
      source: a file or a directory.
      workers: processes, which have no influence on the result; None: one for each
        GPU, or else for each core.
      beam_args: Apache Beam does the work, with these options.
      shard_bytes: of the input of a shard; None: a thousandth of it, from 1 to 64 MB.

    Raises `UserError` for what cannot be read or written, and for a folder that holds
    anything else.
    """
    gpus = processes.gpus()
    workers = (
        1
        if beam_args is not None
        else workers or len(gpus) or len(os.sched_getaffinity(0))
    )
    if gpus and workers > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # They are the workers'.
    before_tensorflow()
    size = sum(os.path.getsize(path) for path in corpus.list_files(source))
    _check_apart(folder, source)
    model = load(_begun_with(folder, options))
    _check_apart(folder, model.model["path"])
    shard_bytes = shard_bytes or min(_MOST_BYTES, max(_LEAST_BYTES, size // _SHARDS))
    text = model.corpus(source, shard_bytes)
    shards = portions(text.units, shard_bytes)
    settings = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "options": model.options,
        "model": model.model,
        "shard_bytes": shard_bytes,
        "input": text.facts(),
    }
    plan = Plan(folder, load, len(shards), settings)
    _loaded[_key(plan)] = model
    with job_folder.opened(folder, settings) as opened:
        if opened.is_finished:
            digests = [file["input_sha256"] for file in opened.state["files"]]
            _check_same_text(folder, digests, shards)
            summary = _summary(opened.state)
            print(f"{folder} is complete already: {summary}", flush=True)
            return opened.state
        opened.begin()
        records = opened.records(command, len(shards))
        _check_same_text(folder, [r and r["input_sha256"] for r in records], shards)
        work = functools.partial(write_shard, plan)
        sizes = [sum(unit.weight for unit in units) for units in shards]
        tasks = [*enumerate(shards)]
        runner = Runner(workers, beam_args, gpus if workers > 1 else ())
        job.run(opened, job.Job(command, work, tasks, sizes), runner)
        return _write_manifest(plan, opened)


def _begun_with(folder: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the checkpoint that an unfinished run in the folder has.

    Raises `UserError` if that checkpoint is gone.
    """
    state = Path(folder, job_folder.STATE)
    if not state.exists() or Path(folder, MANIFEST).exists():
        return options
    settings = read_json(state).get("settings") or {}
    begun = (settings.get("options") or {}).get("model") or ""
    if os.path.dirname(begun) != options["model"]:
        return options
    bring_model(begun)
    if not glob.glob(f"{glob.escape(begun)}*"):
        raise UserError(
            f"{folder} was begun with {begun}, which is not there any more.\nRestore "
            "it, or name another --output-dir for the newest checkpoint."
        )
    return options | {"model": begun}


def _check_apart(folder: str, read: str) -> None:
    """Raises a UserError for a folder in the directory of the input or the model."""
    if Path(read).resolve() in Path(folder).resolve().parents:
        raise UserError(
            f"{folder} is in {read}, so that it would be read the next time.\nName "
            "another --output-dir."
        )


_loaded: dict[str, Any] = {}


def _key(plan: Plan) -> str:
    return json.dumps(plan.settings)


def _model_of(plan: Plan) -> Any:
    """The model of a run, loaded once in a process.

    Raises `UserError` for another model than the run was begun with.
    """
    if _key(plan) not in _loaded:
        before_tensorflow()
        model, known = plan.load(plan.settings["options"]), plan.settings["model"]
        if model.model != known:
            raise UserError(
                f"{model.model['path']} is another model than {plan.folder} was begun "
                "with.\nEvery machine needs the same there."
            )
        _loaded[_key(plan)] = model
    return _loaded[_key(plan)]


def write_shard(plan: Plan, task: tuple[int, list], folder: str) -> dict[str, Any]:
    """Writes the answers for some units; returns their counts and the text's sha256."""
    number, units = task
    units = [Unit(*unit) for unit in units]
    digest = _digest(units)
    counts: collections.Counter[str] = collections.Counter(texts=0)
    model = _model_of(plan)
    with open(os.path.join(folder, _shard_name(number, plan.num_shards)), "wb") as f:
        for row in model.rows(units):
            f.write(f"{json_line(row)}\n".encode())
            counts.update({"texts": 1} | model.counts(row))
    return {"counts": dict(counts), "input_sha256": digest}


def _shard_name(number: int, num_shards: int) -> str:
    return f"part-{number:05d}-of-{num_shards:05d}.jsonl"


def _check_same_text(
    folder: str, digests: Sequence[str | None], shards: Sequence[Sequence[Unit]]
) -> None:
    """Raises a UserError for a finished shard that was made from other text.

    Args:
      digests: None for a shard that is not finished.
    """
    for number, (known, units) in enumerate(zip(digests, shards, strict=True)):
        if known and known != _digest(units):
            path = os.path.join(folder, _shard_name(number, len(shards)))
            raise UserError(
                f"{path} was made from another text than is in {units[0].path} (or in "
                "files after it) now.\nName another --output-dir."
            )


@functools.lru_cache
def _table_digest(path: str, size: int, changed: int) -> bytes:
    """The sha256 of a whole table, whose parts do not say where their bytes are."""
    del size, changed
    with corpus.open_text(path) as f:
        return hashlib.file_digest(f, "sha256").digest()


def _digest(units: Sequence[Unit]) -> str:
    """The sha256 of what units are read from; a table counts as a whole."""
    found = hashlib.sha256()
    for unit in units:
        with corpus.open_text(unit.path) as f:
            start, end = unit.start, unit.end
            if unit.kind in ("parquet", "arrow"):
                stats = os.fstat(f.fileno())
                found.update(_table_digest(unit.path, stats.st_size, stats.st_mtime_ns))
                continue
            f.seek(start)
            block = b""
            while start < end and (block := f.read(min(end - start, 1 << 20))):
                found.update(block)
                start += len(block)
            if not block.endswith(b"\n"):  # The last line is read to its own end.
                found.update(f.readline(corpus.CUT_LINE_BYTES))
    return found.hexdigest()


def _write_manifest(plan: Plan, folder: JobFolder) -> dict[str, Any]:
    """Writes the manifest, which marks the run as finished."""
    total: collections.Counter[str] = collections.Counter(texts=0)
    files = []
    for record in folder.records(plan.settings["command"], plan.num_shards):
        counts, digest = record["counts"], record["input_sha256"]
        total.update(counts)
        own = {"texts": counts["texts"], "input_sha256": digest}
        files.append(record["files"][0] | own)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": electra_tf.__version__,
        "versions": installed_versions(*_PACKAGES),
        "counts": dict(sorted(total.items())),
        "settings": plan.settings,
        "files": files,
    }
    folder.finish(manifest)
    print(f"{plan.folder}: {_summary(manifest)}", flush=True)
    return manifest


def _summary(manifest: dict[str, Any]) -> str:
    texts, files = manifest["counts"]["texts"], len(manifest["files"])
    return f"{texts:,} text{'s'[: texts != 1]} in {files:,} shard{'s'[: files != 1]}"
