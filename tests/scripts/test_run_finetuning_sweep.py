# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py --sweep of tasks whose presets differ."""

import json

from tests.helpers import forked_runs
from tests.helpers.tiny_finetuning import TINY, WORDS
from tests.helpers.tiny_trials import write_data, write_run

LONG = TINY["model_hparam_overrides"] | {"max_position_embeddings": 512}


def test_each_task_of_a_sweep_has_the_presets_of_a_single_one(tmp_path):
    """Questions of 128 tokens need the 512 that a task of questions has by itself."""
    data = write_data(tmp_path)
    text = " ".join(WORDS)
    answer = {"text": WORDS[3], "answer_start": text.index(WORDS[3])}
    asked = {"id": "q", "question": WORDS[3], "answers": [answer]}
    content = {"data": [{"title": "t", "paragraphs": [{"context": text}]}]}
    content["data"][0]["paragraphs"][0]["qas"] = [asked]
    for split in ("train", "dev"):
        file = data / "finetuning_data" / "squadv1" / f"{split}.json"
        file.write_text(json.dumps(content))
    start, _, _ = write_run(
        data,
        {"task_names": ["sts"], "model_dir": "start", "model_hparam_overrides": LONG},
    )
    hparams = {"task_names": ["squadv1", "sts"], "max_query_length": 128}
    hparams |= {"init_checkpoint": start.trial_dir(1), "num_train_epochs": 0.1}
    hparams |= {"train_batch_size": 4, "jit_compile": False}

    def sweep(**more):
        return forked_runs.Run(
            data / "logs",
            "run_finetuning.py",
            *("--data-dir", str(data), "--model-name", "m", "--sweep"),
            *("--hparams", json.dumps(hparams | more)),
        ).wait()

    run = sweep()
    assert run.returncode == 0, run.stdout + run.stderr
    folder = data / "models" / "m" / "results" / "sweep"
    scores = json.loads((folder / "squadv1,sts_sweep.json").read_text())
    assert list(scores) == ["squadv1: f1", "sts: pearson"]
    # What is for no task at all is still said.
    run = sweep(class_weights={"rte": "balanced"})
    assert run.returncode == 2 and "rte is none of task_names" in run.stderr
