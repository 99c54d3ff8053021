# SPDX-License-Identifier: Apache-2.0
"""Text -> TFRecord shards and their manifest, in parallel and interruptible.

What a shard holds is fixed before the build starts. Each unit of the corpus
(`text.units`) has its own stream of random numbers, and units are dealt to shards by
size alone. So a build that was killed and is run again, with any number of processes,
ends with the same bytes, and does not repeat the shards that it has.
"""

import functools
import hashlib
import json
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import electra_tf
from electra_tf.data import filters, record_index
from electra_tf.data.record_making import (
    BuildSettings,
    Counts,
    RecordMaker,
    sample_output,
    scan,
)
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.jobs import folder as job_folder
from electra_tf.jobs import job
from electra_tf.jobs.folder import OWN, JobFolder
from electra_tf.jobs.job import Job, Runner
from electra_tf.paths import shown
from electra_tf.storage import remote
from electra_tf.storage.manifest import sha256
from electra_tf.text import corpus, units
from electra_tf.text.units import Corpus, Unit
from electra_tf.text.vocabulary import Vocabulary

SCHEMA_VERSION = 2
# A shard has about 64 MB of records. Those of a small data set are smaller, down to
# 4 MB, so that up to 16 processes share the work.
_SHARD_BYTES, _SMALL_SHARD_BYTES, _SMALL_SHARDS = 64e6, 4e6, 16
_HELD_BYTES = 64 << 20  # of records, before they are written to their shards

_NAME = "build"
_MIN_SEQ_LENGTH = 8
_MAX_NAMES = 1000  # of files, in the manifest
# Shares of the tokens of a data set, and of a vocabulary, that bring a warning.
_MUCH_UNKNOWN, _MUCH_CASED = 0.05, 0.01


class Group(NamedTuple):
    """Units and the shards that their examples go to.

    One shard takes the examples in order; several take them in turn.
    """

    units: list[Unit]
    shards: list[int]


class Plan(NamedTuple):
    """What every process of a build needs.

    Attributes:
        folder: where the shards go.
        settings: what they are made by.
        num_shards: how many there are.
        is_only_unit: the corpus is a single unit.
        vocab_sha256: of the vocabulary that the file must have, on every machine.
        identity: a hash of all that makes two builds the same.
        firsts: by portion of the corpus (`units.portions`) the index of its first unit.
    """

    folder: str
    settings: BuildSettings
    num_shards: int
    is_only_unit: bool
    vocab_sha256: str
    identity: str
    firsts: tuple[int, ...]


def build(
    text: Corpus,
    output_dir: str,
    settings: BuildSettings,
    num_processes: int = 1,
    num_shards: int | None = None,
    beam_args: str | None = None,
) -> dict:
    """Builds the shards of a corpus and their manifest; returns the manifest.

    An unfinished build of the same corpus and settings is resumed; a finished one is
    left unchanged.

    Args:
      num_processes: has no influence on the result.
      num_shards: None: one for every 64 MB of records; up to 16 smaller ones.
      beam_args: Apache Beam does the work, with these options; None: processes of
        this machine. That has no influence on the result either.

    Raises UserError for what cannot be read or written, and for an output directory
    that holds anything else.
    """
    _check_settings(settings, num_processes, num_shards)
    if beam_args is not None and remote.is_remote(output_dir):
        raise UserError(
            "--runner beam does not write to a bucket: its workers share a file system."
            "\nMount the bucket, or build elsewhere and copy the result."
        )
    vocab = Vocabulary.load(settings.vocab_file)
    identity = _identity(text, settings, vocab, num_shards)
    with job_folder.opened(output_dir, identity) as folder:
        if folder.is_finished:
            message = f"{output_dir} is complete already: {_summary(folder.state)}"
            print(shown(message), flush=True)
            return folder.state
        state = folder.state or {
            "tool_version": electra_tf.__version__,
            "num_shards": num_shards or _choose_num_shards(text, settings),
        }
        folder.begin(state)
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        plan = Plan(
            output_dir,
            settings,
            folder.state["num_shards"],
            len(text.units) == 1,
            vocab.sha256,
            digest,
            tuple(portion[0].index for portion in units.portions(text.units)),
        )
        runner = Runner(num_processes, beam_args)
        if settings.filters.compare:
            _compare(folder, plan, text, runner)
        groups = deal(text.units, plan.num_shards, settings.seed)
        write = functools.partial(write_shards, plan)
        sizes = [sum(unit.weight for unit in group.units) for group in groups]
        job.run(folder, Job(_NAME, write, groups, sizes), runner)
        return _write_manifest(folder, plan, text, len(groups), vocab)


def _check_settings(
    settings: BuildSettings, num_processes: int, num_shards: int | None
) -> None:
    for flag, value, least in (
        ("--max-seq-length", settings.max_seq_length, _MIN_SEQ_LENGTH),
        ("--num-processes", num_processes, 1),
        ("--num-out-files", 1 if num_shards is None else num_shards, 1),
    ):
        if value < least:
            raise UserError(f"{flag} {value}: give at least {least}.")
    settings.filters.check()


