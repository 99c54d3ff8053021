# SPDX-License-Identifier: Apache-2.0
"""Pre-trains an ELECTRA model, or evaluates a pre-trained one on unlabeled text.

  python3 run_pretraining.py --data-dir $DATA_DIR --model-name electra_small_owt

Expects $DATA_DIR/vocab.txt and $DATA_DIR/pretrain_tfrecords; checkpoints, metrics,
curves and results go to $DATA_DIR/models/<model-name>. The same command again continues
the run. To evaluate: --hparams '{"do_train": false, "do_eval": true}'. To look at the
curves: tensorboard --logdir $DATA_DIR/models, after pip install -e ".[tensorboard]".
"""

import time

from absl import flags

from electra_tf import cli
from electra_tf.commands import shared_flags
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import read_config
from electra_tf.pretrain import launch
from electra_tf.train.supervisor import parse_duration

shared_flags.define_run()
_DRY_RUN = flags.DEFINE_boolean(
    "dry_run",
    False,
    "Check everything and print the plan, without writing, except for a missing index "
    "of the data.",
)
_MAX_WALL_TIME = flags.DEFINE_string(
    "max_wall_time",
    None,
    "Save and end with exit code 42 before this time is over, for cluster queues: "
    "seconds, or as 1h30m; 0 saves the state before the first step.",
)


def main(argv: list[str]) -> int:
    """Trains or evaluates; returns the exit code."""
    started = time.monotonic()
    limit = None
    if _MAX_WALL_TIME.value is not None:
        limit = parse_duration(_MAX_WALL_TIME.value, "--max-wall-time")
    config = PretrainingConfig.from_hparams(
        cli.FLAGS.data_dir,
        cli.FLAGS.model_name,
        read_hparams(cli.FLAGS.hparams),
        read_config(cli.FLAGS.config),
    )
    return launch.main(config, started, limit, dry_run=_DRY_RUN.value)
