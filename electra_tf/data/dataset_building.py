# SPDX-License-Identifier: Apache-2.0
"""Text -> TFRecord shards and their manifest, in parallel and interruptible.

Every process turns parts of the corpus into files of records; when all parts of a
shard are there they are joined under the shard's name. What a shard holds is fixed by
the plan (`build_plan`), so a build that was killed and is run again, with any number of
processes, ends with the same bytes, and does not repeat the shards that it has.
"""

import concurrent.futures
import contextlib
import fcntl
import glob
import hashlib
import json
import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from electra_tf import processes
from electra_tf.data import build_plan, tfrecord, token_counts
from electra_tf.data.build_progress import BuildProgress
from electra_tf.data.record_making import (
    BuildSettings,
    Counts,
    RecordMaker,
    sample_output,
)
from electra_tf.errors import EXIT_DAMAGED, EXIT_LOCKED, UserError
from electra_tf.paths import shown
from electra_tf.storage import remote
from electra_tf.storage.bucket_lock import NAME, BucketLock
from electra_tf.storage.files import atomic_write, cannot_write, sync_directory
from electra_tf.storage.manifest import sha256
from electra_tf.text import corpus
from electra_tf.text.units import Corpus, Unit
from electra_tf.text.vocabulary import Vocabulary

_MIN_SEQ_LENGTH = 8
_MAX_SHARDS = 99_999

# The work of one process.

_maker: RecordMaker | None = None  # of this process


def _start_worker(settings: BuildSettings, is_only_unit: bool) -> None:
    global _maker
    _maker = RecordMaker(settings, is_only_unit)


def _make_part(path: str, units: list[Unit]) -> tuple[Counts, np.ndarray]:
    """Writes the records of some units to a file; returns their counts and tokens'."""
    total = Counts()
    _maker.token_counts[:] = 0
    try:
        with open(path, "wb") as f:
            for unit in units:
                for records, counts in _maker.records(unit):
                    f.write(records)
                    total = total.plus(counts)
    except OSError as e:
        raise cannot_write(path, e) from None
    return total, _maker.token_counts.copy()


# The build: the work of the main process.


def build(
    text: Corpus,
    output_dir: str,
    settings: BuildSettings,
    num_processes: int = 1,
    num_shards: int | None = None,
    tool_version: str = "",
) -> dict:
    """Builds the shards of a corpus and their manifest; returns the manifest.

    An unfinished build of the same corpus and settings is gone on with; a finished one
    is left as it is.

    Args:
      num_processes: has no influence on the result.
      num_shards: None: one for every 64 MB of records.

    Raises UserError for what cannot be read or written, and for an output directory
    that holds anything else.
    """
    _check_settings(settings, num_processes, num_shards)
    vocab = Vocabulary.load(settings.vocab_file)
    identity = _identity(text, settings, vocab, num_shards)
    there = _in_bucket(output_dir)
    state = build_plan.load_state(output_dir, identity, there)
    if state and "files" in state:
        print(shown(f"{output_dir} is complete already: {_summary(state)}"), flush=True)
        return state
    try:
        os.makedirs(output_dir, exist_ok=True)
    except OSError as e:
        raise cannot_write(output_dir, e) from None
    with _locked(output_dir):
        if state is None:
            state = {
                "schema_version": build_plan.SCHEMA_VERSION,
                "tool_version": tool_version,
                "settings": identity,
                "num_shards": num_shards or _choose_num_shards(text, settings),
                "groups": {},
            }
            _write_state(output_dir, state)
        run = _Run(text, output_dir, settings, state, there)
        run.make_shards(num_processes)
        return run.write_manifest(vocab)


def _check_settings(
    settings: BuildSettings, num_processes: int, num_shards: int | None
) -> None:
    if settings.max_seq_length < _MIN_SEQ_LENGTH:
        raise UserError(
            f"--max-seq-length {settings.max_seq_length} leaves no room for text; "
            f"give at least {_MIN_SEQ_LENGTH}."
        )
    if num_processes < 1:
        raise UserError(f"--num-processes {num_processes}: at least 1 is needed.")
    if num_shards is not None and not 1 <= num_shards <= _MAX_SHARDS:
        raise UserError(f"--num-out-files {num_shards}: give 1 to {_MAX_SHARDS}.")


