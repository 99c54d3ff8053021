# SPDX-License-Identifier: Apache-2.0
"""Files of words and tags as people have them: columns, comments, white space."""

import itertools
import json

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import conll
from electra_tf.finetune.inputs import open_source
from tests.finetune.test_tag_schemes import conlleval, in_form
from tests.helpers.own_task import own_tasks

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
        (lines(COUNT, WORDS, TAGS), {}, WORDS),  # Naver
        (lines(range(5), WORDS, TAGS), {}, WORDS),
        (lines(COUNT, WORDS, POS, TAGS), {}, WORDS),
        (lines(COUNT, WORDS, OUTER, NONE), BOTH, WORDS),  # GermEval
        (lines(COUNT, WORDS, OUTER, NONE, begin="#\thttp://x [2009]\n"), BOTH, WORDS),
        (lines(WORDS, TAGS, begin="# sent_id\t0\n"), {}, WORDS),
        (lines(WORDS, TAGS, begin="# text = Anna Lee sings\n"), {}, WORDS),
        (lines(WORDS, TAGS, between=" ", begin="# text = x\n# newdoc\n"), {}, WORDS),
        (lines(WORDS, TAGS, between=" ", begin="# id 9e7\tdomain=en\n"), {}, WORDS),
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
)
def test_columns_of_words_and_tags(tmp_path, text, keys, words):
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging", keys=keys)
    found = task.read("train")
    assert [example.words for example in found] == [words] * 2
    assert [list(example.written) for example in found] == [TAGS] * 2
    assert task.scheme == "IOB2"


def test_tags_as_naver_has_them(tmp_path):
    tags = ["PER_B", "PER_I", "-", "-", "LOC_B"]
    text = lines(COUNT, WORDS, tags)
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging")
    assert task.scheme == "IOB2 PER_B -"
    assert task.read("train")[0].tags == ["B-PER", "E-PER", "O", "O", "S-LOC"]
    assert [note for note in task.remarks["train"] if "column 2" in note]


def test_columns_of_conll_u(tmp_path):
    ranged = lines(*UD).replace("1\tanna", "1-2\tannalee" + "\t_" * 8 + "\n1\tanna")
    for keys in (
        {"words": 2, "tags": 4},
        {"words": "form", "tags": "upos"},
        {"words": "FORM", "tags": "UPOS"},
    ):
        keys |= {"scheme": "plain"}
        [task] = own_tasks(tmp_path, {"train.conllu": ranged}, "tagging", keys=keys)
        [first, second] = task.read("train")
        assert (first.words, first.tags) == (WORDS, POS) == (second.words, second.tags)


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        (lines(COUNT, WORDS, OUTER, NONE), {}, ['"words": 2, "tags": 3', "4: O O"]),
        (lines(WORDS, OUTER, NONE), {}, ['"words": 1, "tags": 2', "3: O O O"]),
        (lines(WORDS, OUTER, OUTER), {}, ["2: B-PER", "3: B-PER"]),
        (lines(*UD), {}, ["counted from 1", "4: N N V"]),
        (lines(*UD), {"scheme": "plain"}, ["counted from 1", "4: N N V"]),
        (lines(WORDS, TAGS), {"tags": 3}, ["2 columns", "column 3"]),
        (lines(WORDS, TAGS), {"words": 0}, ["counted from 1", "column 0"]),
        (lines(WORDS, TAGS), {"tags": "ner"}, ["no column 'ner'", "anna B-PER"]),
        (lines(WORDS, POS, TAGS).replace("\tP", "", 1), {}, ["line 4", "columns"]),
        (lines(["", *WORDS[1:]], TAGS), {}, ["line 1", "empty word"]),
        (lines(WORDS, [1, 2, 0, 0, 3]), {}, ["tag_names", "0, 1, 2, 3"]),
        (lines(WORDS, POS), {}, ['"plain"', '"bare"']),
    ],
)
def test_unclear_columns_are_refused(tmp_path, text, keys, expected):
    with pytest.raises(UserError) as caught:
        own_tasks(tmp_path, {"train.txt": text}, "tagging", keys=keys)
    for word in ("train.txt", *expected):
        assert word in str(caught.value), caught.value
    assert str(caught.value).count("\n") <= 2


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
    text = json.dumps(row) + "\n"
    [task] = own_tasks(tmp_path, {"train.jsonl": text}, "tagging", keys=keys)
    [example] = task.read("train")
    assert (example.words, task.scheme) == (WORDS, "IOB2")
    assert example.tags == ["B-PER", "E-PER", "O", "O", "S-LOC"]
    [one] = task.read_inputs(open_source(str(tmp_path / "train.jsonl"), None, "words"))
    assert one.fields == {"words": WORDS}


