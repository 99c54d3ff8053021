# SPDX-License-Identifier: Apache-2.0
"""A model's answers for a whole corpus: shards of JSON lines, then a manifest.

A shard holds the answers for a fixed part of the input, in order. One process makes a
whole shard and its batches, so the result does not depend on the number of workers or
on interruptions, byte for byte.

`Scores`, `Detections` and `Predictions` load a model and answer. Each has `options`,
from which another process loads the same; `model`, in JSON: path, sha256 and all else
that changes an answer; `corpus`, the input in pieces; and `rows`, the answers for some
pieces, whose batches depend on their texts alone.
"""

from __future__ import annotations

import collections
import functools
import glob
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import electra_tf
from electra_tf import processes
from electra_tf.errors import UserError
from electra_tf.finetune import inputs
from electra_tf.inference import detection, prediction, scoring
from electra_tf.inference.model import Model
from electra_tf.inference.scoring import chunks
from electra_tf.jobs import job
from electra_tf.jobs.job import JobFolder, Runner
from electra_tf.storage.manifest import installed_versions, sha256
from electra_tf.text import corpus, units
from electra_tf.text.records import json_line
from electra_tf.text.units import Corpus, Unit, portions

SCHEMA_VERSION = 3
# A thousand shards of a small corpus; of a large one, some minutes' work of a core.
_SHARDS, _LEAST_BYTES, _MOST_BYTES = 1024, 1 << 20, 64 << 20
_PACKAGES = ("tensorflow", "tensorflow-text", "keras")
_CHUNK = 1024  # inputs that are sorted by length before they are put into batches


class Plan(NamedTuple):
    """What every process of a run needs.

    Attributes:
      folder: of the shards.
      load: the class of the model, called with settings["options"].
      settings: what identifies the run, in JSON.
    """

    folder: str
    load: Callable[[dict[str, Any]], Any]
    num_shards: int
    settings: dict[str, Any]


def before_tensorflow() -> None:
    """Limits this process to one core, and lets it share a GPU.

    One process per core is fastest, and several threads may round sums differently.
    TensorFlow would take all memory of a GPU. The environment overrules both.
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

    An unfinished run of the same input, model and options is resumed; a finished one is
    left unchanged.

    Args:
      source: a file or a directory.
      workers: processes; by default one for each GPU, or else for each core.
      beam_args: options of Apache Beam; None: processes of this machine.
      shard_bytes: input of a shard; by default a thousandth of all, from 1 to 64 MB.

    Raises `UserError` for unreadable input, or a folder that holds anything else.
    """
    gpus = processes.gpus()
    if beam_args is not None:
        workers = 1
    workers = workers or len(gpus) or len(os.sched_getaffinity(0))
    if gpus and workers > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # for the workers
    before_tensorflow()
    size = sum(os.path.getsize(path) for path in corpus.list_files(source))
    corpus.check_outside(folder, source, "--output-dir")
    model = load(options)
    corpus.check_outside(folder, model.model["path"], "--output-dir")
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
    _models[json.dumps(settings)] = model
    with job.opened(folder, settings) as opened:
        if opened.is_finished:
            summary = _summary(opened.state)
            print(f"{folder} is complete already: {summary}", flush=True)
            return opened.state
        opened.begin()
        work = functools.partial(write_shard, plan)
        sizes = [sum(unit.weight for unit in parts) for parts in shards]
        tasks = [*enumerate(shards)]
        runner = Runner(workers, beam_args, gpus if workers > 1 else ())
        job.run(opened, job.Job(command, work, tasks, sizes), runner)
        return _write_manifest(plan, opened)


_models: dict[str, Any] = {}  # of this process, by settings


def _model_of(plan: Plan) -> Any:
    """The model of a run, loaded once per process.

    Raises `UserError` if it differs from the model of the plan.
    """
    key = json.dumps(plan.settings)
    if key not in _models:
        before_tensorflow()
        model = plan.load(plan.settings["options"])
        if model.model != plan.settings["model"]:
            raise UserError(
                f"{model.model['path']} is another model than that of {plan.folder}.\n"
                "Every machine needs the same model at that path."
            )
        _models[key] = model
    return _models[key]


def write_shard(plan: Plan, task: tuple[int, list], folder: str) -> dict[str, Any]:
    """Writes the answers for some units; returns their counts."""
    number, units_of_shard = task
    parts = [Unit(*unit) for unit in units_of_shard]
    counts: collections.Counter[str] = collections.Counter(texts=0)
    model = _model_of(plan)
    name = f"part-{number:05d}-of-{plan.num_shards:05d}.jsonl"
    with open(os.path.join(folder, name), "wb") as f:
        for row in model.rows(parts):
            f.write(f"{json_line(row)}\n".encode())
            counts.update({"texts": 1} | scoring.counts_of(row))
    return {"counts": dict(counts)}