def _identity(
    text: Corpus, settings: BuildSettings, vocab: Vocabulary, num_shards: int | None
) -> dict:
    """What makes two builds the same, in JSON."""
    keyed = {"text_key": settings.reading.text_key} if text.is_keyed else {}
    return {
        "schema_version": build_plan.SCHEMA_VERSION,
        "seed": settings.seed,
        "max_seq_length": settings.max_seq_length,
        "blanks_separate_docs": settings.blanks_separate_docs,
        "encoding_errors": settings.reading.encoding_errors,
        "do_lower_case": settings.tokenizer.do_lower_case,
        "strip_accents": settings.tokenizer.strip_accents,
        "vocab_sha256": vocab.sha256,
        "num_out_files": num_shards,
        **keyed,
        "corpus": {
            "kind": text.kind,
            "files": text.num_files,
            "bytes": text.num_bytes,
            "sha256": text.sha256,
        },
    }


def _choose_num_shards(text: Corpus, settings: BuildSettings) -> int:
    """As many shards as give about 64 MB each."""
    estimate = sample_output(text, settings)
    return min(_MAX_SHARDS, max(1, round(estimate / build_plan.SHARD_BYTES)))


def _write_state(output_dir: str, state: dict) -> None:
    path = os.path.join(output_dir, build_plan.STATE_FILE)
    atomic_write(path, json.dumps(state, indent=1) + "\n")
    remote.put(path)


def _in_bucket(output_dir: str) -> dict[str, int]:
    """The files of an output directory in a bucket, with their sizes.

    All but the shards are brought here; {} for a local directory.
    """
    if not remote.is_remote(output_dir):
        return {}
    remote.check_writable(output_dir)
    there = remote.listing(output_dir)
    sizes = {n: f["size"] for n, f in there.items() if not n.startswith((NAME, ".try"))}
    remote.bring(
        output_dir, wanted=lambda names: [n for n in names if ".tfrecord-" not in n]
    )
    return sizes


