# SPDX-License-Identifier: Apache-2.0
"""Text -> TFRecord shards and their manifest, in parallel and interruptible.

The content of each shard is fixed before the build starts. Each unit of the corpus
(`text.units`) has its own stream of random numbers, and units are assigned to shards by
size alone. So a build that is resumed, with any number of processes, produces the same
bytes and skips the finished shards.
"""

import functools
import itertools
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import electra_tf
from electra_tf.data import record_index
from electra_tf.data.record_making import PACKINGS, BuildSettings, Counts, RecordMaker
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.jobs import job
from electra_tf.jobs.job import Job, JobFolder, Runner
from electra_tf.paths import shown, url_of
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import sha256
from electra_tf.text import corpus
from electra_tf.text.units import Corpus, Unit
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

SCHEMA_VERSION = 2
# Shards have about 64 MB of text; those of small corpora down to 4 MB, so that up to 16
# processes share the work.
_SHARD_BYTES, _SMALL_SHARD_BYTES, _SMALL_SHARDS = 64e6, 4e6, 16
_COMPRESSED_RATIO = 3.5  # bytes of text per byte of a compressed file, roughly

_NAME = "build"
_MAX_NAMES = 1000  # of files, in the manifest
_MOST_USED = 0.9  # of the tokens; below it another packing is named
_MUCH_UNKNOWN = 0.05  # of the tokens of a data set, for a warning

_Group = tuple[list[Unit], list[int]]  # units, numbers of their shards


class Plan(NamedTuple):
    """The settings of a build for all its processes.

    Attributes:
        folder: of the shards.
        num_shards: number of shards.
        is_only_unit: whether the corpus has a single unit.
        vocab_sha256: hash of the vocabulary, which every machine needs.
    """

    folder: str
    settings: BuildSettings
    num_shards: int
    is_only_unit: bool
    vocab_sha256: str


def build(
    text: Corpus,
    output_dir: str,
    settings: BuildSettings,
    num_processes: int = 1,
    num_shards: int | None = None,
    beam_args: str | None = None,
) -> dict:
    """Builds the shards of a corpus and their manifest; returns the manifest.

    Resumes an unfinished build of the same corpus and settings; leaves a finished one
    unchanged.

    Args:
      num_processes: does not affect the result.
      num_shards: by default one for every 64 MB of text, or up to 16 smaller ones.
      beam_args: options for Apache Beam, which then does the work instead of local
        processes; does not affect the result.

    Raises `UserError` for invalid settings, failed reads and writes, and an output
    directory with other contents.
    """
    if beam_args is not None and url_of(output_dir):
        raise UserError(
            "--runner beam does not write to a bucket: its workers share a file system."
            "\nMount the bucket, or build elsewhere and copy the result."
        )
    vocab = Vocabulary.load(settings.vocab_file)
    identity = _identity(text, settings, vocab, num_shards)
    with job.opened(output_dir, identity) as folder:
        if folder.is_finished:
            message = f"{output_dir} is complete already: {_summary(folder.state)}"
            print(shown(message), flush=True)
            return folder.state
        if not (num_shards or folder.state):
            size = _size(u for u in text.units if not u.is_compressed)
            size += _size(u for u in text.units if u.is_compressed) * _COMPRESSED_RATIO
            count = min(_SMALL_SHARDS, len(text.units), int(size / _SMALL_SHARD_BYTES))
            num_shards = max(1, round(size / _SHARD_BYTES), count)
        version = electra_tf.__version__
        folder.begin({"tool_version": version, "num_shards": num_shards})
        plan = Plan(
            output_dir,
            settings,
            folder.state["num_shards"],
            len(text.units) == 1,
            vocab.sha256,
        )
        groups = deal(text.units, plan.num_shards, settings.seed)
        write = functools.partial(write_shards, plan)
        sizes = [_size(group) for group, _ in groups]
        work = Job(_NAME, write, groups, sizes)
        job.run(folder, work, Runner(num_processes, beam_args))
        return _write_manifest(folder, plan, text, len(groups), vocab)


def _size(units: Iterable[Unit]) -> int:
    return sum(unit.weight for unit in units)


