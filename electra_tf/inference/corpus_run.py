# SPDX-License-Identifier: Apache-2.0
"""A model's answers for a whole corpus: shards of JSON lines, a manifest last.

A shard holds the answers for a fixed stretch of the input, in its order. One process
makes it from beginning to end, and batches what is in it: neither the number of workers
nor an interruption has a say in what a batch holds, or in a byte of the result.

The models of a corpus are `Scores`, `Detections` and `Predictions`. Each has `options`,
by which another process gets the same, and `model`: path, sha256 and all that changes
an answer, in JSON. `corpus` gives the input in pieces, `rows` the answers for some of
them, whose batches depend on their texts alone, `counts` what is counted in an answer.
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
from pathlib import Path
from typing import Any, NamedTuple

import electra_tf
from electra_tf import processes
from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.finetune import inputs
from electra_tf.inference import detection, prediction, scoring
from electra_tf.inference.model import Model, TokenPrediction
from electra_tf.inference.scoring import batched
from electra_tf.jobs import folder as job_folder
from electra_tf.jobs import job
from electra_tf.jobs.folder import JobFolder
from electra_tf.jobs.job import Runner
from electra_tf.storage.manifest import MANIFEST, installed_versions, read_json, sha256
from electra_tf.storage.remote_run import bring_model
from electra_tf.text import corpus, units
from electra_tf.text.records import json_line
from electra_tf.text.units import Corpus, Unit, portions

SCHEMA_VERSION = 2
# A thousand shards of a small corpus; of a large one, what a core does in some minutes.
_SHARDS, _LEAST_BYTES, _MOST_BYTES = 1024, 1 << 20, 64 << 20
_PACKAGES = ("tensorflow", "tensorflow-text", "keras")


# Texts that are sorted by length before they are put into batches.
_CHUNK = 1024


class Plan(NamedTuple):
    """What every process of a run needs.

    Attributes:
      folder: where the shards go.
      load: the class of the model, which takes settings["options"].
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
        sizes = [sum(unit.weight for unit in parts) for parts in shards]
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
    number, given = task
    parts = [Unit(*unit) for unit in given]
    digest = _digest(parts)
    counts: collections.Counter[str] = collections.Counter(texts=0)
    model = _model_of(plan)
    with open(os.path.join(folder, _shard_name(number, plan.num_shards)), "wb") as f:
        for row in model.rows(parts):
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
    for number, (known, parts) in enumerate(zip(digests, shards, strict=True)):
        if known and known != _digest(parts):
            path = os.path.join(folder, _shard_name(number, len(shards)))
            raise UserError(
                f"{path} was made from another text than is in {parts[0].path} (or in "
                "files after it) now.\nName another --output-dir."
            )


@functools.lru_cache
def _table_digest(path: str, size: int, changed: int) -> bytes:
    """The sha256 of a whole table, whose parts do not say where their bytes are."""
    del size, changed
    with corpus.open_text(path) as f:
        return hashlib.file_digest(f, "sha256").digest()


def _digest(parts: Sequence[Unit]) -> str:
    """The sha256 of what units are read from; a table counts as a whole."""
    found = hashlib.sha256()
    for unit in parts:
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


class Texts:
    """The texts of some units: lines, or records as a whole (JSON Lines, tables)."""

    def __init__(self, parts: Sequence[Unit], reading: units.Reading):
        self._parts, self._reading = parts, reading
        self._starts: list[tuple[int, Unit]] = []  # with the texts before each unit

    def __iter__(self) -> Iterator[str]:
        number = 0
        for unit in self._parts:
            self._starts.append((number, unit))
            for reader in units.read_unit(unit, self._reading):
                blocks = iter(reader)
                if reader.is_record:  # a document, not lines
                    blocks = [["\n".join(itertools.chain.from_iterable(blocks))]]
                for block in blocks:
                    number += len(block)
                    yield from block

    def place(self, number: int) -> str:
        """Where the n-th text stands, counted from 1, of those that were read."""
        first, unit = [pair for pair in self._starts if pair[0] < number][-1]
        if unit.kind == "text":
            before = corpus.lines_before(unit.path, unit.start)
            return f"{unit.path}, line {before + number - first}"
        after = f" after byte {unit.start}" if unit.start else ""
        return f"{unit.path}, text {number - first}{after}"


def texts_of(path: str | None, reading: units.Reading) -> Iterator[str]:
    """The lines of a file, or its records; None: the lines of standard input."""
    if path is not None and units.holds_records(path):
        return iter(Texts(units.file_corpus(path, reading.text_key).units, reading))
    return corpus.read_lines(path, reading.encoding_errors)


