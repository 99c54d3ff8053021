# SPDX-License-Identifier: Apache-2.0
"""GLUE, SQuAD and MRQA as they are distributed; tables."""

import csv
import datetime
import gzip
import io
import json

import pytest
from backports import zstd

from electra_tf.errors import UserError
from electra_tf.finetune import inputs, preprocessing
from electra_tf.finetune.inputs import open_source
from electra_tf.finetune.qa import questions
from electra_tf.text.units import Unit
from tests.helpers.own_task import own_tasks, write_files
from tests.helpers.runs import refused

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

A, B = "the dog ran .", "the cat ran"
NLI = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")
PAIR = ("sentence1", "sentence2")
# Of each task: Hugging Face's folder and columns, labels, and a line of GLUE's files.
TASKS = {
    "cola": ("cola", ("sentence",), [0, 1, 1], "x\t{y}\t\t{a}"),
    "sst": ("sst2", ("sentence",), [0, 1, 1], "{a}\t{y}"),
    "mrpc": ("mrpc", PAIR, [1, 0, 1], "{y}\t1\t2\t{a}\t{b}"),
    "sts": ("stsb", PAIR, [0.0, 3.8, 4.067], "x\t" * 7 + "{a}\t{b}\t{y}"),
    "qqp": ("qqp", ("question1", "question2"), [0, 1, 0], "{i}\t1\t2\t{a}\t{b}\t{y}"),
    "mnli": (
        *("mnli", ("premise", "hypothesis"), [0, 1, 2]),
        "x\t" * 8 + "{a}\t{b}\t{mnli}",
    ),
    "qnli": ("qnli", ("question", "sentence"), [0, 1, 1], "{i}\t{a}\t{b}\t{nli}"),
    "rte": ("rte", PAIR, [0, 1, 1], "{i}\t{a}\t{b}\t{nli}"),
}
SPLITS = {"train": "train", "dev": "validation"}
MNLI_SPLITS = {"train": "train", "dev_matched": "validation_matched"}
MNLI_SPLITS["dev_mismatched"] = "validation_mismatched"


def write_parquet(path, rows, classes=None, types=None, features=None):
    """Rows, with the names of the column label's classes as Hugging Face keeps them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    for name, kind in (types or {}).items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast(kind))
    if classes:
        features = {"label": {"names": list(classes), "_type": "ClassLabel"}}
    if features:
        info = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": info})
    pq.write_table(table, path)


def glue_rows(name, gap=0):
    _, columns, labels, _ = TASKS[name]
    texts = dict(zip(columns, (A, B), strict=False))
    return [
        texts
        | {"label": y, "idx": i + gap * i, columns[0]: f"{A} {'dog ' * i}".strip()}
        for i, y in enumerate(labels)
    ]


def glue_task(folder, name, **more):
    [task] = own_tasks(folder, {}, task_names=[name], max_seq_length=24, **more)
    return task.config, [task]


def features_of(folder, name, **more):
    config, [task] = glue_task(folder, name, **more)
    found = {split: task.read(split) for split in ("train", *task.splits("dev"))}
    store = preprocessing.features(config, [task], "train", True)
    return found, {k: v.tolist() for k, v in store.items()}


def write_tsv(folder, name, rows):
    """The rows in GLUE's own files."""
    _, columns, labels, line = TASKS[name]
    text = "" if name == "cola" else "header\n"
    for i, (row, y) in enumerate(zip(rows, labels, strict=True)):
        classes = {"nli": NLI[int(y) % 2], "mnli": MNLI[int(y) % 3], "y": y, "i": i}
        text += line.format(a=row[columns[0]], b=row[columns[-1]], **classes) + "\n"
    splits = MNLI_SPLITS if name == "mnli" else SPLITS
    write_files(folder, {f"finetuning_data/{name}/{s}.tsv": text for s in splits})


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("folder", ["ours", "theirs"])
def test_glue_is_the_same_from_parquet_and_from_tsv(tmp_path, name, folder):
    rows = glue_rows(name, gap=2)  # MRPC's indices have gaps.
    write_tsv(tmp_path / "tsv", name, rows)
    parquet = tmp_path / "parquet" / "finetuning_data"
    splits = MNLI_SPLITS if name == "mnli" else SPLITS
    for theirs in splits.values():
        place = parquet / (name if folder == "ours" else TASKS[name][0])
        kind = {"label": pa.float32() if name == "sts" else pa.int64()}
        file = place / f"{theirs}-00000-of-00001.parquet"
        write_parquet(file, rows, types=kind)
    expected = features_of(tmp_path / "tsv", name)
    assert features_of(tmp_path / "parquet", name) == expected
    assert len(expected[0]["train"]) >= 3
    # GLUE's own files have precedence.
    (parquet / name).mkdir(exist_ok=True)
    for ours in splits:
        (parquet / name / f"{ours}.tsv").write_text("header\nbroken\n")
    with pytest.raises(UserError, match=r"\.tsv, line"):
        features_of(tmp_path / "parquet", name)


