# SPDX-License-Identifier: Apache-2.0
"""A fine-tuning run: its config and data, then its trials, at once or one by one.

TensorFlow is imported after everything that can be checked without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_tf import startup
from electra_tf.config.finetuning import FinetuningConfig, vocabulary_of
from electra_tf.console import Console
from electra_tf.errors import EXIT_FLAGS, EXIT_OK, EXIT_PREEMPTED, UserError
from electra_tf.finetune import preprocessing, registry
from electra_tf.finetune import results as files
from electra_tf.finetune.task import Task
from electra_tf.interop import checkpoint, readers
from electra_tf.interop.checkpoint import FINETUNE, CheckpointInfo
from electra_tf.storage.files import check_place
from electra_tf.storage.mirror import Mirror, Outputs
from electra_tf.text.vocabulary import Vocabulary, resolve_settings
from electra_tf.train.supervisor import StopRequest, leave_at_once

if TYPE_CHECKING:
    from electra_tf.finetune.trial import Run

# Examples of each task that log_examples shows.
_SHOWN = 5


class Flags(NamedTuple):
    """The flags of a command line.

    Attributes:
      hparams: with those of --config.
      trial: the only trial to make, for job arrays; None: all.
      merge: make no trial; collect the results of those that are made.
    """

    data_dir: str
    model_name: str
    hparams: dict[str, Any]
    trial: int | None
    merge: bool


def main(flags: Flags) -> int:
    """Runs the command of the flags; returns the exit code."""
    if os.environ.get("TF_CONFIG"):
        raise UserError(
            "TF_CONFIG is set, but fine-tuning runs on the devices of one machine.\n"
            "Unset it; --trial makes trials jobs of their own."
        )
    console = Console()
    with leave_at_once():  # until a trial begins, which has something to save
        config, source = resolve(flags, console)
        check_place(os.path.dirname(config.results_txt))
        folder, name = os.path.split(config.results_stem)
        with Outputs(folder, name, resumes=True) as outputs:
            return run(outputs, flags, config, source, console)


def run(
    outputs: Outputs,
    flags: Flags,
    config: FinetuningConfig,
    source: CheckpointInfo | None,
    console: Console,
) -> int:
    """Checks and reads all that the run needs, then makes its trials.

    The results of earlier starts are in their place.
    """
    for trial in numbers(config) if config.do_train else ():
        check_place(config.trial_dir(trial))
        files.check_is_free(config.trial_dir(trial))
    check_flags(flags, config)
    vocab = Vocabulary.load(config.vocab_file)
    if flags.merge:
        return show(results_of(config, source, vocab), config, console)
    vocab.check_size(config.vocab_size)
    console.heading("Config:")
    for line in config.describe():
        console.log(line)
    settings = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    if note := vocab.unused(settings):
        console.log(f"Note: {note}.")
    console.log()
    if source is not None:
        source.check(config, vocab, FINETUNE)
    trained = None
    if not config.do_train:
        trained = source.run
        if config.evaluates_its_trials:
            source = None  # Each trial has its own.
            for trial in numbers(config):
                readers.find(config.trial_dir(trial), console.log)
        # The results of the training stay beside these.
        path = config.results_txt.removesuffix("_results.txt")
        config = config.replaced(results_txt=f"{path}_eval_results.txt")
    tasks = make_tasks(config, vocab, console, trained)
    results = results_of(config, source, vocab, tasks, flags.trial)
    placement = prepare_devices(config, console)
    from electra_tf.finetune.trial import Run

    with StopRequest() as stop:
        state = Run(config, vocab, tasks, source, placement, console, stop)
        return run_trials(state, results, outputs)


def resolve(
    flags: Flags, console: Console
) -> tuple[FinetuningConfig, CheckpointInfo | None]:
    """(config, the checkpoint that it starts from, or that is evaluated).

    Shape, casing and vocabulary that the user does not set are the checkpoint's.
    """
    place, explicit = (flags.data_dir, flags.model_name), flags.hparams
    path = FinetuningConfig.weights_of(*place, explicit)
    if path is None:
        config = FinetuningConfig.from_hparams(*place, explicit)
        if "do_lower_case" not in explicit and os.path.isfile(config.vocab_file):
            resolve_settings(Vocabulary.load(config.vocab_file))
        return config, None
    try:
        source = readers.find(path, console.log)
    except readers.NoModelError as error:
        raise UserError(
            f"init_checkpoint {error}\nCheck --data-dir and "
            '--model-name; "init_checkpoint": null trains from random weights.'
        ) from None
    usual = vocabulary_of(*place)
    known = hparams_of(source, explicit, usual, console.log)
    config = FinetuningConfig.from_hparams(*place, explicit, None, known)
    length, trained = config.max_seq_length, source.known.get("max_seq_length")
    if trained and length > trained and not config.model_config().kind.has_tables:
        console.log(f"Note: max_seq_length {length} is beyond training ({trained}).")
    if source.vocab_file is None:
        source = dataclasses.replace(source, vocab_file=config.vocab_file)
    return config, source


def hparams_of(
    model: CheckpointInfo,
    explicit: Mapping[str, Any],
    vocab_file: str,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """The shape, casing and vocabulary of a model, as hparams.

    Args:
      explicit: the hparams that the user has set; those of the shape must agree.
      vocab_file: where the vocabulary usually is; the model's own is taken where there
        is none.

    Raises `UserError` for hparams of another shape.
    """
    found = model.finetuning_hparams(explicit)
    if "num_attention_heads" not in {*found["model_hparam_overrides"], *model.shape}:
        log(checkpoint.note_of_heads(model.shape["hidden_size"], model.origin))
    theirs = model.vocab_file
    if "vocab_file" not in explicit and theirs and not os.path.isfile(vocab_file):
        # A trial stores it, and is read from any directory.
        found["vocab_file"] = os.path.abspath(theirs)
        log(f"Note: {vocab_file} does not exist; the vocabulary is {theirs}.")
    words = explicit.get("vocab_file") or found.get("vocab_file") or vocab_file
    if "do_lower_case" not in explicit and (vocab := Vocabulary.load_if_there(words)):
        model.check_casing(vocab)
    return found


def numbers(config: FinetuningConfig) -> range:
    """Those of the trials."""
    return range(1, config.num_trials + 1)


def check_flags(flags: Flags, config: FinetuningConfig) -> None:
    """Raises a UserError for flags about trials that do not go together."""
    if flags.trial and flags.merge:
        raise UserError("--trial and --merge exclude each other.", EXIT_FLAGS)
    if (flags.trial or flags.merge) and not (config.do_train and config.do_eval):
        name = "--trial" if flags.trial else "--merge"
        raise UserError(f"{name} needs do_train and do_eval.")
    if (flags.trial or 1) > config.num_trials:
        raise UserError(f"--trial {flags.trial}: num_trials is {config.num_trials}.")


def make_tasks(config, vocab: Vocabulary, console: Console, trained=None) -> list[Task]:
    """The tasks, with all their data read, so that bad data are found now."""
    tasks = registry.make_tasks(config, vocab, trained)
    kinds = ["dev"] * config.scores_dev + ["test"] * config.write_test_outputs
    if "test" in kinds and not any(task.splits("test") for task in tasks):
        raise UserError("write_test_outputs is set, but no task has a test set.")
    lines: list[str] = []
    if config.do_train:
        store = preprocessing.features(config, tasks, "train", True)
        lines += preprocessing.summary(store, "training", tasks)
        for task in tasks:
            lines += preprocessing.summary_of_classes(task)
        if config.log_examples:
            lines += shown_examples(store, tasks)
    for task in tasks:
        for split in (s for kind in kinds for s in task.splits(kind)):
            store = preprocessing.features(config, tasks, split, False, only=task)
            lines += preprocessing.summary(store, f"{task.name}, {split}", [task])
            task.read(split)  # Now: its file may be edited while the run is at work.
    for line in lines:
        console.log(line)
    return tasks


def shown_examples(store, tasks: list[Task]) -> Iterator[str]:
    """The first examples of each task as the model will see them."""
    for number, task in enumerate(tasks):
        rows = [i for i in range(len(store)) if store["task_id"][i] == number]
        for row in rows[:_SHOWN]:
            ids = store["input_ids"][row][store["input_mask"][row] > 0]
            tokens = " ".join(task.tokenizer.convert_ids_to_tokens(ids))
            yield f"{task.name}: {tokens}"
            for spec in task.feature_specs():
                value = store[preprocessing.feature_key(task, spec.name)][row]
                shown = value.tolist()[:30] if value.ndim else value
                yield f"  {spec.name}: {shown}"


def results_of(
    config: FinetuningConfig,
    source: CheckpointInfo | None,
    vocab: Vocabulary,
    tasks: Sequence[Task] = (),
    only: int | None = None,
) -> files.Results:
    """The results of the run, with those that are there if it trains.

    `tasks`: () where their files are not to be looked at.
    """
    settings = files.settings_of(config, source, vocab)
    if tasks:
        settings[files.DATA] = preprocessing.data_facts(config, tasks)
    results = files.Results(config, settings, only)
    if config.do_train:
        results.load()
    return results


def show(results: files.Results, config: FinetuningConfig, console: Console) -> int:
    """Writes and prints the results of all trials that are made."""
    if not results.trials:
        raise UserError(f"no results in {config.results_json} or beside it.")
    results.write()
    missing = [str(trial) for trial in numbers(config) if trial not in results.trials]
    if missing:
        console.log(f"Note: not made yet: trial {', '.join(missing)}.")
    console.heading("Results")
    console.log(results.table())
    console.log(f"Written to {config.results_txt} and {config.results_json}")
    return EXIT_OK


def prepare_devices(config: FinetuningConfig, console: Console):
    """Imports TensorFlow and chooses the devices; once in a process."""
    startup.import_tensorflow()
    from electra_tf.train import distribution

    distribution.configure_devices(config)
    placement = distribution.create_strategy(config)
    console.log(distribution.describe(placement, config.precision))
    return placement


def run_trials(run: Run, results: files.Results, outputs: Outputs) -> int:
    """Makes the trials that are not made yet and shows them; returns the exit code."""
    from electra_tf.finetune import trial as finetuning

    config, log = run.config, run.console.log
    for trial in [results.only] if results.only else numbers(config):
        done = results.trials.get(trial) if config.do_train and config.do_eval else None
        if done:
            log(f"Trial {trial} is finished; its results are kept.")
            if not finetuning.lacks_test_outputs(config, done, run.tasks):
                continue
        place, nothing = config.trial_dir(trial), contextlib.nullcontext()
        # Others keep out until the results are written, and the folder perhaps removed.
        with Mirror(place, keep=1, log=log) if config.do_train else nothing as folder:
            try:
                run.check_stop()
                if folder:
                    files.check_is_free(place)
                run.console.heading(f"Trial {trial} of {config.num_trials}")
                result = finetuning.run_trial(run, trial, folder, done)
            except finetuning.Interrupted:
                log("Run the same command again to continue.")
                return EXIT_PREEMPTED
            if config.do_eval:
                results.add(result)
            outputs.upload()
            is_kept = config.keep_all_models or trial == 1
            if folder and trial in results.trials and not is_kept:
                folder.remove()
    if results.trials and not results.only:
        show(results, config, run.console)
    return EXIT_OK
