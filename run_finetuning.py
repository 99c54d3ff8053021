# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a pre-trained ELECTRA model on one or several tasks and evaluates it.

  python3 run_finetuning.py --data-dir $DATA_DIR --model-name electra_small_owt \
      --hparams '{"model_size": "small", "task_names": ["cola"]}'

Expects $DATA_DIR/finetuning_data/<task>, the pre-trained model in
$DATA_DIR/models/<model-name> and its vocab.txt there, or else in $DATA_DIR. The same
command again continues an interrupted run.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

from absl import flags

# TensorFlow is imported further down, after everything that can be checked without it.
from electra_tf import cli, processes, startup
from electra_tf.config.finetuning import FinetuningConfig, vocabulary_of
from electra_tf.config.hparams import read_hparams
from electra_tf.console import Console
from electra_tf.errors import EXIT_FLAGS, EXIT_OK, EXIT_PREEMPTED, UserError
from electra_tf.finetune import (
    classification,
    glue_zip,
    initial_weights,
    label_counts,
    parallel_trials,
    preprocessing,
    run_settings,
    task_names,
)
from electra_tf.finetune import sweep as sweep_lib
from electra_tf.finetune.results import DATA, Results
from electra_tf.finetune.trial_folder import check_is_free, check_is_kept
from electra_tf.storage.files import check_place
from electra_tf.storage.remote import check_writable, names_below, put, put_folder
from electra_tf.text.vocabulary import Vocabulary, resolve_settings
from electra_tf.train.stopping import LeaveAtOnce, StopRequest

_DATA_DIR = cli.define_path(
    "data_dir",
    None,
    "Location of data files (vocabulary, task data, models).",
    in_bucket=True,
)
_MODEL_NAME = flags.DEFINE_string(
    "model_name", None, "The name of the model being fine-tuned."
)
_HPARAMS = flags.DEFINE_string(
    "hparams", "{}", "JSON text or file of hparams; docs/hparams.md lists them."
)
_CONFIG = cli.define_path(
    "config", None, "JSON file of hparams that --hparams overrides.", in_bucket=True
)
_SWEEP = flags.DEFINE_boolean(
    "sweep",
    False,
    "Fine-tune from every checkpoint in init_checkpoint's directory, and plot the "
    "scores against its step.",
)
_TRIAL = flags.DEFINE_integer(
    "trial",
    None,
    "Make this trial alone, with a results file of its own: for job arrays. --merge "
    "collects them.",
    lower_bound=1,
)
_PARALLEL = flags.DEFINE_integer(
    "parallel",
    0,
    "Make so many trials at a time, each in a process of its own, on a GPU of its own "
    "where there are some.",
    lower_bound=0,
)
_MERGE = flags.DEFINE_boolean(
    "merge", False, "Make no trial; print and write the results of those that are made."
)
# Examples that were left out and are listed on the console.
_LISTED = 20
# Examples of each task that log_examples shows.
_SHOWN = 5

flags.mark_flags_as_required(["data_dir", "model_name"])


def main(argv: list[str]) -> int:
    """Runs all trials; returns the exit code."""
    del argv
    processes.end_with_parent()
    console = Console()
    if os.environ.get("TF_CONFIG"):
        raise UserError(
            "TF_CONFIG is set, but fine-tuning runs on the devices of one machine.\n"
            "Unset it; --trial makes trials jobs of their own."
        )
    with LeaveAtOnce():  # until a trial begins, which has something to save
        return run(console)


