# SPDX-License-Identifier: Apache-2.0
"""One start of a run: checked, built, and then trained, evaluated or described.

Everything that can be checked without TensorFlow is, before it is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from electra_tf import startup
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import Console
from electra_tf.data import record_index
from electra_tf.errors import EXIT_OK, EXIT_PREEMPTED
from electra_tf.pretrain import flops, history, shards
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.files import cannot_write
from electra_tf.storage.lock import Lock
from electra_tf.storage.manifest import code_sha256, installed_versions
from electra_tf.storage.remote import check_writable, put
from electra_tf.storage.remote_run import RunFolder
from electra_tf.text import word_list
from electra_tf.text.vocabulary import Vocabulary, resolve_settings
from electra_tf.train.reporting import write_results
from electra_tf.train.supervisor import Cluster, StopRequest, leave_at_once


class Start(Protocol):
    """What a run begins with (`interop.start`)."""

    saved: Any  # the manifest of its newest checkpoint, if there is one
    original: Any  # another model to continue from or to evaluate, if there is one

    def load(self, config, data, checkpoints, state, log) -> None:
        """Assigns it to the state of a run that trains."""

    def evaluate(self, weights, log) -> int | None:
        """Assigns the weights of `original`; returns its step if that is known."""


def main(
    config: PretrainingConfig,
    find_start: Callable[..., Start],
    started: float,
    limit: float | None = None,
    dry_run: bool = False,
) -> int:
    """Trains or evaluates; returns the exit code.

    Args:
      find_start: `interop.start.find`.
      started: when the program was, by time.monotonic().
      limit: seconds from then on, after which the run is saved and ends.
      dry_run: check everything, describe the run and write nothing.
    """
    vocab, words = read_vocabulary(config)
    cluster = Cluster.from_environment(config.peer_timeout, config.use_tpu)
    chief = cluster.is_chief
    console = Console(silent=not chief)
    writes = config.do_train and chief and not dry_run
    lock = Lock(config.model_dir)
    folder = RunFolder(
        config.model_dir, lock if writes else None, keep=config.keep_checkpoint_max
    )

    def before_save() -> None:
        lock.check()
        save_config(config, checkpoints)

    checkpoints = Checkpoints(
        config.model_dir,
        keep=config.keep_checkpoint_max,
        identity=config.identity() | {"vocab_sha256": vocab.sha256},
        settings=settings_of(config, vocab, words),
        read_only=config.do_eval or dry_run or not chief,
        before_save=before_save,
        after_save=folder.upload,
        log=console.log,
    )
    if config.do_eval and chief and not dry_run:
        check_writable(Path(config.results_txt).parent)
    nothing = contextlib.nullcontext()
    with (
        leave_at_once() if config.do_train else nothing,
        lock if writes else nothing,
        folder if chief else nothing,
        # Is left before the folder, whose upload may take its time.
        leave_at_once() if config.do_train else nothing,
    ):
        start = find_start(config, vocab, checkpoints, console.log, is_chief=chief)
        console.heading("Config:")
        for line in config.describe():
            console.log(line)
        for note in config.notes() + vocab.notes():
            console.log(f"Note: {note}.")
        if config.do_eval and limit is not None:
            console.log("Note: --max-wall-time is for training: without effect here.")
        if words:
            console.log(words.describe())
        console.log()
        startup.import_tensorflow()
        from electra_tf.train.distribution import peers_may_be_lost

        with peers_may_be_lost(cluster):
            run = Run(config, vocab, cluster, checkpoints, start, console, dry_run)
            if dry_run:
                return describe(run)
            if config.do_train:
                return train(run, StopRequest(limit, started))
            return evaluate(run)


def settings_of(
    config: PretrainingConfig, vocab: Vocabulary, words: word_list.WordList | None
) -> dict[str, Any]:
    """What is stored with each checkpoint; all but the tokenizer's may change."""
    found = config.settings() | record_index.manifest_sha256(shards.pattern_of(config))
    tokenizer = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    found["tokenizer"] = tokenizer._asdict()
    if config.do_train:
        data = (phase.config.pretrain_tfrecords for phase in config.run_phases())
        found["data"] = [record_index.describe(place) for place in data]
    return found | ({"word_list_sha256": words.sha256} if words else {})