def model_facts(origin: str, **others: Any) -> dict[str, Any]:
    """The `model` of a checkpoint's prefix or a directory."""
    files = glob.glob(f"{glob.escape(origin)}.*")
    if os.path.isdir(origin):
        files = glob.glob(f"{glob.escape(origin)}/**", recursive=True)
    digest = hashlib.sha256()
    for path in sorted(filter(os.path.isfile, files)):
        name = os.path.relpath(path, origin)
        digest.update(f"{name} {sha256(path)}\n".encode())
    return {"path": origin, "sha256": digest.hexdigest(), **others}


class _OfTexts:
    """What score and detect have in common.

    Args:
      options: "model", "text_key", "encoding_errors", and its own.
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
        # A run may go on; all workers use the newest checkpoint of now.
        self.options = {**options, "model": self._model.origin}

    def corpus(self, path: str, piece_bytes: int) -> Corpus:
        """Files as `build_pretraining_dataset.py` reads them."""
        return units.file_corpus(path, self.reading.text_key, piece_bytes)


class Scores(_OfTexts):
    """The score of each text; options "method", "overlap", "tokens"."""

    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._scorer = self._model.scorer(options["method"])
        self._scorer.check_overlap(options["overlap"])

    def rows(self, parts: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """As `scoring.to_json` has them."""
        texts, options = Texts(parts, self.reading), self.options
        overlap, tokens = options["overlap"], options["tokens"]
        return scoring.rows(self._scorer, texts, overlap, tokens, texts.place)

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """Tokens, and texts whose scores say nothing."""
        return scoring.counts_of(row["num_tokens"], row["num_unknown"])


class Detections(_OfTexts):
    """How much each token of each text that is not blank looks replaced."""

    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._model.detect([])  # raises the error of a model that cannot

    def rows(self, parts: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """As `detection.to_json` has them."""
        texts = Texts(parts, self.reading)
        numbered = ((n, text.strip()) for n, text in enumerate(texts, 1))
        numbered = (pair for pair in numbered if pair[1])
        for chunk in batched(numbered, _CHUNK):
            order = sorted(range(len(chunk)), key=lambda i: len(chunk[i][1]))
            found = self._model.detect([chunk[i][1] for i in order])
            of_text = dict(zip(order, found, strict=True))
            for place, (number, text) in enumerate(chunk):
                self._check(of_text[place], texts, number)
                yield detection.to_json(text, of_text[place])

    def _check(self, tokens: list[TokenPrediction], texts: Texts, number: int) -> None:
        if any(token.probability != token.probability for token in tokens):
            raise UserError(
                f"{texts.place(number)}: {self._model.name} gives it probabilities "
                "that are not numbers:\nits weights or activations are not finite.",
                EXIT_DIVERGED,
            )

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """Tokens, and those that look replaced rather than not."""
        found = [token["probability"] > 0.5 for token in row["tokens"]]
        return {"tokens": len(found), "tokens_above_one_half": sum(found)}


class Predictions:
    """Labels, numbers, tags or answers; `Predictor.rows` says what a row holds.

    Args:
      options: "model", "task", "data_dir", "input_format".
    """

    def __init__(self, options: dict[str, Any]):
        self.options, self._form = options, options["input_format"]
        self._predictor = prediction.load_predictor(
            options["model"], options["task"], options["data_dir"]
        )
        found = self._predictor
        self.model = model_facts(found.origin, task=found.task, **found.facts)

    def corpus(self, path: str, piece_bytes: int) -> Corpus:
        """Files as predict reads them, those cut whose lines stand for themselves."""
        reads = self._predictor.reads

        def pieces(form: str, path: str, size: int) -> Iterator[tuple[int, int, int]]:
            step = piece_bytes if inputs.can_cut(path, form, reads) else max(size, 1)
            return units.cut(max(size, 1), step)

        return units.of_files(
            path, lambda name: inputs.input_form(name, self._form, reads), pieces
        )

    def rows(self, parts: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """The fields of each input and its prediction."""
        try:
            yield from self._rows(parts, False)
        except UserError:
            # Only now do the lines before have to be counted, to name the right one.
            for _ in self._rows(parts, True):
                pass
            raise

    def _rows(self, parts: Sequence[Unit], counted: bool) -> Iterator[dict[str, Any]]:
        found = itertools.chain.from_iterable(
            self._predictor.read_inputs(
                inputs.open_part(
                    unit, corpus.lines_before(unit.path, unit.start) if counted else 0
                )
            )
            for unit in parts
        )
        for chunk in batched(found, _CHUNK):
            order = sorted(range(len(chunk)), key=lambda i: _length(chunk[i].fields))
            rows = self._predictor.rows(chunk[i] for i in order)
            of_input = dict(zip(order, rows, strict=True))
            for place in range(len(chunk)):
                yield of_input[place]

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """How often there is each label."""
        labels = [row["label"]] if "label" in row else row.get("labels", [])
        return {f"label {label}": 1 for label in labels}


def _length(given: dict[str, Any]) -> int:
    return sum(len(x) for x in given.values() if isinstance(x, str | list))