def run(console: Console) -> int:
    """Does what the flags say; returns the exit code."""
    file = read_hparams(_CONFIG.value) if _CONFIG.value else None
    explicit = FinetuningConfig.explicit(read_hparams(_HPARAMS.value), file)
    config, source = resolve(explicit, console)
    check_place(os.path.dirname(config.results_txt))
    check_writable(os.path.dirname(config.results_txt))
    check_place(config.preprocessed_data_dir)
    check_trial_places(config)
    check_flags(config)
    if _MERGE.value:
        return show(results_of(config, source, None, []), config, console)
    vocab = Vocabulary.load(config.vocab_file)
    vocab.check_size(config.vocab_size)
    resolve_settings(vocab, do_lower_case=config.do_lower_case)
    console.heading("Config:")
    for name, value in sorted(config.to_dict().items()):
        console.log(f"{name} {value}")
    for note in config.notes():
        console.log(f"Note: {note}.")
    console.log()
    if source is not None:
        initial_weights.check(source, config, vocab)
    if _SWEEP.value:
        return sweep(config, explicit, vocab, console)
    trained = None
    if not config.do_train:
        trained = source.run
        if config.evaluates_its_trials:
            source = None  # Each trial has its own.
            check_trials_are_kept(config)
        # What the training of these trials brought stays beside it.
        path = config.results_txt.removesuffix("_results.txt")
        config = dataclasses.replace(config, results_txt=f"{path}_eval_results.txt")
    if config.data_source == "tfds":
        # It reads with TensorFlow, whose devices have to be chosen first.
        placement = prepare_devices(config, console)
        tasks = make_tasks(config, vocab, console, trained)
    else:
        tasks = make_tasks(config, vocab, console, trained)
        if _PARALLEL.value > 1:
            return run_parallel(config, source, vocab, tasks, console)
        placement = prepare_devices(config, console)
    with StopRequest() as stop:
        code, _ = run_trials(config, vocab, tasks, source, placement, console, stop)
    return code


def check_trial_places(config: FinetuningConfig) -> None:
    """Raises a UserError for a folder that a trial could not, or must not, go into."""
    for trial in range(1, config.num_trials + 1) if config.do_train else ():
        check_place(config.trial_dir(trial))
        check_is_free(config.trial_dir(trial))


def check_flags(config: FinetuningConfig) -> None:
    """Raises a UserError for flags about trials that do not go together."""
    chosen = {"--trial": _TRIAL.value, "--parallel": _PARALLEL.value > 1}
    chosen |= {"--merge": _MERGE.value, "--sweep": _SWEEP.value}
    names = [name for name, value in chosen.items() if value]
    if len(names) > 1:
        raise UserError(f"{names[0]} and {names[1]} exclude each other.", EXIT_FLAGS)
    if names and names != ["--sweep"] and not (config.do_train and config.do_eval):
        raise UserError(f"{names[0]} needs do_train and do_eval.")
    if (_TRIAL.value or 1) > config.num_trials:
        raise UserError(
            f"--trial {_TRIAL.value}: num_trials is {config.num_trials}.\n"
            "Trials count from 1."
        )
    if _PARALLEL.value > 1 and config.data_source == "tfds":
        raise UserError(
            '--parallel does not go with data_source "tfds": start --trial 1, 2, ... '
            "yourself."
        )


def check_trials_are_kept(config: FinetuningConfig) -> None:
    """Raises a UserError for a trial that is to be evaluated and has no model."""
    purpose = "be evaluated" if config.do_eval else "predict the test set"
    for trial in range(1, config.num_trials + 1):
        check_is_kept(config.trial_dir(trial), trial, purpose, "num_trials")


def results_of(
    config: FinetuningConfig,
    source,
    vocab: Vocabulary | None,
    tasks: list,
    only: int | None = None,
) -> Results:
    """The results of the run, with those that are there if it trains.

    `vocab`, `tasks`: None and [] where their files are not to be looked at.
    """
    settings = run_settings.settings_of(config, source, vocab)
    if tasks:
        settings[DATA] = preprocessing.data_facts(config, tasks)
    places = config.results_json, config.results_txt
    results = Results(*places, settings, only, config.num_trials)
    if config.do_train:
        results.load()
    return results


def show(results: Results, config: FinetuningConfig, console: Console) -> int:
    """Writes and prints the results of all trials that are made."""
    if not results.trials:
        raise UserError(f"there are no results in {config.results_json} or beside it.")
    results.write()
    missing = [
        str(trial)
        for trial in range(1, config.num_trials + 1)
        if trial not in results.trials
    ]
    if missing:
        console.log(f"Note: not made yet: trial {', '.join(missing)}.")
    console.heading("Results")
    console.log(results.table())
    console.log(f"Written to {config.results_txt} and {config.results_json}")
    return EXIT_OK


def run_parallel(
    config: FinetuningConfig, source, vocab, tasks, console: Console
) -> int:
    """Makes the trials that are not made yet, some at a time."""
    made = results_of(config, source, vocab, tasks).trials
    trials = [
        trial
        for trial in range(1, config.num_trials + 1)
        if trial not in made
        or (config.write_test_outputs and trial <= config.n_writes_test)
    ]
    stem = config.results_json.removesuffix(".json")
    code = parallel_trials.run(
        trials, _PARALLEL.value, lambda k: Path(f"{stem}.trial_{k}.log"), console
    )
    if code == EXIT_PREEMPTED:
        console.log("Run the same command again to continue.")
    return code or show(results_of(config, source, vocab, tasks), config, console)


