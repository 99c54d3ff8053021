# SPDX-License-Identifier: Apache-2.0
"""One trial of a fine-tuning run: build, load, train in the shared loop, score.

A trial has its own run directory: interrupted trials are resumed, finished ones are
not repeated.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.console import Console, Progress
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune import batches, preprocessing
from electra_tf.finetune import model as models
from electra_tf.finetune import results as files
from electra_tf.finetune.task import Scorer, Task, write_tasks
from electra_tf.interop import readers
from electra_tf.interop.checkpoint import FINETUNE, CheckpointInfo
from electra_tf.paths import shown
from electra_tf.storage.checkpoints import Checkpoints, StoredTensors, as_text
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import CheckpointManifest
from electra_tf.storage.mirror import Mirror
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train import loop, optimization
from electra_tf.train import step as training_step
from electra_tf.train.distribution import Placement
from electra_tf.train.reporting import EVALUATIONS, finite, read_metrics
from electra_tf.train.supervisor import StopRequest

# In a trial's directory, the newest checkpoint of a training that keeps the best.
TRAINING = "training"
# Settings that may change when a trial continues: those of the shape are compared by
# their effect, and a training that diverged may continue without such steps.
_CHANGEABLE = ("model_size", "model_hparam_overrides", "on_nonfinite")


@dataclasses.dataclass(frozen=True)
class Run:
    """The state that all trials of a run share."""

    config: FinetuningConfig
    vocab: Vocabulary
    tasks: list[Any]  # finetune.task.Task
    source: CheckpointInfo | None  # None: random weights
    placement: Placement
    console: Console
    stop: StopRequest  # entered for as long as the run works

    @functools.cached_property
    def initial_tensors(self) -> StoredTensors:
        """The weights of `source`; notes on foreign ones are logged once."""
        return self.source.tensors(self.console.log)

    def check_stop(self) -> None:
        """Raises `Interrupted` when a signal has asked to stop."""
        if self.stop.signal is not None:
            raise Interrupted


class Interrupted(Exception):
    """The run was asked to stop; everything is saved."""


def seed_of(config: FinetuningConfig, trial: int) -> int:
    """The seed of a trial; trials count from 1."""
    return config.seed + trial - 1


def run_trial(
    run: Run,
    trial: int,
    folder: Mirror | None = None,
    done: files.TrialResult | None = None,
) -> files.TrialResult:
    """Trains, or loads, one trial; scores it and predicts its test sets.

    Args:
      folder: of the trial, if it is trained.
      done: its result, where only predictions on test sets are missing.

    Raises `Interrupted` after SIGTERM or SIGINT, with the training saved; `UserError`
    if the model of a finished trial was not kept.
    """
    config, seed = run.config, seed_of(run.config, trial)
    keras.backend.clear_session()
    if done:
        model, _ = _load(run, trial, None)
        return _with_test_outputs(run, model, done)
    steps, seconds, origin = 0, 0.0, None
    if folder:
        model, steps, seconds = _train(run, trial, folder)
    else:
        model, origin = _load(run, trial, run.source)
    times = {"train": round(seconds, 1)}
    result = files.TrialResult(trial, seed, {}, [], steps, times, {}, weights=origin)
    if config.do_eval:
        _evaluate(run, model, result)
    if _wants_test_outputs(config, trial):
        result = _with_test_outputs(run, model, result)
    return result


def lacks_test_outputs(
    config: FinetuningConfig, result: files.TrialResult, tasks: Sequence[Any]
) -> bool:
    """Whether predictions are asked for that a finished trial does not have.

    Those on other data than the test sets of today do not count.
    """
    if not _wants_test_outputs(config, result.trial):
        return False
    written = result.test_outputs
    there = written and all(map(os.path.isfile, written))
    return not there or result.test_data not in ({}, _test_data(tasks))


def _test_data(tasks: Sequence[Any]) -> dict[str, dict[str, str]]:
    """Task -> test set -> its fingerprint."""
    found = {t.name: {s: t.fingerprint(s) for s in t.splits("test")} for t in tasks}
    return {name: splits for name, splits in found.items() if splits}


def _wants_test_outputs(config: FinetuningConfig, trial: int) -> bool:
    return config.write_test_outputs and trial <= config.n_writes_test


def _evaluate(run: Run, model, result: files.TrialResult) -> None:
    """Adds the scores on all dev sets to a trial's result; writes predictions."""
    started = time.monotonic()
    directory = run.config.beside_results("predictions", result.trial)
    for task, split, name, scorer in _scorers(run, model, "dev"):
        task.write_predictions(split, scorer, directory)
        result.scores[name] = dict(scorer.get_results())
        if details := scorer.details():
            result.details[name] = details
        run.console.log(f"{name}: {files.scores_text(result.scores[name])}")
        if len(scorer) > 1 and scorer.is_degenerate:
            result.degenerate.append(name)
    run.console.log(f"Predictions of trial {result.trial}: {directory}")
    result.seconds["evaluate"] = round(time.monotonic() - started, 1)