def _identity(
    text: Corpus, settings: BuildSettings, vocab: Vocabulary, num_shards: int | None
) -> dict:
    """Everything that affects the result, in JSON."""
    is_usual = settings.packing == PACKINGS[0]
    # Data sets that are older than the option do not name it.
    packing = {} if is_usual else {"packing": settings.packing}
    return packing | {
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
        "corpus": text.facts(),
    }


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
        folder.discard_job([file["name"] for file in files])
        raise UserError(
            f"the {text.num_files} files of the corpus ({text.num_bytes} bytes) hold "
            "no text.",
            EXIT_DAMAGED,
        )
    path = os.path.join(plan.folder, record_index.TOKEN_COUNTS)
    atomic_write(path, "".join(f"{count}\n" for count in tokens.tolist()))
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
        | counts._asdict(),
        "files": files,
        "token_counts": {
            "name": record_index.TOKEN_COUNTS,
            "sha256": sha256(path),
            "unknown": int(tokens[vocab.unk_id]),
            "all": int(tokens.sum()),
        },
        "settings": stored["settings"],
    }
    shards = [os.path.join(plan.folder, file["name"]) for file in files]
    record_index.write(sorted(shards))
    folder.finish(manifest)
    print(shown(f"{plan.folder}: {_summary(manifest)}"), flush=True)
    for warning in _warnings(manifest, vocab):
        print(shown(f"warning: {warning}"), flush=True)
    return manifest


def _summary(manifest: dict) -> str:
    counts = manifest["corpus"]
    kept = counts["tokens_kept"] / max(1, counts["tokens"])
    shards = len(manifest["files"])
    text = f"{counts['examples']:,} examples in {shards} shard{'s'[: shards > 1]} from "
    text += f"{counts['text_bytes'] / 1e6:,.1f} MB of text; {100 * kept:.1f} % of its "
    text += "tokens used" + ("; --packing full uses all" if kept < _MOST_USED else "")
    if counts["replaced_bytes"]:
        text += f"; left out: {corpus.describe_replaced(counts['replaced_in'])}"
    return text


def _warnings(manifest: dict, vocab: Vocabulary) -> Iterator[str]:
    """Warnings about probable mistakes."""
    counts, tokens = manifest["corpus"], manifest["token_counts"]
    if 2 * counts["tokens_kept"] < counts["tokens"]:
        yield (
            f"{counts['tokens_kept']:,} of {counts['tokens']:,} tokens are used: lines "
            "are cut at --max-seq-length.\nPut each sentence or paragraph on its own "
            "line, ended by LF or CRLF; or use --packing full."
        )
    if tokens["unknown"] > _MUCH_UNKNOWN * tokens["all"]:
        yield (
            f"{tokens['unknown']:,} of {tokens['all']:,} tokens are [UNK]: is "
            f"{vocab.path} of another language?\nWords of more than 200 characters are "
            "also [UNK]: scripts without spaces need some, or line ends."
        )
    if note := vocab.unused(TokenizerConfig(**manifest["tokenizer"])):
        yield f"{note}.\nBuild again with --no-lower-case or --no-strip-accents."


# The plan, and the tasks of workers.


def deal(units: Sequence[Unit], num_shards: int, seed: int) -> list[_Group]:
    """Assigns units to shards of about equal size, in a random order by the seed.

    Returns groups of units and the numbers of their shards. A unit has several shards,
    which take its examples in turn, if there are more shards than units. The random
    order puts parts of the whole corpus into every shard.
    """
    units = list(units)
    random.Random(f"{seed}/order").shuffle(units)
    total = _size(units)
    groups: dict[int, list[Unit]] = {}
    before = 0
    for unit in units:
        middle = before + unit.weight / 2
        shard = min(int(middle * num_shards / total), num_shards - 1) if total else 0
        groups.setdefault(shard, []).append(unit)
        before += unit.weight
    starts = sorted(groups)
    # The first group also has the shards before its start.
    bounds = itertools.pairwise([0, *starts[1:], num_shards])
    return [
        (groups[start], list(range(*pair)))
        for start, pair in zip(starts, bounds, strict=True)
    ]


@functools.lru_cache(1)
def _maker(plan: Plan) -> RecordMaker:
    maker = RecordMaker(plan.settings, plan.is_only_unit)
    advice = "Every machine needs the same file there."
    maker.vocab.check_same(plan.vocab_sha256, "the build was begun", advice)
    return maker


def write_shards(
    plan: Plan, task: tuple[list, list[int]], folder: str
) -> dict[str, Any]:
    """Writes the shards of a group; returns its counts.

    Several shards take the records in turn, as in the original.
    """
    units, shards = task
    maker, total = _maker(plan), Counts()
    maker.token_counts[:] = 0
    # The original's names, with numbers of five digits.
    names = [f"{s:05d}-of-{plan.num_shards:05d}" for s in shards]
    paths = [os.path.join(folder, f"pretrain_data.tfrecord-{n}") for n in names]
    for path in paths:
        open(path, "wb").close()
    examples = [0] * len(paths)
    for records, counts in maker.records(Unit(*unit) for unit in units):
        for place, path in enumerate(paths):
            first = (place - total.examples) % len(paths)
            part = records[first :: len(paths)]
            examples[place] += len(part)
            if part:  # A thousand shards are too many to keep open.
                with open(path, "ab") as f:
                    f.writelines(part)
        total = total.plus(counts)
    facts = {"counts": total._asdict(), "examples": examples}
    return facts | {"token_counts": maker.token_counts.tolist()}
