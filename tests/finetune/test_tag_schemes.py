# SPDX-License-Identifier: Apache-2.0
"""Schemes of tags, compared with independent implementations and conlleval."""

import itertools
import random

import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import tag_schemes
from electra_tf.finetune.tag_schemes import Notation, notation_of

CLASSES = ("PER", "LOC", "X-1")


def random_spans(rng, length, touching):
    """Spans (first, last, class); `touching`: also two of a class side by side."""
    spans, at = [], 0
    while at < length:
        name = rng.choice(CLASSES)
        end = at + rng.choice((0, 0, 1, 2))
        apart = not spans or spans[-1][1] < at - 1 or spans[-1][2] != name or touching
        if rng.random() < 0.5 and end < length and apart:
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
            "IO": "I",
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
        spans = random_spans(rng, length, touching=scheme != "IO")
        tags = written(spans, length, scheme)
        read = [Notation(scheme).read(tag) for tag in tags]
        assert tag_schemes.spans_in(read) == spans, tags
        assert Notation(scheme).written(spans, length) == tags
        sentences.append(tags)
    # IO is IOB1 in which nothing touches.
    found = notation_of(sentences)
    assert found == Notation("IOB1" if scheme == "IO" else scheme)


def in_form(tag, form, outside):
    """A tag B-PER in another form, by the definition of each."""
    letter, _, name = tag.partition("-")
    if tag == "O":
        return outside
    return {
        "B-PER": tag,
        "B_PER": f"{letter}_{name}",
        "PER-B": f"{name}-{letter}",
        "PER_B": f"{name}_{letter}",
        "b-PER": f"{letter.lower()}-{name}",
        "B": letter,
        "PER": name,
    }[form]


@pytest.mark.parametrize("outside", tag_schemes.OUTSIDE)
@pytest.mark.parametrize("form", tag_schemes.FORMS)
@pytest.mark.parametrize("scheme", [s for s in tag_schemes.LETTERS if s != "IO"])
def test_forms_of_tags_are_found_read_and_written(scheme, form, outside):
    rng = random.Random(f"{scheme} {form}")
    is_bare = form == "PER"
    sentences = []
    for _ in range(300):
        spans = random_spans(rng, 9, touching=not is_bare)
        if form == "B":
            spans = [(first, last, "span") for first, last, _ in spans]
        tags = written(spans, 9, "IO" if is_bare else scheme)
        sentences.append((spans, [in_form(tag, form, outside) for tag in tags]))
    found = notation_of([[outside] * 9, *(tags for _, tags in sentences)])
    assert found == Notation("IO" if is_bare else scheme, form, outside)
    assert Notation.named(str(found)) == found
    for spans, tags in sentences:
        assert tag_schemes.spans_in([found.read(tag) for tag in tags]) == spans
        assert found.written(spans, 9) == tags


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
    assert notation_of([tags]) == Notation("IOB1")
    assert notation_of([["B-PER", "O", "B-PER", "I-PER"]]) == Notation("IOB2")
    for bare in (["e-mail", "O", "O"], ["b-day", "O", "phone"]):
        assert notation_of([bare]) == Notation("IO", "PER")


def test_names_and_mixtures():
    names = {"bio": "IOB2", "IOB": "IOB1", "iobes": "BIOES", "BILOU": "BILOU"}
    for name, scheme in (names | {"Plain": "plain", "bmew": "BMEWO"}).items():
        assert Notation.named(name).scheme == scheme
    assert Notation.named("bare") == Notation("IO", "PER")
    assert str(Notation("IOB2")) == "IOB2"
    for name in ("XYZ", "IOB2 x", "IOB2 B-PER O O", ""):
        with pytest.raises(UserError, match="IOB1.*plain"):
            Notation.named(name)
    for mixed in (["B-X", "E-X", "U-X"], ["B-X", "M-X", "I-X"]):
        with pytest.raises(UserError, match="BIOES.*BILOU"):
            notation_of([mixed])
    assert "B-PER, I-PER, L-PER, U-PER" in Notation("BILOU").wrong()
    assert Notation("BILOU").read("E-X") is None
    assert Notation().read("E-X") == "E-X"
    for tags in (["DET", "NOUN"], ["N", "V", "V", "O"]):
        with pytest.raises(UserError, match='"scheme": "plain".*"bare"'):
            notation_of([tags])
    assert notation_of([["NOUN", "O"]], Notation.named("bare")).form == "PER"
    # A mistyped tag does not change how the others are read.
    assert notation_of([["B-X", "I-X", "Y"]]) == Notation("IOB2")
