#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a small labelled task: which of two authors wrote this sentence?

    python3 examples/author_task.py OUTPUT_DIR

author_train.tsv has sentences of one novel by each author, author_dev.tsv sentences of
another novel by each: a model that has only learnt who is who in a story gains nothing.
The sentences are taken at equal distances, equally many of both authors.
"""

import sys
from pathlib import Path

TEXTS = Path(__file__).parent
NOVELS = {
    "train": {
        "Doyle": "corpus/hound_of_the_baskervilles.txt",
        "Burnett": "corpus/secret_garden.txt",
    },
    "dev": {
        "Doyle": "heldout/lost_world_opening.txt",
        "Burnett": "corpus/little_princess.txt",
    },
}
PER_AUTHOR = {"train": 400, "dev": 200}
MIN_WORDS = 12  # shorter ones, "She did not answer.", are anybody's


def sentences(novel: str, count: int) -> list[str]:
    """`count` sentences of a novel, spread over all of it."""
    lines = (TEXTS / novel).read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if len(line.split()) >= MIN_WORDS]
    return [long[i * len(long) // count] for i in range(count)]


def main(output_dir: str) -> None:
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    for split, novels in NOVELS.items():
        rows = [
            (author, sentence)
            for author, novel in novels.items()
            for sentence in sentences(novel, PER_AUTHOR[split])
        ]
        path = Path(output_dir) / f"author_{split}.tsv"
        lines = ["\t".join(row) for row in [("author", "sentence"), *rows]]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path}: {len(rows)} sentences, from {' and '.join(novels.values())}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1])
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}.")
