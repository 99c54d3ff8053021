# SPDX-License-Identifier: Apache-2.0
"""A model's answers for a whole corpus: shards of JSON lines, a manifest last.

A shard holds the answers for a fixed stretch of the input, in its order. One process
makes it from beginning to end, and batches what is in it: neither the number of workers
nor an interruption has a say in what a batch holds, or in a byte of the result.
"""

from __future__ import annotations

import abc
import collections
import functools
import glob
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import electra_tf
from electra_tf import beam, processes
from electra_tf.console import Console, duration
from electra_tf.data import build_plan
from electra_tf.errors import UserError
from electra_tf.storage import planned_folder
from electra_tf.storage.files import atomic_write, cannot_write, sync_directory
from electra_tf.storage.manifest import (
    MANIFEST,
    installed_versions,
    read_json,
    sha256,
)
from electra_tf.storage.remote_run import bring_model
from electra_tf.text import corpus
from electra_tf.text.json_lines import json_line
from electra_tf.text.units import Corpus, Unit

SCHEMA_VERSION = 2
STATE_FILE = "run.json"  # while the run is unfinished
# A thousand shards of a small corpus; of a large one, what a core does in some minutes.
_SHARDS, _LEAST_BYTES, _MOST_BYTES = 1024, 1 << 20, 64 << 20
_QUIET_SECONDS = 10.0
_PACKAGES = ("tensorflow", "tensorflow-text", "keras")


