# SPDX-License-Identifier: Apache-2.0
"""One start of a run, up to the import of TensorFlow: checked, locked and described.

Training, evaluation and dry run are in `run`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from electra_tf import startup
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import Console
from electra_tf.data import record_index
from electra_tf.pretrain.start import find
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.mirror import Mirror, Outputs
from electra_tf.text.vocabulary import Vocabulary, resolve_settings
from electra_tf.train.supervisor import Cluster, StopRequest, leave_at_once


def main(
    config: PretrainingConfig,
    started: float,
    limit: float | None = None,
    dry_run: bool = False,
) -> int:
    """Trains or evaluates; returns the exit code.

    Args:
      started: time.monotonic() at the program's start.
      limit: seconds after which the run is saved and ends.
      dry_run: check everything, describe the run and write nothing.
    """
    vocab = Vocabulary.load(config.vocab_file)
    vocab.check_size(config.vocab_size)
    tokenizer = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    if config.mask_unit == "word":
        vocab.check_words()
    cluster = Cluster.from_environment(config.peer_timeout, config.use_tpu)
    chief = cluster.is_chief
    console = Console(silent=not chief)
    writes = config.do_train and chief and not dry_run
    folder = Mirror(config.model_dir, writes, keep=config.keep_checkpoint_max)
    results = Path(config.results_txt)

    def before_save() -> None:
        """Updates the config.json beside the checkpoints."""
        path = Path(config.model_dir) / "config.json"
        start = {"init_checkpoint": checkpoints.settings["init_checkpoint"]}
        config.replaced(**start).save(str(path))

    checkpoints = Checkpoints(
        config.model_dir,
        keep=config.keep_checkpoint_max,
        identity=config.identity() | {"vocab_sha256": vocab.sha256},
        settings=_stored_settings(config, tokenizer),
        read_only=config.do_eval or dry_run or not chief,
        before_save=before_save,
        mirror=folder,
        log=console.log,
    )
    nothing = contextlib.nullcontext()
    has_results = config.do_eval and chief and not dry_run
    with (
        Outputs(results.parent, results.stem) if has_results else nothing,
        leave_at_once() if config.do_train else nothing,
        folder,
    ):
        start = find(config, vocab, checkpoints, console.log, is_chief=chief)
        console.heading("Config:")
        for line in config.describe():
            console.log(line)
        for note in filter(None, [*config.notes(), vocab.unused(tokenizer)]):
            console.log(f"Note: {note}.")
        if config.do_eval and limit is not None:
            console.log("Note: --max-wall-time is for training: without effect here.")
        console.log()
        startup.import_tensorflow()
        from electra_tf.pretrain import run as runs
        from electra_tf.train.distribution import peers_may_be_lost

        with peers_may_be_lost(cluster):
            run = runs.build(config, vocab, cluster, checkpoints, console, dry_run)
            if dry_run:
                return runs.describe(run, start)
            if config.do_train:
                return runs.train(run, start, StopRequest(limit, started))
            return runs.evaluate(run, start)


def _stored_settings(config, tokenizer) -> dict[str, Any]:
    """The settings in each checkpoint; all but the tokenizer's may change."""
    settings = config.settings() | {"tokenizer": tokenizer._asdict()}
    settings |= record_index.manifest_sha256(config.data_files())
    if config.do_train:
        data = (phase.config.pretrain_tfrecords for phase in config.run_phases())
        settings["data"] = [record_index.describe(place) for place in data]
    return settings
