# SPDX-License-Identifier: Apache-2.0
"""The files of a fine-tuning run: settings, results, the folders of its trials.

Results are one JSON file that a re-run continues. The text beside it is the original's:
a line per trial and task, such as `rte: accuracy: 66.43 - loss: 0.62`. Results and
checkpoints of trials store their settings, which are compared by the same rule: hparams
that change no number may differ, and a missing fact is unknown.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import IDENTITY, SETTING, defaults, without_left
from electra_tf.errors import LEFT, UserError
from electra_tf.finetune.task import without_files
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.paths import local_of, shown
from electra_tf.storage import checkpoints
from electra_tf.storage.checkpoints import as_text
from electra_tf.storage.files import PARTIAL, atomic_write
from electra_tf.storage.manifest import read_json, read_json_if_there
from electra_tf.text.vocabulary import Vocabulary, resolve_settings
from electra_tf.train.reporting import finite

DATA = "data"  # among the settings: task -> split -> hash
Scores = dict[str, dict[str, float]]  # data set, such as "mnli" -> metric -> value


# Hparams that change no result.
_WITHOUT_INFLUENCE = (
    *("debug", "write_distill_outputs", "use_tpu", "num_tpu_cores"),
    *("tpu_job_name", "tpu_name", "tpu_zone", "gcp_project"),
)


def settings_of(
    config: FinetuningConfig, source: CheckpointInfo | None, vocab: Vocabulary | None
) -> dict[str, Any]:
    """All that is stored of a run.

    Args:
      source: of the weights; None: random, or without training those of each trial.
      vocab: None to leave it out.
    """
    found = _without_places(config.settings())
    if source or config.do_train:
        found["init_checkpoint"] = shown(source.origin) if source else None
    if source:
        found["init_sha256"] = source.weights_sha256()
    if vocab:
        found["vocab_sha256"] = vocab.sha256
        tokenizer = resolve_settings(vocab, do_lower_case=config.do_lower_case)
        found["tokenizer"] = tokenizer._asdict()
    return found


def differences(
    stored: Mapping[str, Any], ours: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
    """(name, value there, value here) of all that differs and counts.

    Args:
      stored: `settings_of` of an earlier start; missing hparams have their defaults.
      ours: `settings_of` this run, as in JSON.
      ignored: names that are not compared.
    """
    usual = defaults(FinetuningConfig, IDENTITY, SETTING)
    usual = {name: value for name, value in usual.items() if name in ours}
    ignored = {*ignored, *_WITHOUT_INFLUENCE}
    ignored |= {k for k, left in LEFT.items() if stored.get(k) == left.default}
    if "init_sha256" in stored and "init_sha256" in ours:
        ignored.add("init_checkpoint")  # The weights count, not their place.
    there, here = (
        {k: v for k, v in _without_places(x).items() if k not in ignored}
        for x in (usual | dict(stored), ours)
    )
    found = checkpoints.differences(there, here)
    # Hashes of data are compared as far as both sides have them.
    return [x for x in found if x[0].partition(":")[0] != DATA or None not in x]


def _without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the tasks that are trained, without files, and the shape as now."""
    names, described = settings.get("task_names", ()), settings.get("tasks", {})
    tasks = {n: without_files(described[n]) for n in names if n in described}
    shape = without_left(settings.get("model_hparam_overrides", {}))
    return {**settings, "tasks": tasks, "model_hparam_overrides": shape}


class TrialResult(NamedTuple):
    """What came of one trial."""

    trial: int
    seed: int
    scores: Scores
    degenerate: list[str]  # data sets on which all predictions are the same
    steps: int
    seconds: dict[str, float]  # "train" (of the last start) and "evaluate"
    details: dict[str, dict[str, Any]] = {}  # data set -> `Scorer.details`
    test_outputs: list[str] = []  # paths of the predictions on test sets
    test_data: dict[str, dict[str, str]] = {}  # task -> split -> its hash
    weights: str | None = None  # of a model that was not trained now, where they are


class Statistics(NamedTuple):
    """Of one metric over the trials."""

    median: float
    mean: float
    std: float | None  # of the sample; None for one trial
    max: float
    trials: int


