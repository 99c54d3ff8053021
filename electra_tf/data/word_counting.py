# SPDX-License-Identifier: Apache-2.0
"""The words of a corpus, counted by a job."""

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections import Counter
from typing import Any

from electra_tf.jobs import folder as job_folder
from electra_tf.jobs import job
from electra_tf.jobs.job import Job, Runner
from electra_tf.storage import remote
from electra_tf.text import units, vocabulary_training
from electra_tf.text.units import Corpus, Reading, Unit, read_unit
from electra_tf.text.vocabulary import TokenizerConfig
from electra_tf.text.vocabulary_training import WordCounts


def count(
    text: Corpus, config: TokenizerConfig, reading: Reading, output: str, runner: Runner
) -> WordCounts:
    """Counts the words of a corpus; the runner has no influence on the result.

    The counts of its parts gather in `<output>.<letters>.counts`, from which the same
    call resumes if it is interrupted, and are summed in their order.
    """
    settings = {"corpus": text.facts(), "counted": [config, reading]}
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    path = f"{output}.{digest:.8}.counts"
    with contextlib.ExitStack() as stack:
        if remote.is_remote(output):
            path = stack.enter_context(tempfile.TemporaryDirectory())
        folder = stack.enter_context(
            job_folder.opened(path, {"sha256": digest}, flag="--output-file")
        )
        folder.begin()
        parts = units.portions(text.units)
        sizes = [sum(unit.weight for unit in part) for part in parts]
        work = functools.partial(_count, config, reading)
        tasks = [*enumerate(parts)]
        job.run(folder, Job("count", work, tasks, sizes), runner)
        total = vocabulary_training.total_of(
            _read(os.path.join(path, job_folder.OWN, _file(number)))
            for number in range(len(parts))
        )
        folder.discard("count", len(parts))
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return total


def _file(number: int) -> str:
    return f".words-{number:05d}.json"


def _count(
    config: TokenizerConfig, reading: Reading, task: tuple[int, list], folder: str
) -> dict[str, Any]:
    number, part = task
    documents = (document for u in part for document in read_unit(Unit(*u), reading))
    counts = vocabulary_training.count_documents(documents, config)
    with open(os.path.join(folder, _file(number)), "w", encoding="utf-8") as f:
        json.dump(counts, f)
    return {}


def _read(path: str) -> WordCounts:
    with open(path, encoding="utf-8") as f:
        words, replaced_in, *numbers = json.load(f)
    return WordCounts(Counter(words), Counter(replaced_in), *numbers)
