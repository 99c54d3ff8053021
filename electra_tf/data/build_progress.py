# SPDX-License-Identifier: Apache-2.0
"""The progress line of a build of data."""

import os
import shutil
import time

from electra_tf.data.record_making import Counts
from electra_tf.text.units import Corpus, Unit

_SECONDS = 10  # between lines where there is no terminal


class BuildProgress:
    """The progress line: on a terminal it moves, elsewhere it comes now and then."""

    def __init__(self, text: Corpus):
        self._total = sum(unit.weight for unit in text.units)
        self._is_tfds = text.units[0].kind == "tfds"
        self._num_files = self._files_in(text.units)
        self._done = self._new = self._examples = 0
        self._files = 0
        self._started = self._printed = time.monotonic()
        self._is_terminal = os.isatty(1)

    def skip(self, units: list[Unit], counts: Counts) -> None:
        """Counts what an earlier run did."""
        self._count(units, counts)

    def add(self, units: list[Unit], counts: Counts) -> None:
        self._new += sum(unit.weight for unit in units)
        self._count(units, counts)
        now = time.monotonic()
        interval = 0.2 if self._is_terminal else _SECONDS
        if now - self._printed >= interval:
            self._printed = now
            self._print()

    def _count(self, units: list[Unit], counts: Counts) -> None:
        self._done += sum(unit.weight for unit in units)
        self._files += self._files_in(units)
        self._examples += counts.examples

    def _files_in(self, units: list[Unit]) -> int:
        if self._is_tfds:
            return sum(unit.end - unit.start for unit in units)
        return sum(unit.start == 0 for unit in units)

    def _print(self) -> None:
        seconds = max(1e-3, time.monotonic() - self._started)
        rate = self._new / seconds
        left = (self._total - self._done) / max(1.0, rate)
        line = (
            f"{self._files:,}/{self._num_files:,} "
            f"{'documents' if self._is_tfds else 'files'}, "
            f"{self._done / 1e6:,.1f}/{self._total / 1e6:,.1f} MB, "
            f"{rate / 1e6:.1f} MB/s, {self._examples:,} examples, "
            f"{left // 60:.0f}:{left % 60:02.0f} left"
        )
        width = shutil.get_terminal_size().columns
        end = "" if self._is_terminal else "\n"
        start = "\r" if self._is_terminal else ""
        print(f"{start}{line:<{width - 1 if self._is_terminal else 0}}", end=end)

    def end(self) -> None:
        self._print()
        if self._is_terminal:
            print()
