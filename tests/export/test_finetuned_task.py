# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned models as SavedModels and for transformers predict as their trials."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import electra_tf
from electra_tf.errors import UserError
from electra_tf.export import ExportRequest, finetuned_task, formats, saved_model
from electra_tf.finetune import inputs
from electra_tf.finetune.tagging import spans_of
from electra_tf.inference import prediction
from electra_tf.inference.finetuned import read_trial
from tests.helpers import tiny_finetuning
from tests.helpers.exporting import NAMES, Failed, fresh_process, shared_export
from tests.helpers.runs import by_default, refused
from tests.helpers.tiny_trials import (
    JOINT,
    PLAIN,
    SQUAD,
    topics_task,
    write_data,
    write_run,
)

# Exports by name; squad has the joint head for questions, plain the other.
EXPORTS = ("cola", "sts", "chunk", "squad", "plain", "topics")
WORDS = tiny_finetuning.WORDS
LONG = " ".join(WORDS * 50)
BAD_UTF8 = b"waa \xff wab\xfe waz".decode("utf-8", "surrogateescape")
ODD = ["", LONG, BAD_UTF8, "\u00c9 waa\u0301 [MASK]"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def configs(data):
    """Name of an export -> the config of its trial."""
    texts, _, _ = write_run(data, {"task_names": ["cola", "sts", "chunk"]})
    found = dict.fromkeys(("cola", "sts", "chunk"), texts)
    found["squad"], _, _ = write_run(data, SQUAD | JOINT)
    found["plain"], _, _ = write_run(data, SQUAD | PLAIN)
    hparams = {"task_names": ["topics"]} | topics_task(data)
    found["topics"], _, _ = write_run(data, hparams)
    return found


def task_name(name):
    return "squad" if name == "plain" else name


@pytest.fixture(scope="module")
def exports(data, configs, tmp_path_factory):
    """A function: name -> SavedModel."""

    @functools.cache
    def export(name):
        out = tmp_path_factory.mktemp(name)
        checkpoint = configs[name].trial_dir(1)
        request = ExportRequest("saved_model", str(out), what=task_name(name))
        formats.export(request._replace(init_checkpoint=checkpoint))
        return out / task_name(name) / "1"

    return export


@pytest.fixture(scope="module")
def hugging_face(configs, tmp_path_factory):
    """A function: name -> model in the format of transformers."""

    @functools.cache
    def export(name):
        out, folder = tmp_path_factory.mktemp(name), Path(configs[name].trial_dir(1))
        task = read_trial(folder, task_name(name))
        finetuned_task.write_task(task, out, log=lambda line: None)
        return out / task_name(name)

    return export


def trial_of(configs, name):
    return electra_tf.load(configs[name].trial_dir(1), task_name(name))


def asked_of(name):
    """Inputs of one window or less, and for questions also none and many windows.

    One has a lone surrogate, as JSON may have.
    """
    rng = np.random.default_rng(8)
    lengths = (1, 4, 12, 16, 17, 18, 30, 80)
    contexts = [" ".join(rng.choice(WORDS, n)) for n in lengths]
    questions = [" ".join(rng.choice(WORDS, n % 7)) for n in range(len(contexts))]
    contexts = [c.replace("wba", "wba,") for c in contexts]
    contexts = [f"\ud800 {contexts[0]}", *contexts]
    if name in ("squad", "plain"):
        pairs = zip([questions[0], *questions], contexts, strict=True)
        return [*pairs, ("waa", ""), ("waa wab", " "), ("", "")]
    texts = [c for c in contexts if len(c.split()) < 15]
    if name == "sts":
        texts += [LONG, "", "\u200b"]
        return list(zip(texts, texts[::-1], strict=True))
    if name == "topics":
        return [{"text": text, "id": n} for n, text in enumerate(texts)]
    return [text.split() for text in texts] if name == "chunk" else [*texts, LONG]


def assert_same(name, ours, theirs, gap):
    for row, expected in zip(ours, theirs, strict=True):
        assert row.keys() == expected.keys()
        if name == "chunk":  # the tags may be of two schemes
            row["tags"], expected["tags"] = map(
                spans_of, (row["tags"], expected["tags"])
            )
        for key, value in expected.items():
            if isinstance(value, float | dict) or key == "probabilities":
                value = pytest.approx(value, **gap)
            assert row[key] == value, key


@pytest.mark.parametrize("name", by_default(EXPORTS, ["cola"]))
def test_saved_model_predicts_as_its_trial(configs, exports, name):
    trial, export = trial_of(configs, name), electra_tf.load(exports(name))
    assert (export.task, export.reads) == (trial.task, trial.reads)
    ours, theirs = (model.predict(asked_of(name)) for model in (export, trial))
    if name in ("squad", "plain"):
        assert [row["null_odds"] for row in ours[-3:]] == [1e4] * 3
        assert len({row["answer"] for row in ours}) > 4
    assert_same(name, ours, theirs, {"rel": 1e-4, "abs": 1e-3})
    manifest = json.loads((exports(name) / "manifest.json").read_text())
    assert manifest["task"] == task_name(name) and manifest["step"] == 9


@pytest.mark.parametrize(
    "name", by_default(["cola", "sts", "chunk", "topics", "plain"], ["cola"])
)
def test_model_for_transformers_predicts_as_its_trial(configs, hugging_face, name):
    trial, model = trial_of(configs, name), electra_tf.load(hugging_face(name))
    ours, theirs = (m.predict(asked_of(name)) for m in (model, trial))
    assert_same(name, ours, theirs, {"abs": 1e-4})
    if name != "chunk":
        refused(lambda: model.predict([("a", "b", "c")]), "input 0")


def columns(**texts):
    return ("serving_default", {k: ("string", v) for k, v in texts.items()})


@pytest.mark.thorough
def test_serving_without_electra_tf(exports, tmp_path):
    """What clients of a server may send, in a process that has only TensorFlow."""
    texts = [c for c in asked_of("cola") if "\ud800" not in c]
    pairs = asked_of("squad")[1:]
    none = ("string", [], [0])
    ids = dict(zip(NAMES, (("int32", [[x] * 3]) for x in (2, 1, 0)), strict=True))
    bad = ids | {NAMES[0]: ("int32", [[2, 999, 3]])}
    of_text = [
        columns(text=texts),
        columns(text=ODD),
        ("serving_default", {"text": none}),
    ]
    of_text += [("ids", ids), ("ids", bad)]
    of_pairs = [
        columns(text=texts, text_b=texts[::-1]),
        columns(text=ODD, text_b=ODD[::-1]),
        ("serving_default", {"text": none, "text_b": none}),
        columns(text=["waa"], text_b=["waa", "wab"]),
    ]
    asked, contexts = map(list, zip(*pairs, strict=True))
    of_questions = [
        columns(question=asked, context=contexts),
        columns(question=ODD, context=ODD[::-1]),
        ("serving_default", {"question": none, "context": none}),
        columns(question=["waa"], context=["waa", "wab"]),
        ("ids", ids),
    ]
    calls = {"cola": of_text, "sts": of_pairs, "chunk": of_text}
    calls |= {"squad": of_questions, "plain": of_questions}
    jobs = [("serve", {"model": exports(k), "calls": v}) for k, v in calls.items()]
    answers = dict(zip(calls, fresh_process(tmp_path, *jobs), strict=True))
    for name, found in answers.items():
        assert not isinstance(found, Failed), found.traceback
        odd, empty = found[1:3]
        assert {len(output) for output in odd["ok"].values()} == {4}, name
        assert {len(output) for output in empty["ok"].values()} == {0}, name
    for name, given, key in (
        ("cola", texts, "label"),
        ("sts", list(zip(texts, texts[::-1], strict=True)), "value"),
        *((name, pairs, "answer") for name in ("squad", "plain")),
    ):
        expected = [row[key] for row in electra_tf.load(exports(name)).predict(given)]
        if key == "value":
            expected = pytest.approx(expected, abs=1e-3)
        assert answers[name][0]["ok"][key] == expected
        assert key != "answer" or len(set(expected)) > 4
    for name in ("cola", "chunk"):
        assert "ok" in answers[name][3]
        assert "from 0 to] [59]" in answers[name][4]["message"]
    assert "text and text_b have rows" in answers["sts"][3]["message"]
    assert "question and context have rows" in answers["squad"][3]["message"]
    for name in ("squad", "plain"):  # fewer tokens than the joint head's beam
        assert np.shape(answers[name][4]["ok"]["start_logits"]) == (1, 3)
    outputs = answers["chunk"][0]["ok"]
    for row, text in enumerate(texts):
        count = outputs["num_words"][row]
        assert outputs["words"][row][:count] == text.split()
        spans = zip(outputs["starts"][row], outputs["ends"][row], strict=True)
        assert [text[s:e] for s, e in spans][:count] == text.split()
        assert set(outputs["labels"][row][count:]) <= {""}
    assert len(set(sum(outputs["labels"], []))) > 2
    odd = answers["chunk"][1]["ok"]
    assert odd["num_words"][:3] == [0, 2750, 3]
    assert odd["words"][2][:3] == ["waa", "wab", "waz"]


def test_other_and_damaged_saved_models_are_refused(exports, tmp_path):
    with pytest.raises(UserError, match="predict needs the head of a task"):
        prediction.load_predictor(str(shared_export("electra", "preprocessor")))
    copy = tmp_path / "1"
    shutil.copytree(exports("cola"), copy)
    assert electra_tf.load(tmp_path).predict("waa")[0]["label"] in ("0", "1")
    bare = shutil.copytree(copy, tmp_path / "bare" / "1")
    (bare / "manifest.json").unlink()
    refused(lambda: electra_tf.load(bare), "not one of export_model.py")
    weights = next((copy / "variables").glob("*.data*"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    refused(lambda: electra_tf.load(tmp_path), "checksum")


def test_model_of_a_request(data, configs):
    request = ExportRequest("saved_model", "out", str(data), "m", what="cola")
    folder = Path(configs["cola"].trial_dir(1))
    backup = folder.with_name(f"{folder.name}.bak")
    backup.mkdir()
    shutil.copy(folder / "config.json", backup)
    assert finetuned_task.trial_dir_of(request) == folder
    shutil.rmtree(backup)
    for change, words in (
        ({"what": "squad"}, "several models for squad: other_1, squad"),
        ({"what": "detecter"}, "cola, squad, sts"),
        ({"hparams": {"precision": "x"}}, "--hparams does not go with --what cola"),
    ):
        with pytest.raises(UserError, match=words):
            finetuned_task.trial_dir_of(request._replace(**change))
    others = {folder: "was not fine-tuned on 'squad'", data: "is a data directory"}
    for place, words in others.items():
        with pytest.raises(UserError, match=words):
            read_trial(place, "squad")


def test_the_encoder_of_a_task_is_read_without_a_note_on_its_head(configs, capsys):
    model = read_trial(Path(configs["cola"].trial_dir(1)), "cola")
    assert model.stored().step == model.provenance["step"]
    assert capsys.readouterr().out == ""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_exports_read_the_tables_of_their_trial(data, tmp_path, kind):
    """By the columns of the description, with the user's own ids; running text, too."""
    row = {"nr": "n7", "id": "no", "index": 3, "words": ["no"]}
    row |= {"tokens": WORDS[:3], "tags": ["B-A", "O", "O"], "said": "waa", "class": "y"}
    file = tmp_path / "own.jsonl"
    other = row | {
        "said": "no",
        "class": "n",
        "nr": "n8",
        "tokens": WORDS[1:3],
        "tags": ["O"] * 2,
    }
    file.write_text(json.dumps(row) + "\n" + json.dumps(other) + "\n")
    description = {"type": kind, "train": str(file), "dev": str(file), "id": "nr"}
    if kind == "tagging":
        description |= {"words": "tokens", "tags": "tags"}
    else:
        description |= {"text_a": "said", "label": "class", "delimiter": ";"}
    texts = tmp_path / ("new.txt" if kind == "tagging" else "new.csv")
    texts.write_text("nr;said\nn9;waa, 小明 wab.\n")
    hparams = {"task_names": ["own"], "tasks": {"own": description}}
    config, _, _ = write_run(data, hparams | {"model_dir": f"own_{kind}"})
    folder = Path(config.trial_dir(1))
    task = read_trial(folder, "own")
    made = {"own": finetuned_task.servable(task)}
    [saved] = saved_model.write_saved_models(made, task, tmp_path / "s")
    finetuned_task.write_task(task, tmp_path / "hf", log=lambda line: None)
    found = []
    for path in (folder, saved, tmp_path / "hf" / "own"):
        model = electra_tf.load(path)
        new = inputs.open_source(str(texts), None, model.reads)
        asked = [*model.read_inputs(inputs.Source.of(file)), *model.read_inputs(new)]
        rows = model.rows(asked)
        keys = ("id", "text", "words")
        found.append([{k: row[k] for k in keys if k in row} for row in rows])
    assert [row["id"] for row in found[0][:2]] == ["n7", "n8"]
    last = {"id": "n9", "text": "waa, 小明 wab."}
    if kind == "tagging":
        text = f"{last['id']};{last['text']}"
        last = {"text": text, "words": ["n9", ";", "waa", ",", *"小明", "wab", "."]}
    assert found[0][-1] == last
    assert found[1] == found[0] and found[2] == found[0]


def test_exports_keep_task_and_id_column(exports, hugging_face, tmp_path):
    asked = [{"index": 4, "sentence": "waa"}]
    for path in (exports("cola"), hugging_face("cola")):
        [row] = electra_tf.load(path, task="cola").predict(asked)
        assert row["id"] == 4 and row["text"] == "waa"
        with pytest.raises(UserError, match="task 'sts': .* fine-tuned on cola"):
            electra_tf.load(path, task="sts")
        with pytest.raises(UserError, match="fine-tuned on cola"):
            prediction.load_predictor(str(path), task="classification")
    copy = shutil.copytree(hugging_face("cola"), tmp_path / "hf")
    (copy / "manifest.json").unlink()
    refused(lambda: electra_tf.load(copy, task="cola"), "fine-tuned on classification")