def _with_test_outputs(run: Run, model, result: files.TrialResult) -> files.TrialResult:
    """A trial's result with the predictions on all test sets, which are written."""
    directory = run.config.beside_results("test_predictions", result.trial)
    paths = []
    for task, split, name, scorer in _scorers(run, model, "test"):
        paths += task.write_predictions(split, scorer, directory)
        run.console.log(f"Predictions on {name}: {directory}")
    return result._replace(test_outputs=paths, test_data=_test_data(run.tasks))


def _scorers(run: Run, model, kind: str) -> Iterator[tuple[Task, str, str, Scorer]]:
    """(task, split, name, scorer) of each dev or test set, when it is predicted.

    Raises `Interrupted` when a signal asked to stop.
    """
    for task in run.tasks:
        for split in task.splits(kind):
            # A second dev set or a test set is named after its task.
            name = f"{task.name}_{split.removeprefix('dev_')}"
            name = task.name if split == "dev" else name
            yield task, split, name, score(run, model, task, split)


def score(run: Run, model, task, split: str) -> Scorer:
    """The task's scorer, having seen all predictions on one split."""
    config, scorer = run.config, task.scorer(split)
    run.console.log(f"Evaluating {task.name} on its {split} set.")
    store = preprocessing.features(config, run.tasks, split, False, only=task)
    size = config.eval_batch_size
    count = -(-len(store) // size)
    progress = Progress(run.console, count, 0, size, count)

    def on_batch(done):
        run.check_stop()
        progress.update(done, {})

    try:
        for row in batches.head_outputs(model, task, store, on_batch):
            scorer.update(row)
    finally:
        progress.close()
    run.check_stop()
    return scorer


def build(run: Run, trial: int, steps: int):
    """Model and optimizer with the trial's random weights: (task, state)."""
    keras.utils.set_random_seed(seed_of(run.config, trial))
    with run.placement.strategy.scope():
        heads = {task.name: task.head for task in run.tasks}
        model = models.build_finetuning_model(run.config, heads)
        if run.config.freeze_layers is not None:
            models.freeze(model, run.config.freeze_layers)
        optimizer = optimization.create_finetuning_optimizer(run.config, steps)
        state = training_step.TrainState(model, optimizer)
    return models.training_task(model), state


def _load(run: Run, trial: int, source: CheckpointInfo | None):
    """(a model that was fine-tuned before, its path); source None: the trial's own."""
    config = run.config
    task, state = build(run, trial, 1)
    if source is None:
        source = readers.find(config.trial_dir(trial), run.console.log)
    source.check(config, run.vocab, FINETUNE)
    source.tensors(run.console.log).assign_to(state.weights())
    run.console.log(f"Trial {trial}: weights from {source.origin}")
    return task.model, shown(source.origin)


def _identity(run: Run, store) -> dict[str, Any]:
    """Facts that must not change when a training continues, beside `settings_of`."""
    # Dropout as well: a trial is short enough to be made again.
    shape = dataclasses.asdict(run.config.model_config())
    heads = {task.name: [task.head.kind, len(task.labels)] for task in run.tasks}
    found = shape | run.config.identity() | {"vocab_sha256": run.vocab.sha256}
    found |= {"heads": heads, "features": store.digest}
    if run.config.eval_every_steps:  # The best are kept by these scores.
        found["data"] = preprocessing.data_facts(run.config, run.tasks)
    return found


def _check_is_same(checkpoints: Checkpoints, saved: CheckpointManifest) -> None:
    """Raises a UserError if the steps so far were made with other settings or data."""
    changed = files.differences(saved.settings, checkpoints.settings, _CHANGEABLE)
    if changed:
        raise UserError(
            f"{checkpoints.prefix(saved.step)} was trained with other settings: "
            f"{as_text(changed)}.\nRestore the old value, or {checkpoints.advice}."
        )
    checkpoints.check_identity(saved)


def _train(run: Run, trial: int, mirror: Mirror):
    """Trains up to the end: (model, steps, seconds)."""
    config, console, folder = run.config, run.console, run.config.trial_dir(trial)
    store = preprocessing.features(config, run.tasks, "train", True)
    # As the original counts them: whole batches, times epochs.
    whole = -(-len(store) // config.train_batch_size)
    steps = max(1, int(whole * config.num_train_epochs))
    # Where the best weights stay, the trial's directory is theirs.
    place = os.path.join(folder, TRAINING) if config.keep == "best" else folder
    facts = {
        "keep": 1,
        "identity": _identity(run, store),
        "settings": files.settings_of(config, run.source, run.vocab),
        "advice": f'set "model_dir" to a new place, or remove {folder}',
        "log": console.log,
    }
    checkpoints = Checkpoints(place, mirror=mirror, **facts)
    if saved := checkpoints.newest_intact():
        _check_is_same(checkpoints, saved)
    task, state = build(run, trial, steps)
    if saved:
        checkpoints.restore(saved, state.variables())
        console.log(f"Continuing from {checkpoints.prefix(saved.step)}.")
    elif run.source:
        models.load_encoder(run.initial_tensors, state.weights())
        console.log(f"Encoder's weights from {run.source.origin}; new heads.")
    else:
        console.log("All weights are random: init_checkpoint is null.")
    console.log(
        f"Data: {len(store):,} training examples; {steps:,} steps, "
        f"{config.num_train_epochs:g} epoch{'s' * (config.num_train_epochs != 1)}"
    )
    started = time.monotonic()
    best = Checkpoints(folder, **facts) if config.keep == "best" else None
    assess = _Assessment(run, folder, state, best)
    if assess.is_due(at_end=False):  # A stop came between a save and its scores.
        assess(state.step)
    if state.step < steps and not assess.is_over():
        config.save(f"{folder}/config.json")
        write_tasks(folder, run.tasks)
        _train_to_end(run, trial, store, task, state, checkpoints, steps, assess)
    if assess.is_due(at_end=True):
        assess(state.step)
    assess.restore_best()
    return task.model, state.step, time.monotonic() - started


class Evaluations:
    """The evaluations during a trial, a line each; a resumed trial continues them.

    Args:
      directory: the trial's.
      step: of the trial; later evaluations are made again.
      patience: evaluations without a better one that end the trial; 0: any number.
    """

    def __init__(self, directory: str | os.PathLike, step: int, patience: int = 0):
        self.patience = patience
        self._path = Path(directory) / EVALUATIONS
        self.rows = [row for row in read_metrics(self._path) if row["step"] <= step]

    def is_better(self, score: float, scores: Mapping[str, Any]) -> bool:
        """Whether a score is higher than all before; see `best`."""
        row = finite({"score": score, "scores": scores})
        return not self.rows or _rank(row) > _rank(self.best())

    def add(self, step: int, score: float, scores: Mapping[str, Any]) -> None:
        """Adds the scores at a step."""
        row = {"step": step, "score": score, "scores": scores}
        self.rows.append(finite(row))
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        atomic_write(self._path, text)

    def has(self, step: int) -> bool:
        """Whether a step was scored."""
        return any(row["step"] == step for row in self.rows)

    def best(self) -> dict[str, Any]:
        """The evaluation with the highest score, the first of equals.

        Where no score is defined, such as a correlation with equal numbers, that with
        the lowest loss.
        """
        return max(self.rows, key=_rank)

    def is_over(self) -> bool:
        """Whether nothing better has come for too long."""
        if not self.patience or not self.rows:
            return False
        return len(self.rows) > self.rows.index(self.best()) + self.patience


def _rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    if row["score"] is not None:
        return True, row["score"]
    losses = [found.get("loss") for found in row["scores"].values()]
    return False, -sum(math.inf if loss is None else loss for loss in losses)


class _Assessment(Evaluations):
    """Scores a training while it goes on, and keeps its best weights."""

    def __init__(self, run: Run, folder: str, state, best: Checkpoints | None):
        super().__init__(folder, state.step, run.config.early_stopping_patience)
        self._run, self._state, self._best = run, state, best
        # Reject checkpoints of a run without keep=best.
        if best and (stored := best.newest_intact()):
            _check_is_same(best, stored)

    def is_due(self, at_end: bool) -> bool:
        """Whether the weights of this step are still to be scored."""
        every, step = self._run.config.eval_every_steps, self._state.step
        if not every or not step or self.has(step):
            return False
        return at_end or step % every == 0

    def __call__(self, step: int) -> bool:
        """Scores this step's weights; returns whether the training should end."""
        run, scores = self._run, {}
        for *_, name, scorer in _scorers(run, self._state.model, "dev"):
            scores[name] = dict(scorer.get_results())
            run.console.log(f"Step {step}: {name}: {files.scores_text(scores[name])}")
        main = main_score(run.tasks, scores)
        if self._best and not math.isfinite(main):
            run.console.log("No score is defined on the dev set; the loss decides.")
        if self._best and self.is_better(main, scores):
            self._best.save(step, self._state.weights())
        self.add(step, main, scores)
        if self.is_over():
            best = self.best()["step"]
            run.console.log(f"Ended early at step {step}; step {best} is the best.")
        return self.is_over()

    def restore_best(self) -> None:
        """Takes the best weights, if those are to stay."""
        if not self._best:
            return
        step, saved = self.best()["step"], self._best.newest_intact()
        if not saved or saved.step != step:
            raise UserError(
                f"{self._best.prefix(step)}, the best weights of the trial, is missing."
                f"\nPut it back, or {self._best.advice}.",
                EXIT_DAMAGED,
            )
        self._best.restore(saved, self._state.weights())
        self._run.console.log(f"The weights of step {step} stay, the best.")


def _train_to_end(run, trial, store, task, state, checkpoints, steps, assess) -> None:
    config, placement = run.config, run.placement
    seed = seed_of(config, trial)
    is_compiled = placement.jit_compile
    buckets = batches.training_buckets(
        config, store.lengths, steps=steps, seed=seed, is_compiled=is_compiled
    )
    by_length = placement.is_one_cpu and not is_compiled and len(buckets) > 1
    parts = config.gradient_accumulation_steps
    if by_length:
        parts = batches.num_parts(config, store.lengths, seed=seed)
    step = training_step.TrainingStep(
        task, state, placement, seed=seed, accumulation=parts
    )
    lengths = ", ".join(map(str, buckets))
    computed = f", computed in {parts} parts by length" * (by_length and parts > 1)
    run.console.log(f"Batches are padded to {lengths} tokens{computed}.")

    def batches_from(start: int):
        dataset = batches.make_dataset(
            store,
            batch_size=config.train_batch_size,
            seed=seed,
            start_step=start,
            num_replicas=placement.num_replicas,
            length_buckets=buckets,
            by_length=by_length,
        )
        distribute = placement.strategy.distribute_datasets_from_function
        return iter(distribute(lambda context: dataset))

    training = loop.Loop(
        step,
        batches_from,
        checkpoints,
        run.console,
        placement,
        config,
        num_train_steps=steps,
        evaluate=assess if config.eval_every_steps else None,
    )
    if not training.run(run.stop):
        raise Interrupted


def main_score(
    tasks: Sequence[Task], scores: Mapping[str, Mapping[str, float]]
) -> float:
    """The mean of the tasks' main metrics on their (first) dev sets."""
    return statistics.fmean(
        scores[t.name][t.main_metric or next(iter(scores[t.name]))] for t in tasks
    )
