# SPDX-License-Identifier: Apache-2.0
"""Multiple choice, from files to the SavedModel."""

import json
import re

import numpy as np
import pytest

import electra_tf
from electra_tf import startup
from electra_tf.errors import UserError
from electra_tf.export import finetuned_task, saved_model
from electra_tf.finetune import preprocessing
from electra_tf.finetune.inputs import Source
from electra_tf.inference.finetuned import read_trial
from tests.helpers.own_task import own_tasks
from tests.helpers.runs import check_ok, refused, run_script
from tests.helpers.tiny_finetuning import TINY, WORDS, write_data

KEYS = {"text_a": "a", "choices": ["x", "y", "z"], "label": "b"}
TRAIN = "a,x,y,z,b\nthe dog,ran,cat,,0\nthe cat,who,the,dog,2\nwho,?,ran,,1\n"


def made(folder, files, keys=None, **more):
    [task] = own_tasks(
        folder, files, "multiple_choice", keys=KEYS | (keys or {}), **more
    )
    return task


def test_rows_have_different_numbers_of_choices(tmp_path):
    task = made(tmp_path, {"train.csv": TRAIN})
    examples = task.read("train")
    assert [(e.choices, e.label) for e in examples] == [
        (["ran", "cat"], 0),
        (["who", "the", "dog"], 2),
        (["?", "ran"], 1),
    ]
    store = preprocessing.features(task.config, [task], "train", True)
    assert store["input_ids"].shape == (3, 3, 16)
    lengths = store["input_mask"].sum(axis=-1)
    assert lengths.tolist() == [[6, 6, 0], [6, 6, 6], [5, 5, 0]]
    assert store["segment_ids"].sum() == 2 * (2 + 3 + 2)
    assert store["mine:label_ids"].tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("lines", "labels"),
    [
        (['{"a": "the", "c": ["dog", "cat"], "b": "cat"}'], [1]),
        (['{"a": "the", "c": ["7", "1"], "b": "7"}'] * 2, [0, 0]),
        (['{"a": "the", "c": ["dog", "cat", "ran"], "b": 2}'], [2]),
    ],
)
def test_labels_are_numbers_or_texts(tmp_path, lines, labels):
    task = made(tmp_path, {"train.jsonl": "\n".join(lines)}, {"choices": "c"})
    assert [e.label for e in task.read("train")] == labels


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"a": "the", "c": ["1", "0"], "b": "1"}, "label is '1', not"),
        ({"a": "the", "c": ["dog", "cat"], "b": 2}, "label is '2', not"),
        ({"a": "the", "c": ["dog"], "b": 0}, "not a list of two or more"),
        ({"a": "the", "c": "dog|cat", "b": 0}, "not a list of two or more"),
        ({"a": "the", "c": ["dog", None], "b": 0}, "a choice is None"),
        ({"a": None, "c": ["dog", "cat"], "b": 0}, "no value in column 'a'"),
    ],
)
def test_other_rows_are_refused(tmp_path, row, expected):
    good = {"a": "the", "c": ["dog", "cat"], "b": 0}
    task = made(tmp_path, {"train.jsonl": [good, good, row]}, {"choices": "c"})
    refused(lambda: task.read("train"), expected)


def write_rows(path, count, rng):
    """The right choice begins with an early word, the others with late ones."""
    rows = []
    for _ in range(count):
        right = int(rng.integers(2 + int(rng.integers(3))))
        size = max(2, right + 1 + int(rng.integers(2)))
        choices = [f"{rng.choice(WORDS[25:])} {rng.choice(WORDS)}" for _ in range(size)]
        choices[right] = f"{rng.choice(WORDS[:24])} {rng.choice(WORDS)}"
        rows.append({"a": str(rng.choice(WORDS)), "c": choices, "b": right})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_new_rows_are_read_by_their_columns_alone(tmp_path):
    """Cells without a column, as R writes them, are refused; numbers need no header."""
    task = made(tmp_path, {"train.csv": TRAIN})
    path = tmp_path / "new.csv"
    path.write_text("a,x,y,z\n1,the dog,ran,cat,\n")
    with pytest.raises(UserError, match="5 cells .* 4 columns"):
        list(task.read_inputs(Source.of(path)))
    path.write_text("a,x\nthe dog,ran\n")
    with pytest.raises(UserError, match="not a list of two or more"):
        list(task.read_inputs(Source.of(path)))
    numbers = {"text_a": 1, "choices": [2, 3], "label": 4}
    task = made(tmp_path, {"train.csv": "the,dog,cat,0\nwho,ran,?,1\n"}, numbers)
    path.write_text("the dog,ran,cat\n")
    [one] = task.read_inputs(Source.of(path))
    assert one.fields == {"text": "the dog", "choices": ["ran", "cat"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder of the trial, what the run printed)."""
    data = write_data(tmp_path_factory.mktemp("data"))
    rng = np.random.default_rng(0)
    for split, count in (("train", 192), ("dev", 40)):
        write_rows(data / f"{split}.jsonl", count, rng)
    description = KEYS | {"type": "multiple_choice", "choices": "c"}
    description |= {"train": "train.jsonl", "dev": "dev.jsonl"}
    hparams = TINY | {"task_names": ["pick"], "tasks": {"pick": description}}
    flags = ["--data-dir", str(data), "--model-name", "m"]
    done = run_script("run_finetuning.py", *flags, "--hparams", json.dumps(hparams))
    check_ok(done)
    return data / "models/m/finetuning_models/pick_model_1", done.stdout


def test_a_model_learns_and_is_scored(trained):
    accuracy = float(re.search(r"accuracy: ([\d.]+)", trained[1])[1])
    assert accuracy > 85, trained[1]


def test_served_answers_are_those_of_the_trial(tmp_path, trained):
    trial, _ = trained
    task = read_trial(trial, "pick")
    [folder] = saved_model.write_saved_models(
        {"pick": finetuned_task.servable(task)}, task, tmp_path
    )
    inputs = [(WORDS[0], WORDS[3:5]), (WORDS[30], [WORDS[28], WORDS[2], WORDS[40]])]
    ours = electra_tf.load(trial).predict(inputs)
    theirs = electra_tf.load(folder).predict(inputs)
    for one, other in zip(ours, theirs, strict=True):
        assert one["label"] == other["label"] and one["choice"] == other["choice"]
        np.testing.assert_allclose(
            one["probabilities"], other["probabilities"], atol=1e-5
        )
        assert sum(one["probabilities"]) == pytest.approx(1, abs=1e-5)
    [row] = electra_tf.load(trial).predict({"a": WORDS[0], "c": WORDS[3:5]})
    assert row["probabilities"] == ours[0]["probabilities"]


def test_transformers_scores_the_same(trained, tmp_path):
    """ElectraForMultipleChoice; read back, it predicts as its trial does."""
    startup.keep_triton_out()
    import torch
    import transformers

    trial, _ = trained
    task = read_trial(trial, "pick")
    folder = finetuned_task.write_task(task, tmp_path, log=lambda line: None) / "pick"
    model = transformers.ElectraForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text, choices = WORDS[0], [WORDS[28], WORDS[2], WORDS[40]]
    pairs = tokenizer([text] * 3, choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**{name: x[None] for name, x in pairs.items()})
    [ours] = electra_tf.load(trial).predict([(text, choices)])
    [again] = electra_tf.load(folder).predict([(text, choices)])
    shares = theirs.logits.softmax(-1)[0].numpy()
    np.testing.assert_allclose(ours["probabilities"], shares, atol=1e-4)
    np.testing.assert_allclose(again["probabilities"], shares, atol=1e-4)
