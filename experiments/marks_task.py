# SPDX-License-Identifier: Apache-2.0
"""A labelled task out of plain text: which mark follows this word, if any?

Words are lower-cased and without their marks; tags are comma, stop (. ; : ! ?) or none.
It needs no annotators, and it takes some syntax. Tuning and test texts are novels
that training has nothing of, by its authors.
"""

import re
from pathlib import Path

import checkout  # noqa: F401

from electra_tf.storage.files import atomic_write

NOVELS = {
    "train": ("corpus/hound_of_the_baskervilles.txt", "corpus/secret_garden.txt"),
    "tuning": ("corpus/little_princess.txt",),
    "test": ("heldout/lost_world_opening.txt",),
}
PASSAGES = {"train": 800, "tuning": 800, "test": 800}
_WORDS = 12  # of a passage, and then to the end of the sentence, if that is near
_MOST = 18
_TOKEN = re.compile(r"[A-Za-z]+(?:['’][A-Za-z]+)*|[,.;:!?]")


def write(folder: Path, texts: Path) -> None:
    """Writes marks_train.txt, marks_tuning.txt, marks_test.txt, as CoNLL has them."""
    for split, novels in NOVELS.items():
        count = PASSAGES[split] // len(novels)
        chosen = [p for n in novels for p in spread(passages(texts / n), count)]
        rows = ["\n".join(" ".join(pair) for pair in passage) for passage in chosen]
        write_once(folder / f"marks_{split}.txt", "\n\n".join(rows))


def write_once(path: Path, text: str) -> None:
    """Writes a file unless it is there; features that are made of it stay valid."""
    if not path.exists():
        atomic_write(path, text + "\n")


def passages(novel: Path) -> list[list[tuple[str, str]]]:
    """(word, tag) of passages of some sentences each."""
    found, passage = [], []
    for line in novel.read_text(encoding="utf-8").splitlines():
        passage += tagged(line)
        if len(passage) >= _WORDS:
            found.append(passage[:_MOST])
            passage = []
    return found


def tagged(line: str) -> list[tuple[str, str]]:
    """The words of a line, each with the mark that follows it."""
    pairs: list[tuple[str, str]] = []
    for token in _TOKEN.findall(line):
        if token[0].isalpha():
            pairs.append((token.lower(), "O"))
        elif pairs and pairs[-1][1] == "O":
            tag = "B-comma" if token == "," else "B-stop"
            pairs[-1] = pairs[-1][0], tag
    return pairs


def spread(items: list, count: int) -> list:
    """`count` of them at equal distances; all if there are fewer."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]
