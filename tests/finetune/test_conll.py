# SPDX-License-Identifier: Apache-2.0
"""Files of words and tags as people have them: columns, comments, schemes of tags."""

import itertools
import random

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import conll
from electra_tf.finetune.inputs import open_source
from tests.finetune.test_tagging import predicted
from tests.helpers.own_task import own_tasks, write_files
from tests.helpers.runs import refused

WORDS = ["anna", "lee", "sings", "in", "rome"]
TAGS = ["B-PER", "I-PER", "O", "O", "B-LOC"]


def lines(*columns, between="\t", begin="", end=""):
    rows = zip(*columns, strict=True)
    text = "".join(between.join(map(str, row)) + end + "\n" for row in rows)
    return f"{begin}{text}\n{begin}{text}"


COUNT, OUTER, NONE = range(1, 6), TAGS, ["O"] * 5
POS, CHUNKS = ["N", "N", "V", "P", "N"], ["B-NP", "I-NP", "B-VP", "B-PP", "B-NP"]
UD = (COUNT, WORDS, WORDS, POS, ["_"] * 5, ["_"] * 5, ["0"] * 5, *[["_"] * 5] * 3)
BOTH = {"words": 2, "tags": 3}
MARKS = ["e\u0301\u0323", "\u0301", "\u0e19\u0e4d\u0e49\u0e32", *WORDS[3:]]
HASH = [["#", *WORDS[1:]], TAGS]


@pytest.mark.parametrize(
    ("text", "keys", "words"),
    [
        (lines(WORDS, TAGS), {}, WORDS),
        (lines(WORDS, TAGS, between=" "), {}, WORDS),
        (lines(WORDS, TAGS, between=" ", end="\t"), {}, WORDS),
        (lines(WORDS, TAGS, end="\t\r"), {}, WORDS),
        (lines(WORDS, POS, CHUNKS, TAGS, between=" "), {}, WORDS),  # CoNLL-2003
        (lines(WORDS, ["", *POS[1:]], TAGS), {}, WORDS),
        (lines(COUNT, WORDS, TAGS), BOTH, WORDS),
        (lines(COUNT, WORDS, POS, TAGS), {"words": 2, "tags": 4}, WORDS),
        (lines(COUNT, WORDS, OUTER, NONE), BOTH, WORDS),  # GermEval
        (lines(COUNT, WORDS, OUTER, NONE, begin="#\thttp://x [2009]\n"), BOTH, WORDS),
        (lines(WORDS, TAGS, begin="# sent_id\t0\n"), {}, WORDS),
        (lines(WORDS, TAGS, begin="# text = Anna Lee sings\n"), {}, WORDS),
        (lines(WORDS, TAGS, between=" ", begin="# text = x\n# newdoc\n"), {}, WORDS),
        (lines(WORDS, TAGS, between=" ", begin="# id 9e7\tdomain=en\n"), {}, WORDS),
        (lines(WORDS, TAGS, begin="#begin document (x);\n"), {}, WORDS),
        (lines(WORDS, POS, TAGS, TAGS, between=" ", begin="# id = 5\n"),
         {"tags": 4}, WORDS),
        (lines(*HASH, between=" "), {}, HASH[0]),
        (lines(*HASH), {}, HASH[0]),
        (lines(["#win", *WORDS[1:]], TAGS), {}, ["#win", *WORDS[1:]]),
        (lines(["\u00a0", *WORDS[1:]], TAGS), {}, ["\u00a0", *WORDS[1:]]),
        (lines(["10 000", *WORDS[1:]], TAGS), {}, ["10 000", *WORDS[1:]]),
        (lines(MARKS, TAGS), {}, MARKS),
        (lines(WORDS, TAGS).replace("\n\n", "\n \t\r\n"), {}, WORDS),
        ("ner\tw\n" + lines(TAGS, WORDS), {"words": "w", "tags": "ner"}, WORDS),
        (lines(TAGS, WORDS), {"words": 2, "tags": 1}, WORDS),
    ],
)  # fmt: skip
def test_columns_of_words_and_tags(tmp_path, text, keys, words):
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging", keys=keys)
    found = task.read("train")
    assert [example.words for example in found] == [words] * 2
    assert [list(example.written) for example in found] == [TAGS] * 2
    assert task.scheme == "IOB2"


