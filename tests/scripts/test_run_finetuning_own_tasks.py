# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py on files of one's own: what is submitted, and what may change."""

import json
import re
import shutil

import pytest

from tests.helpers.runs import ROOT, run_script
from tests.helpers.tiny_finetuning import WORDS, finetune, fork, write_data

EARLY = WORDS[24]


def sentences(count):
    return [[WORDS[(7 * i + j) % len(WORDS)] for j in range(5)] for i in range(count)]


def topics(sentence):
    """None, one or both."""
    first, last = sentence[0] < EARLY, sentence[-1] < EARLY
    return ", ".join(["begin"] * first + ["end"] * last)


def write_own_files(folder):
    """Reviews (tsv), names (CoNLL, IOB1) and questions (SQuAD), each with a test."""
    folder.mkdir()
    for split, count in (("train", 24), ("dev", 12), ("test", 6)):
        reviews = [
            f"{' '.join(s)}\t{'good' if s[0] < EARLY else 'awful'}\t{topics(s)}\t{n}"
            for n, s in enumerate(sentences(count))
        ]
        header = "text\tkind\ttopics\tscore"
        if split == "test":
            texts = [r.partition("\t")[0] for r in reviews]
            header = "id\ttext"
            reviews = [f"r{n}\t{text}" for n, text in enumerate(texts)]
        (folder / f"{split}.tsv").write_text("\n".join([header, *reviews, ""]))
        lines = []
        for sentence in sentences(count):
            tags = ["I-PER" if w < EARLY else "O" for w in sentence]
            words = [f"{w} {t}" for w, t in zip(sentence, tags, strict=True)]
            lines += [*(sentence if split == "test" else words), ""]
        (folder / f"{split}.txt").write_text("\n".join([*lines, ""]))
        texts = [" ".join(s) for s in sentences(count)]
        asked = [
            {
                "context": text,
                "qas": [{"id": f"{split}{n}", "question": WORDS[n % 9]}],
            }
            for n, text in enumerate(texts)
        ]
        if split != "test":
            for row, text in zip(asked, texts, strict=True):
                answer = {"text": text.split()[1], "answer_start": text.index(" ") + 1}
                row["qas"][0]["answers"] = [answer]
        content = {"data": [{"title": split, "paragraphs": asked}]}
        (folder / f"{split}.json").write_text(json.dumps(content))


def files(ending):
    return {split: f"own/{split}.{ending}" for split in ("train", "dev", "test")}


TASKS = {
    "reviews": {"type": "classification", "text_a": "text", "label": "kind"},
    "topics": {
        **{"type": "multilabel", "text_a": "text", "label": "topics"},
        "class_weights": "balanced",
    },
    "scores": {"type": "regression", "text_a": "text", "label": "score"},
    "names": {"type": "tagging"},
    "faq": {"type": "qa"},
}
for _task, _ending in zip(TASKS, ("tsv", "tsv", "tsv", "txt", "json"), strict=True):
    TASKS[_task] |= files(_ending)
HPARAMS = {"task_names": list(TASKS), "tasks": TASKS, "num_train_epochs": 2.0}
HPARAMS |= {"max_query_length": 4, "beam_size": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("own_tasks"))
    write_own_files(folder / "own")
    return folder


@pytest.fixture(scope="module")
def trained(data):
    """A finished run without any predictions of test sets; what it said."""
    run = fork(data, "m", HPARAMS)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def refused(run, *texts):
    assert run.returncode == 2, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    for text in texts:
        assert text in run.stderr


def test_classes_are_said_with_their_counts(trained):
    assert "Classes of reviews: " in trained
    assert "Classes of names: PER " in trained
    assert "Classes of topics: " in trained and "Class weights of topics: " in trained


def test_results_have_each_class(data, trained):
    path = data / "models" / "m" / "results" / f"{','.join(TASKS)}_results.json"
    [trial] = json.loads(path.read_text())["trials"]
    classes = trial["details"]["reviews"]["classes"]
    support = [classes[name]["support"] for name in sorted(classes)]
    assert sum(support) == 12 and "PER" in trial["details"]["names"]["classes"]
    assert trial["test_outputs"] == []
    assert {"f1", "exact_match", "loss"} <= set(trial["scores"]["topics"])


