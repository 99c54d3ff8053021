# SPDX-License-Identifier: Apache-2.0
"""Class weights: as they are given, and balanced."""

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune.task_names import make_tasks
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import own_tasks, write_files

TEXT = "a\tb\ndog\tx\ncat\tx\nran\tx\nthe\ty\n"
SEVERAL = "a\tb\ndog\tx\ncat\tx,y\nran\tx\nthe\t\n"


def weights(folder, said, text=TEXT, kind="classification", **more):
    description = {"text_a": "a", "label": "b", "class_weights": said} | more
    [task] = own_tasks(folder, {"train.tsv": text}, kind, **description)
    return task.class_weights


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([2, 0.5], [2.0, 0.5]),
        ({"y": 5}, [1.0, 5.0]),
        ("balanced", [4 / 6, 2.0]),
        (None, None),
    ],
)
def test_weights_are_in_the_order_of_the_labels(tmp_path, said, expected):
    if said is None:
        [task] = own_tasks(tmp_path, {"train.tsv": TEXT})
        assert task.class_weights is None
    else:
        assert weights(tmp_path, said) == expected
        assert weights(tmp_path, said, do_train=False) is None


def test_balanced_where_a_text_has_several(tmp_path):
    found = weights(tmp_path, "balanced", SEVERAL, "multilabel")
    assert found == [1 / 3, 3.0]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"yy": 2}, ["'yy'", "did you mean 'y'", "x, y"]),
        ([1, 2, 3], ["[1, 2, 3]", "x, y"]),
        ([1, -2], ["-2", "at least 0"]),
        ([1, True], ["True"]),
        ("balance", ["'balance'", "'balanced'"]),
        (3, ["3", "a list"]),
    ],
)
def test_mistakes_are_said_before_the_training(tmp_path, said, words):
    with pytest.raises(UserError) as caught:
        weights(tmp_path, said)
    for word in words:
        assert word in str(caught.value)


def glue(folder, said, name="cola", labels=(1, 1, 0, 1), **more):
    """The built-in task on three sentences of class 1 and one of class 0."""
    lines = "".join(f"x\t{label}\t\tthe dog\n" for label in labels)
    scores = "h\n" + "\t".join(["x"] * 7 + ["the dog", "the cat", "3.0"]) + "\n"
    files = {f"finetuning_data/cola/{s}.tsv": lines for s in ("train", "dev")}
    files |= {f"finetuning_data/sts/{s}.tsv": scores for s in ("train", "dev")}
    write_files(folder, files)
    hparams = {"task_names": [name], "max_seq_length": 16, "class_weights": said}
    config = FinetuningConfig.from_hparams(str(folder), "m", hparams | more)
    [task] = make_tasks(config, Vocabulary.load(folder / "vocab.txt"))
    return task.class_weights


def test_tasks_of_the_original_have_them_too(tmp_path):
    assert glue(tmp_path, {"cola": "balanced"}) == [2.0, 4 / 6]
    assert glue(tmp_path, {"cola": {"0": 3}}) == [3.0, 1.0]
    assert glue(tmp_path, {}) is None
    assert glue(tmp_path, {"cola": [2, 1]}, do_train=False) is None


@pytest.mark.parametrize(
    ("said", "name", "words"),
    [
        ({"cola": {"yes": 2}}, "cola", ["task cola", "'yes'", "0, 1"]),
        ({"kola": "balanced"}, "cola", ["kola", "task_names (cola)"]),
        ({"sts": "balanced"}, "sts", ["sts", "regression"]),
    ],
)
def test_mistakes_in_the_hparam(tmp_path, said, name, words):
    with pytest.raises(UserError) as caught:
        glue(tmp_path, said, name)
    assert all(word in str(caught.value) for word in words), caught.value


def test_nothing_balances_a_class_without_examples(tmp_path):
    with pytest.raises(UserError, match="task cola: .* no training example of 0"):
        glue(tmp_path, {"cola": "balanced"}, labels=(1, 1))
    assert glue(tmp_path, {"cola": [2, 1]}, labels=(1, 1)) == [2.0, 1.0]


def test_a_description_has_its_own(tmp_path):
    write_files(tmp_path, {"train.tsv": TEXT})
    mine = {"type": "classification", "text_a": "a", "label": "b"}
    mine |= {"train": "train.tsv", "dev": "train.tsv"}
    with pytest.raises(UserError, match="description of mine"):
        glue(tmp_path, {"mine": [1, 2]}, "mine", tasks={"mine": mine})


def test_smoothing_needs_labels(tmp_path):
    text = "a\tb\ndog\t1\ncat\t2\n"
    with pytest.raises(UserError, match="label_smoothing is for classification"):
        own_tasks(tmp_path, {"train.tsv": text}, "regression", label_smoothing=0.1)
    own_tasks(tmp_path, {"train.tsv": text}, label_smoothing=0.1)