def test_columns_of_conll_u(tmp_path):
    ranged = lines(*UD).replace("1\tanna", "1-2\tannalee" + "\t_" * 8 + "\n1\tanna")
    keys = {"words": 2, "tags": 4, "scheme": "plain"}
    [task] = own_tasks(tmp_path, {"train.conllu": ranged}, "tagging", keys=keys)
    [first, second] = task.read("train")
    assert (first.words, first.tags) == (WORDS, POS) == (second.words, second.tags)


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        (lines(COUNT, WORDS, OUTER, NONE), {}, ["counts the words", "4: O O"]),
        (lines(range(5), WORDS, TAGS), {}, ["counts the words", "2: anna"]),
        (lines(COUNT, WORDS, TAGS), {"words": 2}, ["counts the words", "2: anna"]),
        (lines(WORDS, OUTER, NONE), {}, ["more than one column", "3: O O O"]),
        (lines(WORDS, OUTER, OUTER), {}, ["2: B-PER", "3: B-PER"]),
        (lines(*UD), {}, ["counted from 1", "4: N N V"]),
        (lines(*UD), {"scheme": "plain"}, ["counted from 1", "4: N N V"]),
        (lines(WORDS, TAGS), {"tags": 3}, ["2 columns", "column 3"]),
        (lines(WORDS, TAGS), {"tags": "ner"}, ["no column 'ner'", "anna B-PER"]),
        (lines(WORDS, POS, TAGS).replace("\tP", "", 1), {}, ["line 4", "columns"]),
        (lines(["", *WORDS[1:]], TAGS), {}, ["line 1", "empty word"]),
        (lines(WORDS, [1, 2, 0, 0, 3]), {}, ["tag_names", "0, 1, 2, 3"]),
        (lines(WORDS, POS), {}, ['"plain"', "Rewrite"]),
        ("O the\nB-X dog\n", {"words": 2}, ["has words, but no tags"]),
        (lines(WORDS, TAGS).replace("O", "0"), {}, ["the tag '0' is not O"]),
    ],
)
def test_unclear_columns_are_refused(tmp_path, text, keys, expected):
    files = {"train.txt": text}
    refused(lambda: own_tasks(tmp_path, files, "tagging", keys=keys), *files, *expected)


NAMES = ["O", "B-PER", "I-PER", "B-LOC"]


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"tokens": WORDS, "ner_tags": [1, 2, 0, 0, 3]}, {"tag_names": NAMES}),
        ({"words": WORDS, "tags": [1, 2, 0, 0, 3]}, {"tag_names": NAMES}),
        ({"tokens": WORDS, "ner_tags": TAGS}, {}),
        ({"w": WORDS, "t": TAGS}, {"words": "w", "tags": "t"}),
    ],
)
def test_lists_of_words(tmp_path, row, keys):
    [task] = own_tasks(tmp_path, {"train.jsonl": [row]}, "tagging", keys=keys)
    [example] = task.read("train")
    assert (example.words, task.scheme) == (WORDS, "IOB2")
    assert example.tags == ["B-PER", "E-PER", "O", "O", "S-LOC"]
    [one] = task.read_inputs(open_source(str(tmp_path / "train.jsonl"), None, "words"))
    assert one.fields == {"words": WORDS}


def test_two_lists_of_tags_are_refused(tmp_path):
    files = {"train.jsonl": [{"tokens": WORDS, "tags": TAGS, "ner_tags": NONE}]}
    with pytest.raises(UserError, match="tags and ner_tags are both there"):
        own_tasks(tmp_path, files, "tagging")
    [task] = own_tasks(tmp_path, files, "tagging", tags="ner_tags")
    assert task.labels == ["O"]


def test_tables_in_csv_are_refused(tmp_path):
    text = "words,tags\nanna sings,B-PER O\n"
    with pytest.raises(UserError, match=r"train.csv: .*\n.*blank line .*\.jsonl"):
        own_tasks(tmp_path, {"train.csv": text}, "tagging")
    with pytest.raises(UserError, match=r"x.csv is csv; .* txt, conll, jsonl"):
        open_source("x.csv", None, "words")


# Schemes, compared with independent implementations and conlleval.

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