class Results:
    """The results of all trials, on disk after each.

    Args:
      config: of the run.
      settings: what the trials have in common, and DATA as far as they are known;
        results of others are not mixed in.
      only: the one trial that this process makes. It goes into a file of its own, so
        that processes do not write to the same one.
    """

    def __init__(self, config, settings: Mapping[str, Any], only: int | None = None):
        self._num_trials, self.only = config.num_trials, only
        self.json_path = Path(config.results_json)
        self.txt_path = Path(config.results_txt)
        self.settings = json.loads(json.dumps(settings))
        self.trials: dict[int, TrialResult] = {}

    def load(self) -> None:
        """Reads the results of an earlier start of this run.

        Raises `UserError`: 2 when the file holds results of other settings, 65 when it
        cannot be read.
        """
        self.trials = self._read(self.json_path)
        alone = re.compile(rf"{re.escape(self.json_path.stem)}\.trial_\d+\.json")
        for path in sorted(self.json_path.parent.glob("*.json")):
            if alone.fullmatch(path.name):
                self.trials |= self._read(path)

    def _read(self, path: Path) -> dict[int, TrialResult]:
        if not path.is_file():
            return {}
        content = read_json(path, "Move it away.")
        stored = content.get("settings", {})
        if changed := differences(stored, self.settings):
            raise UserError(
                f"{path} holds results of other settings: {as_text(changed)}.\n"
                'Set "model_dir" to a new place, or move those results and models away.'
            )
        self.settings.setdefault(DATA, stored.get(DATA, {}))
        return {fields["trial"]: _trial(fields) for fields in content["trials"]}

    def add(self, result: TrialResult) -> None:
        """Adds or replaces a trial and writes both files, or the trial's own one."""
        self.trials[result.trial] = result
        name = f"{self.json_path.stem}.trial_{result.trial}.json"
        own = self.json_path.with_name(name)
        if self.only is not None or own.exists():
            content = {"settings": self.settings, "trials": [result]}
            self._write_json(own, content)
        if self.only is None:
            self.write()

    def write(self) -> None:
        """Writes both files."""
        content = {
            "settings": self.settings,
            "trials": [result for _, result in sorted(self.trials.items())],
            "statistics": self.statistics(),
        }
        self._write_json(self.json_path, content)
        atomic_write(self.txt_path, self.text())

    def _write_json(self, path: Path, content: Any) -> None:
        text = json.dumps(finite(content), indent=2, allow_nan=False)
        atomic_write(path, shown(text) + "\n")

    def _counted(self) -> list[TrialResult]:
        """The trials that were asked for, in their order."""
        return [r for k, r in sorted(self.trials.items()) if k <= self._num_trials]

    def text(self) -> str:
        """The original's results text."""
        return "".join(
            f"{name}: {scores_text(scores)}\n"
            for result in self._counted()
            for name, scores in result.scores.items()
        )

    def statistics(self) -> dict[str, dict[str, Statistics]]:
        """Of each metric of each data set, over the counted trials that have it."""
        values: dict[str, dict[str, list[float]]] = {}
        for result in self._counted():
            for name, scores in result.scores.items():
                for metric, value in scores.items():
                    values.setdefault(name, {}).setdefault(metric, []).append(value)
        return {
            name: {metric: summary(found) for metric, found in metrics.items()}
            for name, metrics in values.items()
        }

    def table(self) -> str:
        """Median, mean, std and max of each metric, as lines of text."""
        rows = [("", "metric", "median", "mean", "std", "max", "trials")]
        for name, metrics in self.statistics().items():
            for metric, value in metrics.items():
                *numbers, count = value
                cells = ("-" if x is None else f"{x:.2f}" for x in numbers)
                rows.append((name, metric, *cells, str(count)))
                name = ""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        signs = ["<", "<", *">>>>>"]
        lines = []
        for row in rows:
            cells = zip(row, signs, widths, strict=True)
            lines.append("  ".join(f"{x:{sign}{n}}" for x, sign, n in cells).rstrip())
        return "\n".join(lines) + "".join(
            f"\nTrial {result.trial}: all predictions on {name} are the same; this run "
            "has learnt nothing."
            for result in self._counted()
            for name in result.degenerate
        )


def _trial(fields: dict[str, Any]) -> TrialResult:
    """A trial out of JSON."""
    scores = {
        name: {metric: math.nan if v is None else v for metric, v in metrics.items()}
        for name, metrics in fields["scores"].items()
    }
    outputs = [local_of(path) for path in fields.get("test_outputs", [])]
    return TrialResult(**{**fields, "scores": scores, "test_outputs": outputs})


def scores_text(scores: Mapping[str, float]) -> str:
    """Metrics as the original prints them."""
    return " - ".join(f"{metric}: {value:.2f}" for metric, value in scores.items())


def summary(values: list[float]) -> Statistics:
    """Median, mean, sample standard deviation and maximum."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return Statistics(math.nan, math.nan, None, math.nan, 0)
    std = statistics.stdev(known) if len(known) > 1 else None
    median, mean = statistics.median(known), statistics.fmean(known)
    return Statistics(median, mean, std, max(known), len(known))


CONFIG = "config.json"


def hparams_in(folder: Path) -> dict[str, Any]:
    """The hparams of a trial; {} for a folder that is none.

    Raises `UserError`: 65 for a file that cannot be read, 2 naming an unknown hparam.
    """
    path = folder / CONFIG
    content = without_left(read_json_if_there(path))
    if content.get("task_names"):
        FinetuningConfig.checked(content, str(path))
        return content
    return {}


def check_is_free(folder: str) -> None:
    """Raises a `UserError` where a trial is to go into a folder of something else.

    A trial's folder is removed as a whole if it is not kept.
    """
    left = ("run.lock", PARTIAL)  # by one that did not come as far as its hparams
    names = os.listdir(folder) if os.path.isdir(folder) else []
    others = [name for name in names if not any(sign in name for sign in left)]
    if others and not hparams_in(Path(folder)):
        raise UserError(
            f"{folder} is to be the folder of a trial, but holds {others[0]!r} and no "
            f'{CONFIG} of a trial.\nSet "model_dir" to another place.'
        )
