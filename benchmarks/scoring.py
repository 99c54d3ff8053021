# SPDX-License-Identifier: Apache-2.0
"""How often do models score a real sentence higher than a spoilt one, and how fast?

    python benchmarks/scoring.py --models D/models/electric,D/models/electra \\
        --texts 'novels/heldout/*.txt'

Each sentence is compared with two spoilt copies: one word replaced by a random word of
similar frequency in the same texts (at most 1.5 times as frequent or as rare), and two
adjacent words exchanged. Replaced word and replacement are single tokens of the first
model's vocabulary, so that all three texts have the same length. Every scoring method
that a model offers is a row.

Speed is measured on texts of --fast-tokens, --rounds times, the methods in turn.

    python benchmarks/scoring.py --models D/models/electric --runner local,beam \\
        --texts 'novels/heldout/*.txt'

With --runner, how many texts a second `run_inference.py score --output-dir` writes with
one process and with two: of --corpus-texts and of a tenth of them, so that what the
start takes can be told apart. Each process computes with one core.
"""

import collections
import glob
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from absl import flags
from measurement import ROOT, machine, print_table

import electra_tf
from electra_tf import cli
from electra_tf.errors import UserError
from electra_tf.text import archives

FLAGS = flags.FLAGS
SIMILAR = 1.5  # ratio of frequencies

flags.DEFINE_list("models", None, "Directories of runs.", required=True)
flags.DEFINE_string("texts", None, "A pattern of held-out text files.", required=True)
flags.DEFINE_integer("sentences", 1000, "Sentences compared.", lower_bound=1)
flags.DEFINE_integer("fast_sentences", 64, "Texts that are timed.", lower_bound=1)
flags.DEFINE_integer("fast_tokens", 32, "Tokens of these.", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "Times that the speed is measured.", lower_bound=1)
flags.DEFINE_list("runner", [], "Measure the scoring of a corpus: local, beam or both.")
flags.DEFINE_integer("corpus_texts", 20_000, "Texts of that corpus.", lower_bound=20)
flags.DEFINE_integer("seed", 1, "Decides which sentences, words and places.")

# A word that is no part of another, as in "don't" or "well-wishing".
WORD = re.compile(r"(?<![\w'\u2019-])[A-Za-z]\w*(?![\w'\u2019-])")


class Spoilt(NamedTuple):
    """A sentence and its two worse copies."""

    real: str
    replaced: str
    swapped: str


def main(_):
    files = sorted(glob.glob(FLAGS.texts))
    if not files:
        raise UserError(f"--texts {FLAGS.texts}: no such file.")
    models = {os.path.basename(m.rstrip("/")): electra_tf.load(m) for m in FLAGS.models}
    first = next(iter(models.values()))
    texts = [" ".join(paragraph) for file in files for paragraph in paragraphs(file)]
    if FLAGS.runner:
        fast = of_length(texts, first.tokenizer, FLAGS.fast_sentences)
        print(f"{machine()}; texts of {FLAGS.fast_tokens} tokens", flush=True)
        print_table(corpus_speeds(fast), CORPUS_COLUMNS)
        return
    longest = min(model.config.max_seq_length for model in models.values()) - 2
    spoiler = Spoiler(texts, first.vocab.ids, random.Random(FLAGS.seed))
    triples = spoiler.spoilt(FLAGS.sentences, first.tokenizer, longest)
    fast = of_length(texts, first.tokenizer, FLAGS.fast_sentences)
    words = statistics.mean(len(triple.real.split()) for triple in triples)
    print(
        f"{machine()}; {len(triples)} sentences of {words:.1f} words from {len(files)} "
        "files",
        flush=True,
    )
    from electra_tf.inference import pseudo_likelihood

    scorers = {
        (name, method): model.scorer(method)
        for name, model in models.items()
        for method in pseudo_likelihood.methods_of(model.pretrainer)
    }
    compared = {key: preferred(scorer, triples) for key, scorer in scorers.items()}
    speeds = sentences_per_second(scorers, fast)
    print_scores(compared, speeds, len(triples))


