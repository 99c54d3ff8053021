# SPDX-License-Identifier: Apache-2.0
"""GLUE's own files: indices, pairs of one text."""

import pytest

from electra_tf.errors import UserError
from tests.helpers.own_task import own_tasks

HEADER = "index\tsentence\n"


def task_of(folder, task, split, text, **hparams):
    files = {f"finetuning_data/{task}/{split}.tsv": text}
    [found] = own_tasks(folder, files, task_names=[task], **hparams)
    return found


@pytest.mark.parametrize(
    ("task", "text", "header"),
    [
        (
            "rte",
            "0\tthe dog\tthe cat\tentailment\n1\ta\tb\tnot_entailment\n",
            "index\tsentence1\tsentence2\tlabel\n",
        ),
        (
            "sts",
            "0\tg\tf\ty\to\ts\ts\tdog\tcat\t2.5\n",
            "index\tg\tf\ty\to\ts\ts\ta\tb\tscore\n",
        ),
    ],
)
def test_missing_header_is_an_error(tmp_path, task, text, header):
    with pytest.raises(UserError, match="dev.tsv has no header"):
        task_of(tmp_path, task, "dev", text).read("dev")
    found = task_of(tmp_path, task, "dev", header + text).read("dev")
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
            task = task_of(
                tmp_path, "cola", "test", HEADER + text, on_bad_example=choice
            )
            task.read("test")


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
