# SPDX-License-Identifier: Apache-2.0
"""GLUE's own files: headers, indices, pairs of one text; the archive to submit."""

import json
import zipfile
from pathlib import Path

import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import glue
from electra_tf.storage.mirror import Outputs
from tests.helpers import memory_bucket
from tests.helpers.own_task import own_tasks


def test_archive_of_all_eleven_files(tmp_path):
    log = []
    for name in glue.NAMES[:-1]:
        folder = tmp_path / f"{name.lower()}_test_predictions" / "trial_1"
        folder.mkdir(parents=True)
        (folder / f"{name}.tsv").write_text(f"index\tprediction\n0\t{name}\n")
    last = glue.NAMES[-1]
    assert glue.write_archive(tmp_path, 1, log.append) is None
    assert log == [f"No GLUE.zip of trial 1 yet: {last} is missing."]
    (folder / f"{last}.tsv").write_text("index\tprediction\n0\tx\n")
    path = glue.write_archive(tmp_path, 1, log.append)
    with zipfile.ZipFile(path) as archive:
        names = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
        assert sorted(archive.namelist()) == [f"{name}.tsv" for name in names.split()]
        assert archive.read("CoLA.tsv") == b"index\tprediction\n0\tCoLA\n"
        rows = archive.read("WNLI.tsv").decode().splitlines()
    assert rows[0] == "index\tprediction" and len(rows) == 147
    assert {row.split("\t")[1] for row in rows[1:]} == {"0"}
    assert glue.write_archive(tmp_path, 2, log.append) is None


@pytest.mark.parametrize("in_bucket", [False, True])
def test_newest_predictions_by_their_records_count(tmp_path, monkeypatch, in_bucket):
    """Files of a bucket have the time of their download."""
    memory = memory_bucket.empty(tmp_path, monkeypatch)
    here = tmp_path / "results"
    for run, year in (("cola", 2026), ("cola,rte", 2025), ("dog", None)):
        folder = here / f"{run}_test_predictions" / "trial_1"
        folder.mkdir(parents=True)
        for name in glue.NAMES:
            (folder / f"{name}.tsv").write_text(run)
        if year:
            created = {"created": f"{year}-01-01T12:00:00+01:00"}
            (folder / "manifest.json").write_text(json.dumps(created))
    if in_bucket:
        memory.put(f"{here}/", "bucket/results/", recursive=True)
        here = Path(memory_bucket.place("results"))
        with Outputs(here, "rte") as outputs:
            outputs.bring(glue.is_prediction)
    with zipfile.ZipFile(glue.write_archive(here, 1, print)) as archive:
        assert archive.read("CoLA.tsv") == b"cola"


RTE = "0\tthe dog\tthe cat\tentailment\n1\ta\tb\tnot_entailment\n"
STS = (
    "0\tg\tf\ty\to\ts\ts\tdog\tcat\t" + "2.5\n",
    "index\tg\tf\ty\to\ts\ts\ta\tb\tscore\n",
)
TEST = "0\tthe dog\n1\tthe cat\n2\tran\n"
HEADER = "index\tsentence\n"


def task_of(folder, task, split, text, **hparams):
    files = {f"finetuning_data/{task}/{split}.tsv": text}
    [found] = own_tasks(folder, files, task_names=[task], **hparams)
    return found


def read(folder, task, split, text, **hparams):
    return task_of(folder, task, split, text, **hparams).read(split)


@pytest.mark.parametrize(
    ("task", "split", "text", "header"),
    [
        ("rte", "train", RTE, "index\tsentence1\tsentence2\tlabel\n"),
        ("sts", "dev", *STS),
        ("cola", "test", TEST, HEADER),
    ],
)
def test_missing_header_is_an_error(tmp_path, task, split, text, header):
    with pytest.raises(UserError, match=f"{split}.tsv has no header"):
        read(tmp_path, task, split, text)
    found = read(tmp_path, task, split, header + text)
    assert [e.eid for e in found] == list(range(len(text.splitlines())))


@pytest.mark.parametrize(
    ("text", "line", "index"),
    [
        ("0\tthe dog\n2\tran\n", 3, "2"),
        ("1\tthe dog\n2\tran\n", 2, "1"),
        ("0\tthe dog\n\n1\tran\n", 4, "1"),
        ("0\tthe dog\nran\tfast\n", 3, "ran"),
    ],
)
def test_index_of_a_test_file_must_be_the_line(tmp_path, text, line, index):
    words = f"test.tsv, line {line}: the index is '{index}'"
    for choice in ("stop", "skip"):
        with pytest.raises(UserError, match=words):
            read(tmp_path, "cola", "test", HEADER + text, on_bad_example=choice)


@pytest.mark.parametrize("second", ["", "\u200b"])
def test_pair_with_an_empty_second_text_is_a_single_text(tmp_path, second):
    lines = [f"{i}\t{'the ' * 40**i}\t{second}\tentailment\n" for i in (0, 1)]
    task = task_of(tmp_path, "rte", "train", "".join(["header\n", *lines]))
    vocab = task.tokenizer.vocab
    for example, count in zip(task.read("train"), (1, 14), strict=True):
        [features] = task.featurize(example, True)
        the = task.tokenizer.encode("the") * count
        assert features["input_ids"] == [vocab.cls_id, *the, vocab.sep_id]
        assert set(features["segment_ids"]) == {0}