def test_two_lists_of_tags_are_refused(tmp_path):
    text = json.dumps({"tokens": WORDS, "tags": TAGS, "ner_tags": NONE}) + "\n"
    with pytest.raises(UserError, match="tags and ner_tags are both there"):
        own_tasks(tmp_path, {"train.jsonl": text}, "tagging")
    [task] = own_tasks(tmp_path, {"train.jsonl": text}, "tagging", tags="ner_tags")
    assert task.labels == ["O"]


def test_training_file_without_tags_is_refused(tmp_path):
    files, keys = {"train.txt": "O the\nB-X dog\n"}, {"words": 2}
    with pytest.raises(UserError, match=r"train.txt has words, but no tags"):
        own_tasks(tmp_path, files, "tagging", keys=keys)


def predicted(task, spans):
    """The scorer of the dev set, where all sentences get the same spans."""
    scorer = task.scorer("dev")
    for example in task.read("dev"):
        [features] = task.featurize(example, False)
        count = len(example.words)
        tags = conll_tags(spans, count)
        ids = [task.labels.index(tag) for tag in tags]
        scorer.update(
            {
                "eid": example.eid,
                "predictions": ids,
                "labels": features["labels"],
                "loss": 0.0,
                "labels_mask": features["labels_mask"],
                "logits": np.eye(len(task.labels))[ids],
            }
        )
    return scorer


def conll_tags(spans, count):
    found = ["O"] * count
    for first, last, name in spans:
        inner = ["S"] if first == last else ["B", *"I" * (last - first - 1), "E"]
        found[first : last + 1] = [f"{letter}-{name}" for letter in inner]
    return found


# Scheme -> the tags of PER at 0 to 2, of PER at 3 and of LOC at 5.
SCHEMES = {
    "IOB1": ["I-PER", "I-PER", "I-PER", "B-PER", "O", "I-LOC"],
    "IOB2": ["B-PER", "I-PER", "I-PER", "B-PER", "O", "B-LOC"],
    "BIOES": ["B-PER", "I-PER", "E-PER", "S-PER", "O", "S-LOC"],
    "BILOU": ["B-PER", "I-PER", "L-PER", "U-PER", "O", "U-LOC"],
    "BMES": ["B-PER", "M-PER", "E-PER", "S-PER", "O", "S-LOC"],
    "BMEWO": ["B-PER", "M-PER", "E-PER", "W-PER", "O", "W-LOC"],
    "IO": ["I-PER", "I-PER", "I-PER", "I-PER", "O", "I-LOC"],
}


