#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Searches learning rate and layer decay of fine-tuning with Ray Tune, over seeds.

    pip install -e ".[ray]"
    python3 examples/ray_sweep.py --data-dir D --model-name electra_small \
        --hparams '{"task_names": ["rte"], "eval_every_steps": 200}' \
        --learning-rates 3e-4,1e-4,5e-5 --layer-decays 0.8,0.9 --seeds 3 --workers 2

Each trial is `run_finetuning.py --trial k` in a process of its own, k being the seed.
ASHA compares its evaluations on the dev set with those of trials that have come as far,
and ends what is worse. `run_finetuning.py --merge` with a pair's settings collects its
seeds. The same command again goes on with what is there.
"""

import collections
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from absl import flags

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from electra_tf import cli, processes  # noqa: E402
from electra_tf.config.hparams import read_hparams  # noqa: E402
from electra_tf.errors import UserError  # noqa: E402

FLAGS = flags.FLAGS
cli.define_path("data_dir", None, "As of run_finetuning.py.")
flags.DEFINE_string("model_name", None, "As of run_finetuning.py.")
flags.DEFINE_string("hparams", "{}", "Those of all trials, with eval_every_steps.")
flags.DEFINE_list("learning_rates", ["1e-4", "5e-5", "3e-5"], "To try.")
flags.DEFINE_list("layer_decays", ["0.8", "0.9"], "layerwise_lr_decay to try.")
flags.DEFINE_integer("seeds", 3, "Trials of each pair of these.", lower_bound=1)
flags.DEFINE_integer("workers", 2, "Trials at a time.", lower_bound=1)
flags.DEFINE_float("gpus_per_trial", 0.0, "GPUs of each trial.")
flags.mark_flags_as_required(["data_dir", "model_name"])


def main(_):
    """Runs the search and prints its table."""
    import ray
    from ray import tune

    place = Path(FLAGS.data_dir, "models", FLAGS.model_name, "ray_sweep").absolute()
    ray.init(num_cpus=FLAGS.workers, include_dashboard=False, log_to_driver=False)
    trial = trainable(tune.Trainable, read_hparams(FLAGS.hparams), place)
    found = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1, "gpu": FLAGS.gpus_per_trial}),
        param_space={
            "learning_rate": tune.grid_search([*map(float, FLAGS.learning_rates)]),
            "layerwise_lr_decay": tune.grid_search([*map(float, FLAGS.layer_decays)]),
            "trial": tune.grid_search([*range(1, FLAGS.seeds + 1)]),
        },
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            # Of the trials that come to a rung, one in three goes on.
            scheduler=tune.schedulers.ASHAScheduler(
                max_t=10**9, grace_period=1, reduction_factor=3
            ),
        ),
        run_config=tune.RunConfig(
            storage_path=str(place),
            name="ray",
            verbose=0,
            # run_finetuning.py has its own.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    if found.errors:
        raise UserError(f"a trial failed: {str(found.errors[0]).splitlines()[-1]}")
    report(found)


def trainable(base: type, hparams: dict, place: Path) -> type:
    """The class of Ray's trials, which Ray sends to its workers."""
    ends_with, here = processes.ENDS_WITH_PARENT, os.getcwd()
    hparams = hparams | {"num_trials": FLAGS.seeds}
    command = [sys.executable, str(ROOT / "run_finetuning.py")]
    command += [f"--data-dir={FLAGS.data_dir}", f"--model-name={FLAGS.model_name}"]

    class Trial(base):
        """A process of run_finetuning.py; each of its evaluations is a step."""

        def setup(self, config: dict) -> None:
            own = hparams | {k: v for k, v in config.items() if k != "trial"}
            name = "rate_{learning_rate:g}_decay_{layerwise_lr_decay:g}"
            own["model_dir"] = str(place / name.format(**config))
            trial = f"{own['model_dir']}_{config['trial']}"
            self.rows, self.path = 0, Path(trial, "evaluations.jsonl")
            self.log = Path(f"{trial}.log")
            self.log.parent.mkdir(parents=True, exist_ok=True)
            # Should Ray end this process, that one ends, too.
            environment = os.environ | {ends_with: str(os.getpid())}
            environment.setdefault("TF_NUM_INTRAOP_THREADS", "1")
            flags = [f"--hparams={json.dumps(own)}", f"--trial={config['trial']}"]
            with open(self.log, "wb") as log:
                self.process = subprocess.Popen(
                    [*command, *flags],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=here,
                )

        def step(self) -> dict:
            """Waits for the next evaluation."""
            while True:
                code = self.process.poll()
                text = self.path.read_text() if self.path.exists() else ""
                rows = text.split("\n")[:-1]  # A line that is being written has no end.
                # The last evaluation comes before the end of the process.
                if len(rows) > self.rows or (code == 0 and rows):
                    self.rows = min(self.rows + 1, len(rows))
                    finished = code == 0 and self.rows == len(rows)
                    # What is kept of a trial is what its results are of.
                    keeps_best = hparams.get("keep") == "best"
                    first = 0 if finished and keeps_best else self.rows - 1
                    found = map(json.loads, rows[first : self.rows])
                    scores = [row["score"] for row in found]
                    score = max(float("-inf") if x is None else x for x in scores)
                    return {"score": score, "finished": finished, "done": finished}
                if code is not None:
                    raise RuntimeError(f"code {code}: see {self.log}")
                time.sleep(0.2)

        def cleanup(self) -> None:
            """Ends the training of a trial that ASHA has stopped; it is saved."""
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()

    return Trial


def report(found) -> None:
    """Prints the scores of each pair of settings, best mean first."""
    pairs = collections.defaultdict(list)
    for one in found:
        if one.metrics["finished"]:
            pair = one.config["learning_rate"], one.config["layerwise_lr_decay"]
            pairs[pair].append(one.metrics["score"])
    print("learning rate  layer decay  finished     mean  dev scores")
    means = {pair: statistics.fmean(scores) for pair, scores in pairs.items()}
    for rate, decay in sorted(means, key=means.get, reverse=True):
        scores = pairs[rate, decay]
        texts = " ".join(f"{score:.2f}" for score in scores)
        mean = means[rate, decay]
        print(f"{rate:13g}  {decay:11g}  {len(scores):8d}  {mean:7.2f}  {texts}")


if __name__ == "__main__":
    cli.run(main)
