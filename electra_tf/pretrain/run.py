# SPDX-License-Identifier: Apache-2.0
"""A run of pre-training: its phases in order, and its evaluations.

All phases share model, optimizer and step counter. Batch k, its masking and the dropout
of step k are functions of (seed, k), k being the run's step. The step's number gives
its phase, so an interrupted run continues in the right phase.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.pretraining import Phase, PretrainingConfig, switches
from electra_tf.console import Console
from electra_tf.data import record_index
from electra_tf.errors import EXIT_OK, EXIT_PREEMPTED
from electra_tf.paths import joined
from electra_tf.pretrain.flops import get_recipe_flops
from electra_tf.pretrain.metrics import HealthMonitor, plotted
from electra_tf.pretrain.objectives import objective_of
from electra_tf.pretrain.pretrain_data import RunData
from electra_tf.pretrain.pretraining import build_pretrainer, task_of
from electra_tf.pretrain.start import Start, last_step_of
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import code_sha256, installed_versions
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train import distribution, loop, optimization, reporting
from electra_tf.train.distribution import Placement
from electra_tf.train.reporting import EVALUATIONS, Journal
from electra_tf.train.step import Evaluation, TrainingStep, TrainState
from electra_tf.train.supervisor import Cluster, StopRequest


class Run(NamedTuple):
    """The parts that training, evaluation and a dry run share."""

    config: PretrainingConfig
    data: RunData
    placement: Placement
    state: TrainState
    checkpoints: Checkpoints
    console: Console


def build(
    config: PretrainingConfig,
    vocab: Vocabulary,
    cluster: Cluster,
    checkpoints: Checkpoints,
    console: Console,
    dry_run: bool,
) -> Run:
    """Devices, model and optimizer, on all workers."""
    distribution.configure_devices(config)
    cluster.meet(_facts(config, checkpoints) | {"dry_run": dry_run})
    placement = distribution.create_strategy(config, cluster)
    distribution.check_evaluation_batch(config, placement.num_replicas)
    console.log(distribution.describe(placement, config.precision))
    keras.utils.set_random_seed(config.seed)  # the initial weights
    with placement.strategy.scope():
        pretrainer = build_pretrainer(config, vocab)
        state = TrainState(pretrainer, optimization.create_optimizer(config))
    count = sum(v.shape.num_elements() for v in pretrainer.trainable_variables)
    cost = get_recipe_flops(config)
    console.log(f"Model: {count:,} parameters; {cost:.3g} FLOPs to train it")
    return Run(config, RunData(vocab), placement, state, checkpoints, console)


def _facts(config: PretrainingConfig, checkpoints: Checkpoints) -> dict[str, Any]:
    """Facts that must be equal on all workers of a run."""
    evaluated = []
    if config.eval_every_steps or config.do_eval:
        data = (phase.config.eval_tfrecords for phase in config.run_phases())
        evaluated = [record_index.describe(place) for place in data]
    return {
        **checkpoints.settings,  # with the data of each phase to learn from
        **checkpoints.identity,
        "init_checkpoint": config.init_checkpoint,  # The chief may keep another.
        "GPUs": len(tf.config.list_physical_devices("GPU")),
        "do_train": config.do_train,
        "evaluation data": evaluated,
        "code_sha256": code_sha256(),
        **installed_versions("electra-tf", "tensorflow", "keras", "numpy"),
    }


def train(run: Run, start: Start, stop: StopRequest) -> int:
    """Trains up to num_train_steps, phase by phase; returns the exit code.

    Args:
      start: the chief's.
    """
    config, data, placement, state, checkpoints, console = run
    if placement.is_chief:
        start.load(config, data, checkpoints, state, console.log)
    placement.workers.copy_from_chief(state.variables())
    if not _train_phases(run, stop):
        console.log("Run the same command again to continue.")
        return EXIT_PREEMPTED
    if placement.is_chief:
        _draw_curves(run)
    return EXIT_OK


def _train_phases(run: Run, stop: StopRequest) -> bool:
    """Trains from the state's step on; returns whether the end was reached."""
    config, console, done = run.config, run.console, run.state.step
    ahead = check_data(config, run.data, run.placement, done, console)
    _catch_up(run, stop)
    if done >= config.num_train_steps:
        console.log(
            f"Trained for {done} of {config.num_train_steps} steps already: nothing to "
            "do. A larger num_train_steps continues."
        )
        return True
    if run.placement.is_chief:
        reporting.cut_after(config.model_dir, done)
    console.heading("Running training")
    with stop:  # Now there is something to save.
        return all(_train_phase(run, phase, stop) for phase in ahead)