@pytest.mark.parametrize("form", ["B-PER", "B_PER", "PER-B", "PER_B", "B", "PER"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["LOC", "first name"])
def test_what_is_written_has_the_scores_of_conlleval(tmp_path, scheme, form, name):
    """Read back by conlleval's rules, from the tags in the form that it knows."""
    if form == "PER":
        scheme = "IO"
    right = [tag.replace("LOC", name) for tag in SCHEMES[scheme]]
    tags = [in_form(tag, form, "O") for tag in right]
    text = lines([*WORDS, "x"], tags) + lines(["x"] * 6, [in_form("O", form, "O")] * 6)
    keys = {"scheme": "IO"} if scheme == "IO" else {}
    if form == "PER":
        keys = {"scheme": "bare"}
    [task] = own_tasks(tmp_path, {"train.txt": text}, "tagging", keys=keys)
    classes = ("span", "span") if form == "B" else ("PER", name)
    joined = [(0, 3, classes[0])] if scheme == "IO" else [(0, 2, classes[0])]
    spans = [*joined, (5, 5, classes[1])]
    scorer = predicted(task, spans)
    [_, path] = task.write_predictions("dev", scorer, str(tmp_path / "out"))
    counts = np.zeros(3)
    back = {in_form(tag, form, "O"): tag for tag in [*right, *all_tags(scheme, name)]}
    for line_group in open(path, encoding="utf-8").read().strip().split("\n\n"):
        cells = [line.split("\t") for line in line_group.split("\n")]
        ours, theirs = (
            set(conlleval([as_bioes(back[c[k]]) for c in cells])) for k in (2, 1)
        )
        counts += len(ours & theirs), len(ours), len(theirs)
        assert {c[1] for c in cells} <= {*tags, "O"}
    results = dict(scorer.get_results())
    precision, recall = counts[0] / counts[1], counts[0] / counts[2]
    assert results["precision"] == pytest.approx(100 * precision)
    assert results["recall"] == pytest.approx(100 * recall)
    assert 0 < precision < 1


def as_bioes(tag):
    return tag[:1].translate(str.maketrans("LUMW", "ESIS")) + tag[1:]


def all_tags(scheme, name):
    letters = {tag[0] for tag in SCHEMES[scheme] if tag != "O"}
    pairs = itertools.product(letters, ("PER", name))
    return ["O", *(f"{letter}-{one}" for letter, one in pairs)]


TWO = [["anna", "sings"], ["peter"]]
LINE = "each line"


@pytest.mark.parametrize(
    ("text", "expected", "note"),
    [
        ("anna\nsings\n\npeter\n", TWO, None),
        ("-DOCSTART- -X- O\r\n\r\nanna\r\nsings\r\n\r\n\r\npeter\r\n", TWO, None),
        ("# id 1\nanna\nsings\n\n# id 2\npeter\n", TWO, None),
        ("Das\n\u00a0\nHaus\n", [["Das", "\u00a0", "Haus"]], "one sentence"),
        ("anna sings in\npeter\n", [["anna", "sings", "in"], ["peter"]], LINE),
        ("anna sings\npeter walks\n", [["anna", "sings"], ["peter", "walks"]], LINE),
        ("#win anna it\nthe dog\n", [["#win", "anna", "it"], ["the", "dog"]], LINE),
        ("anna N\nsings V\n\npeter N\n", TWO, "the first of 2 columns"),
        ("anna B-PER\nsings O\n", [["anna", "sings"]], None),
        ("1\tanna\tO\tO\n2\tsings\tO\tO\n\n1\tpeter\tO\tO\n", TWO, "column 2"),
    ],
)
def test_words_to_tag(tmp_path, text, expected, note):
    path = tmp_path / "x.txt"
    path.write_bytes(text.encode())
    notes = []
    source = open_source(str(path), None, "words")._replace(say=notes.append)
    found = [asked.fields["words"] for asked in conll.words(source)]
    assert found == expected
    assert (note in notes[0]) if note else not notes
    files = {"train.txt": lines(WORDS, TAGS), "test.txt": text}
    if "O" not in text.split():  # else it has tags
        [task] = own_tasks(tmp_path, files, "tagging")
        if conll.layout_of(text.split("\n")).width == 1 or note == LINE:
            assert [example.words for example in task.read("test")] == expected


def test_lines_that_are_neither_columns_nor_text_are_refused(tmp_path):
    for text in ("anna O\npeter walks O\n", "anna\tx\npeter\n\n", "anna\npeter w\nx\n"):
        (tmp_path / "x.txt").write_text(text)
        source = open_source(str(tmp_path / "x.txt"), None, "words")
        with pytest.raises(UserError, match="x.txt, line .* columns"):
            list(conll.words(source))


KAGGLE = {"words": "Word", "tags": "Tag", "id": "Sentence #"}


@pytest.mark.parametrize(
    ("text", "keys", "ids"),
    [
        ("words,tags\nanna sings,B-PER O\npeter,B-PER\n", {}, [None, None]),
        ("id,words,tags\n7,\"['anna', 'sings']\",\"['B-PER', 'O']\"\n"
         "8,['peter'],['B-PER']\n", {}, ["7", "8"]),
        ("id,tokens,ner_tags\n7,['anna' 'sings'],['B-PER' 'O']\n"
         "8,['peter'],['B-PER']\n", {}, ["7", "8"]),
        ("Sentence #,Word,POS,Tag\n7,anna,N,B-PER\n,sings,V,O\n8,peter,N,B-PER\n",
         KAGGLE, ["7", "8"]),
        ("Sentence #;Word;Tag\n7;anna;B-PER\n7;sings;O\n8;peter;B-PER\n",
         KAGGLE, ["7", "8"]),
    ],
)  # fmt: skip
def test_sentences_in_a_table(tmp_path, text, keys, ids):
    [task] = own_tasks(tmp_path, {"train.csv": text}, "tagging", keys=keys)
    found = task.read("train")
    assert [example.words for example in found] == TWO
    assert [example.written for example in found] == [["B-PER", "O"], ["B-PER"]]
    assert [example.id for example in found] == ids
    asked = [*task.read_inputs(open_source(str(tmp_path / "train.csv"), None, "words"))]
    assert [one.fields["words"] for one in asked] == TWO
    if keys:
        without = {**keys, "id": "number"}
        with pytest.raises(UserError, match="one word in each row"):
            own_tasks(tmp_path, {"train.csv": text}, "tagging", keys=without)
