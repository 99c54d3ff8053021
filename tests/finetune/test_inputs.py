# SPDX-License-Identifier: Apache-2.0
"""GLUE, SQuAD and MRQA as they are distributed today; own tasks in the same formats."""

import datetime
import gzip
import json

import pytest
from backports import zstd

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import inputs, preprocessing
from electra_tf.finetune.inputs import open_source
from electra_tf.finetune.question_inputs import questions
from electra_tf.finetune.task_names import make_tasks
from electra_tf.text import tables
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import own_tasks, write_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

A, B = "the dog ran .", "the cat ran"
# Of each task: Hugging Face's folder and columns, the classes of its numbers or None
# for those of GLUE's files, labels, a line of GLUE's files and of its test set.
NLI = ("entailment", "not_entailment")
NLI_ROWS = [0, 1, 1], lambda i, a, b, y: f"{i}\t{a}\t{b}\t{NLI[y]}"
PAIR = ("sentence1", "sentence2")
TASKS = {
    "cola": ("cola", ("sentence",), [0, 1, 1], lambda i, a, b, y: f"x\t{y}\t\t{a}"),
    "sst": ("sst2", ("sentence",), [0, 1, 1], lambda i, a, b, y: f"{a}\t{y}"),
    "mrpc": ("mrpc", PAIR, [1, 0, 1], lambda i, a, b, y: f"{y}\t1\t2\t{a}\t{b}"),
    "sts": (
        *("stsb", PAIR, [0.0, 3.8, 4.067]),
        lambda i, a, b, y: "\t".join(["x"] * 7 + [a, b, str(y)]),
    ),
    "qqp": (
        *("qqp", ("question1", "question2"), [0, 1, 0]),
        lambda i, a, b, y: f"{i}\t1\t2\t{a}\t{b}\t{y}",
    ),
    "mnli": (
        *("mnli", ("premise", "hypothesis"), [0, 1, 2]),
        lambda i, a, b, y: "\t".join(
            ["x"] * 8 + [a, b, ("entailment", "neutral", "contradiction")[y]]
        ),
    ),
    "qnli": ("qnli", ("question", "sentence"), *NLI_ROWS),
    "rte": ("rte", PAIR, *NLI_ROWS),
}
SPLITS = {"train": "train", "dev": "validation"}
MNLI_SPLITS = {"train": "train", "dev_matched": "validation_matched"}
MNLI_SPLITS["dev_mismatched"] = "validation_mismatched"