def _draw_curves(run: Run) -> None:
    """Draws the curves of a finished run, also if it was finished before."""
    config, step, folder = run.config, run.state.step, Path(run.config.model_dir)
    rows, picture = folder / "metrics.jsonl", folder / "loss_curves.png"
    curves = reporting.curves_of(
        rows,
        f"Pre-training of {config.model_name}",
        plotted(config.objective, config.generator),
        switches(config.to_dict()),
    )
    if not curves:  # the original's checkpoint of the last step
        return
    atomic_write(picture, curves)
    run.console.log(f"Checkpoint {run.checkpoints.prefix(step)}, curves {picture}")


def evaluate(run: Run, start: Start) -> int:
    """Evaluates the newest checkpoint; prints and writes the original's metrics."""
    config, data, placement, state, checkpoints, console = run
    step, saved = None, start.saved
    if saved:
        checkpoints.restore(saved, state.weights(), partial=True)
        checkpoint, step = checkpoints.prefix(saved.step), saved.step
    elif start.original:
        checkpoint = start.original.origin
        step = start.evaluate(state.weights(), console.log)
    if placement.is_chief:
        console.log(f"Evaluating {checkpoint}.")
    placement.workers.copy_from_chief(state.weights())
    # Only the chief has the manifest.
    last = last_step_of(saved, config)
    phase = config.phase_at(int(placement.workers.gather([last])[0, 0]))
    part, task = phase.config, task_of(state.model, phase)
    console.heading("Running evaluation")
    started = time.time()
    metrics = Evaluation(task, placement)(
        batches_of(part, data, placement, training=False),
        config.num_eval_steps,
        config.eval_batch_size,
        console,
    )
    if placement.is_chief:
        learned = [one.config.pretrain_tfrecords for one in config.run_phases()]
        text = reporting.write_results(
            config.results_txt,
            metrics,
            step,
            checkpoint=checkpoint,
            data=part.eval_tfrecords,
            is_training_data=part.eval_tfrecords in learned,
            labels={metric.name: metric.label for metric in task.metrics},
            num_eval_steps=config.num_eval_steps,
            eval_batch_size=config.eval_batch_size,
            seconds=round(time.time() - started, 1),
        )
        console.log(textwrap.indent(text.rstrip(), "  "))
        console.log(f"Written to {config.results_txt} and {config.results_json}")
    return EXIT_OK


def describe(run: Run, start: Start) -> int:
    """A dry run: checks data and model, prints sizes and FLOPs, writes nothing."""
    config, data, placement, state, checkpoints, console = run
    saved = start.saved
    phases = [config.phase_at(last_step_of(saved, config))]
    if config.do_train:
        # Only the chief has the manifest.
        done = placement.workers.gather([saved.step if saved else 0])[0, 0]
        phases = check_data(config, data, placement, int(done), console)
    for phase in phases:
        next(batches_of(phase.config, data, placement, training=config.do_train))
    if config.do_train and placement.is_chief:
        start.load(config, data, checkpoints, state, console.log)
    variables = state.variables().values()
    size = sum(v.shape.num_elements() * v.dtype.size for v in variables)
    console.log(f"Checkpoints: {size / 1e6:.0f} MB each in {config.model_dir}")
    if config.do_train:
        total = get_recipe_flops(config)
        console.log(
            f"Compute: {total:.2e} FLOPs, {total / config.num_train_steps:.2e} a step"
        )
    else:
        # Other workers have neither, and print nothing.
        origin = start.original and start.original.origin
        place = checkpoints.prefix(saved.step) if saved else origin
        console.log(f"Weights to evaluate: {place}")
    console.log("Dry run: nothing was written.")
    return EXIT_OK


def batches_of(
    part: PretrainingConfig,
    data: RunData,
    placement: Placement,
    training: bool = True,
    first_step: int = 0,
    **options,
) -> Iterator:
    """An iterator over a phase's global batches.

    Args:
      training: for training, else for evaluation.
      first_step: of the phase.
      options: start_step and examples_before of `pretrain_data.make_dataset`.
    """

    def dataset(context):
        return data.dataset(
            part,
            training,
            first_step,
            batch_size=part.train_batch_size if training else part.eval_batch_size,
            num_replicas=placement.num_replicas,
            replica_slice=(context.input_pipeline_id, context.num_input_pipelines),
            **options,
        )

    return iter(placement.strategy.distribute_datasets_from_function(dataset))