def resolve(explicit: dict[str, Any], console: Console):
    """(config, the checkpoint that it starts from, or that is evaluated; or None).

    What the user leaves open of the model's shape and text, the checkpoint says.
    """
    data_dir, model_name = _DATA_DIR.value, _MODEL_NAME.value
    path = FinetuningConfig.weights_of(data_dir, model_name, explicit)
    source, known = None, {}
    if path is not None:
        if not explicit.get("do_train", True) and path != explicit.get(
            "init_checkpoint"
        ):
            check_is_kept(path, 1, "be evaluated", "num_trials")
        source = initial_weights.find(path, console.log)
        usual = vocabulary_of(data_dir, model_name)
        known = initial_weights.hparams_of(source, explicit, usual, console.log)
    config = FinetuningConfig.from_hparams(data_dir, model_name, explicit, None, known)
    if source is not None and source.settings.vocab_file is None:
        source = source.with_vocabulary(config.vocab_file)
    return config, source


def log_examples(store, tasks: list, console: Console) -> None:
    """Shows the first examples of each task as the model will see them."""
    for number, task in enumerate(tasks):
        rows = [i for i in range(len(store)) if store["task_id"][i] == number]
        for row in rows[:_SHOWN]:
            ids = store["input_ids"][row][: store.lengths[row]]
            console.log(
                f"{task.name}: {' '.join(task.tokenizer.convert_ids_to_tokens(ids))}"
            )
            for spec in task.feature_specs():
                value = store[preprocessing.feature_key(task, spec.name)][row]
                shown = value.tolist()[:30] if value.ndim else value
                console.log(f"  {spec.name}: {shown}")


def make_tasks(
    config: FinetuningConfig,
    vocab: Vocabulary,
    console: Console,
    trained: Path | None = None,
) -> list:
    """The tasks, with their data read, checked and made into features."""
    tasks = task_names.make_tasks(config, vocab, trained)
    kinds = ["dev"] * config.scores_dev + ["test"] * config.write_test_outputs
    if "test" in kinds:
        check_test_sets(tasks)
    for note in (note for task in tasks for note in task.notes(kinds)):
        console.log(f"Note: {note}.")
    build_features(config, tasks, kinds, console)
    return tasks


def check_test_sets(tasks: list) -> None:
    """Raises a UserError where there is nothing that write_test_outputs could write."""
    if not any(task.splits("test") for task in tasks):
        raise UserError("write_test_outputs is set, but no task has a test set.")


def build_features(config, tasks: list, kinds: list[str], console: Console) -> None:
    """Builds all features that will be needed, so that bad data are found at once."""
    if config.do_train:
        store = preprocessing.features(config, tasks, "train", True)
        log_features(store, "training", console)
        for number, task in enumerate(tasks):
            for line in label_counts.lines(task, number, store):
                console.log(line)
        if config.log_examples:
            log_examples(store, tasks, console)
    for task in tasks:
        for split in (s for kind in kinds for s in task.splits(kind)):
            store = preprocessing.features(config, tasks, split, False, only=task)
            log_features(store, f"{task.name}, {split}", console)
            task.read(split)  # Now: its file may be edited while the run is at work.


def log_features(store, what: str, console: Console) -> None:
    """Says how many there are, and lists what was left out."""
    console.log(f"Features: {len(store):,} of {what}")
    for remark in store.remarks:
        console.log(f"Note: {what}: {remark}.")
    if store.skipped:
        console.log(f"Left out of {what}: {len(store.skipped)} examples")
    for line in store.skipped[:_LISTED]:
        console.log(f"  {line}")
    if len(store.skipped) > _LISTED:
        console.log(f"  and {len(store.skipped) - _LISTED} more")


def prepare_devices(config: FinetuningConfig, console: Console):
    """Imports TensorFlow and chooses the devices; once in a process."""
    startup.import_tensorflow()
    from electra_tf.train import distribution

    distribution.configure_devices(config)
    distribution.set_precision(config.precision)
    placement = distribution.create_strategy(config)
    console.log(distribution.describe(placement, config.precision))
    return placement