def glue_file(folder, name, split="train", part="00000-of-00001"):
    return folder / f"finetuning_data/{name}/{split}-{part}.parquet"


def test_classes_are_those_that_the_file_names(tmp_path):
    """A converted data set may number its classes otherwise."""
    for split in SPLITS.values():
        path = glue_file(tmp_path, "rte", split)
        write_parquet(path, glue_rows("rte"), classes=NLI[::-1])
    _, [task] = glue_task(tmp_path, "rte")
    assert [e.label for e in task.read("train")] == [NLI[1], NLI[0], NLI[0]]


def test_test_sets_have_no_labels(tmp_path):
    rows = [row | {"label": -1} for row in glue_rows("mnli", gap=1)]
    for name, split in (("mnli", "test_matched"), ("ax", "test")):
        write_parquet(glue_file(tmp_path, name, split), rows)
    _, [task] = glue_task(tmp_path, "mnli")
    for split in ("test_matched", "diagnostic"):
        assert [e.eid for e in task.read(split)] == [0, 2, 4]
    with pytest.raises(UserError, match="test_mismatched.tsv"):
        task.read("test_mismatched")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("cola", {"label": 2}, "row 1: column 'label'.*'2'.*there are 0, 1"),
        ("cola", {"sentence": None}, r"row 1: the texts in sentence are \[None\]"),
    ],
)
def test_unusable_row_is_named(tmp_path, name, change, words):
    rows = glue_rows(name)
    rows[1] |= change
    write_parquet(glue_file(tmp_path, name), rows)
    _, [task] = glue_task(tmp_path, name)
    with pytest.raises(UserError, match=f"train-00000-of-00001.parquet.*{words}"):
        task.read("train")


def test_damaged_file_is_named(tmp_path):
    path = glue_file(tmp_path, "cola")
    write_parquet(path, glue_rows("cola"))
    path.write_bytes(path.read_bytes()[:-9])
    _, [task] = glue_task(tmp_path, "cola")
    refused(lambda: task.read("train"), "damaged", code=65)
    texts = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"sentence": texts, "label": [0, 1]}), path)
    refused(lambda: task.read("train"), "damaged", "utf-8", code=65)
    cut = gzip.compress(LINES * 50)[:-12]
    with pytest.raises(UserError, match=r"train.jsonl.gz: damaged"):
        own_tasks(tmp_path, {"train.jsonl.gz": cut})