def _identity(
    text: Corpus, settings: BuildSettings, vocab: Vocabulary, num_shards: int | None
) -> dict:
    """What makes two builds the same, in JSON."""
    filters = settings.filters.identity()
    return {
        "schema_version": SCHEMA_VERSION,
        "seed": settings.seed,
        "max_seq_length": settings.max_seq_length,
        "blanks_separate_docs": settings.blanks_separate_docs,
        "encoding_errors": settings.reading.encoding_errors,
        "text_key": settings.reading.text_key,
        "do_lower_case": settings.tokenizer.do_lower_case,
        "strip_accents": settings.tokenizer.strip_accents,
        "vocab_sha256": vocab.sha256,
        "num_out_files": num_shards,
        **({"filters": filters} if filters else {}),
        "corpus": text.facts(),
    }


def _choose_num_shards(text: Corpus, settings: BuildSettings) -> int:
    estimate = sample_output(text, settings)
    small = min(_SMALL_SHARDS, len(text.units), int(estimate / _SMALL_SHARD_BYTES))
    return max(1, round(estimate / _SHARD_BYTES), small)


def _compare(folder: JobFolder, plan: Plan, text: Corpus, runner: Runner) -> None:
    """Finds which documents and lines repeat earlier ones."""
    portions = units.portions(text.units)
    sizes = [sum(unit.weight for unit in portion) for portion in portions]
    write = functools.partial(number_documents, plan)
    job.run(folder, Job("read_documents", write, [*enumerate(portions)], sizes), runner)
    compare = functools.partial(compare_documents, plan)
    job.run(folder, Job("compare_documents", compare, [None], [sum(sizes)]), Runner())


def _write_manifest(
    folder: JobFolder, plan: Plan, text: Corpus, num_groups: int, vocab: Vocabulary
) -> dict:
    """Writes the manifest, which marks the build as finished."""
    counts, tokens, files = Counts(), np.zeros(len(vocab), np.int64), []
    for record in folder.records(_NAME, num_groups):
        counts = counts.plus(Counts(**record["counts"]))
        tokens += record["token_counts"]
        for file, examples in zip(record["files"], record["examples"], strict=True):
            files.append({"name": file["name"], "examples": examples} | file)
    if not counts.examples:
        folder.discard(_NAME, num_groups)
        raise UserError(
            f"the {text.num_files} files of the corpus ({text.num_bytes} bytes) hold "
            f"no text{' that passes the filters' if counts.dropped else ''}.",
            EXIT_DAMAGED,
        )
    path = os.path.join(plan.folder, record_index.TOKEN_COUNTS)
    record_index.write_token_counts(path, tokens)
    remote.put(path)
    settings, stored = plan.settings, folder.state
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": stored["tool_version"],
        "max_seq_length": settings.max_seq_length,
        "vocab": {
            "file": os.path.basename(vocab.path),
            "size": len(vocab),
            "sha256": vocab.sha256,
        },
        "tokenizer": settings.tokenizer._asdict(),
        "seed": settings.seed,
        "corpus": stored["settings"]["corpus"]
        | {"names": list(dict.fromkeys(u.name for u in text.units))[:_MAX_NAMES]}
        | counts.in_json(),
        "files": files,
        "token_counts": {
            "name": record_index.TOKEN_COUNTS,
            "sha256": sha256(path),
            "unknown": int(tokens[vocab.unk_id]),
            "all": int(tokens.sum()),
        },
        "settings": stored["settings"],
    }
    # The place of every record, for random access.
    shards = [os.path.join(plan.folder, file["name"]) for file in files]
    remote.put(record_index.write(sorted(shards)))
    folder.finish(manifest)
    print(shown(f"{plan.folder}: {_summary(manifest)}"), flush=True)
    for warning in _warnings(manifest, vocab):
        print(shown(f"warning: {warning}"), flush=True)
    return manifest


def _summary(manifest: dict) -> str:
    counts = manifest["corpus"]
    kept = 100 * counts["tokens_kept"] / max(1, counts["tokens"])
    shards = len(manifest["files"])
    text = (
        f"{counts['examples']:,} examples in {shards} shard{'s'[: shards > 1]} from "
        f"{counts['text_bytes'] / 1e6:,.1f} MB of text; {kept:.1f} % of its tokens used"
    )
    if counts["replaced_bytes"]:
        text += f"; left out: {corpus.describe_replaced(counts['replaced_in'])}"
    for name, number in counts.get("dropped", {}).items():
        text += f"; {number:,} {name.replace('_', ' ')} left out"
    return text