@contextlib.contextmanager
def _locked(output_dir: str) -> Iterator[None]:
    """Keeps a second build out of the directory; the kernel frees it at our end."""
    descriptor = os.open(output_dir, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"another process is building in {output_dir}.\nWait for it, or name "
            "another --output-dir.",
            EXIT_LOCKED,
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        is_remote = remote.is_remote(output_dir)
        with BucketLock(output_dir) if is_remote else contextlib.nullcontext():
            yield
    finally:
        os.close(descriptor)


class _Run:
    """One run of a build, from the state it finds to the manifest."""

    def __init__(
        self,
        text: Corpus,
        output_dir: str,
        settings: BuildSettings,
        state: dict,
        there: dict[str, int],
    ):
        self._there = there
        self._text = text
        self._dir = output_dir
        self._settings = settings
        self._state = state
        self._num_shards = state["num_shards"]
        self._groups = build_plan.deal(text.units, self._num_shards, settings.seed)
        self._progress = BuildProgress(text)

    def make_shards(self, num_processes: int) -> None:
        """Makes the shards that are not there yet."""
        self._remove_rests()
        waiting = {}  # group -> its parts that are not done
        parts = []
        for index, group in enumerate(self._groups):
            if self._is_done(index):
                counts = Counts(**self._state["groups"][str(index)]["counts"])
                self._progress.skip(group.units, counts)
                continue
            own = [(index, i, units) for i, units in enumerate(group.parts())]
            parts += own
            waiting[index] = len(own)
        totals = dict.fromkeys(waiting, (Counts(), 0))
        try:
            for (index, _, units), found in self._work(parts, num_processes):
                (counts, tokens), (total, total_tokens) = found, totals[index]
                totals[index] = total.plus(counts), total_tokens + tokens
                waiting[index] -= 1
                self._progress.add(units, counts)
                if not waiting[index]:
                    self._finish_group(index, *totals.pop(index))
        except OSError as e:
            raise cannot_write(self._dir, e) from None
        finally:
            self._remove_rests()
            self._progress.end()

    def _work(self, parts: list, num_processes: int) -> Iterator[tuple]:
        """Makes the parts, yielding each with its counts when it is done."""
        initial = (self._settings, len(self._text.units) == 1)
        if num_processes == 1:
            _start_worker(*initial)
            for part in parts:
                yield part, _make_part(self._part_path(*part[:2]), part[2])
            return
        with processes.pool(num_processes, _start_worker, *initial) as pool:
            futures = {}
            for part in parts:
                path = self._part_path(*part[:2])
                futures[pool.submit(_make_part, path, part[2])] = part
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()

    def _part_path(self, group: int, part: int) -> str:
        return os.path.join(self._dir, f".part-{os.getpid()}-{group:05d}-{part:05d}")

    def _shard_path(self, shard: int) -> str:
        return os.path.join(self._dir, build_plan.shard_name(shard, self._num_shards))

    def _is_done(self, index: int) -> bool:
        entry = self._state["groups"].get(str(index))
        if entry is None:
            return False
        if not os.path.exists(self._counts_path(index)):
            return False
        for file in entry["files"]:
            if not self._is_there(file):
                return False
        return True

    def _is_there(self, file: dict) -> bool:
        """Whether a shard is whole in the output directory."""
        path = os.path.join(self._dir, file["name"])
        if remote.is_remote(path):
            return self._there.get(file["name"]) == file["bytes"]
        return os.path.exists(path) and os.path.getsize(path) == file["bytes"]

    def _counts_path(self, group: int) -> str:
        return os.path.join(self._dir, f".token_counts-{group:05d}")

    def _finish_group(self, index: int, counts: Counts, tokens: np.ndarray) -> None:
        """Joins the parts of a group to its shards and records them."""
        group = self._groups[index]
        parts = [self._part_path(index, i) for i in range(len(group.parts()))]
        temporary = [self._temporary(shard) for shard in group.shards]
        if len(group.shards) == 1:
            files = [_join(parts, temporary[0], counts.examples)]
        else:
            files = _deal(parts, temporary)
        for file, shard in zip(files, group.shards, strict=True):
            file["name"] = os.path.basename(self._shard_path(shard))
        token_counts.write(self._counts_path(index), tokens)
        # Recorded before the shards have their names: a shard with its name is whole.
        self._state["groups"][str(index)] = {
            "counts": counts._asdict(),
            "files": files,
        }
        _write_state(self._dir, self._state)
        for path, shard in zip(temporary, group.shards, strict=True):
            os.replace(path, self._shard_path(shard))
        sync_directory(self._dir)
        for path in [*map(self._shard_path, group.shards), self._counts_path(index)]:
            remote.put(path)
        for path in parts:
            os.unlink(path)

    def _temporary(self, shard: int) -> str:
        folder, name = os.path.split(self._shard_path(shard))
        return os.path.join(folder, f".{name}.tmp")

    def _remove_rests(self) -> None:
        """Removes the unfinished files of this run or of one that was killed."""
        for pattern in (".part-*", ".pretrain_data.tfrecord-*.tmp"):
            for path in glob.glob(os.path.join(glob.escape(self._dir), pattern)):
                os.unlink(path)

    def write_manifest(self, vocab: Vocabulary) -> dict:
        """Writes the manifest, which marks the build as finished."""
        entries = [self._state["groups"][str(i)] for i in range(len(self._groups))]
        counts = Counts()
        for entry in entries:
            counts = counts.plus(Counts(**entry["counts"]))
        if not counts.examples:
            self._discard(entries)
            raise UserError(
                f"the {self._text.num_files} files of the corpus "
                f"({self._text.num_bytes} bytes) hold no text.",
                EXIT_DAMAGED,
            )
        path = os.path.join(self._dir, token_counts.FILE)
        token_counts.write(path, self._token_counts(len(vocab)))
        remote.put(path)
        source = self._state["settings"]["corpus"]
        manifest = {
            "schema_version": build_plan.SCHEMA_VERSION,
            "tool_version": self._state["tool_version"],
            "max_seq_length": self._settings.max_seq_length,
            "vocab": {
                "file": os.path.basename(vocab.path),
                "size": len(vocab),
                "sha256": vocab.sha256,
            },
            "tokenizer": self._settings.tokenizer._asdict(),
            "seed": self._settings.seed,
            "corpus": source | {"names": _names(self._text)} | counts._asdict(),
            "files": [file for entry in entries for file in entry["files"]],
            "token_counts": {"name": token_counts.FILE, "sha256": sha256(path)},
            "settings": self._state["settings"],
        }
        # The place of every record, which those who read need.
        shards = [os.path.join(self._dir, file["name"]) for file in manifest["files"]]
        remote.put(record_index.write(sorted(shards)))
        path = os.path.join(self._dir, build_plan.MANIFEST_FILE)
        atomic_write(path, json.dumps(manifest, indent=1) + "\n")
        remote.put(path)
        self._remove(build_plan.STATE_FILE)
        self._remove_group_counts()
        print(shown(f"{self._dir}: {_summary(manifest)}"), flush=True)
        return manifest

    def _token_counts(self, vocab_size: int) -> np.ndarray:
        paths = map(self._counts_path, range(len(self._groups)))
        return sum(token_counts.read(path, vocab_size) for path in paths)

    def _remove_group_counts(self) -> None:
        for index in range(len(self._groups)):
            self._remove(os.path.basename(self._counts_path(index)))

    def _remove(self, name: str) -> None:
        if remote.is_remote(self._dir):
            remote.remove(self._dir, [name])
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._dir, name))

    def _discard(self, entries: list[dict]) -> None:
        """Takes back the empty shards of a corpus without text."""
        for entry in entries:
            for file in entry["files"]:
                self._remove(file["name"])
        self._remove_group_counts()
        self._remove(build_plan.STATE_FILE)