def check_data(
    config: PretrainingConfig,
    data: RunData,
    placement: Placement,
    done: int,
    console: Console,
) -> list[Phase]:
    """Checks batches and data of the phases that are left; logs the data.

    Raises `UserError` for a batch that the devices cannot divide, and for data that
    are missing, damaged or do not fit.

    Args:
      done: the completed steps of the run.

    Returns these phases.
    """
    ahead = config.phases_ahead(done)
    for phase in ahead:
        distribution.check_training_batch(phase.config, placement.num_replicas)
    for phase in ahead:
        part = phase.config
        if len(config.run_phases()) > 1:
            console.log(f"{phase}, {joined(part.pretrain_tfrecords)}")
        steps = (_rows(config, phase, step) for step in (done, phase.end))
        for line in data.open(part).describe(*steps):
            console.log(f"Data: {line}")
        if config.eval_every_steps:
            data.open(part, training=False)
    return ahead


def _rows(config: PretrainingConfig, phase: Phase, step: int) -> int:
    """How many examples of a phase's data the run has read by a step."""
    data, rows = _data_of(phase.config), 0
    for one in config.run_phases():
        if _data_of(one.config) == data:
            steps = max(0, min(step, one.end) - one.first)
            rows += one.config.train_batch_size * steps
    return rows


def _data_of(part: PretrainingConfig) -> tuple:
    """A phase's data sets and their shares."""
    return part.pretrain_tfrecords, part.sampling_alpha


def _train_phase(run: Run, phase: Phase, stop: StopRequest) -> bool:
    """Trains to the end of a phase; returns whether the end was reached."""
    config, data, placement, state, checkpoints, console = run
    model = state.model
    part, task = phase.config, task_of(model, phase)
    changed = phase.objective != config.phase_at(phase.first - 1).objective
    if changed and state.step == phase.first and config.init_discriminator:
        with placement.strategy.scope():
            model.begin_from_generator()
    if phase.end != config.num_train_steps:
        console.log(f"Phase {phase.number} ends at step {phase.end}.")
    step = TrainingStep(
        task,
        state,
        placement,
        seed=config.seed,
        accumulation=part.gradient_accumulation_steps,
        variables=model.trained_in(phase),
    )
    monitor = HealthMonitor(
        config.on_alarm,
        console,
        warmup=phase.first + part.num_warmup_steps,
        vocab_size=part.vocab_size,
        counts_all_tokens=objective_of(phase.objective, part).counts_all_tokens,
    )

    def batches(start: int) -> Iterator:
        order = {"start_step": start, "examples_before": _rows(config, phase, start)}
        return batches_of(part, data, placement, first_step=phase.first, **order)

    return loop.Loop(
        step,
        batches,
        checkpoints,
        console,
        placement,
        part,
        num_train_steps=phase.end,
        watch=monitor if placement.is_chief else None,
        evaluate=(
            PeriodicEvaluation(run, phase, stop) if config.eval_every_steps else None
        ),
    ).run(stop)


def _catch_up(run: Run, stop: StopRequest) -> None:
    """Makes the evaluation of the state's step that a stop prevented."""
    step, every = run.state.step, run.config.eval_every_steps
    if not every or not step or step % every:
        return
    evaluate = PeriodicEvaluation(run, run.config.phase_at(step - 1), stop)
    workers = run.placement.workers
    # Only the chief has the journal.
    if workers.gather([not evaluate.journal.has(step)])[0, 0]:
        workers.decide(loop.failure_of(lambda: evaluate(step)))


class PeriodicEvaluation:
    """The evaluations of a phase in training, at some steps.

    Writes them to evaluations.jsonl and TensorBoard.
    """

    def __init__(self, run: Run, phase: Phase, stop: StopRequest):
        self._run, self._part, self._stop = run, phase.config, stop
        self._evaluation = Evaluation(task_of(run.state.model, phase), run.placement)
        begin = run.state.step, run.placement.is_chief
        self.journal = Journal(run.config.model_dir, EVALUATIONS, "eval", *begin)

    def __call__(self, step: int) -> bool:
        """Evaluates the weights of this step; False, so that training continues."""
        run, config = self._run, self._run.config
        batches = batches_of(self._part, run.data, run.placement, training=False)
        size = config.num_eval_steps, config.eval_batch_size
        # The weights are saved; the next start evaluates them.
        with self._stop.leave_at_once():
            metrics = self._evaluation(batches, *size, Console(silent=True))
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        run.console.log(f"Evaluation at step {step:,}: {shown}")
        self.journal.add([{"step": step} | metrics])
        self.journal.sync()
        return False
