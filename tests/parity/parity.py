# SPDX-License-Identifier: Apache-2.0
"""Replays recordings of the original program and prints how far we are from them.

    python tests/parity/parity.py tests/golden
    python tests/parity/parity.py --all tests/golden/pretrain/electric

Every directory below those given that holds a recording is replayed: pre-training
runs, fine-tuning runs with their readers and scorers, tokenizer outputs, built
examples, configurations and helper functions.  A line is
the quantity, the largest deviation and the tolerance there; without --all only the
worst line of each group is printed.  Exit code 1 when one is beyond its tolerance.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import sys
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from electra_tf import startup  # noqa: E402

# A file that tells what kind of recording a directory holds -> modules that replay it.
REPLAYERS = {
    "forward.npz": ("pretraining",),
    "tokenization.json": ("tokenization",),
    "examples.json": ("examples",),
    "configs.json": ("config",),
    "helpers.npz": ("helper_functions",),
    "golden.npz": ("finetune_model",),
    "featurize.json": ("finetune_data",),
    "glue_readers.json": ("finetune_data",),
    "qa_nbest.json": ("finetune_data",),
}


def recordings(roots: list[str]) -> Iterator[tuple[str, str]]:
    """(directory, module) of every recording below `roots`."""
    for root in roots:
        if not os.path.isdir(root):
            sys.exit(f"{root} is not a directory")
        for directory, folders, files in os.walk(root):
            folders.sort()
            for marker, modules in REPLAYERS.items():
                if marker in files:
                    for module in modules:
                        yield directory, module


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="+", metavar="DIR")
    parser.add_argument("--all", action="store_true", help="print every quantity")
    args = parser.parse_args(argv)
    startup.import_tensorflow()
    count = failed = 0
    for directory, module in recordings(args.directories):
        print(f"\n{directory} ({module})")
        groups: dict[str, list] = {}
        for row in importlib.import_module(f"tests.parity.{module}").replay(directory):
            count += 1
            failed += not within(row)
            group = row.quantity.partition("/")[0]
            groups.setdefault(group, []).append(row)
        for group, rows in groups.items():
            shown = rows
            if not args.all:
                shown = [r for r in rows if not within(r)] or [max(rows, key=used)]
            for row in shown:
                outcome = "ok" if within(row) else "BEYOND"
                print(
                    f"  {row.quantity:<58} {row.deviation:10.3g}"
                    f" / {row.tolerance:<9.3g} {outcome}"
                )
            if len(rows) > len(shown):
                print(f"    worst of {len(rows)} in {group}")
    if not count:
        print(f"no recording found below {', '.join(args.directories)}")
        return 1
    print(f"\n{count} quantities compared, {failed} beyond their tolerance")
    return 1 if failed else 0


def within(row) -> bool:
    return row.deviation <= row.tolerance


def used(row) -> float:
    """The share of the tolerance that the deviation uses up."""
    return row.deviation / row.tolerance if row.tolerance else row.deviation


if __name__ == "__main__":
    sys.exit(main())