@pytest.mark.parametrize("scheme", conll.LETTERS)
def test_random_sequences_of_each_scheme(scheme):
    rng = random.Random(scheme)
    sentences = []
    for _ in range(400):
        length = rng.randint(1, 12)
        spans = random_spans(rng, length)
        tags = written(spans, length, scheme)
        assert conll.spans_in([conll.as_bioes(x, scheme) for x in tags]) == spans
        assert conll.tags_of(spans, length, scheme) == tags
        sentences.append(tags)
    assert conll.scheme_of(sentences) == scheme


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
        assert conll.spans_in(sentence) == conlleval(sentence), sentence


def test_iob1_of_conll_2003():
    tags = ["I-PER", "I-LOC", "O", "I-ORG", "B-ORG", "I-ORG"]
    spans = [(0, 0, "PER"), (1, 1, "LOC"), (3, 3, "ORG"), (4, 5, "ORG")]
    assert conll.spans_in(tags) == spans
    assert conll.scheme_of([tags]) == "IOB1"
    assert conll.scheme_of([["B-PER", "O", "B-PER", "I-PER"]]) == "IOB2"
    assert conll.scheme_of([["I-PER", "I-PER", "O", "I-LOC"]]) == "IOB1"  # IO


def test_names_and_mixtures():
    names = {"bio": "IOB2", "IOB": "IOB1", "iobes": "BIOES", "BILOU": "BILOU"}
    names |= {"Plain": "plain", "bmew": "BMEWO", "io": "IOB1"}
    for name, scheme in names.items():
        assert conll.scheme_named(name) == scheme
    for name in ("XYZ", "IOB2 PER_B", "bare", ""):
        with pytest.raises(UserError, match="IOB1.*plain"):
            conll.scheme_named(name)
    for mixed in (["B-X", "E-X", "U-X"], ["B-X", "M-X", "I-X"]):
        with pytest.raises(UserError, match="BIOES.*BILOU"):
            conll.scheme_of([mixed])
    assert conll.as_bioes("E-X", "BILOU") is None
    assert conll.as_bioes("E-X") == "E-X"
    # A mistyped tag does not change how the others are read.
    assert conll.scheme_of([["B-X", "I-X", "Y"]]) == "IOB2"


@pytest.mark.parametrize(
    "tags",
    ["PER O LOC", "B_PER I_PER O", "PER-B PER-I O", "PER_B PER_I -", "b-PER i-PER o"]
    + ["B I O", "e-mail O b-day"],
)
def test_tags_in_other_forms_are_refused(tags):
    words = "no tag like B-PER, but ", tags.split()[0], "Rewrite", '"scheme": "plain"'
    refused(lambda: conll.scheme_of([tags.split()]), *words)


# Scheme -> the tags of PER at 0 to 2, of PER at 3 and of LOC at 5.
SCHEMES = {
    "IOB1": ["I-PER", "I-PER", "I-PER", "B-PER", "O", "I-LOC"],
    "IOB2": ["B-PER", "I-PER", "I-PER", "B-PER", "O", "B-LOC"],
    "BIOES": ["B-PER", "I-PER", "E-PER", "S-PER", "O", "S-LOC"],
    "BILOU": ["B-PER", "I-PER", "L-PER", "U-PER", "O", "U-LOC"],
    "BMES": ["B-PER", "M-PER", "E-PER", "S-PER", "O", "S-LOC"],
    "BMEWO": ["B-PER", "M-PER", "E-PER", "W-PER", "O", "W-LOC"],
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["LOC", "first name"])
def test_what_is_written_has_the_scores_of_conlleval(tmp_path, scheme, name):
    """Read back by conlleval's rules, from the tags in the letters that it knows."""
    own = [tag.replace("LOC", name) for tag in SCHEMES[scheme]]
    text = lines([*WORDS, "x"], own) + lines(["x"] * 6, ["O"] * 6)
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging")
    spans = [(0, 2, "PER"), (5, 5, name)]
    tags = (written(spans, len(example.words), "BIOES") for example in task.read("dev"))
    scorer = predicted(task, "dev", *tags)
    [_, path] = task.write_predictions("dev", scorer, str(tmp_path / "out"))
    counts = np.zeros(3)
    for line_group in open(path, encoding="utf-8").read().strip().split("\n\n"):
        cells = [line.split("\t") for line in line_group.split("\n")]
        ours, theirs = (set(conlleval([as_bioes(c[k]) for c in cells])) for k in (2, 1))
        counts += len(ours & theirs), len(ours), len(theirs)
        assert {c[1] for c in cells} <= {*own, "O"}
    results = dict(scorer.get_results())
    precision, recall = counts[0] / counts[1], counts[0] / counts[2]
    assert results["precision"] == pytest.approx(100 * precision)
    assert results["recall"] == pytest.approx(100 * recall)
    assert 0 < precision < 1