ROWS = [{"a": "the dog", "b": "pos"}, {"a": "the cat", "b": "neg"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = b"a,b\nthe dog,pos\nthe cat,neg\n"


def parquet_bytes(rows, path, **more):
    write_parquet(path, rows, **more)
    return path.read_bytes()


def test_own_tasks_are_the_same_in_every_format(tmp_path):
    files = {
        "train.csv": CSV,
        "train.tsv.zst": zstd.compress(CSV.replace(b",", b"\t")),
        "train.jsonl": LINES,
        "train.jsonl.gz": gzip.compress(LINES),
        "train.parquet": parquet_bytes(ROWS, tmp_path / "x.parquet"),
    }
    found = []
    for name, content in files.items():
        [task] = own_tasks(tmp_path / name, {name: content})
        found.append(task.read("train"))
        assert task.labels == ("neg", "pos")
    assert all(examples == found[0] for examples in found)


def test_own_classes_have_the_names_that_the_file_gives(tmp_path):
    rows = [{"a": "the dog", "label": 1}, {"a": "the cat", "label": 0}]
    content = parquet_bytes(rows, tmp_path / "x.parquet", classes=("no", "yes"))
    [task] = own_tasks(tmp_path, {"train.parquet": content}, label="label")
    assert [e.label for e in task.read("train")] == ["yes", "no"]
    rows[1]["label"] = -1
    content = parquet_bytes(rows, tmp_path / "x.parquet", classes=("no", "yes"))
    words = "train.parquet, row 1: no value in column 'label'"
    with pytest.raises(UserError, match=words):
        own_tasks(tmp_path, {"train.parquet": content}, label="label")


def test_bytes_of_a_table_are_text(tmp_path):
    day = datetime.date(2026, 11, 23)
    rows = [{"id": day, "a": b"the dog", "b": b"pos"}]
    rows.append({"id": day, "a": "the caf\u00e9".encode(), "b": b"neg"})
    content = parquet_bytes(rows, tmp_path / "x.parquet")
    [task] = own_tasks(tmp_path, {"train.parquet": content}, id="id")
    assert task.labels == ("neg", "pos")
    assert [e.text_a for e in task.read("train")] == ["the dog", "the caf\u00e9"]
    source = open_source(str(tmp_path / "x.parquet"), None, "texts")
    assert [one.fields["id"] for one in task.read_inputs(source)] == ["2026-11-23"] * 2
    rows[1]["a"] = b"caf\xe9"
    content = parquet_bytes(rows, tmp_path / "x.parquet")
    with pytest.raises(UserError, match="row 1: .* is not UTF-8"):
        own_tasks(tmp_path, {"train.parquet": content})


@pytest.mark.parametrize("is_list", [True, False])
def test_own_tags_have_the_names_that_the_file_gives(tmp_path, is_list):
    classes = {"names": ["DET", "NOUN"], "_type": "ClassLabel"}
    classes = [classes] if is_list else {"feature": classes, "_type": "Sequence"}
    options = {"kind": "tagging", "scheme": "plain"}
    for last in (1, -1):
        rows = [{"words": ["the", "dog"], "tags": [0, last], "other": [0]}]
        features = {"other": [{"dtype": "int64", "_type": "Value"}], "tags": classes}
        content = parquet_bytes(rows, tmp_path / "x.parquet", features=features)
        if last == 1:
            [task] = own_tasks(tmp_path, {"train.parquet": content}, **options)
            [example] = task.read("train")
            assert (example.words, example.tags) == (["the", "dog"], ["DET", "NOUN"])
            assert task.labels == ["DET", "NOUN"]
            continue
        with pytest.raises(UserError, match="row 0: no list of tags"):
            own_tasks(tmp_path, {"train.parquet": content}, **options)


QUESTION = {"id": "q", "question": "who ran ?", "context": "the dog ran . the cat ."}
ANSWERS = {"text": ["dog"], "answer_start": [4]}
NONE = {"text": [], "answer_start": []}


@pytest.mark.parametrize("name", ["squad", "squadv1"])
def test_squad_is_the_same_from_every_source(tmp_path, name):
    rows = [QUESTION | {"title": "T", "answers": ANSWERS}]
    if name == "squad":
        rows.append(QUESTION | {"title": "T", "id": "p", "answers": NONE})
    asked = []
    for row in rows:
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": t, "answer_start": s} for t, s in pairs]
        asked.append({"id": row["id"], "question": row["question"], "answers": answers})
        asked[-1] |= {"is_impossible": not answers} if name == "squad" else {}
    paragraph = {"context": QUESTION["context"], "qas": asked}
    content = {"data": [{"title": "T", "paragraphs": [paragraph]}]}
    files = {f"finetuning_data/{name}/{split}.json": content for split in SPLITS}
    write_files(tmp_path / "json", files)
    for split in SPLITS.values():
        write_parquet(glue_file(tmp_path / "parquet", name, split), rows)
    found = []
    for form in ("json", "parquet"):
        config, [task] = glue_task(tmp_path / form, name)
        store = preprocessing.features(config, [task], "train", True)
        examples = task.examples("train"), task.examples("dev")
        found.append((*examples, {k: v.tolist() for k, v in store.items()}))
        answers = {one.question_id: one.answers for one in examples[1]}
        assert answers == {"q": ("dog",), "p": ()} or name == "squadv1"
    assert found[0] == found[1]
    assert len(found[0][0]) == len(rows)
    assert [e.answers for e in found[0][1]] == [("dog",), ()][: len(rows)]


def test_rows_of_questions_are_whole(tmp_path):
    def read(name, text):
        (tmp_path / name).write_text(text)
        source = open_source(str(tmp_path / name), None, "records")
        return [one.fields for one in questions(source)]

    for name, sign in (("a.csv", ","), ("a.tsv", "\t")):
        cut = f"question{sign}context\nwho?{sign}The cat{sign} the dog\n"
        with pytest.raises(UserError, match="line 2: 3 cells"):
            read(name, cut)
    asked = {"question": "who?", "context": "The cat"}
    assert read("b.csv", "question,context,header\nwho?,The cat,Intro\n") == [asked]
    assert read("b.jsonl", json.dumps(asked | {"header": "Intro"})) == [asked]


def test_mrqa_as_it_is_distributed(tmp_path):
    """Compressed, with a header; a span's last character is the answer's."""
    detected = [{"text": "dog", "char_spans": [[4, 6]], "token_spans": [[1, 1]]}]
    asked = {"qid": "q", "question": "who ?", "detected_answers": detected}
    asked["answers"] = ["dog", "a dog"]
    lines = [{"header": {"dataset": "NewsQA", "split": "train"}}]
    lines.append({"id": "", "context": QUESTION["context"], "qas": [asked]})
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    place = tmp_path / "finetuning_data/newsqa"
    found = []
    for ending, content in (("", text), (".gz", gzip.compress(text))):
        files = {f"finetuning_data/newsqa/{s}.jsonl{ending}": content for s in SPLITS}
        write_files(tmp_path, files)
        _, [task] = glue_task(tmp_path, "newsqa")
        found.append([task.read(split) for split in SPLITS])
        for split in SPLITS:
            (place / f"{split}.jsonl{ending}").unlink()
    assert found[0] == found[1]
    [[example], [dev]] = found[0]
    assert (example.first, example.answer) == (4, "dog")
    assert dev.answers == ("dog", "a dog")
    [own] = own_tasks(tmp_path / "own", {"train.jsonl.gz": gzip.compress(text)}, "qa")
    assert [own.read("train"), own.read("dev")] == found[0]


# Tables in text.

QUOTED = [('the "big" dog', "pos"), ("the cat; it ran, yes", "neg"), ("a 5", "pos")]
LINE = [("the dog\nran", "pos"), *QUOTED[1:]]
RAW = [('the "big" dog', "pos"), ('"quoted"', "neg"), ('5" disk', "pos")]


def table(rows, between, quoting=csv.QUOTE_MINIMAL):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=between, quoting=quoting, lineterminator="\n")
    writer.writerows([("a", "b"), *rows])
    return text.getvalue()


def plain(rows):
    return "".join("\t".join(row) + "\n" for row in [("a", "b"), *rows])


TAB = {"delimiter": "\t"}
NUMBERED = {"text_a": 1, "label": 2}


@pytest.mark.parametrize(
    ("name", "text", "keys", "rows"),
    [
        ("train.tsv", plain(RAW), {}, RAW),
        ("train.tsv", plain(RAW).replace("\n", "\r\n"), {}, RAW),
        ("train.tsv", plain([('"x"', "pos"), ("y", "neg")]), {}, [('"x"', "pos")]),
        ("train.csv", table(QUOTED, ","), {}, QUOTED),
        ("train.csv", table(LINE, ","), {}, LINE),
        ("train.csv", table(QUOTED, ",", csv.QUOTE_ALL), {}, QUOTED),
        ("train.csv", table(LINE, ";"), {"delimiter": ";"}, LINE),
        ("train.csv", table(LINE, "\t"), TAB, LINE),
        ("train.csv", table(QUOTED, "\t", csv.QUOTE_ALL), TAB, QUOTED),
        ("train.tsv", plain(RAW).replace("\t", "|"), {"delimiter": "|"}, RAW),
        ("train.tsv", plain(RAW)[4:], NUMBERED, RAW),
        ("train.csv", table(LINE, ",")[4:], NUMBERED, LINE),
        ("train.jsonl", "".join(json.dumps({"d": {"a": x}, "b": y}) + "\n"
                                for x, y in RAW), {"text_a": "d/a"}, RAW),
        ("train.json", json.dumps([dict(zip("ab", r, strict=True)) for r in QUOTED],
                                  indent=1), {}, QUOTED),
    ],
)  # fmt: skip
def test_tables_in_text(tmp_path, name, text, keys, rows):
    [task] = own_tasks(tmp_path, {name: text}, keys=keys)
    examples = task.read("train")
    assert [(e.text_a, e.label) for e in examples][: len(rows)] == rows
    source = open_source(str(tmp_path / name), None, "texts")
    texts = [one.fields["text"] for one in task.read_inputs(source)]
    assert texts == [e.text_a for e in examples]
    is_cut = inputs.can_cut(tmp_path / name, inputs.form_of(name))
    assert is_cut == name.endswith((".tsv", ".jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.tsv", table(QUOTED, "\t"), ["line 2", "no quotes", '"delimiter": "']),
        ("train.tsv", table(LINE, "\t"), ["line 2: 1 cells", "2 columns"]),
        ("train.tsv", table(QUOTED, "\t", csv.QUOTE_ALL), ["line 1", ".csv"]),
        ("train.tsv", 'a\tb\n"dog"\t"x"\n', ["line 2", "no quotes"]),
        ("train.csv", table(QUOTED, ";"), ["no column 'a'", "a;b", '"delimiter"']),
        ("train.tsv", table(RAW, ","), ["no column 'a'", "a,b", '"delimiter"']),
        ("train.tsv", "a\tb\n1\tthe dog\tx\n", ["line 2: 3 cells", "row.names"]),
        ("train.tsv", "a\tb\tc\ndog\tx\n", ["line 2: 2 cells", "3 columns"]),
        ("train.tsv", "the dog\tpos\nthe cat\tpos\nran\tneg\nwho\tpos\n",
         ["no column 'a'", "the dog, pos", "number the columns"]),
        ("train.tsv", "a\tb\npos\tthe dog\nneg\tthe cat\npos\tran\n",
         ["2 texts", "swapped"]),
        ("train.csv", "a,b\nwell,the dog,x\nno,the cat,y\n", ["line 2", "columns"]),
        ("train.tsv", "a\tb\ndog\tx\n".encode("utf-16"),
         ["UTF-16", "iconv -f UTF-16"]),
        ("train.tsv", "a\tb\ndog\tx\n".encode("utf-16-le"), ["no column 'a'"]),
        ("train.jsonl", '{"d": {"a": "dog"}, "b": "x"}\n', ["no column 'a'", "d/a"]),
        ("train.jsonl", '{"a": null, "b": "x"}\n', ["'a' (null)"]),
        ("train.jsonl", '{\n "a": "dog",\n "b": "x"\n}\n', ["line 1", "jq -c ."]),
        ("train.json", '{"a": "dog"}', ["array of objects"]),
        ("train.json", '{"a": "dog"}\n{"a": "cat"}\n', ["ending of JSON Lines"]),
        ("train.tsv", "a\tb\rdog\tx\r", ["\\r alone", "tr "]),
        ("train.tsv", "a\tb\ndo\rg\tx\n", ["line 2", "new-line"]),
        ("train.tsv", "a\tb\ndog\t\ncat\tx\n", ["line 2", "'b'", "empty"]),
        ("train.tsv", "a\tb\ndog\tx\ncat\tx\n", ["1 labels (x)"]),
        ("train.tsv", "a\tb\n", ["0 labels"]),
        ("train.tsv", "", ["no column 'a'"]),
        ("train.tsv", "x\t" * 300_000, ["no column 'a'"]),
        ("train.csv", 'a,b\n"dog,x\ncat,y\n', ["line 2", "quote"]),
        ("train.tsv", "a\tb\tb\ndog\tx\ty\n", ["2 columns 'b'"]),
        ("train.jsonl", '{"a": "dog", "b": "x"}\n{"a"\n', ["line 2"]),
        ("train.jsonl", '[\n {"a": "dog"}\n]\n', ["line 1", "array", "object"]),
        ("train.txt", "a\n", [".tsv, .csv, .jsonl"]),
    ],
)  # fmt: skip
def test_tables_in_other_forms_are_refused(tmp_path, name, content, words):
    refused(lambda: own_tasks(tmp_path, {name: content}), name, *words)


