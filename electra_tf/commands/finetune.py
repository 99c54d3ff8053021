# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a pre-trained ELECTRA model on one or several tasks and evaluates it.

  python3 run_finetuning.py --data-dir $DATA_DIR --model-name electra_small_owt \\
      --hparams '{"model_size": "small", "task_names": ["cola"]}'

Expects $DATA_DIR/finetuning_data/<task>, the pre-trained model in
$DATA_DIR/models/<model-name> and its vocab.txt there, or else in $DATA_DIR. The same
command again continues an interrupted run.
"""

from absl import flags

from electra_tf import cli
from electra_tf.commands import shared_flags
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.config.run import read_config
from electra_tf.errors import UserError
from electra_tf.finetune import run

shared_flags.define_run()
flags.DEFINE_integer(
    "trial",
    None,
    "Run only this trial, with its own results file, for job arrays. --merge collects "
    "the results.",
    lower_bound=1,
)
flags.DEFINE_boolean(
    "merge", False, "Print and write the results of finished trials; run none."
)


def main(argv: list[str]) -> int:
    """Runs all trials; returns the exit code."""
    given = {name: cli.FLAGS[name].value for name in run.Flags._fields}
    file, typed = read_config(cli.FLAGS.config), read_hparams(given["hparams"])
    hparams = FinetuningConfig.explicit(typed, file)
    named = [name for name in hparams.get("task_names", ()) if ":" in name]
    if named and "task_names" not in typed:  # The config may be a downloaded model's.
        raise UserError(
            f"--config: task {named[0]} is Python code, which is run only if --hparams "
            "has it in task_names."
        )
    return run.main(run.Flags(**given | {"hparams": hparams}))