def _warnings(manifest: dict, vocab: Vocabulary) -> Iterator[str]:
    """What is probably not as its builder wants it."""
    counts, tokens = manifest["corpus"], manifest["token_counts"]
    if 2 * counts["tokens_kept"] < counts["tokens"]:
        yield (
            f"{counts['tokens_kept']:,} of {counts['tokens']:,} tokens are used: what "
            "of a line goes beyond --max-seq-length is cut off.\nPut each sentence or "
            "paragraph on a line of its own, ended by LF or CRLF."
        )
    if tokens["unknown"] > _MUCH_UNKNOWN * tokens["all"]:
        yield (
            f"{tokens['unknown']:,} of {tokens['all']:,} tokens are [UNK]: is "
            f"{vocab.path} of another language?\nWords of more than 200 characters are "
            "[UNK], too: scripts without spaces need some, or line ends."
        )
    if manifest["tokenizer"]["do_lower_case"]:
        cased = sum(
            token != token.lower() and not token.startswith("[") and len(token) > 1
            for token in vocab.tokens
        )
        if cased > _MUCH_CASED * len(vocab):
            yield (
                f"{cased:,} tokens of {vocab.path} have capital letters, but the text "
                "was lower-cased: for a cased vocabulary, build again with "
                "--no-lower-case."
            )


# The plan, and the tasks of workers.


def deal(units: Sequence[Unit], num_shards: int, seed: int) -> list[Group]:
    """Deals units to shards of about equal size, in a random order fixed by the seed.

    The order puts parts of the whole corpus into every shard. Where there are more
    shards than units, a unit has several.
    """
    units = list(units)
    random.Random(f"{seed}/order").shuffle(units)
    total = sum(unit.weight for unit in units)
    groups: dict[int, list[Unit]] = {}
    before = 0
    for unit in units:
        middle = before + unit.weight / 2
        shard = min(int(middle * num_shards / total), num_shards - 1) if total else 0
        groups.setdefault(shard, []).append(unit)
        before += unit.weight
    starts = sorted(groups)
    ends = [*starts[1:], num_shards]
    first = [0, *starts[1:]]  # the shards before the first unit's are its own too
    return [
        Group(groups[start], list(range(begin, end)))
        for start, begin, end in zip(starts, first, ends, strict=True)
    ]


def shard_name(shard: int, num_shards: int) -> str:
    """The original's names: pretrain_data.tfrecord-3-of-17, padded to five digits."""
    return f"pretrain_data.tfrecord-{shard:05d}-of-{num_shards:05d}"


@functools.lru_cache(1)
def _maker(plan: Plan) -> RecordMaker:
    verdicts = None
    if plan.settings.filters.compare:
        folder = os.path.join(plan.folder, OWN)
        verdicts = filters.Verdicts(folder, plan.identity, plan.firsts)
    maker = RecordMaker(plan.settings, plan.is_only_unit, verdicts)
    advice = "Every machine needs the same file there."
    maker.vocab.check_same(plan.vocab_sha256, "the build was begun", advice)
    return maker


def number_documents(plan: Plan, task: tuple[int, list], folder: str) -> dict[str, Any]:
    """Writes the numbers by which the documents of a portion are compared."""
    portion, units = task
    settings = plan.settings
    documents = (scan(Unit(*unit), settings) for unit in units)
    filters.write_numbers(folder, portion, settings.filters, documents)
    return {}


def compare_documents(plan: Plan, _: None, folder: str) -> dict[str, Any]:
    """Writes the verdicts on all documents; see `filters.compare`."""
    numbers = os.path.join(plan.folder, OWN)
    filters.compare(numbers, len(plan.firsts), plan.settings.filters, folder)
    return {}


def write_shards(
    plan: Plan, task: tuple[list, list[int]], folder: str
) -> dict[str, Any]:
    """Writes the shards of a `Group`; returns its counts.

    Records are dealt to several shards in turn, as the original does.
    """
    units, shards = task
    maker, total = _maker(plan), Counts()
    maker.token_counts[:] = 0
    names = [shard_name(shard, plan.num_shards) for shard in shards]
    paths = [os.path.join(folder, name) for name in names]
    for path in paths:
        open(path, "wb").close()
    examples = [0] * len(paths)
    buffers: list[list[bytes]] = [[] for _ in paths]
    held = 0
    for unit in units:
        for records, counts in maker.records(Unit(*unit)):
            for place, buffer in enumerate(buffers):
                first = (place - total.examples) % len(paths)
                own = records[first :: len(paths)]
                buffer += own
                examples[place] += len(own)
            total = total.plus(counts)
            held += sum(map(len, records))
            if held >= _HELD_BYTES or len(paths) == 1:
                _append(buffers, paths)
                held = 0
    _append(buffers, paths)
    facts = {"counts": total.in_json(), "examples": examples}
    return facts | {"token_counts": maker.token_counts.tolist()}


def _append(buffers: Sequence[list[bytes]], paths: Sequence[str]) -> None:
    """Empties buffers into their files, of which a thousand are too many to be open."""
    for path, buffer in zip(paths, buffers, strict=True):
        if buffer:
            with open(path, "ab") as f:
                f.writelines(buffer)
            buffer.clear()