def save_config(config: PretrainingConfig, checkpoints: Checkpoints) -> None:
    """Writes config.json, which says what the checkpoints beside it were made with."""
    path = Path(config.model_dir) / "config.json"
    start = {"init_checkpoint": checkpoints.settings["init_checkpoint"]}
    try:
        dataclasses.replace(config, **start).save(str(path))
    except OSError as error:
        raise cannot_write(path, error) from error


class Run(NamedTuple):
    """What training, evaluation and a dry run start from."""

    config: PretrainingConfig
    vocab: Vocabulary
    cluster: Cluster
    checkpoints: Checkpoints
    start: Start  # the chief's alone
    console: Console
    dry_run: bool

    def facts(self) -> dict[str, Any]:
        """What all workers of a run must have in common."""
        import tensorflow as tf

        config, evaluated = self.config, []
        if config.eval_every_steps or config.do_eval:
            data = (phase.config.eval_tfrecords for phase in config.run_phases())
            evaluated = [record_index.describe(place) for place in data]
        return {
            **self.checkpoints.settings,  # with the data of each phase to learn from
            **self.checkpoints.identity,
            "init_checkpoint": config.init_checkpoint,  # The chief may know another.
            "GPUs": len(tf.config.list_physical_devices("GPU")),
            "do_train": config.do_train,
            "dry_run": self.dry_run,
            "evaluation data": evaluated,
            "code_sha256": code_sha256(),
            **installed_versions("electra-tf", "tensorflow", "keras", "numpy"),
        }


def read_vocabulary(
    config: PretrainingConfig,
) -> tuple[Vocabulary, word_list.WordList | None]:
    """Reads the vocabulary and the list of words, and checks them with the config."""
    vocab = Vocabulary.load(config.vocab_file)
    vocab.check_size(config.vocab_size)
    resolve_settings(vocab, do_lower_case=config.do_lower_case)
    if config.word_list is not None:
        return vocab, word_list.load(config.word_list, vocab, config.do_lower_case)
    if config.mask_unit == "word":
        vocab.check_words()
    return vocab, None


def build(run: Run):
    """Devices, model and optimizer: returns (placement, state)."""
    import keras

    from electra_tf.pretrain.pretraining import build_pretrainer
    from electra_tf.train import distribution, optimization
    from electra_tf.train.step import TrainState

    config, vocab, console = run.config, run.vocab, run.console
    distribution.configure_devices(config)
    distribution.set_precision(config.precision)
    run.cluster.meet(run.facts())
    placement = distribution.create_strategy(config, run.cluster)
    distribution.check_evaluation_batch(config, placement.num_replicas)
    console.log(distribution.describe(placement, config.precision))
    keras.utils.set_random_seed(config.seed)  # the initial weights
    with placement.strategy.scope():
        special_ids = vocab.cls_id, vocab.sep_id, vocab.mask_id
        pretrainer = build_pretrainer(config, special_ids)
        state = TrainState(pretrainer, optimization.create_optimizer(config))
    count = sum(v.shape.num_elements() for v in pretrainer.trainable_variables)
    console.log(f"Model: {count:,} parameters")
    return placement, state


def train(run: Run, stop: StopRequest) -> int:
    """Trains up to num_train_steps, from what the run starts from."""
    from electra_tf.pretrain.pretrain_data import RunData
    from electra_tf.pretrain.run import PretrainingRun
    from electra_tf.pretrain.run import train as train_phases

    config, vocab, cluster, checkpoints, start, console, _ = run
    (placement, state), data = build(run), RunData(vocab)
    if cluster.is_chief:
        start.load(config, data, checkpoints, state, console.log)
    placement.workers.copy_from_chief(state.variables())
    running = PretrainingRun(
        config, data, placement, state.model, state, checkpoints, console
    )
    if not train_phases(running, stop):
        console.log("Run the same command again to continue.")
        return EXIT_PREEMPTED
    if placement.is_chief:
        draw_curves(run, state.model.objective.metrics, state.step)
    return EXIT_OK


def draw_curves(run: Run, metrics, step: int) -> None:
    """Draws the curves of a finished run; again, where a kill prevented it."""
    from electra_tf.train import curves

    config, console, folder = run.config, run.console, Path(run.config.model_dir)
    rows, picture = folder / "metrics.jsonl", folder / "loss_curves.png"
    if not rows.is_file():  # a model of the original that had all of its steps
        return
    missing = curves.plot_curves(
        rows,
        picture,
        f"Pre-training of {config.model_name}",
        metrics,
        history.switches(config.to_dict()),
    )
    if missing:
        console.log(
            f"Note: {rows} lacks {missing:,} of the {step:,} steps: they were made "
            "elsewhere, or the file was cut or removed."
        )
    console.log(f"Checkpoint {run.checkpoints.prefix(step)}, curves {picture}")


