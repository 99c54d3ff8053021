# SPDX-License-Identifier: Apache-2.0
"""Whole commands beside PyTorch with transformers: fine-tuning and prediction.

    python benchmarks/finetuning_command.py --vocab-file vocab.txt \
        --data RTE/train.tsv --texts sentences.txt

Seconds from the start of a process to its end, and of all its threads. Both sides start
from the same random ELECTRA-Small, in turns: one epoch on 640 pairs of sentences and
the score on 200 others, then predictions for each line of --texts.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from absl import flags
from measurement import ROOT, in_turns, machine, median, print_table, random_model, save

from electra_tf import cli, startup
from electra_tf.errors import UserError

FLAGS = flags.FLAGS
flags.DEFINE_string("vocab_file", None, "ELECTRA's 30,522 lines.", required=True)
flags.DEFINE_string("data", None, "RTE's train.tsv, of GLUE.", required=True)
flags.DEFINE_string("texts", None, "A file with a short text a line.", required=True)
flags.DEFINE_integer("repeats", 3, "Runs of each command.", lower_bound=1)
flags.DEFINE_string("json", None, "File for all that was measured.")

TRAIN, DEV = 640, 200
OURS, PEER = "electra_tf", "PyTorch"


def main(_):
    startup.import_tensorflow()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder)
        write_data(folder)
        print(machine(), flush=True)
        results = {}
        for what, sides in commands(folder, model).items():
            makers = {
                f"{what}, {side}": partial(run, command, folder / f"{side}.log")
                for side, command in sides.items()
            }
            results |= in_turns(makers, FLAGS.repeats, "{seconds:.1f} s")
    save(FLAGS.json, results)
    head = "command | s, median | minimum | CPU s"
    form = "{name} | {seconds:.1f} | {minimum:.1f} | {cpu_seconds:.1f}"
    rows = []
    for name, runs in results.items():
        row = {key: median(runs, key) for key in ("seconds", "cpu_seconds")}
        row["minimum"] = min(run["seconds"] for run in runs)
        rows.append(row | {"name": name})
    print_table(head, form, rows)


def write_model(folder: Path) -> Path:
    """ELECTRA-Small with random weights, for transformers and so for both sides."""
    from electra_tf.interop import huggingface

    stored = random_model(folder, FLAGS.vocab_file, {})
    huggingface.write_huggingface(
        stored, "discriminator", folder / "model", log=lambda _: None
    )
    return folder / "model" / "discriminator"


def write_data(folder: Path) -> None:
    """The first examples of RTE as training and dev set."""
    head, *rows = Path(FLAGS.data).read_text(encoding="utf-8").splitlines()
    for name, part in (("train", rows[:TRAIN]), ("dev", rows[TRAIN : TRAIN + DEV])):
        text = "\n".join([head, *part])
        (folder / f"{name}.tsv").write_text(f"{text}\n", encoding="utf-8")


def commands(folder: Path, model: Path) -> dict[str, dict[str, list[str]]]:
    """What -> side -> command."""

    def train(name: str, epochs: float, **columns) -> list[str]:
        task = {"type": "classification", "label": "label", **columns}
        task |= {split: str(folder / f"{split}.tsv") for split in ("train", "dev")}
        hparams = {"task_names": [name], "tasks": {name: task}, "num_trials": 1}
        hparams |= {"init_checkpoint": str(model), "num_train_epochs": epochs}
        command = [str(ROOT / "run_finetuning.py"), f"--hparams={json.dumps(hparams)}"]
        return [*command, f"--data-dir={folder}", f"--model-name={name}"]

    run(train("single", 0.1, text_a="sentence1"), folder / "single.log")
    trial = folder / "models" / "single" / "finetuning_models" / "single_model_1"
    predict = [str(ROOT / "run_inference.py"), "predict", f"--model={trial}"]
    predict += [f"--input={FLAGS.texts}", f"--output={folder}/ours.jsonl"]
    peer = [str(ROOT / "benchmarks" / "peer_torch.py")]
    options = [f"--model={model}", f"--output={folder}/peer", f"--data={folder}"]
    options += [f"--texts={FLAGS.texts}"]
    return {
        "fine-tuning": {
            OURS: train("pairs", 1, text_a="sentence1", text_b="sentence2"),
            f"{PEER}, max_length": [*peer, "train", *options, "--padding=max_length"],
            f"{PEER}, longest": [*peer, "train", *options, "--padding=longest"],
        },
        "prediction": {OURS: predict, PEER: [*peer, "predict", *options]},
    }


def run(command: list[str], log: Path) -> dict:
    """Runs a script to its end; its output goes to a file."""
    # A finished trial would not be made again.
    shutil.rmtree(log.parent / "models" / "pairs", ignore_errors=True)
    shutil.rmtree(log.parent / "peer", ignore_errors=True)
    started, before = time.perf_counter(), os.times()
    with log.open("w") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        done = subprocess.run([sys.executable, *command], **streams, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed:\n{log.read_text()[-2000:]}", 1)
    seconds, after = time.perf_counter() - started, os.times()
    cpu = after.children_user - before.children_user
    cpu += after.children_system - before.children_system
    return {"seconds": seconds, "cpu_seconds": cpu}


if __name__ == "__main__":
    cli.run(main)