def _join(parts: list[str], path: str, num_examples: int) -> dict:
    """Writes files one after the other to `path`."""
    digest = hashlib.sha256()
    with open(path, "wb") as f:
        for part in parts:
            with open(part, "rb") as source:
                while block := source.read(4 << 20):
                    digest.update(block)
                    f.write(block)
        return _closed(f, num_examples, digest)


def _deal(parts: list[str], paths: list[str]) -> list[dict]:
    """Deals the records of files to several files in turn, as the original does."""
    counts = [0] * len(paths)
    turn = 0
    buffers: list[list[bytes]] = [[] for _ in paths]
    for path in paths:
        open(path, "wb").close()
    for part in parts:
        for record in tfrecord.read_records(part):
            buffers[turn].append(tfrecord.frame(record))
            counts[turn] += 1
            turn = (turn + 1) % len(paths)
        # A thousand files are too many to keep open.
        for path, buffer in zip(paths, buffers, strict=True):
            if buffer:
                with open(path, "ab") as f:
                    f.write(b"".join(buffer))
                buffer.clear()
    files = []
    for path, count in zip(paths, counts, strict=True):
        with open(path, "r+b") as f:
            files.append(_closed(f, count, hashlib.file_digest(f, "sha256")))
    return files


def _closed(f: BinaryIO, num_examples: int, digest) -> dict:
    """Makes a shard durable; returns its entry in the manifest, without its name."""
    f.flush()
    os.fsync(f.fileno())
    return {
        "name": "",
        "examples": num_examples,
        "bytes": os.fstat(f.fileno()).st_size,
        "sha256": digest.hexdigest(),
    }


def _names(text: Corpus, limit: int = 1000) -> list[str]:
    """The files of a corpus, the first thousand of them."""
    return list(dict.fromkeys(unit.name for unit in text.units))[:limit]


def _summary(manifest: dict) -> str:
    counts = manifest["corpus"]
    kept = 100 * counts["tokens_kept"] / max(1, counts["tokens"])
    text = (
        f"{counts['examples']:,} examples in {len(manifest['files'])} shards from "
        f"{counts['text_bytes'] / 1e6:,.1f} MB of text; {kept:.1f} % of its tokens used"
    )
    if counts["replaced_bytes"]:
        # A build of an earlier version did not count by file.
        where = counts.get("replaced_in") or {"the corpus": counts["replaced_bytes"]}
        text += f"; left out: {corpus.describe_replaced(where)}"
    return text