def evaluate(run: Run) -> int:
    """Evaluates the newest checkpoint; prints and writes the original's metrics."""
    from electra_tf.pretrain.pretrain_data import RunData
    from electra_tf.pretrain.pretraining import TrainablePretrainer
    from electra_tf.pretrain.run import batches_of, has_learned
    from electra_tf.train.evaluation import Evaluation

    config, vocab, _, checkpoints, start, console, _ = run
    (placement, state), step, saved = build(run), None, start.saved
    if saved:
        saved = checkpoints.restore_newest(saved, state.weights())
        checkpoint, step = checkpoints.prefix(saved.step), saved.step
    elif start.original:
        checkpoint = start.original.origin
        step = start.evaluate(state.weights(), console.log)
    if placement.is_chief:
        console.log(f"Evaluating {checkpoint}.")
    placement.workers.copy_from_chief(state.weights())
    # The chief alone knows how far it was trained.
    last = history.last_step_of(saved, config)
    made_by = int(placement.workers.gather([last])[0, 0])
    phase = config.phase_at(made_by)
    part, task = phase.config, TrainablePretrainer(state.model, phase)
    console.heading("Running evaluation")
    started = time.time()
    metrics = Evaluation(task, placement)(
        batches_of(part, RunData(vocab), placement, training=False),
        config.num_eval_steps,
        config.eval_batch_size,
        console,
    )
    if placement.is_chief:
        known = {} if step is None else {"global_step": step}
        for name, value in sorted({**metrics, **known}.items()):
            console.log(f"  {name} = {value}")
        write_results(
            config.results_txt,
            metrics,
            step,
            checkpoint=checkpoint,
            data=part.eval_tfrecords,
            is_training_data=has_learned(config, part.eval_tfrecords),
            num_eval_steps=config.num_eval_steps,
            eval_batch_size=config.eval_batch_size,
            seconds=round(time.time() - started, 1),
        )
        put(config.results_txt)
        put(config.results_json)
        console.log(f"Written to {config.results_txt} and {config.results_json}")
    return EXIT_OK


def describe(run: Run) -> int:
    """Checks data and model and prints what a run would be; writes nothing."""
    from electra_tf.pretrain.pretrain_data import RunData
    from electra_tf.pretrain.run import batches_of, check_data

    config, vocab, _, checkpoints, start, console, _ = run
    (placement, state), data, saved = build(run), RunData(vocab), start.saved
    phases = [config.phase_at(history.last_step_of(saved, config))]
    if config.do_train:
        # The chief alone knows how far the run is.
        done = placement.workers.gather([saved.step if saved else 0])[0, 0]
        phases = check_data(config, data, placement, int(done), console)
    for phase in phases:
        next(batches_of(phase.config, data, placement, training=config.do_train))
    if config.do_train and run.cluster.is_chief:
        start.load(config, data, checkpoints, state, console.log)
    size = sum(
        v.shape.num_elements() * v.dtype.size for v in state.variables().values()
    )
    console.log(f"Checkpoints: {size / 1e6:.0f} MB each in {config.model_dir}")
    if config.do_train:
        total = flops.get_recipe_flops(config)
        console.log(
            f"Compute: {total:.2e} FLOPs, {total / config.num_train_steps:.2e} a step"
        )
    comes = what_comes(run)
    console.log(f"Dry run: this command would {comes}. Nothing was written.")
    return EXIT_OK


def what_comes(run: Run) -> str:
    """What the command of a dry run would do."""
    config, saved, original = run.config, run.start.saved, run.start.original
    if config.do_eval:
        # Other workers than the chief know neither, and print nothing.
        found = original and original.origin
        return f"evaluate {run.checkpoints.prefix(saved.step) if saved else found}"
    if saved and saved.step >= config.num_train_steps:
        return f"do nothing: {saved.step} of {config.num_train_steps} steps are made"
    if saved or original:
        at = f"at step {saved.step}" if saved else f"from {original.origin}"
        return f"continue {at}"
    if config.init_checkpoint:
        return f"start with the weights of {config.init_checkpoint}"
    return "start anew"