def run_trials(config, vocab, tasks, source, placement, console, stop):
    """Makes the trials that are not made yet: (exit code, results of all)."""
    from electra_tf.finetune import pictures
    from electra_tf.finetune import trial as finetuning

    run = finetuning.Run(config, vocab, tasks, source, placement, console, stop)
    results = results_of(config, source, vocab, tasks, _TRIAL.value)
    trials = range(1, config.num_trials + 1)
    for trial in [_TRIAL.value] if _TRIAL.value else trials:
        done = results.trials.get(trial) if config.do_train and config.do_eval else None
        if done:
            console.log(f"Trial {trial} is finished; its results are kept.")
            if config.write_pictures:
                pictures.write(config, done, console.log)
            if not finetuning.lacks_test_outputs(config, done, tasks):
                continue
        try:
            run.check_stop()
            console.heading(f"Trial {trial} of {config.num_trials}")
            if done:
                result = finetuning.with_test_outputs(run, done)
            else:
                result = finetuning.run_trial(run, trial)
        except finetuning.Interrupted:
            console.log("Run the same command again to continue.")
            return EXIT_PREEMPTED, results
        if config.do_eval:
            results.add(result)
        of_glue = any(task.name in classification.GLUE for task in tasks)
        if result.test_outputs and of_glue and not _SWEEP.value:
            glue_zip.write(Path(config.results_txt).parent, trial, console.log)
        if config.write_pictures and not done:
            pictures.write(config, result, console.log)
        results_dir = Path(config.results_txt).parent
        # Not what else lies there: those may be copies of what others write.
        own = (Path(config.results_txt).stem.removesuffix("_results"), "GLUE_trial_")
        put(results_dir, [n for n in names_below(results_dir) if n.startswith(own)])
        if trial in results.trials:  # Else nothing would be left of it.
            finetuning.discard_model(config, trial)
    if results.trials and not _TRIAL.value:
        show(results, config, console)
    return EXIT_OK, results


def sweep(
    config: FinetuningConfig,
    explicit: dict[str, Any],
    vocab: Vocabulary,
    console: Console,
) -> int:
    """Fine-tunes from every checkpoint of a pre-training run, task by task."""
    if not (config.do_train and config.do_eval):
        raise UserError("--sweep needs do_train and do_eval.")
    placement = prepare_devices(config, console)
    scores: sweep_lib.Scores = {}
    # What a single task implies holds for each, such as longer texts of questions.
    singles = {
        name: resolve({**explicit, "task_names": [name]}, Console(silent=True))[0]
        for name in config.task_names
    }
    runs, all_tasks = [], task_names.make_tasks(config, vocab, own=singles)
    if config.write_test_outputs:
        check_test_sets(all_tasks)
    # All data are read, and found right, before the first task is trained.
    for task_name, task in zip(config.task_names, all_tasks, strict=True):
        hparams = sweep_lib.of_task(explicit, config, task_name, task)
        if config.write_test_outputs and not hparams["write_test_outputs"]:
            console.log(f"Note: {task.notes(['test'])[0]}.")
        own, _ = resolve(hparams, console)
        runs.append((task_name, own, make_tasks(own, vocab, console)))
    with StopRequest() as stop:
        for run_of_task in runs:
            code = sweep_task(*run_of_task, vocab, placement, console, stop, scores)
            if code != EXIT_OK:
                return code
    json_path = sweep_lib.json_path_of(config)
    picture = sweep_lib.write(scores, json_path, f"Sweep of {config.model_name}")
    put_folder(json_path.parent)
    console.log(sweep_lib.table(scores))
    console.log(f"Written to {json_path} and {picture}")
    return EXIT_OK


def sweep_task(
    task_name, own, tasks, vocab, placement, console, stop, scores: sweep_lib.Scores
) -> int:
    """Fine-tunes one task from every checkpoint; adds to `scores`."""
    for step, prefix in sweep_lib.checkpoints_of(own):
        console.heading(f"{task_name} from step {step}")
        here = sweep_lib.config_at(own, step, prefix)
        check_trial_places(here)
        source = initial_weights.find(prefix, console.log)
        initial_weights.check(source, here, vocab)
        code, results = run_trials(here, vocab, tasks, source, placement, console, stop)
        if code != EXIT_OK:
            return code
        for name, metrics in results.statistics().items():
            metric = tasks[0].main_metric or next(iter(metrics))
            by_step = scores.setdefault(f"{name}: {metric}", {})
            by_step[step] = metrics[metric]
    return EXIT_OK


if __name__ == "__main__":
    cli.run(main)