def _write_manifest(plan: Plan, folder: JobFolder) -> dict[str, Any]:
    """Writes the manifest, which marks the run as finished."""
    total: collections.Counter[str] = collections.Counter(texts=0)
    files = []
    for record in folder.records(plan.settings["command"], plan.num_shards):
        total.update(record["counts"])
        files.append(record["files"][0] | {"texts": record["counts"]["texts"]})
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


def texts_in(parts: Sequence[Unit], reading: units.Reading) -> Iterator[str]:
    """The texts of units: lines, or whole records (JSON Lines, tables)."""
    for unit in parts:
        for reader in units.read_unit(unit, reading):
            lines = itertools.chain.from_iterable(reader)
            yield from ["\n".join(lines)] if reader.is_record else lines


def model_facts(origin: str, **others: Any) -> dict[str, Any]:
    """Path and sha256 of a checkpoint (by its prefix) or directory, and `others`."""
    files = glob.glob(f"{glob.escape(origin)}.*")
    if os.path.isdir(origin):
        files = glob.glob(f"{glob.escape(origin)}/**", recursive=True)
    digest = hashlib.sha256()
    for path in sorted(filter(os.path.isfile, files)):
        name = os.path.relpath(path, origin)
        digest.update(f"{name} {sha256(path)}\n".encode())
    return {"path": origin, "sha256": digest.hexdigest(), **others}


class _OfTexts:
    """Common part of `Scores` and `Detections`.

    Args:
      options: "model", "text_key", "encoding_errors", and those of the subclass.
    """

    def __init__(self, options: dict[str, Any]):
        self.reading = units.Reading(options["encoding_errors"], options["text_key"])
        self._model: Model = prediction.load(options["model"])
        self.model = model_facts(
            self._model.origin,
            vocab_sha256=self._model.tokenizer.vocab.sha256,
            tokenizer=self._model.tokenizer.config._asdict(),
            max_seq_length=self._model.max_seq_length,
        )
        # While training goes on, all workers use the checkpoint that is newest now.
        self.options = {**options, "model": self._model.origin}

    def corpus(self, path: str, piece_bytes: int) -> Corpus:
        """Files as `build_pretraining_dataset.py` reads them."""
        return units.file_corpus(path, self.reading.text_key, piece_bytes)


class Scores(_OfTexts):
    """The score of each text; options "method", "overlap", "tokens"."""

    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._method = self._model.method(options["method"])
        self._model.check_overlap(options["overlap"])

    def rows(self, parts: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """See `scoring.to_json`."""
        options = self.options["overlap"], self.options["tokens"]
        texts = texts_in(parts, self.reading)
        return scoring.rows(self._model, texts, self._method, *options)


class Detections(_OfTexts):
    """How much each token of each non-blank text looks replaced."""

    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._model.detect([])  # raises the error of a model without detector

    def rows(self, parts: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """See `detection.to_json`."""
        texts = texts_in(parts, self.reading)
        for text, tokens in detection.detect(self._model, texts):
            yield detection.to_json(text, tokens)


class Predictions:
    """Labels, numbers, tags or answers; see `Predictor.rows`.

    Args:
      options: "model", "task", "data_dir", "input_format".
    """

    def __init__(self, options: dict[str, Any]):
        self.options, self._form = options, options["input_format"]
        self._predictor = prediction.load_predictor(
            options["model"], options["task"], options["data_dir"]
        )
        model = self._predictor
        self.model = model_facts(model.origin, task=model.task, **model.facts)

    def corpus(self, path: str, piece_bytes: int) -> Corpus:
        """Files as predict reads them; cut if each line is an input of its own."""
        reads = self._predictor.reads

        def pieces(form: str, path: str, size: int) -> Iterator[tuple[int, int, int]]:
            step = piece_bytes if inputs.can_cut(path, form) else max(size, 1)
            return units.cut(max(size, 1), step)

        return units.of_files(
            path, lambda name: inputs.input_form(name, self._form, reads), pieces
        )

    def rows(self, parts: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """The fields of each input and its prediction."""
        sources = map(inputs.open_part, parts)
        read = map(self._predictor.read_inputs, sources)
        found = itertools.chain.from_iterable(read)
        for chunk in chunks(found, _CHUNK):
            order = sorted(range(len(chunk)), key=lambda i: _length(chunk[i].fields))
            rows = self._predictor.rows(chunk[i] for i in order)
            of_input = dict(zip(order, rows, strict=True))
            for place in range(len(chunk)):
                yield of_input[place]


def _length(fields: dict[str, Any]) -> int:
    return sum(len(x) for x in fields.values() if isinstance(x, str | list))