class Job(abc.ABC):
    """A model at work on texts, one per process.

    Attributes:
      options: those by which another process gets the same.
      model: what it is, in JSON: path, sha256 and all that changes an answer.
    """

    options: dict[str, Any]
    model: dict[str, Any]

    @abc.abstractmethod
    def corpus(self, path: str, piece_bytes: int) -> Corpus:
        """The input, longer files cut into pieces."""

    @abc.abstractmethod
    def rows(self, units: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """Yields the answers for the texts of some units, in order.

        What is put into a batch depends on these texts alone.
        """

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """What to count in an answer, besides that it is there."""
        del row
        return {}


class Plan(NamedTuple):
    """What every process of a run knows.

    Attributes:
      folder: where the shards go.
      load: gives the `Job` for settings["options"]; of a module that workers import.
      num_shards: how many there are.
      settings: all that makes two runs the same, in JSON.
    """

    folder: str
    load: Callable[[dict[str, Any]], Job]
    num_shards: int
    settings: dict[str, Any]

    def path(self, number: int) -> str:
        """Of a shard."""
        name = f"part-{number:05d}-of-{self.num_shards:05d}.jsonl"
        return os.path.join(self.folder, name)

    def record_path(self, number: int) -> str:
        """Of what is known about a shard that was made."""
        return os.path.join(self.folder, f".part-{number:05d}.json")


def before_tensorflow() -> None:
    """Lets this process compute with one core, and share a GPU.

    Sums of several threads may be rounded otherwise than those of one, and one process
    per core is the faster use of many. TensorFlow would take all memory of a GPU. What
    the environment has overrules both.
    """
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def model_facts(origin: str, **others: Any) -> dict[str, Any]:
    """A `Job.model` for a checkpoint's prefix or a directory."""
    files = glob.glob(f"{glob.escape(origin)}.*")
    if os.path.isdir(origin):
        files = glob.glob(f"{glob.escape(origin)}/**", recursive=True)
    digest = hashlib.sha256()
    for path in sorted(filter(os.path.isfile, files)):
        name = os.path.relpath(path, origin)
        digest.update(f"{name} {sha256(path)}\n".encode())
    return {"path": origin, "sha256": digest.hexdigest(), **others}


def run(
    command: str,
    load: Callable[[dict[str, Any]], Job],
    options: dict[str, Any],
    source: str,
    folder: str,
    workers: int | None = None,
    beam_args: str | None = None,
    shard_bytes: int | None = None,
) -> dict[str, Any]:
    """Writes the answers for a corpus; returns the manifest.

    An unfinished run of the same input, model and options is gone on with, of a run
    that has trained on with the checkpoint of then; a finished one is left as it is.

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
    workers = 1 if beam_args is not None else workers or len(gpus) or _cores()
    if gpus and workers > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # They are the workers'.
    before_tensorflow()
    size = sum(os.path.getsize(path) for path in corpus.list_files(source))
    _check_apart(folder, source)
    job = load(_begun_with(folder, options))
    _check_apart(folder, job.model["path"])
    shard_bytes = shard_bytes or min(_MOST_BYTES, max(_LEAST_BYTES, size // _SHARDS))
    text = job.corpus(source, shard_bytes)
    shards = build_plan.portions(text.units, shard_bytes)
    settings = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "options": job.options,
        "model": job.model,
        "shard_bytes": shard_bytes,
        "input": text.facts(),
    }
    plan = Plan(folder, load, len(shards), settings)
    _loaded[_key(plan)] = job
    with planned_folder.opened(folder, STATE_FILE, settings) as found:
        if found.is_finished:
            for file, units in zip(found.state["files"], shards, strict=True):
                path = os.path.join(folder, file["name"])
                _check_same_text(path, file["input_sha256"], units)
            print(f"{folder} is complete already: {_summary(found.state)}", flush=True)
            return found.state
        if found.state is None:
            content = json.dumps({"settings": settings}, indent=1) + "\n"
            atomic_write(os.path.join(folder, STATE_FILE), content)
        planned_folder.remove_rests(folder)
        try:
            tasks = [json.dumps(task) for task in enumerate(shards)]
            if beam_args is None:
                _in_processes(plan, tasks, workers, gpus)
            else:
                _with_beam(plan, tasks, beam_args)
        finally:
            planned_folder.remove_rests(folder)
        return _write_manifest(plan)


def _begun_with(folder: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the checkpoint that an unfinished run in the folder has.

    Raises `UserError` if that checkpoint is gone.
    """
    state = Path(folder, STATE_FILE)
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


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _in_processes(
    plan: Plan, tasks: Sequence[str], workers: int, gpus: Sequence[str]
) -> None:
    progress = _Progress(plan)
    # Where there are GPUs, this process has hidden them from itself for several.
    least = 2 if gpus and workers > 1 else 1
    for _, record in processes.results(
        max(least, min(workers, len(tasks))),
        functools.partial(make_shard, plan),
        [(task,) for task in tasks],
        _choose_gpu,
        list(gpus),
    ):
        progress.add(record)


def _choose_gpu(gpus: Sequence[str]) -> None:
    """Gives a new worker process one of the GPUs, in turn."""
    if gpus:
        number = int(multiprocessing.current_process().name.rpartition("-")[2])
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def _with_beam(plan: Plan, tasks: Sequence[str], beam_args: str) -> None:
    def step(call: beam.Call) -> Any:  # where Beam is installed
        from electra_tf.inference import beam_inference

        load = functools.partial(job_of, plan)
        make = functools.partial(make_shard, plan)
        return beam_inference.step_of(load, make)(call)

    print(f"{plan.num_shards} shards with Beam", flush=True)
    beam.for_each(step, tasks, plan.folder, beam_args)


_loaded: dict[str, Job] = {}


def _key(plan: Plan) -> str:
    return json.dumps(plan.settings)


def job_of(plan: Plan, task: str = "") -> Job:
    """The model of a run, loaded once in a process.

    Raises `UserError` for another model than the run was begun with.
    """
    del task
    if _key(plan) not in _loaded:
        before_tensorflow()
        job, known = plan.load(plan.settings["options"]), plan.settings["model"]
        if job.model != known:
            raise UserError(
                f"{job.model['path']} is another model than {plan.folder} was begun "
                f"with:\nsha256 {known['sha256']:.16}... then, "
                f"{job.model['sha256']:.16}... now. Every machine needs the same there."
            )
        _loaded[_key(plan)] = job
    return _loaded[_key(plan)]


def make_shard(plan: Plan, task: str) -> dict[str, Any]:
    """Makes a shard, if it is not there; returns what is recorded of it.

    Args:
      task: the shard's number and units, in JSON.

    Raises `UserError` for a shard that was made of other text.
    """
    number, units = json.loads(task)
    units = [Unit(*unit) for unit in units]
    path = plan.path(number)
    if record := read_record(plan, number):
        _check_same_text(path, record["input_sha256"], units)
        return record
    digest = _digest(units)
    counts: collections.Counter[str] = collections.Counter(texts=0)
    job = job_of(plan)
    partial = planned_folder.hidden(path, planned_folder.unique())
    try:
        with open(partial, "w+b") as f:
            for row in job.rows(units):
                f.write(f"{json_line(row)}\n".encode())
                counts.update({"texts": 1} | job.counts(row))
            f.flush()
            os.fsync(f.fileno())
            f.seek(0)
            file = {
                "name": os.path.basename(path),
                "bytes": os.fstat(f.fileno()).st_size,
                "sha256": hashlib.file_digest(f, "sha256").hexdigest(),
            }
        record = {"file": file, "counts": dict(counts), "input_sha256": digest}
        atomic_write(plan.record_path(number), json.dumps(record) + "\n")
        # Recorded before it has its name: a shard with its name is whole.
        os.replace(partial, path)
        sync_directory(plan.folder)
    except OSError as e:
        raise cannot_write(path, e) from None
    return record


def read_record(plan: Plan, number: int) -> dict[str, Any] | None:
    """What is recorded of a shard that is there, else None."""
    try:
        with open(plan.record_path(number), encoding="utf-8") as f:
            record = json.load(f)
        is_whole = os.path.getsize(plan.path(number)) == record["file"]["bytes"]
    except FileNotFoundError:
        return None
    return record if is_whole else None


def _check_same_text(path: str, known: str, units: Sequence[Unit]) -> None:
    """Raises a UserError for a shard that was made of other text."""
    if known != _digest(units):
        raise UserError(
            f"{path} was made from another text than is in {units[0].path} now"
            f"{' and the files after it' if len(units) > 1 else ''}.\nNothing is "
            "overwritten: name another --output-dir."
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


def _write_manifest(plan: Plan) -> dict[str, Any]:
    """Writes the manifest, which marks the run as finished."""
    records = [read_record(plan, number) for number in range(plan.num_shards)]
    if missing := records.count(None):
        raise UserError(
            f"Beam says that all is done, but {missing} of {plan.num_shards} shards "
            f"are not in {plan.folder}.\nDo the workers write to the same file system? "
            "Run the command again to go on."
        )
    total: collections.Counter[str] = collections.Counter(texts=0)
    for record in records:
        total.update(record["counts"])
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": electra_tf.__version__,
        "versions": installed_versions(*_PACKAGES),
        "counts": dict(sorted(total.items())),
        "settings": plan.settings,
        "files": [
            {
                **record["file"],
                "texts": record["counts"]["texts"],
                "input_sha256": record["input_sha256"],
            }
            for record in records
        ],
    }
    atomic_write(
        os.path.join(plan.folder, MANIFEST), json.dumps(manifest, indent=1) + "\n"
    )
    for number in range(plan.num_shards):
        os.unlink(plan.record_path(number))
    os.unlink(os.path.join(plan.folder, STATE_FILE))
    print(f"{plan.folder}: {_summary(manifest)}", flush=True)
    return manifest


def _summary(manifest: dict[str, Any]) -> str:
    texts, files = manifest["counts"]["texts"], len(manifest["files"])
    return f"{_number(texts, 'text')} in {_number(files, 'shard')}"


def _number(count: int, name: str) -> str:
    """1 text, 2 texts."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


class _Progress:
    """A line with the shards and texts that are done, and how many a second."""

    def __init__(self, plan: Plan):
        self._console, self._total = Console(sys.stderr), plan.num_shards
        self._there = sum(read_record(plan, i) is not None for i in range(self._total))
        if self._there:
            self._console.log(
                f"{self._there} of {_number(self._total, 'shard')} are there."
            )
        self._done = self._texts = self._first = 0
        self._begin = self._shown = time.monotonic()

    def add(self, record: dict[str, Any]) -> None:
        """Counts a shard."""
        self._done += 1
        self._texts += record["counts"]["texts"]
        now = time.monotonic()
        if self._done == 1:  # Until then, models were loaded.
            self._first, self._begin = self._texts, now
        if self._done < self._total and now < self._shown + _QUIET_SECONDS:
            return
        self._shown, seconds = now, now - self._begin
        line = f"{self._done} of {_number(self._total, 'shard')}, "
        line += _number(self._texts, "text")
        if not self._there and self._done > 1:
            line += f", {(self._texts - self._first) / max(seconds, 1e-9):,.0f} texts/s"
        self._console.log(f"{line}, {duration(seconds)}")