@pytest.mark.parametrize(("columns", "begin"), [(("a",), 4), ((1,), 0)])
def test_pieces_are_read_as_the_whole(tmp_path, columns, begin):
    """The header, if there is one, is read for each."""
    path, text = tmp_path / "x.tsv", plain(RAW)[4 - begin :]
    path.write_text(text)
    whole = list(inputs.texts(open_source(str(path), None, "texts"), [columns]))
    ends = [0, begin + 9, len(text) - 2, len(text)]
    pieces = []
    for start, end in zip(ends, ends[1:], strict=False):
        unit = Unit("tsv", str(path), "x", start, end, 1)
        pieces += inputs.texts(inputs.open_part(unit), [columns])
    assert [x.fields for x in pieces] == [x.fields for x in whole] and len(whole) == 3
    places = [one.where.removeprefix(f"{path}") for one in pieces]
    assert places[-1] == f" from byte {begin + 9}, line 2"


def test_what_left_is_named(tmp_path):
    with pytest.raises(UserError, match=r"'quoted' \(left in version 0.2: .csv has"):
        own_tasks(tmp_path, {"train.tsv": plain(RAW)}, quoted=True)


def test_not_a_number_is_a_missing_value_of_an_object():
    rows = [{"text": "w1", "id": float("nan")}, {"text": float("nan")}]
    read = inputs.texts(inputs.Source.of_objects(rows), [("text",)])
    assert next(read).fields == {"text": "w1"}
    with pytest.raises(UserError, match="input 1: no column 'text'"):
        next(read)
