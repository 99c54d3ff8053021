# SPDX-License-Identifier: Apache-2.0
"""FinetuningConfig: every setting of a fine-tuning run, checked and saved.

The hparams are the original's, with the same names, defaults and presets of single
tasks and sizes. Those of its hparams that nothing here needs are taken and not used;
each says so.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from electra_tf.config.hparams import SHARE, place, setting, show
from electra_tf.config.run import RunConfig, count_lines, run_directory
from electra_tf.errors import UserError
from electra_tf.paths import json_beside
from electra_tf.storage.remote import fetch

SIZE_PRESETS: dict[str, dict[str, Any]] = {
    "small": {"embedding_size": 128},
    "base": {},
    "large": {"learning_rate": 5e-5, "layerwise_lr_decay": 0.9},
}
LONG_PRESET = {"num_train_epochs": 10.0}  # rte, sts
QA_PRESET = {"max_seq_length": 512, "num_train_epochs": 2.0}
CHUNK_PRESET = {"max_seq_length": 256}
DEBUG_PRESET = {
    "num_train_epochs": 3.0,
    "iterations_per_loop": 1,
    "log_examples": True,
    "use_tfrecords_if_existing": False,
}


def vocabulary_of(data_dir: str, model_name: str) -> str:
    """Where a model's vocabulary is: beside it, or else in the data directory."""
    own = os.path.join(run_directory(data_dir, model_name), "vocab.txt")
    is_there = count_lines(own) is not None
    return own if is_there else os.path.join(data_dir, "vocab.txt")