def write_parquet(path, rows, classes=None, types=None):
    """Rows, with the names of the column label's classes as Hugging Face keeps them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    for name, kind in (types or {}).items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast(kind))
    if classes:
        features = {"label": {"names": list(classes), "_type": "ClassLabel"}}
        said = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": said})
    pq.write_table(table, path)


def glue_rows(name, gap=0):
    _, columns, labels, _ = TASKS[name]
    texts = dict(zip(columns, (A, B), strict=False))
    rows = enumerate(labels)
    rows = [texts | {"label": y, "idx": i + gap * i} for i, y in rows]
    return [
        row | {columns[0]: f"{A} {'dog ' * i}".strip()} for i, row in enumerate(rows)
    ]


def glue_task(folder, name):
    write_files(folder, {})
    hparams = {"task_names": [name], "max_seq_length": 24, "max_query_length": 8}
    config = FinetuningConfig.from_hparams(str(folder), "m", hparams)
    return config, make_tasks(config, Vocabulary.load(folder / "vocab.txt"))


def features_of(folder, name):
    config, [task] = glue_task(folder, name)
    found = {split: task.read(split) for split in ("train", *task.splits("dev"))}
    store = preprocessing.features(config, [task], "train", True)
    return found, {k: v.tolist() for k, v in store.items()}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("folder", ["ours", "theirs"])
def test_glue_is_the_same_from_parquet_and_from_tsv(tmp_path, name, folder):
    config, columns, labels, line = TASKS[name]
    rows = glue_rows(name, gap=2)  # MRPC's indices have gaps.
    tsv, parquet = (tmp_path / form / "finetuning_data" for form in ("tsv", "parquet"))
    splits = MNLI_SPLITS if name == "mnli" else SPLITS
    header = "" if name == "cola" else "header\n"
    (tsv / name).mkdir(parents=True)
    for ours, theirs in splits.items():
        texts = [(row[columns[0]], row[columns[-1]]) for row in rows]
        lines = [line(i, *ab, labels[i]) for i, ab in enumerate(texts)]
        (tsv / name / f"{ours}.tsv").write_text(header + "\n".join(lines) + "\n")
        place = parquet / (name if folder == "ours" else config)
        kind = {"label": pa.float32() if name == "sts" else pa.int64()}
        file = place / f"{theirs}-00000-of-00001.parquet"
        write_parquet(file, rows, types=kind)
    expected = features_of(tmp_path / "tsv", name)
    assert features_of(tmp_path / "parquet", name) == expected
    assert len(expected[0]["train"]) >= 3
    # Where both are there, GLUE's own files are read, as before.
    (parquet / name).mkdir(exist_ok=True)
    for ours in splits:
        (parquet / name / f"{ours}.tsv").write_text("header\nbroken\n")
    with pytest.raises(UserError, match=r"\.tsv, line"):
        features_of(tmp_path / "parquet", name)


def test_numbers_of_classes_are_as_the_file_names_them(tmp_path):
    """A converted data set may count its classes otherwise."""
    rows = glue_rows("rte")
    for split in SPLITS.values():
        path = tmp_path / f"finetuning_data/rte/{split}-00000-of-00001.parquet"
        write_parquet(path, rows, classes=NLI[::-1])
    _, [task] = glue_task(tmp_path, "rte")
    assert [e.label for e in task.read("train")] == [NLI[1], NLI[0], NLI[0]]


def test_a_split_in_several_files(tmp_path):
    """Half of it is not taken for all of it; of one file beside them all is known."""
    for name in ("rte", "squad"):
        folder = tmp_path / f"finetuning_data/{name}"
        for number in range(2):
            path = folder / f"train-{number:05d}-of-00002.parquet"
            write_parquet(path, glue_rows("rte"))
        with pytest.raises(UserError, match="00000-of-00002.parquet is one of several"):
            _, [task] = glue_task(tmp_path, name)
            task.read("train")
    for split in SPLITS.values():
        path = tmp_path / f"finetuning_data/rte/{split}-00000-of-00001.parquet"
        write_parquet(path, glue_rows("rte"))
    _, [task] = glue_task(tmp_path, "rte")
    assert len(task.read("train")) == 3


@pytest.mark.parametrize(
    "other",
    [
        [{"dtype": "string", "_type": "Value"}],  # as older versions write lists
        {"feature": [{"names": ["a"], "_type": "ClassLabel"}], "_type": "Sequence"},
        {"names": {"dtype": "string", "_type": "Value"}},  # a column of objects
    ],
)
def test_classes_beside_columns_of_any_kind(tmp_path, other):
    features = {"other": other, "label": {"names": [*NLI], "_type": "ClassLabel"}}
    said = json.dumps({"info": {"features": features}})
    table = pa.table({"label": [1], "other": [[0]]})
    pq.write_table(
        table.replace_schema_metadata({"huggingface": said}), tmp_path / "a.parquet"
    )
    classes = tables.Rows(str(tmp_path / "a.parquet")).classes
    assert classes.pop("other", ["a"]) == ["a"]
    assert classes == {"label": [*NLI]}


def test_test_sets_have_no_labels(tmp_path):
    folder = tmp_path / "finetuning_data"
    rows = [row | {"label": -1} for row in glue_rows("mnli", gap=1)]
    for name in ("mnli/test_matched", "ax/test"):
        write_parquet(folder / f"{name}-00000-of-00001.parquet", rows)
    _, [task] = glue_task(tmp_path, "mnli")
    for split in ("test_matched", "diagnostic"):
        assert [e.eid for e in task.read(split)] == [0, 2, 4]
    with pytest.raises(UserError, match="test_mismatched-00000-of-00001.parquet"):
        task.read("test_mismatched")
    assert "validation_mismatched-" in task.notes(["dev"])[-1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": 2}, ["row 1: column 'label'", "'2'", "there are 0, 1"]),
        ({"label": None}, ["row 1: column 'label'", "'None'"]),
        ({"sentence": None}, ["row 1: column 'sentence' is None"]),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, change, words):
    rows = glue_rows("cola")
    rows[1] |= change
    path = tmp_path / "finetuning_data/cola/train-00000-of-00001.parquet"
    write_parquet(path, rows)
    _, [task] = glue_task(tmp_path, "cola")
    with pytest.raises(UserError) as caught:
        task.read("train")
    assert all(word in str(caught.value) for word in [str(path), *words])


def test_the_rows_of_a_test_set_have_numbers(tmp_path):
    rows = glue_rows("rte")
    rows[1]["idx"] = None
    path = tmp_path / "finetuning_data/rte/test-00000-of-00001.parquet"
    write_parquet(path, rows)
    _, [task] = glue_task(tmp_path, "rte")
    with pytest.raises(UserError, match="row 1: column 'idx' is None, not a whole"):
        task.read("test")


def test_a_word_of_a_list_is_not_null(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"words": ["a", null]}\n')
    with pytest.raises(UserError, match="a.jsonl, line 1: words has null for a word"):
        list(inputs.words(inputs.open_source(str(path), None, "words")))


def test_a_damaged_table(tmp_path):
    path = tmp_path / "finetuning_data/cola/train-00000-of-00001.parquet"
    write_parquet(path, glue_rows("cola"))
    path.write_bytes(path.read_bytes()[:-9])
    _, [task] = glue_task(tmp_path, "cola")
    with pytest.raises(UserError, match="damaged") as caught:
        task.read("train")
    assert caught.value.exit_code == 65
    texts = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"sentence": texts, "label": [0, 1]}), path)
    with pytest.raises(UserError, match="row 1, column 'sentence': not UTF-8"):
        task.read("train")


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
    assert [one.given["id"] for one in task.asked(source)] == ["2026-11-23"] * 2
    rows[1]["a"] = b"caf\xe9"
    content = parquet_bytes(rows, tmp_path / "x.parquet")
    with pytest.raises(UserError, match="row 1: .* is not UTF-8"):
        own_tasks(tmp_path, {"train.parquet": content})


def test_own_columns_that_are_not_there(tmp_path):
    content = parquet_bytes([{"a": "the dog", "c": 1}], tmp_path / "x.parquet")
    with pytest.raises(UserError) as caught:
        own_tasks(tmp_path, {"train.parquet": content})
    assert "no column 'b'" in str(caught.value)
    assert "It has the columns a, c" in str(caught.value)


def test_own_tags(tmp_path):
    rows = [{"words": ["the", "dog"], "tags": ["O", "B-PER"]}]
    content = parquet_bytes(rows, tmp_path / "x.parquet")
    [task] = own_tasks(tmp_path, {"train.parquet": content}, "tagging")
    lines = b"the O\ndog B-PER\n"
    files = {"train.txt.gz": gzip.compress(lines)}
    [plain] = own_tasks(tmp_path / "txt", files, "tagging")
    assert task.labels == plain.labels and "S-PER" in task.labels
    assert [e.words for e in task.read("train")] == [["the", "dog"]]
    assert [e.tags for e in task.read("train")] == [e.tags for e in plain.read("train")]


@pytest.mark.parametrize("is_list", [True, False])
def test_own_tags_have_the_names_that_the_file_gives(tmp_path, is_list):
    """A number that is no class is not one more class."""
    classes = {"names": ["DET", "NOUN"], "_type": "ClassLabel"}
    classes = [classes] if is_list else {"feature": classes, "_type": "Sequence"}
    said = json.dumps({"info": {"features": {"tags": classes}}})
    tables = []
    for last in (1, -1):
        rows = [{"words": ["the", "dog"], "tags": [0, last]}]
        table = pa.Table.from_pylist(rows).replace_schema_metadata(
            {"huggingface": said}
        )
        pq.write_table(table, tmp_path / "x.parquet")
        tables.append((tmp_path / "x.parquet").read_bytes())
    options = {"kind": "tagging", "scheme": "plain"}
    [task] = own_tasks(tmp_path, {"train.parquet": tables[0]}, **options)
    assert task.labels == ["DET", "NOUN"]
    with pytest.raises(UserError, match="row 0: words and tags are not two lists"):
        own_tasks(tmp_path, {"train.parquet": tables[1]}, **options)


def test_a_compressed_file_that_is_cut_off(tmp_path):
    cut = gzip.compress(LINES * 50)[:-12]
    with pytest.raises(UserError, match=r"train.jsonl.gz: damaged") as caught:
        own_tasks(tmp_path, {"train.jsonl.gz": cut})
    assert caught.value.exit_code == 65


QUESTION = {"id": "q", "question": "who ran ?", "context": "the dog ran . the cat ."}
ANSWERS = {"text": ["dog"], "answer_start": [4]}
NONE = {"text": [], "answer_start": []}


@pytest.mark.parametrize("name", ["squad", "squadv1"])
def test_squad_in_parquet(tmp_path, name):
    rows = [QUESTION | {"title": "T", "answers": ANSWERS}]
    if name == "squad":
        rows.append(QUESTION | {"title": "T", "id": "p", "answers": NONE})
    asked = [{k: v for k, v in r.items() if k in ("id", "question")} for r in rows]
    for ours, row in zip(asked, rows, strict=True):
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        ours["answers"] = [{"text": t, "answer_start": s} for t, s in pairs]
        ours |= {"is_impossible": not ours["answers"]} if name == "squad" else {}
    paragraph = {"context": QUESTION["context"], "qas": asked}
    content = {"data": [{"title": "T", "paragraphs": [paragraph]}]}
    place = f"finetuning_data/{name}"
    files = {f"{place}/{split}.json": content for split in SPLITS}
    write_files(tmp_path / "json", files)
    for theirs in SPLITS.values():
        file = tmp_path / "parquet" / place / f"{theirs}-00000-of-00001.parquet"
        write_parquet(file, rows)
    found = []
    for form in ("json", "parquet"):
        config, [task] = glue_task(tmp_path / form, name)
        store = preprocessing.features(config, [task], "train", True)
        examples = task.read("train"), task.read("dev")
        found.append((*examples, {k: v.tolist() for k, v in store.items()}))
    assert found[0] == found[1]
    assert len(found[0][0]) == len(rows)
    assert [e.answers for e in found[0][1]] == [("dog",), ()][: len(rows)]


def test_answers_that_are_not_a_table(tmp_path):
    rows = [QUESTION | {"answers": ANSWERS | {"answer_start": [4, 5]}}]
    file = tmp_path / "finetuning_data/squad/train-00000-of-00001.parquet"
    write_parquet(file, rows)
    _, [task] = glue_task(tmp_path, "squad")
    with pytest.raises(UserError, match="row 0 is not in the form it should be"):
        task.read("train")


@pytest.mark.parametrize("qas", ["who ?", ["who ?"], [["who ?"]]])
def test_questions_that_are_no_objects(tmp_path, qas):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"context": QUESTION["context"], "qas": qas}))
    with pytest.raises(UserError, match=f"{path}, line 1: "):
        list(questions(open_source(str(path), None, "questions")))


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_json_that_is_nested_too_deeply(tmp_path, form):
    path = tmp_path / f"x.{form}"
    path.write_text('{"data": ' + "[" * 100_000)
    with pytest.raises(UserError, match=f"{path}.*recursion"):
        list(questions(open_source(str(path), None, "questions")))


def test_rows_of_questions_are_whole(tmp_path):
    def read(name, text):
        (tmp_path / name).write_text(text)
        source = open_source(str(tmp_path / name), None, "questions")
        return [one.given for one in questions(source)]

    for name, sign in (("a.csv", ","), ("a.tsv", "\t")):
        cut = f"question{sign}context\nwho?{sign}The cat{sign} the dog\n"
        with pytest.raises(UserError, match="line 2: more columns than the first"):
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
    assert (example.start, example.end, example.answer) == (1, 1, "dog")
    assert dev.answers == ("dog", "a dog")
    [own] = own_tasks(tmp_path / "own", {"train.jsonl.gz": gzip.compress(text)}, "qa")
    assert [own.read("train"), own.read("dev")] == found[0]


def test_predictions_read_the_same_formats(tmp_path):
    write_parquet(tmp_path / "x.parquet", ROWS)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(LINES))
    [task] = own_tasks(tmp_path / "task", {"train.csv": CSV})
    found = []
    for name in ("x.parquet", "x.jsonl.gz"):
        source = open_source(str(tmp_path / name), None, "texts")
        found.append([one.given for one in task.asked(source)])
    assert found[0] == found[1] == [{"text": "the dog"}, {"text": "the cat"}]
    with pytest.raises(UserError, match="standard input"):
        open_source(None, "parquet", "texts")
