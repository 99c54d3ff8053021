# SPDX-License-Identifier: Apache-2.0
"""Text -> TFRecord shards and their manifest, in parallel and interruptible.

Every process turns parts of the corpus into files of records; when all parts of a
shard are there they are joined under the shard's name. What a shard holds is fixed by
the plan (`build_plan`), so a build that was killed and is run again, with any number of
processes, ends with the same bytes, and does not repeat the shards that it has.
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator

from electra_tf import processes
from electra_tf.data import (
    beam_building,
    build_plan,
    deduplication,
    record_index,
    shard_writing,
    token_counts,
)
from electra_tf.data.build_progress import BuildProgress
from electra_tf.data.record_making import BuildSettings, Counts, sample_output
from electra_tf.data.shard_writing import Plan
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.paths import shown
from electra_tf.storage import planned_folder, remote
from electra_tf.storage.files import atomic_write, cannot_write
from electra_tf.storage.manifest import MANIFEST, sha256
from electra_tf.text import corpus
from electra_tf.text.units import Corpus
from electra_tf.text.vocabulary import Vocabulary

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

    An unfinished build of the same corpus and settings is gone on with; a finished one
    is left as it is.

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
    with planned_folder.opened(
        output_dir, build_plan.STATE_FILE, identity, lambda name: ".tfrecord-" in name
    ) as found:
        state = found.state
        if found.is_finished:
            message = f"{output_dir} is complete already: {_summary(state)}"
            print(shown(message), flush=True)
            return state
        if state is None:
            state = {
                "schema_version": build_plan.SCHEMA_VERSION,
                "tool_version": tool_version,
                "settings": identity,
                "num_shards": num_shards or _choose_num_shards(text, settings),
            }
            path = os.path.join(output_dir, build_plan.STATE_FILE)
            atomic_write(path, json.dumps(state, indent=1) + "\n")
            remote.put(path)
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        is_only = len(text.units) == 1
        plan = Plan(
            output_dir, settings, state["num_shards"], is_only, vocab.sha256, digest
        )
        run = _Run(text, plan, state, found.sizes)
        run.remove_rests()
        try:
            run.judge(num_processes, beam_args)
            if beam_args is None:
                run.make_shards(num_processes)
            else:
                beam_building.make_shards(plan, run.groups, beam_args)
        finally:
            run.remove_rests()
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


class _Run:
    """One run of a build, from the state it finds to the manifest."""

    def __init__(self, text: Corpus, plan: Plan, state: dict, there: dict[str, int]):
        self._there = there
        self._text = text
        self._plan = plan
        self._state = state
        self.groups = build_plan.deal(text.units, plan.num_shards, plan.settings.seed)

    def judge(self, num_processes: int, beam_args: str | None) -> None:
        """Finds what repeats something earlier, if the settings ask for it."""
        filters, folder = self._plan.settings.filters, self._plan.folder
        done = os.path.join(folder, deduplication.VERDICTS_FILE)
        if not filters.compare or os.path.exists(done):
            return
        units = self._text.units
        portions = build_plan.portions(units, deduplication.PORTION_BYTES)
        print(f"comparing the documents of {len(portions)} portions", flush=True)
        if beam_args is None:
            tasks = list(enumerate(portions))
            number = functools.partial(shard_writing.number_portion, self._plan)
            for _ in processes.results(num_processes, number, tasks):
                pass
        else:
            beam_building.number_portions(self._plan, portions, beam_args)
        try:
            deduplication.compare(folder, portions, filters)
        except OSError as e:
            raise cannot_write(folder, e) from None

    def make_shards(self, num_processes: int) -> None:
        """Makes the shards that are not there yet."""
        progress = BuildProgress(self._text)
        waiting = {}  # group -> how many of its parts are not done
        paths: dict[int, list[str]] = {}
        parts = []
        for index, group in enumerate(self.groups):
            done = shard_writing.read_group(self._plan, index, self._there)
            if done:
                progress.skip(group.units, Counts(**done["counts"]))
                continue
            paths[index] = []
            for i, units in enumerate(group.parts()):
                paths[index].append(shard_writing.part_path(self._plan, index, i))
                parts.append((index, paths[index][-1], units))
            waiting[index] = len(paths[index])
        totals = dict.fromkeys(waiting, (Counts(), 0))
        tasks = [part[1:] for part in parts]
        make = functools.partial(shard_writing.make_part, self._plan)
        try:
            for number, found in processes.results(num_processes, make, tasks):
                index, _, units = parts[number]
                (counts, tokens), (total, total_tokens) = found, totals[index]
                totals[index] = total.plus(counts), total_tokens + tokens
                waiting[index] -= 1
                progress.add(units, counts)
                if not waiting[index]:
                    shard_writing.finish_group(
                        self._plan,
                        index,
                        self.groups[index],
                        paths[index],
                        *totals.pop(index),
                    )
        except OSError as e:
            raise cannot_write(self._plan.folder, e) from None
        finally:
            progress.end()

    def remove_rests(self, *patterns: str) -> None:
        """Removes the unfinished files of this run or of one that was killed."""
        planned_folder.remove_rests(self._plan.folder, ".part-*", *patterns)

    def write_manifest(self, vocab: Vocabulary) -> dict:
        """Writes the manifest, which marks the build as finished."""
        folder, settings = self._plan.folder, self._plan.settings
        indices = range(len(self.groups))
        entries = [shard_writing.read_entry(self._plan, i) for i in indices]
        counts = Counts()
        for entry in entries:
            counts = counts.plus(Counts(**entry["counts"]))
        if not counts.examples:
            self._discard(entries)
            raise UserError(
                f"the {self._text.num_files} files of the corpus "
                f"({self._text.num_bytes} bytes) hold no text"
                f"{' that passes the filters' if counts.dropped else ''}.",
                EXIT_DAMAGED,
            )
        path = os.path.join(folder, token_counts.FILE)
        tokens = sum(
            shard_writing.read_token_counts(self._plan, i, len(vocab)) for i in indices
        )
        token_counts.write(path, tokens)
        remote.put(path)
        source = self._state["settings"]["corpus"]
        manifest = {
            "schema_version": build_plan.SCHEMA_VERSION,
            "tool_version": self._state["tool_version"],
            "max_seq_length": settings.max_seq_length,
            "vocab": {
                "file": os.path.basename(vocab.path),
                "size": len(vocab),
                "sha256": vocab.sha256,
            },
            "tokenizer": settings.tokenizer._asdict(),
            "seed": settings.seed,
            "corpus": source | {"names": _names(self._text)} | counts.in_json(),
            "files": [file for entry in entries for file in entry["files"]],
            "token_counts": {
                "name": token_counts.FILE,
                "sha256": sha256(path),
                "unknown": int(tokens[vocab.unk_id]),
                "all": int(tokens.sum()),
            },
            "settings": self._state["settings"],
        }
        # The place of every record, which those who read need.
        shards = [os.path.join(folder, file["name"]) for file in manifest["files"]]
        remote.put(record_index.write(sorted(shards)))
        path = os.path.join(folder, MANIFEST)
        atomic_write(path, json.dumps(manifest, indent=1) + "\n")
        remote.put(path)
        self._remove_state()
        print(shown(f"{folder}: {_summary(manifest)}"), flush=True)
        for warning in _warnings(manifest, vocab):
            print(shown(f"warning: {warning}"), flush=True)
        return manifest

    def _remove_state(self) -> None:
        for index in range(len(self.groups)):
            for path in shard_writing.state_files(self._plan, index):
                self._remove(os.path.basename(path))
        self._remove(build_plan.STATE_FILE)
        self.remove_rests(".numbers-*", ".verdicts*")

    def _remove(self, name: str) -> None:
        if remote.is_remote(self._plan.folder):
            remote.remove(self._plan.folder, [name])
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._plan.folder, name))

    def _discard(self, entries: list[dict]) -> None:
        """Takes back the empty shards of a corpus without text."""
        for entry in entries:
            for file in entry["files"]:
                self._remove(file["name"])
        self._remove_state()


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
