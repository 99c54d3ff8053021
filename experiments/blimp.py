# SPDX-License-Identifier: Apache-2.0
"""BLiMP after a number of words of text: the text, and the minimal pairs to measure by.

Words are drawn from a corpus in passages, by a seed, so that all of its books take
part; passages that follow these are held out. Hparams are chosen by TUNING and by the
loss on the held-out text, and results are those of the other 47 sets, and of all 67.
"""

from __future__ import annotations

import json
import random
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scales import Data, Scale, built_data, run_of, script, write_once

from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.text.corpus import read_lines

PASSAGE_WORDS = 1000
HELD_OUT = 0.02  # of the words, beside them
_SENTENCE_END = re.compile(r"""([.!?]["”’')]*)\s+(?=["“‘'A-Z])""")

# Of each of BLiMP's phenomena some.
_TUNING = """adjunct_island anaphor_gender_agreement animate_subject_passive causative
complex_NP_island determiner_noun_agreement_1 determiner_noun_agreement_irregular_2
determiner_noun_agreement_with_adj_2 distractor_agreement_relative_clause
ellipsis_n_bar_1 existential_there_object_raising existential_there_quantifiers_1
expletive_it_object_raising irregular_past_participle_verbs npi_present_1 only_npi_scope
principle_A_case_1 regular_plural_subject_verb_agreement_1 superlative_quantifiers_1
wh_vs_that_no_gap"""
TUNING = frozenset(_TUNING.split())


class Pairs(NamedTuple):
    """Accuracy in percent on minimal pairs: the mean over sets.

    Attributes:
      path: the file of pairs.
      part: which of the sets: "tuning", "others", "all".
    """

    path: Path
    part: str
    metric: str = "accuracy"

    def command(self, run: Any, folder: Path, scale: Scale, data: Data) -> list[str]:
        """The same for all parts."""
        output = f"--output={folder / 'pairs.json'}"
        model = f"--model={folder / 'model'}"
        return script(
            "run_inference.py", "pairs", model, f"--input={self.path}", output
        )

    def score(self, folder: Path) -> float:
        """The mean over the sets of this part."""
        found = json.loads((folder / "pairs.json").read_text(encoding="utf-8"))
        sets = found["sets"]
        if missing := sorted(TUNING - sets.keys()):
            raise UserError(f"--pairs {self.path} has no set {missing[0]}.")
        parts = {"tuning": TUNING, "others": sets.keys() - TUNING, "all": sets.keys()}
        return statistics.fmean(sets[name]["accuracy"] for name in parts[self.part])


class HeldOut(NamedTuple):
    """The loss on held-out text, which compares runs of one objective."""

    metric: str = "loss"

    def command(self, run: Any, folder: Path, scale: Scale, data: Data) -> list[str]:
        """Evaluates the model of a `Run`, in its folder."""
        records = str(data.directory / "heldout" / "pretrain_data*")
        own = {"do_train": False, "do_eval": True, "eval_tfrecords": records}
        hparams = run.hparams | own | {"model_dir": str(folder / "model")}
        return run_of("run_pretraining.py", data.directory, run.key, hparams)

    def score(self, folder: Path) -> float:
        """The mean over batches."""
        path = folder / "model" / "results" / "unsup_results.json"
        return json.loads(path.read_text(encoding="utf-8"))["metrics"][self.metric]


def measures(pairs: Path) -> dict[str, Pairs | HeldOut]:
    """What models are measured by."""
    parts = {part: Pairs(pairs, part) for part in ("tuning", "others", "all")}
    return {**parts, "held-out loss": HeldOut()}


def data(output: Path, recipe: Mapping[str, Any], sentences: bool) -> Data:
    """Vocabulary and TFRecords of what `write_texts` writes.

    Args:
      sentences: examples begin with one; otherwise every token is used.
    """
    folder = output / "data"
    texts = {"pretrain_tfrecords": folder / "text", "heldout": folder / "heldout_text"}
    return built_data(folder, texts, recipe, [] if sentences else ["--packing=full"])


def write_texts(
    output: Path, corpus: Path, words: int, seed: int, sentences: bool, console: Console
) -> None:
    """Chooses `words` words of the files of a corpus, and others that are held out.

    Args:
      sentences: each becomes a line.
    """
    files = sorted(path for path in corpus.rglob("*") if path.is_file())
    found = [(path.name, text) for path in files for text in passages(path)]
    random.Random(seed).shuffle(found)
    drawn = iter(found)
    for name, share in (("text", 1.0), ("heldout_text", HELD_OUT)):
        books, chosen, count = set(), [], 0
        while count < share * words:
            if (one := next(drawn, None)) is None:
                raise UserError(f"--corpus {corpus} has less than {words:,} words.")
            books.add(one[0])
            chosen.append(one[1])
            count += len(one[1].split())
        path = output / "data" / name / "text.txt"
        text = "\n\n".join(chosen)
        write_once(path, by_sentence(text) if sentences else text)
        console.log(f"{path}: {count:,} words of {len(books)} files, seed {seed}")


def by_sentence(text: str) -> str:
    """Text with a sentence a line; paragraphs follow each other, as many are short."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n".join(_SENTENCE_END.sub(r"\1\n", part) for part in paragraphs if part)


def passages(path: Path) -> Iterator[str]:
    """Consecutive lines of at least PASSAGE_WORDS words; a shorter rest is left out."""
    lines: list[str] = []
    count = 0
    for line in read_lines(str(path)):
        lines.append(line)
        count += len(line.split())
        if count >= PASSAGE_WORDS:
            yield "\n".join(lines)
            lines, count = [], 0