def as_bioes(tag):
    return tag[:1].translate(str.maketrans("LUMW", "ESIS")) + tag[1:]


TWO = [["anna", "sings"], ["peter"]]


def asked(path, form=None, column=None):
    """The fields of what is read of a file."""
    source = open_source(str(path), form, "words")
    return [one.fields for one in conll.words(source, column)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("anna\nsings\n\npeter\n", TWO),
        ("-DOCSTART- -X- O\r\n\r\nanna\r\nsings\r\n\r\n\r\npeter\r\n", TWO),
        ("# id 1\nanna\nsings\n\n# id 2\npeter\n", TWO),
        ("Das\n\u00a0\nHaus\n", [["Das", "\u00a0", "Haus"]]),
        ("anna N\nsings V\n\npeter N\n", TWO),
        ("anna B-PER\nsings O\n", [["anna", "sings"]]),
        ("# O\n#win B-PER\n", [["#", "#win"]]),
    ],
)
def test_words_in_columns(tmp_path, text, expected):
    for name, form in (("x.conll", None), ("x.tsv", None), ("x.txt", "conll")):
        (tmp_path / name).write_bytes(text.encode())
        assert [x["words"] for x in asked(tmp_path / name, form)] == expected
    files = {"train.txt": lines(WORDS, TAGS), "test.txt": text}
    [task] = own_tasks(tmp_path, files, "tagging")
    if " N" not in text:  # no tags of the training file
        assert [example.words for example in task.read("test")] == expected
    else:
        with pytest.raises(UserError, match=r"test.txt, line 1: the tag 'N' is not O"):
            task.read("test")


@pytest.mark.parametrize(
    "text",
    [
        "#Paris is great",
        "my blood type is O\nvitamin B-12",
        "anna B-PER\nsings O",
        "Anna lives in Rome\n\nBob lives in Paris",
        "1\tanna lives in rome\n2\tpeter walks",
        "# id 1\nanna",
        "小明住在北京市",
    ],
)
def test_lines_of_txt_are_running_text(tmp_path, text):
    expected = [{"text": line} for line in text.split("\n") if line]
    rows = [{"id": 1} | x for x in expected]
    write_files(tmp_path, {"x.txt": f"{text}\n", "x.jsonl": rows})
    assert asked(tmp_path / "x.txt") == expected and asked(tmp_path / "x.jsonl") == rows


def test_test_set_with_other_columns_is_refused(tmp_path):
    files = {"train.txt": lines(WORDS, POS), "test.txt": "anna lives in rome\n" * 2}
    [task] = own_tasks(tmp_path, files, "tagging", scheme="plain")
    with pytest.raises(UserError, match=r"test.txt has 4 columns, the training file 2"):
        task.read("test")


def test_running_text_is_cut_as_by_the_tokenizer(tmp_path):
    [task] = own_tasks(tmp_path, {"train.txt": lines(WORDS, TAGS)}, "tagging")
    for text, words in (
        ("小明 住", ["小", "明", "住"]),
        ("Anna's vitamin B-12.", ["Anna", "'", "s", "vitamin", "B", "-", "12", "."]),
        (" caf\u00e9\u200b ", ["caf\u00e9"]),
        ("", []),
    ):
        example = task.input_example(0, {"text": text})
        assert example.words == words
        [features] = task.featurize(example, False)
        assert len(features["labeled_positions"]) == len(words)


def test_columns_that_cannot_be_read_are_refused(tmp_path):
    """Inputs of predictions, by the layout of files of data."""
    path = tmp_path / "x.conll"
    for text, column, message in (
        ("anna O\npeter walks O\n", None, "line 2: .* not 2 columns"),
        ("1\tanna\tO\tO\n2\tsings\tO\tO\n", None, "the first column counts"),
        ("anna\tO\n", 3, "no column 3"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=f"x.conll.* {message}"):
            asked(path, column=column)


def test_sentence_with_a_bad_line_is_left_out_whole(tmp_path):
    text = "the B-X\ncat dog I-X\nran I-X\n\ndog O\n"
    options = {"on_bad_example": "skip"}
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging", **options)
    assert [example.words for example in task.read("dev")] == [["dog"]]
    assert "line 2" in "".join(task.skipped["dev"])
