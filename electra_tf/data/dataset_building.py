# SPDX-License-Identifier: Apache-2.0
"""Text -> TFRecord shards and their manifest, in parallel and interruptible.

What a shard holds is fixed by the plan (`build_plan`), so a build that was killed and
is run again, with any number of processes, ends with the same bytes, and does not
repeat the shards that it has.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterator

from electra_tf.data import (
    build_plan,
    deduplication,
    record_index,
    shard_writing,
    token_counts,
)
from electra_tf.data.record_making import BuildSettings, Counts, sample_output
from electra_tf.data.shard_writing import Plan
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.jobs import folder as job_folder
from electra_tf.jobs import job
from electra_tf.jobs.folder import OWN, JobFolder
from electra_tf.jobs.job import Job, Runner
from electra_tf.paths import shown
from electra_tf.storage import remote
from electra_tf.storage.manifest import sha256
from electra_tf.text import corpus
from electra_tf.text.units import Corpus
from electra_tf.text.vocabulary import Vocabulary

_NAME = "build"
_MIN_SEQ_LENGTH = 8
_MAX_SHARDS = 99_999
# Shares of the tokens of a data set, and of a vocabulary, that bring a warning.
_MUCH_UNKNOWN, _MUCH_CASED = 0.05, 0.01


def build(
    text: Corpus,
    output_dir: str,
    settings: BuildSettings,
    num_processes: int = 1,
    num_shards: int | None = None,
    tool_version: str = "",
    beam_args: str | None = None,
) -> dict:
    """Builds the shards of a corpus and their manifest; returns the manifest.

    An unfinished build of the same corpus and settings is resumed; a finished one is
    left as it is.

    Args:
      num_processes: has no influence on the result.
      num_shards: None: one for every 64 MB of records.
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
    with job_folder.opened(
        output_dir, identity, lambda name: ".tfrecord-" in name
    ) as folder:
        if folder.is_finished:
            message = f"{output_dir} is complete already: {_summary(folder.state)}"
            print(shown(message), flush=True)
            return folder.state
        state = folder.state or {
            "tool_version": tool_version,
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
        )
        runner = Runner(num_processes, beam_args)
        if settings.filters.compare:
            _compare(folder, plan, text, runner)
        groups = build_plan.deal(text.units, plan.num_shards, settings.seed)
        write = functools.partial(shard_writing.write_shards, plan)
        sizes = [sum(unit.weight for unit in group.units) for group in groups]
        job.run(folder, Job(_NAME, write, groups, sizes, "examples"), runner)
        return _write_manifest(folder, plan, text, [g.shards[0] for g in groups], vocab)


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
    settings.filters.check()
    if num_shards is not None and not 1 <= num_shards <= _MAX_SHARDS:
        raise UserError(f"--num-out-files {num_shards}: give 1 to {_MAX_SHARDS}.")


def _identity(
    text: Corpus, settings: BuildSettings, vocab: Vocabulary, num_shards: int | None
) -> dict:
    """What makes two builds the same, in JSON."""
    optional = text.identity_of_key(settings.reading.text_key)
    if filters := settings.filters.identity():
        optional["filters"] = filters
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
        **optional,
        "corpus": text.facts(),
    }


def _choose_num_shards(text: Corpus, settings: BuildSettings) -> int:
    """As many shards as give about 64 MB each."""
    estimate = sample_output(text, settings)
    return min(_MAX_SHARDS, max(1, round(estimate / build_plan.SHARD_BYTES)))


def _compare(folder: JobFolder, plan: Plan, text: Corpus, runner: Runner) -> None:
    """Finds which documents and lines repeat earlier ones."""
    portions = build_plan.portions(text.units, deduplication.PORTION_BYTES)
    sizes = [sum(unit.weight for unit in portion) for portion in portions]
    number = functools.partial(shard_writing.number, plan)
    job.run(folder, Job("read", number, [*enumerate(portions)], sizes), runner)
    firsts = [portion[0].index for portion in portions]
    compare = functools.partial(shard_writing.compare, plan)
    job.run(folder, Job("compare", compare, [firsts], [sum(sizes)]), Runner())


def _write_manifest(
    folder: JobFolder, plan: Plan, text: Corpus, firsts: list[int], vocab: Vocabulary
) -> dict:
    """Writes the manifest, which marks the build as finished.

    Args:
      firsts: the first shard of each group.
    """
    counts, tokens, files = Counts(), 0, []
    for first, record in zip(firsts, folder.records(_NAME, len(firsts)), strict=True):
        counts = counts.plus(Counts(**record["counts"]))
        name = os.path.join(OWN, shard_writing.token_counts_file(first))
        tokens += token_counts.read(os.path.join(plan.folder, name), len(vocab))
        written = [file for file in record["files"] if file["name"] != name]
        for file, examples in zip(written, record["examples"], strict=True):
            files.append(
                {
                    "name": file["name"],
                    "examples": examples,
                    "bytes": file["bytes"],
                    "sha256": file["sha256"],
                }
            )
    if not counts.examples:
        folder.discard(_NAME, len(firsts))
        raise UserError(
            f"the {text.num_files} files of the corpus ({text.num_bytes} bytes) hold "
            f"no text{' that passes the filters' if counts.dropped else ''}.",
            EXIT_DAMAGED,
        )
    path = os.path.join(plan.folder, token_counts.FILE)
    token_counts.write(path, tokens)
    remote.put(path)
    settings, stored = plan.settings, folder.state
    manifest = {
        "schema_version": build_plan.SCHEMA_VERSION,
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
        | {"names": _names(text)}
        | counts.in_json(),
        "files": files,
        "token_counts": {
            "name": token_counts.FILE,
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


def _names(text: Corpus, limit: int = 1000) -> list[str]:
    """The files of a corpus, the first thousand of them."""
    return list(dict.fromkeys(unit.name for unit in text.units))[:limit]


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