# Sentences


def paragraphs(file: str):
    """Lists of the lines between blank ones."""
    lines: list[str] = []
    for line in archives.read_lines(file, "replace"):
        if line.strip():
            lines.append(line.strip())
        elif lines:
            yield lines
            lines = []
    if lines:
        yield lines


class Spoiler:
    """Makes worse copies of sentences.

    Args:
      texts: what sentences are taken from and words are counted in.
      vocabulary: words that may be replaced and may replace.
      chance: decides all that is random.
    """

    def __init__(self, texts: list[str], vocabulary, chance: random.Random):
        self.sentences = sorted(
            {
                sentence
                for text in texts
                for sentence in re.split(r"(?<=[.!?])[\"'\u201d]? +", text)
                if 8 <= len(sentence.split()) <= 40
            }
        )
        self.chance = chance
        counts = collections.Counter(
            match[0].lower() for text in texts for match in WORD.finditer(text)
        )
        counts = {word: n for word, n in counts.items() if word in vocabulary}
        self.counts = counts
        self.by_count = collections.defaultdict(list)
        for word in sorted(counts):
            self.by_count[counts[word]].append(word)

    def spoilt(self, number: int, tokenizer, longest: int) -> list[Spoilt]:
        """`number` sentences of at most `longest` tokens, in random order."""
        self.chance.shuffle(self.sentences)
        found: list[Spoilt] = []
        for sentence in self.sentences:
            if len(found) == number:
                break
            copies = self.replaced(sentence), self.swapped(sentence)
            if all(copies) and len(tokenizer.encode(sentence)) <= longest:
                found.append(Spoilt(sentence, *copies))
        if not found:
            raise UserError(f"--texts {FLAGS.texts}: no sentence can be spoilt.")
        return found

    def replaced(self, sentence: str) -> str | None:
        """The sentence with another word of similar frequency in one place."""
        places = [m for m in WORD.finditer(sentence) if m[0].lower() in self.counts]
        self.chance.shuffle(places)
        for place in places:
            count = self.counts[place[0].lower()]
            similar = [
                word
                for n, words in self.by_count.items()
                if count / SIMILAR <= n <= count * SIMILAR
                for word in words
                if word != place[0].lower()
            ]
            if similar:
                new = self.chance.choice(similar)
                if place[0][0].isupper():
                    new = new.capitalize()
                return sentence[: place.start()] + new + sentence[place.end() :]
        return None

    def swapped(self, sentence: str) -> str | None:
        """The sentence with two different neighbours exchanged."""
        words = list(WORD.finditer(sentence))
        pairs = [
            (one, two)
            for one, two in zip(words, words[1:], strict=False)
            if sentence[one.end() : two.start()] == " "
            and one[0].lower() != two[0].lower()
        ]
        if not pairs:
            return None
        one, two = self.chance.choice(pairs)
        return f"{sentence[: one.start()]}{two[0]} {one[0]}{sentence[two.end() :]}"


def of_length(texts: list[str], tokenizer, number: int) -> list[str]:
    """Parts of the texts that have --fast-tokens; repeated if there are too few."""
    found: list[str] = []
    for text in texts:
        offsets = tokenizer.encode_with_offsets(text)[1]
        if len(offsets) >= FLAGS.fast_tokens:
            part = text[: offsets[FLAGS.fast_tokens - 1][1]]
            if len(tokenizer.encode(part)) == FLAGS.fast_tokens:
                found.append(part)
        if len(found) == number:
            return found
    if not found:
        raise UserError(f"--texts {FLAGS.texts}: all paragraphs are too short.")
    return (found * number)[:number]


# Measuring


