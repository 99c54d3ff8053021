# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py on files of one's own: classes, predictions of test sets."""

import json
import re
import shutil

import pytest

from tests.helpers.runs import ROOT
from tests.helpers.shared import OWN
from tests.helpers.tiny_finetuning import (
    EARLY,
    finetune,
    fork,
    own_sentences,
    write_data,
)

NAME = ",".join(OWN["task_names"])


def test_classes_are_counted_and_scored(finetuned_own):
    printed = (finetuned_own / "stdout.txt").read_text()
    assert "Classes of reviews: " in printed and "Classes of names: PER " in printed
    assert "Classes of topics: " in printed and "Class weights of topics: " in printed
    path = finetuned_own / "models" / "own" / "results" / f"{NAME}_results.json"
    [trial] = json.loads(path.read_text())["trials"]
    classes = trial["details"]["reviews"]["classes"]
    assert sum(one["support"] for one in classes.values()) == 12
    assert "PER" in trial["details"]["names"]["classes"]
    assert {"f1", "exact_match", "loss"} <= set(trial["scores"]["topics"])


def test_a_finished_run_predicts_its_test_sets(finetuned_own):
    printed = (finetuned_own / "test_stdout.txt").read_text()
    assert "is finished" in printed and "training examples" not in printed
    results = finetuned_own / "models" / "own" / "results"
    folder = results / f"{NAME}_test_predictions" / "trial_1"
    answers = json.loads((folder / "faq_test_preds.json").read_text())
    texts = {f"test{n}": " ".join(s) for n, s in enumerate(own_sentences(6))}
    assert set(answers) == set(texts)
    assert all(answers[name] and answers[name] in texts[name] for name in texts)
    rows = (folder / "scores_test.jsonl").read_text().splitlines()
    assert all(0 <= json.loads(row)["value"] <= 23 for row in rows)
    tags = (folder / "names_test.txt").read_text().split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in tags] == own_sentences(1)[0]
    assert {"STS-B.tsv", "STS-B.zip"} <= {path.name for path in folder.iterdir()}


def test_renamed_classes_are_refused(finetuned_own, tmp_path):
    """The labels are those of the model, whatever the training file holds now."""
    data = shutil.copytree(finetuned_own, tmp_path / "data")
    for split in ("train", "dev"):
        path = data / "own" / f"{split}.tsv"
        path.write_text(path.read_text().replace("awful", "zzz"))
    run = fork(data, "own", OWN | {"do_train": False})
    assert run.returncode == 2 and "Traceback" not in run.stderr, run.stderr
    for text in ("dev.tsv, line", "'zzz'", "awful, good"):
        assert text in run.stderr


@pytest.mark.thorough
def test_the_task_class_of_the_docs_is_trained(tmp_path):
    page = (ROOT / "docs" / "fine_tuning.md").read_text()
    [code] = re.findall(r"```python\n(.*?class Reviews.*?)```", page, re.DOTALL)
    data = write_data(tmp_path / "data")
    (data / "mytask.py").write_text(code)
    lines = [
        f"{'pos' if s[0] < EARLY else 'neg'} {' '.join(s)}" for s in own_sentences(16)
    ]
    for split in ("train", "dev"):
        (data / f"{split}.txt").write_text("\n".join(lines))
    hparams = {"task_names": ["mytask:Reviews"], "num_train_epochs": 1.0}
    run = finetune(data, "m", hparams, env={"PYTHONPATH": str(data)})
    assert run.returncode == 0, run.stdout + run.stderr
