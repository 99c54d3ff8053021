# SPDX-License-Identifier: Apache-2.0
"""Makes a checkpoint of the state that run_compiled_step.py has trained.

    python benchmarks/take_back_state.py --step-dir step --data-dir $DATA_DIR \\
        --model-name small

The run is the one that aot_compile.py took the step from; run_pretraining.py continues
and evaluates it as if it had trained by itself. Its metrics.jsonl gets the steps, too.

    python benchmarks/take_back_state.py --step-dir step --data-dir $DATA_DIR \\
        --model-name small --weights-as small_weights

This takes weights.npz, a third of state.npz, as a model of another name, which can be
evaluated, fine-tuned and exported; training does not go on from it.
"""

import os
import shutil
from pathlib import Path

from absl import flags
from run_compiled_step import load_state, read_spec

from electra_tf import cli, startup
from electra_tf.config.run import run_directory
from electra_tf.errors import UserError
from electra_tf.storage.checkpoint_manifest import Manifest
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.lock import RunLock
from electra_tf.storage.new_folder import new_folder
from electra_tf.train.reporting import MetricsFile, read_metrics

FLAGS = flags.FLAGS

cli.define_path("data_dir", None, "Of the run.")
flags.DEFINE_string("model_name", None, "The run's name.")
flags.DEFINE_string(
    "weights_as", None, "Take weights.npz alone, as a model of this new name."
)
flags.mark_flags_as_required(["data_dir", "model_name"])


def main(_):
    folder = Path(FLAGS.step_dir)
    spec = read_spec(folder)
    directory = Path(run_directory(FLAGS.data_dir, FLAGS.model_name))
    if spec["identity"] is None:
        raise UserError(
            f"{folder} was made without a run: there is none to go back to."
        )
    if FLAGS.model_name != spec["model_name"]:
        raise UserError(
            f"{folder} is of {spec['model_name']}, --model-name is {FLAGS.model_name}."
        )
    if not directory.is_dir():
        raise UserError(f"there is no {directory}: check --data-dir.")
    if FLAGS.weights_as:
        take_weights(folder, spec, directory)
        return
    state = load_state(folder / "state.npz", spec)
    step = int(state["global_step"])
    with RunLock(directory) as lock:
        del lock
        startup.import_tensorflow()
        checkpoints = Checkpoints(
            directory, identity=spec["identity"], settings=spec["settings"]
        )
        newest = check_run(checkpoints, spec, folder)
        if newest.step >= step:
            raise UserError(
                f"{directory} is at step {newest.step}, {folder} only at {step}: "
                "nothing to take back."
            )
        rows = []
        if os.path.exists(folder / "metrics.jsonl"):
            rows = read_metrics(folder / "metrics.jsonl")
        metrics = MetricsFile(directory / "metrics.jsonl", newest.step)
        metrics.write([row for row in rows if newest.step < row["step"] <= step])
        metrics.sync()
        metrics.close()
        # Last: with it the run is at this step, and nothing is left to take back.
        checkpoints.save(step, state)
    print(f"Checkpoint {checkpoints.prefix(step)}: run_pretraining.py goes on from it.")


def check_run(checkpoints: Checkpoints, spec: dict, folder: Path) -> Manifest:
    """The newest checkpoint of the run that the step is of; `UserError` for others."""
    directory = checkpoints.directory
    newest = checkpoints.newest_intact()
    if newest is None:
        raise UserError(f"{directory} holds no checkpoint: it is another run.")
    checkpoints.check_identity(newest)
    for name, value in spec["of_run"].items():
        if (here := newest.settings.get(name)) != value:
            raise UserError(
                f"{directory} is another run than {folder} was made of: {name} is "
                f"{here!r} here, {value!r} there."
            )
    return newest


def take_weights(folder: Path, spec: dict, directory: Path) -> None:
    """Makes a model of weights.npz, which the run and its checkpoints know nothing of.

    Beside them it would be the checkpoint that the run goes on from, and it cannot.
    """
    target = Path(run_directory(FLAGS.data_dir, FLAGS.weights_as))
    if target.exists():
        raise UserError(f"{target} is there already: give another --weights-as.")
    weights = load_state(folder / "weights.npz", spec, slots=False)
    step = int(weights["global_step"])
    what = {"identity": spec["identity"], "settings": spec["settings"]}
    startup.import_tensorflow()
    check_run(Checkpoints(directory, read_only=True, **what), spec, folder)
    with new_folder(target) as place:
        shutil.copyfile(directory / "config.json", place / "config.json")
        Checkpoints(place, **what).save(step, weights)
    print(
        f"{target} has the weights of step {step}, without the optimizer's state: "
        "evaluate, fine-tune or export it; training does not go on from it."
    )


if __name__ == "__main__":
    cli.run(main)
