# SPDX-License-Identifier: Apache-2.0
"""Schemes of tags, compared with independent implementations and conlleval."""

import itertools
import random

import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import tag_schemes
from electra_tf.finetune.tag_schemes import as_bioes, scheme_named, scheme_of, tags_of
from tests.helpers.runs import refused

CLASSES = ("PER", "LOC", "X-1")


def random_spans(rng, length):
    """Spans (first, last, class), some of one class side by side."""
    spans, at = [], 0
    while at < length:
        name = rng.choice(CLASSES)
        end = at + rng.choice((0, 0, 1, 2))
        if rng.random() < 0.5 and end < length:
            spans.append((at, end, name))
            at = end
        at += 1
    return spans


def written(spans, length, scheme):
    """Tags by the definition of each scheme, word by word."""
    tags = []
    for word in range(length):
        inside = [s for s in spans if s[0] <= word <= s[1]]
        if not inside:
            tags.append("O")
            continue
        [(start, end, name)] = inside
        before = [s for s in spans if s[1] == start - 1 and s[2] == name]
        first, last = word == start, word == end
        end_of_one = "S" if first and last else "B" if first else "E" if last else "I"
        letter = {
            "IOB1": "B" if first and before else "I",
            "IOB2": "B" if first else "I",
            "BIOES": end_of_one,
            "BILOU": end_of_one.translate(str.maketrans("SE", "UL")),
            "BMES": end_of_one.replace("I", "M"),
            "BMEWO": end_of_one.translate(str.maketrans("IS", "MW")),
        }[scheme]
        tags.append(f"{letter}-{name}")
    return tags


@pytest.mark.parametrize("scheme", tag_schemes.LETTERS)
def test_random_sequences_of_each_scheme(scheme):
    rng = random.Random(scheme)
    sentences = []
    for _ in range(400):
        length = rng.randint(1, 12)
        spans = random_spans(rng, length)
        tags = written(spans, length, scheme)
        assert tag_schemes.spans_in([as_bioes(tag, scheme) for tag in tags]) == spans
        assert tags_of(spans, length, scheme) == tags
        sentences.append(tags)
    assert scheme_of(sentences) == scheme


def conlleval(tags):
    """Spans by the rules of the conlleval script, which knows B, I, E, S and O."""
    spans, start = [], None
    pairs = [t.partition("-")[::2] for t in ("O", *tags, "O")]
    for i, ((p, ptype), (t, ttype)) in enumerate(itertools.pairwise(pairs)):
        differs = ptype != ttype
        ends = p in "ES" or (p in "BI" and t in "BSO") or (p != "O" and differs)
        starts = t in "BS" or (p in "ESO" and t in "EI") or (t != "O" and differs)
        if start is not None and ends:
            spans.append((start, i - 1, ptype))
            start = None
        if starts:
            start = i
    return spans


def test_spans_are_those_of_conlleval():
    rng = random.Random(5)
    tags = ["O", *(f"{letter}-{name}" for letter in "BIES" for name in "XY")]
    for _ in range(3000):
        sentence = [rng.choice(tags) for _ in range(rng.randint(1, 8))]
        assert tag_schemes.spans_in(sentence) == conlleval(sentence), sentence


def test_iob1_of_conll_2003():
    tags = ["I-PER", "I-LOC", "O", "I-ORG", "B-ORG", "I-ORG"]
    spans = [(0, 0, "PER"), (1, 1, "LOC"), (3, 3, "ORG"), (4, 5, "ORG")]
    assert tag_schemes.spans_in(tags) == spans
    assert scheme_of([tags]) == "IOB1"
    assert scheme_of([["B-PER", "O", "B-PER", "I-PER"]]) == "IOB2"
    assert scheme_of([["I-PER", "I-PER", "O", "I-LOC"]]) == "IOB1"  # IO


def test_names_and_mixtures():
    names = {"bio": "IOB2", "IOB": "IOB1", "iobes": "BIOES", "BILOU": "BILOU"}
    names |= {"Plain": "plain", "bmew": "BMEWO", "io": "IOB1"}
    for name, scheme in names.items():
        assert scheme_named(name) == scheme
    for name in ("XYZ", "IOB2 PER_B", "bare", ""):
        with pytest.raises(UserError, match="IOB1.*plain"):
            scheme_named(name)
    for mixed in (["B-X", "E-X", "U-X"], ["B-X", "M-X", "I-X"]):
        with pytest.raises(UserError, match="BIOES.*BILOU"):
            scheme_of([mixed])
    assert as_bioes("E-X", "BILOU") is None
    assert as_bioes("E-X") == "E-X"
    # A mistyped tag does not change how the others are read.
    assert scheme_of([["B-X", "I-X", "Y"]]) == "IOB2"


@pytest.mark.parametrize(
    "tags",
    ["PER O LOC", "B_PER I_PER O", "PER-B PER-I O", "PER_B PER_I -", "b-PER i-PER o"]
    + ["B I O", "e-mail O b-day"],
)
def test_tags_in_other_forms_are_refused(tags):
    words = "no tag like B-PER, but ", tags.split()[0], "Rewrite", '"scheme": "plain"'
    refused(lambda: scheme_of([tags.split()]), *words)