def preferred(scorer, triples: list[Spoilt]) -> tuple[float, float]:
    """Shares of sentences that score higher than each copy; ties count half."""
    texts = [text for triple in triples for text in triple]
    scores = [scored.score for scored in scorer.score_texts(texts)]
    shares = []
    for copy in (1, 2):
        better = [
            (real > worse) + (real == worse) / 2
            for real, worse in zip(scores[::3], scores[copy::3], strict=True)
        ]
        shares.append(statistics.mean(better))
    return shares[0], shares[1]


def sentences_per_second(scorers: dict, texts: list[str]) -> dict:
    """The median over the rounds, after one that is not counted."""
    speeds = collections.defaultdict(list)
    for number in range(FLAGS.rounds + 1):
        for key, scorer in scorers.items():
            started = time.perf_counter()
            scored = list(scorer.score_texts(texts))
            seconds = time.perf_counter() - started
            if {one.num_tokens for one in scored} != {FLAGS.fast_tokens}:
                raise UserError("--models: their tokenizers differ.")
            if number:
                speeds[key].append(len(texts) / seconds)
    return {key: statistics.median(values) for key, values in speeds.items()}


CORPUS_COLUMNS = {
    "model": lambda model, *_: model,
    "runner": lambda _, runner, *__: runner,
    "processes": lambda _, __, processes, *___: str(processes),
    "texts/s": lambda *row: f"{row[3]:,.0f}",
    "start, s": lambda *row: f"{row[4]:.1f}",
}


def corpus_speeds(texts: list[str]):
    """Rows of model, runner, processes, texts a second, seconds until the first."""
    for model in FLAGS.models:
        for runner in FLAGS.runner:
            for processes in (1, 2):
                counts = FLAGS.corpus_texts // 10, FLAGS.corpus_texts
                rounds = [
                    [seconds_for(model, runner, processes, texts, n) for n in counts]
                    for _ in range(FLAGS.rounds)
                ]
                short, long = map(statistics.median, zip(*rounds, strict=True))
                each = max(1e-9, (long - short) / (counts[1] - counts[0]))
                name = os.path.basename(model.rstrip("/"))
                yield name, runner, processes, 1 / each, short - counts[0] * each


def seconds_for(
    model: str, runner: str, processes: int, texts: list[str], count: int
) -> float:
    """How long the command takes for a corpus of so many texts, in 40 shards."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "corpus.txt")
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(f"{texts[i % len(texts)]}\n" for i in range(count))
        shard_mb = os.path.getsize(path) / 40e6
        command = [sys.executable, str(ROOT / "run_inference.py"), "score"]
        command += [f"--model={model}", f"--input={path}", f"--shard-mb={shard_mb}"]
        command += [f"--output-dir={folder}/out", f"--runner={runner}"]
        if runner == "local":
            command.append(f"--workers={processes}")
        else:
            mode = "multi_processing" if processes > 1 else "in_memory"
            command.append(
                f"--beam-args=--direct_num_workers={processes} "
                f"--direct_running_mode={mode}"
            )
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise UserError(f"run_inference.py failed:\n{done.stderr[-2000:]}")
        return seconds


def print_scores(compared: dict, speeds: dict, number: int) -> None:
    def percent(share):
        return f"{share:.1%} \u00b1 {math.sqrt(share * (1 - share) / number):.1%}"

    columns = {
        "model": lambda key, _: key[0],
        "method": lambda key, _: key[1],
        "rather than one word replaced": lambda _, shares: percent(shares[0]),
        "rather than two swapped": lambda _, shares: percent(shares[1]),
        f"texts of {FLAGS.fast_tokens} tokens per second": (
            lambda key, _: f"{speeds[key]:,.0f}"
        ),
    }
    print_table(compared.items(), columns)
    one_pass = [key for key in speeds if key[1] == "electric"]
    for ours in one_pass:
        for slow in speeds:
            if slow[1] == "mask_each":
                print(
                    f"\n{ours[0]} in one pass: {speeds[ours] / speeds[slow]:.1f} times "
                    f"as fast as {slow[0]} with each token masked in turn."
                )


if __name__ == "__main__":
    cli.run(main)