def test_a_finished_run_predicts_its_test_sets(data, trained):
    run = fork(data, "m", HPARAMS | {"write_test_outputs": True})
    assert run.returncode == 0, run.stdout + run.stderr
    assert "is finished" in run.stdout and "training examples" not in run.stdout
    results = data / "models" / "m" / "results"
    folder = results / f"{','.join(TASKS)}_test_predictions" / "trial_1"
    answers = json.loads((folder / "faq_test_preds.json").read_text())
    texts = {f"test{n}": " ".join(s) for n, s in enumerate(sentences(6))}
    assert set(answers) == set(texts)
    assert all(answers[name] and answers[name] in texts[name] for name in texts)
    rows = (folder / "reviews_test.jsonl").read_text().splitlines()
    assert {json.loads(r)["label"] for r in rows} <= {"good", "awful"}
    assert [json.loads(r)["id"] for r in rows] == [f"r{n}" for n in range(6)]
    rows = (folder / "scores_test.jsonl").read_text().splitlines()
    assert all(0 <= json.loads(r)["value"] <= 23 for r in rows)
    tags = (folder / "names_test.txt").read_text().split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in tags] == sentences(1)[0]
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    again = fork(data, "m", HPARAMS | {"write_test_outputs": True})
    assert again.returncode == 0 and "Test predictions" not in again.stdout
    assert before == {p: p.stat().st_mtime_ns for p in folder.iterdir()}


def test_a_class_that_was_renamed(data, trained):
    """The labels of the model rule, whatever the training file says today."""
    alone = HPARAMS | {"do_train": False}
    run = fork(data, "m", alone)
    assert run.returncode == 0, run.stdout + run.stderr
    tsv = [data / "own" / f"{split}.tsv" for split in ("train", "dev")]
    kept = [path.read_text() for path in tsv]
    try:
        for path, text in zip(tsv, kept, strict=True):
            path.write_text(text.replace("awful", "zzz"))
        refused(fork(data, "m", alone), "dev.tsv, line", "'zzz'", "awful, good")
    finally:
        for path, text in zip(tsv, kept, strict=True):
            path.write_text(text)


def test_two_models_in_one_place_do_not_share_predictions(data):
    given = {"task_names": ["cola"], "num_train_epochs": 0.01, "do_eval": False}
    given |= {"write_test_outputs": True}
    for name in ("one", "two"):
        run = fork(data, "m", given | {"model_dir": str(data / "both" / name)})
        assert run.returncode == 0, run.stdout + run.stderr
    written = [str(p.relative_to(data)) for p in (data / "both").rglob("CoLA.tsv")]
    assert sorted(written) == [
        f"both/{name}_results/cola_test_predictions/trial_1/CoLA.tsv"
        for name in ("one", "two")
    ]
    shutil.rmtree(data / "both")


def test_a_model_below_a_file(data):
    (data / "file").write_text("")
    run = fork(data, "m", HPARAMS | {"model_dir": str(data / "file" / "x")})
    assert run.returncode == 73 and "file is a file" in run.stderr
    assert "Traceback" not in run.stderr and "Features" not in run.stdout


def test_a_class_of_ones_own_from_training_to_an_export(tmp_path):
    """As the page has it; the model is elsewhere than usual, as its vocabulary then."""
    page = (ROOT / "docs" / "fine_tuning.md").read_text()
    [code] = re.findall(r"```python\n(.*?class Reviews.*?)```", page, re.DOTALL)
    data = write_data(tmp_path / "data")
    (data / "mytask.py").write_text(code)
    for split in ("train", "dev"):
        lines = [
            f"{'pos' if s[0] < EARLY else 'neg'} {' '.join(s)}" for s in sentences(16)
        ]
        (data / f"{split}.txt").write_text("\n".join(lines))
    environment = {"PYTHONPATH": str(data)}
    hparams = {"task_names": ["mytask:Reviews"], "init_checkpoint": None}
    hparams |= {"model_dir": str(data / "here" / "trial"), "num_train_epochs": 1.0}
    run = finetune(data, "m", hparams, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    trial = data / "here" / "trial_1"
    run = run_script(
        *("export_model.py", f"--init-checkpoint={trial}", "--what=mytask:Reviews"),
        *("--format=onnx", f"--output-dir={data}/out"),
        f"--vocab-file={data}/vocab.txt",
        env=environment,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert list((data / "out").rglob("*.onnx"))