@dataclasses.dataclass(frozen=True, init=False)
class FinetuningConfig(RunConfig):
    """All hparams of one fine-tuning run."""

    has_one_length = False

    # A trial's identity has the hash of its features, which depends on the case.
    do_lower_case: bool = setting(True, "The data and its vocabulary are lower-cased.")
    log_steps: int = place(100, "Steps between progress lines.", ">= 1")

    # The run.
    debug: bool = setting(False, "Log examples, make features anew, 3 epochs.")
    do_train: bool = place(True, "Fine-tune.")
    do_eval: bool = place(True, "Evaluate on the dev set, after any training.")
    task_names: list[str] = setting(["chunk"], "Tasks; several share one model.")
    num_trials: int = place(
        1, "How often to repeat the fine-tuning, each time with another seed.", ">= 1"
    )
    seed: int = setting(
        42,
        "Seed of all random numbers; trial k uses seed + k - 1.",
        ">= 0 and <= 1073741824",
    )
    keep_all_models: bool = place(True, "False: keep only the first trial's model.")
    init_checkpoint: str | None = place(
        "<data-dir>/models/<model-name>",
        "Weights to start from: a run directory (of a fine-tuned model, where do_train "
        "is false), any other model that docs/checkpoints.md lists; null: random.",
    )

    # Data.
    tasks: dict[str, Any] = setting(
        {}, "Tasks of your own: name -> description; docs/fine_tuning.md."
    )
    on_bad_example: str = setting(
        "stop",
        "On a line that cannot be used: stop, or skip, count and list it.",
        ("stop", "skip"),
    )
    max_seq_length: int = setting(
        128, "Tokens per sequence; longer ones are cut or windowed.", ">= 8"
    )
    double_unordered: bool = setting(
        True,
        "For symmetric tasks (mrpc, sts): add every training pair a second time with "
        "the two sentences swapped.",
    )
    use_tfrecords_if_existing: bool = place(
        True, "Use the features of an earlier run if data and settings are the same."
    )
    eval_every_steps: int = setting(
        0, "Steps between evaluations on the dev sets in training; 0: none.", ">= 0"
    )
    keep: str = setting(
        "last", "Weights kept: the last, or the best on the dev sets.", ("last", "best")
    )
    early_stopping_patience: int = setting(
        0, "Stop after this many evaluations without a better score; 0: never.", ">= 0"
    )
    log_examples: bool = place(False, "Print the first examples of each task.")

    # Optimization.
    learning_rate: float = setting(1e-4, "Peak of the schedule.", "> 0")
    layerwise_lr_decay: float = setting(
        0.8, "Each layer learns at this fraction of the next higher one; 0: all alike."
    )
    layerwise_lr_offset: str = setting(
        "original",
        "The top layer's rate: original has decay ** 2 of the head's, fixed decay.",
        ("original", "fixed"),
    )
    num_train_epochs: float = setting(3.0, "Passes over the training data.", "> 0")
    warmup_proportion: float = setting(0.1, "Fraction of steps that warm up.", SHARE)
    train_batch_size: int = setting(32, "Sequences per step, over all devices.", ">= 1")
    label_smoothing: float = setting(
        0.0,
        "Label smoothing: the share of the target probability that is spread evenly "
        "over all labels.",
        ">= 0 and < 1",
    )
    freeze_layers: int | None = setting(
        None, "Freeze the embeddings and this many of the lowest layers.", ">= 0"
    )

    # Running.
    iterations_per_loop: int = place(
        1000, "Training steps per call of the compiled loop (an upper limit).", ">= 1"
    )
    save_checkpoints_steps: int = place(1000000, "Steps between checkpoints.", ">= 1")
    length_buckets: list[int] | None = setting(
        None, "Lengths to pad to; null: chosen from the data; []: max_seq_length only."
    )
    eval_batch_size: int = place(32, "Sequences per evaluation batch.", ">= 1")
    predict_batch_size: int = place(32, "Unused: eval_batch_size serves both.", ">= 1")

    # Output.
    write_test_outputs: bool = place(False, "Write predictions for submission.")
    n_writes_test: int = place(5, "Trials whose test predictions are written.", ">= 0")
    write_distill_outputs: bool = setting(False, "Unused, as in the original.")

    # Question answering.
    max_query_length: int = setting(64, "Tokens of a question.", ">= 1")
    doc_stride: int = setting(128, "Tokens from one window to the next.", ">= 1")
    n_best_size: int = setting(20, "Answers that are kept per question.", ">= 1")
    max_answer_length: int = setting(30, "Tokens of an answer.", ">= 1")
    joint_prediction: bool = setting(True, "Predict an answer's end from its start.")
    beam_size: int = setting(
        20, "Starts for which joint prediction scores ends.", ">= 1"
    )
    qa_na_threshold: float = setting(
        -2.75, "Null score above which a question counts as unanswerable."
    )
    answerable_classifier: bool = setting(True, "Learn whether there is an answer.")
    answerable_uses_start_logits: bool = setting(
        True, "That classifier sees the expected start of the answer."
    )
    answerable_weight: float = setting(0.5, "Weight of that classifier's loss.")
    answer_text: str | None = setting(
        None,
        "How an answer is cut out of its text: offsets by characters; original by "
        "looking up its tokens; null: offsets for tasks of your own, else original.",
        (None, "original", "offsets"),
    )

    # Locations.
    model_dir: str = place(
        "<data-dir>/models/<model-name>/finetuning_models/<tasks>_model",
        "Directory of a trial; _k is appended for trial k.",
    )
    preprocessed_data_dir: str = place(
        "<data-dir>/models/<model-name>/finetuning_tfrecords/<tasks>_tfrecords",
        "Directory of the features made from the data.",
    )
    results_txt: str = place(
        "<data-dir>/models/<model-name>/results/<tasks>_results.txt",
        "Results as text; <model_dir>_results/ where model_dir is set.",
    )
    results_pkl: str = place(
        "<data-dir>/models/<model-name>/results/<tasks>_results.pkl",
        "Unused: results are JSON, beside results_txt.",
    )

    @classmethod
    def weights_of(
        cls, data_dir: str, model_name: str, explicit: dict[str, Any]
    ) -> str | None:
        """Where the model lies whose shape a run has; None: random weights.

        It is init_checkpoint; but where the trials' own models are evaluated, the first
        of those.
        """
        values = {"data_dir": data_dir, "model_name": model_name, **explicit}
        usual = cls._default_locations(values)
        path = values.get("init_checkpoint", usual["init_checkpoint"])
        is_own = path in (None, usual["init_checkpoint"])
        if is_own and not values.get("do_train", True):
            return f"{values.get('model_dir', usual['model_dir'])}_1"
        return path

    @classmethod
    def results_of(
        cls, data_dir: str, model_name: str, explicit: dict[str, Any]
    ) -> str:
        """Where a run's results go as JSON, whatever shape its model has."""
        values = {"data_dir": data_dir, "model_name": model_name, **explicit}
        usual = cls._default_locations(values)["results_txt"]
        return json_beside(values.get("results_txt", usual))

    @property
    def evaluates_its_trials(self) -> bool:
        """Whether each trial is evaluated with its own weights, not with others."""
        path = self.weights_of(self.data_dir, self.model_name, self.to_dict())
        return path != self.init_checkpoint

    @property
    def scores_dev(self) -> bool:
        """Whether the dev sets are read: for the results, or while a trial trains."""
        return self.do_eval or (self.do_train and self.eval_every_steps > 0)

    def raw_data_dir(self, task_name: str) -> str:
        """Where the data files of a task are."""
        return self.data_file(os.path.join("finetuning_data", task_name))

    def data_file(self, name: str) -> str:
        """Where a file or a folder below the data directory is."""
        return fetch(os.path.join(self.data_dir, name))

    def trial_dir(self, trial: int) -> str:
        """The run directory of a trial; trials count from 1."""
        return f"{self.model_dir}_{trial}"

    @property
    def results_stem(self) -> str:
        """The path of all results without its end."""
        return os.path.splitext(self.results_txt)[0].removesuffix("_results")

    def beside_results(self, what: str, trial: int) -> str:
        """Where a trial's "predictions" or "test_predictions" go."""
        return os.path.join(f"{self.results_stem}_{what}", f"trial_{trial}")

    @classmethod
    def checked(cls, hparams: dict[str, Any], source: str) -> dict[str, Any]:
        result = super().checked(hparams, source)
        for name, kind in (("task_names", str), ("length_buckets", int)):
            items = result.get(name) or []
            if not all(item and type(item) is kind for item in items):
                raise UserError(f"{name} in {source} has a wrong item: {show(items)}")
        names = result.get("task_names", ["chunk"])
        if not names or len({*names}) < len(names):
            raise UserError(
                f"task_names in {source} is {show(names)}; it must be a list of names, "
                'such as ["cola"], none of them twice'
            )
        for name, description in result.get("tasks", {}).items():
            if not isinstance(description, dict):
                raise UserError(
                    f"tasks in {source}: {name} is {show(description)}; it must be an "
                    "object {...}, see docs/fine_tuning.md"
                )
        return result

    @classmethod
    def _presets(cls, explicit: dict[str, Any]) -> dict[str, Any]:
        """Values that model_size, a single task and debug imply."""
        values = dict(SIZE_PRESETS[explicit.get("model_size", "small")])
        names = explicit.get("task_names", ["chunk"])
        if len(names) == 1:
            own = explicit.get("tasks", {}).get(names[0], {})
            values |= _task_preset(names[0], own.get("type"))
        return values | (DEBUG_PRESET if explicit.get("debug") else {})

    @classmethod
    def _default_locations(cls, values: dict[str, Any]) -> dict[str, str]:
        run = run_directory(values["data_dir"], values["model_name"])
        names = ",".join(values.get("task_names", ["chunk"]))
        model_dir = os.path.join(run, "finetuning_models", f"{names}_model")
        results = os.path.join(run, "results")
        if values.get("model_dir", model_dir) != model_dir:
            results = f"{values['model_dir']}_results"
        return {
            "vocab_file": vocabulary_of(values["data_dir"], values["model_name"]),
            "init_checkpoint": run,
            "model_dir": model_dir,
            "preprocessed_data_dir": os.path.join(
                run, "finetuning_tfrecords", f"{names}_tfrecords"
            ),
            "results_txt": os.path.join(results, f"{names}_results.txt"),
            "results_pkl": os.path.join(results, f"{names}_results.pkl"),
        }

    def _broken_rules(self) -> Iterator[tuple[str, str]]:
        yield from super()._broken_rules()
        if not (self.do_train or self.do_eval or self.write_test_outputs):
            yield "do_train do_eval write_test_outputs", "nothing to do"
        by_score = self.keep == "best" or self.early_stopping_patience
        if by_score and not self.eval_every_steps:
            reason = "the run makes no evaluations.\nSet eval_every_steps"
            yield "keep early_stopping_patience eval_every_steps", reason
        if (self.freeze_layers or 0) > self.model_config().num_hidden_layers:
            yield "freeze_layers num_hidden_layers", "the model has no more layers"


def _task_preset(name: str, own_type: Any) -> dict[str, Any]:
    if own_type is not None:
        by_type = {"qa": QA_PRESET, "tagging": CHUNK_PRESET}
        return by_type.get(str(own_type), {})
    if name in ("rte", "sts"):
        return LONG_PRESET
    if ":" not in name and ("squad" in name or "qa" in name):
        return QA_PRESET
    return CHUNK_PRESET if name == "chunk" else {}
