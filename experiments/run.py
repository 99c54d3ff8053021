# SPDX-License-Identifier: Apache-2.0
"""The papers' comparisons, each at equal compute; what is finished is not repeated.

  python experiments/run.py objectives --scale pocket --seeds 3 --output-dir O

Instead of objectives: generator_size, two_stage_adversarial, sharing, efficiency,
masking, recipes, survivors, blocks, blimp; or, on other data than those that results
are measured on, learning_rate, successors and block_rates. docs/experiments.md.
--output-dir holds runs of one scale, text and set of hparams, listed in runs.json; what
two experiments there have in common is run once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import blimp
import report
import scales
from absl import flags
from comparisons import COMPARISONS
from jobs import Commands, run_commands
from report import RANDOM, ROOT, Comparison, Row, Variant
from scales import Scale, merged

from electra_tf import cli
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import check, read_hparams
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.config.run import RunConfig
from electra_tf.console import Console
from electra_tf.errors import EXIT_OK, UserError
from electra_tf.interop.checkpoint import SHAPE
from electra_tf.storage.checkpoints import differences
from electra_tf.storage.files import atomic_write, check_place
from electra_tf.storage.lock import Lock

_SCALE = flags.DEFINE_enum(
    "scale",
    "pocket",
    ["pocket", "small", "base", "gpu"],
    "pocket: minutes a run on two cores; small, base: the paper's, for a GPU; gpu: ten "
    "minutes a run of blimp.",
)
_SEEDS = flags.DEFINE_integer(
    "seeds", 3, "Runs of each variant, with seeds 1, 2, ...", lower_bound=1
)
_OUTPUT_DIR = cli.define_path("output_dir", None, "Where runs, table and picture go.")
_DATA_DIR = cli.define_path(
    "data_dir",
    None,
    "Vocabulary, TFRecords and tasks. pocket takes finetuning_data/chunk alone from "
    "it, and does without.",
)
_CORPUS = cli.define_path(
    "corpus", None, "Directory of text that pocket learns from. Default: four novels."
)
_PAIRS = cli.define_path(
    "pairs", None, "Of blimp: the 67,000 pairs, JSON lines; may be compressed."
)
_WORDS = flags.DEFINE_integer(
    "words", 1_000_000, "Of blimp: words of the corpus to learn from.", lower_bound=1000
)
_TEXT_SEED = flags.DEFINE_integer("text_seed", 1, "Of blimp: chooses these words.")
_SENTENCES = flags.DEFINE_boolean(
    "sentences",
    False,
    "Of blimp: examples begin with sentences; lines too long are cut.",
)
_WORKERS = flags.DEFINE_integer("workers", 1, "Runs at a time.", lower_bound=1)
_ONLY = flags.DEFINE_list("only", [], "Variants to run; default: all.")
_HPARAMS = flags.DEFINE_string(
    "hparams", "{}", "JSON text or file: changes of the scale's recipe, for all runs."
)
_FINETUNING_HPARAMS = flags.DEFINE_string(
    "finetuning_hparams", "{}", "The same for fine-tuning."
)
_TRIALS = flags.DEFINE_integer(
    "trials",
    None,
    "Fine-tuning runs of each model, whose median counts. Default: 1; small, base: 10.",
    lower_bound=1,
)
_DRY_RUN = flags.DEFINE_boolean("dry_run", False, "List the runs; make none.")
flags.mark_flags_as_required(["output_dir"])

NOVELS = ROOT / "examples" / "corpus"
# Hparams that each run has of its own.
_OWN = {"seed", "num_trials", "model_dir", "results_dir", "results_txt", "phases"}
_OWN |= {"preprocessed_data_dir", "do_train", "do_eval", "keep_all_models"}
_OWN |= {"init_checkpoint", "task_names"}
# What fine-tuning takes from the pre-trained model.
_SHAPE = {*SHAPE, "embedding_size", "model_size", "vocab_size"}


class Run(NamedTuple):
    """One pre-training run and what is fine-tuned from it.

    Attributes:
      hparams: of pre-training, but for places; of random weights what they are.
      steps: of pre-training; 0: random weights.
    """

    key: str
    variant: Variant
    seed: int
    hparams: dict[str, Any]
    flops: float
    steps: int

    @property
    def name(self) -> str:
        """For logs and tables."""
        return f"{self.variant.name}, seed {self.seed}"


def main(argv: list[str]) -> int:
    """Runs an experiment; returns the exit code."""
    return Experiment(COMPARISONS[argv[1]]).run()


def changes(flag: flags.FlagHolder[str], config: type[RunConfig]) -> dict[str, Any]:
    """Hparams that a user gives; `UserError` for one that each run has of its own."""
    name = f"--{flag.name.replace('_', '-')}"
    found = check(config, read_hparams(flag.value), name)
    own = _OWN | (_SHAPE if config is FinetuningConfig else set())
    if own := sorted(own & {*found, *found.get("model_hparam_overrides", {})}):
        raise UserError(f"{name} has {own[0]}, which each run has of its own.")
    return found


def plan(variant: Variant, seed: int, recipe: Mapping[str, Any], data_dir: str) -> Run:
    """The run of a variant that takes its part of the recipe's FLOPs."""
    from electra_tf.pretrain.flops import get_recipe_flops

    whole = PretrainingConfig.from_hparams(data_dir, "run", dict(recipe))
    hparams, flops, steps = untrained(recipe), 0.0, 0
    if variant.budget:
        hparams = merged(recipe, variant.hparams) | {"seed": seed}
        config = PretrainingConfig.from_hparams(data_dir, "run", hparams)
        stages = 2 if config.stage_one_steps else 1
        a_step = get_recipe_flops(config) / config.num_train_steps
        budget = variant.budget * get_recipe_flops(whole)
        steps = max(stages, round(budget / a_step / stages) * stages)
        flops = steps * a_step
        warmup = whole.num_warmup_steps / whole.num_train_steps * steps / stages
        hparams |= {"num_train_steps": steps, "num_warmup_steps": max(1, round(warmup))}
    text = json.dumps([hparams, seed], sort_keys=True)
    key = f"{hashlib.sha256(text.encode()).hexdigest()[:8]}-{seed}"
    return Run(key, variant, seed, hparams, flops, steps)


def untrained(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The hparams of random weights for fine-tuning: their shape, how they are drawn.

    That is what it finds in a checkpoint; dropout is the same for both, its own.
    """
    names = ("model_size", "embedding_size", "vocab_size")
    overrides = recipe.get("model_hparam_overrides", {})
    kept = {k: v for k, v in overrides.items() if k in (*SHAPE, "initializer_range")}
    found = {name: recipe[name] for name in names if name in recipe}
    return found | {"model_hparam_overrides": kept}


class Experiment:
    """A comparison at the scale, and with the seeds, that the command line gives.

    `rows` are all runs in the output directory, with their scores; `settings` is what
    they have in common: a directory with others is refused.
    """

    def __init__(self, comparison: Comparison):
        self.console = Console()
        self.output = Path(_OUTPUT_DIR.value).absolute()
        check_place(self.output)
        scale = scales.scale_named(_SCALE.value, comparison)
        self.scale = Scale(
            merged(scale.recipe, changes(_HPARAMS, PretrainingConfig)),
            merged(scale.finetuning, changes(_FINETUNING_HPARAMS, FinetuningConfig)),
            _TRIALS.value or scale.trials,
        )
        self.comparison = comparison._replace(variants=chosen(comparison))
        self.data_dir = Path(_DATA_DIR.value).absolute() if _DATA_DIR.value else None
        self.corpus = Path(_CORPUS.value or NOVELS).absolute()
        own = {}
        if comparison.recipes:
            if not _PAIRS.value:
                raise UserError("blimp needs --pairs: its file (docs/experiments.md).")
            self.text = _WORDS.value, _TEXT_SEED.value, _SENTENCES.value
            own = dict(zip(("words", "text_seed", "sentences"), self.text, strict=True))
            self.data = blimp.data(self.output, self.scale.recipe, _SENTENCES.value)
        elif _SCALE.value == "pocket":
            self.data = scales.pocket_data(self.output, self.corpus, self.scale.recipe)
        elif _CORPUS.value:
            raise UserError("--corpus is for --scale pocket; others have --data-dir.")
        else:
            self.data = scales.given_data(self.data_dir, _SCALE.value)
        settings = {
            "scale": _SCALE.value,
            "hparams": self.scale.recipe,
            "finetuning_hparams": self.scale.finetuning,
            "trials": self.scale.trials,
            # The novels are the same in every checkout.
            "corpus": str(self.corpus) if _CORPUS.value else None,
            "data_dir": str(self.data_dir) if self.data_dir else None,
            "data_sha256": self.data.sha256,
        } | own
        self.settings = json.loads(json.dumps(settings))
        self.rows: dict[str, dict[str, Any]] = {}
        self.read()
        self.planned = [
            plan(variant, seed, self.scale.recipe, str(self.data.directory))
            for seed in range(1, _SEEDS.value + 1)
            for variant in self.comparison.variants
        ]
        for run in self.planned:
            self._check(run)

    def read(self) -> None:
        """Reads the list of runs from disk."""
        path = self.output / "runs.json"
        if not path.exists():
            return
        content = json.loads(path.read_text(encoding="utf-8"))
        self.rows = content["runs"]
        for name, there, here in differences(content["settings"], self.settings):
            raise UserError(
                f"--output-dir {self.output} holds runs of other settings:\n"
                f"{name} is {there!r} there, {here!r} here. Choose another."
            )

    def save(self) -> None:
        """Writes the list of runs."""
        content = {"settings": self.settings, "runs": self.rows}
        atomic_write(self.output / "runs.json", json.dumps(content, indent=1) + "\n")

    def scores(self, run: Run) -> dict[str, float | None]:
        """Measure -> score, of what is finished."""
        return self.rows.get(run.key, {}).get("scores", {})

    def _check(self, run: Run) -> None:
        """Raises `UserError` for settings that its pre-training or fine-tuning refuses.

        Before the first run is made: some of them would be found after days.
        """
        place, tuning = (str(self.data.directory), run.key), self.scale.finetuning
        try:
            if run.steps:
                PretrainingConfig.from_hparams(*place, run.hparams)
            FinetuningConfig.from_hparams(
                *place, merged(untrained(run.hparams), tuning)
            )
        except UserError as error:
            raise UserError(f"{run.name}: {error}", error.exit_code) from None

    def run(self) -> int:
        """Makes what is not made yet, writes table and picture: the exit code."""
        for run in self.planned:
            line = f"{run.key}  {run.name}: {run.steps:,} steps, {run.flops:.3g} FLOPs"
            self.console.log(line)
        if _DRY_RUN.value:
            return EXIT_OK
        with Lock(self.output, "--output-dir"):
            self.read()  # Another process may have ended since.
            measures = self.measures()
            for run in self.planned:
                row = self.rows.setdefault(run.key, {"seed": run.seed, "scores": {}})
                row |= {"steps": run.steps, "flops": run.flops, "hparams": run.hparams}
                name = f"{self.comparison.name}: {run.variant.name}"
                row["in"] = sorted({*row.get("in", []), name})
            self.save()
            if self.comparison.recipes:
                blimp.write_texts(self.output, self.corpus, *self.text, self.console)
            code = run_commands(self.data.jobs, 1, self.console)
            if not code:
                if self.comparison.recipes:
                    runs = self.output / "runs"
                    runs.mkdir(exist_ok=True)
                    # Where run_inference.py finds it.
                    shutil.copy(self.data.directory / "vocab.txt", runs)
                code = self._make(measures)
                self.console.log(self._report(measures))
        if code:
            self.console.log("Run the same command again to continue.")
        return code

    def measures(self) -> dict[str, Any]:
        """What models are measured by, by name."""
        if self.comparison.recipes:
            return blimp.measures(Path(_PAIRS.value).absolute())
        return scales.measures(
            _SCALE.value, self.output, self.data_dir, self.comparison
        )

    def _make(self, measures: Mapping[str, Any]) -> int:
        waiting = {
            run.name: run
            for run in self.planned
            if measures.keys() - self.scores(run).keys()
        }
        logs = self.output / "logs"
        jobs = [
            Commands(name, self.commands(run, measures), logs / f"{run.key}.log")
            for name, run in waiting.items()
        ]
        left = {run.key for run in waiting.values()}

        def finished(job: Commands) -> None:
            run = waiting[job.name]
            folder = self.output / "runs" / run.key
            scores = {name: m.score(folder) for name, m in measures.items()}
            self.rows[run.key]["scores"] |= scores
            self.save()
            left.discard(run.key)
            done, total = len(self.planned) - len(left), len(self.planned)
            self.console.log(f"{done}/{total} runs")
            self._report(measures)

        return run_commands(
            *(jobs, _WORKERS.value, self.console), keep_going=True, on_end=finished
        )

    def commands(self, run: Run, measures: Mapping[str, Any]) -> list[list[str]]:
        """Pre-training, then fine-tuning by each measure that lacks its score."""
        commands, folder = [], self.output / "runs" / run.key
        scores, place = self.scores(run), (self.data.directory, run.key)
        if run.steps and not scores:
            hparams = run.hparams | {"model_dir": str(folder / "model")}
            commands.append(scales.run_of("run_pretraining.py", *place, hparams))
        for name, measure in measures.items():
            command = measure.command(run, folder, self.scale, self.data)
            if name not in scores and command not in commands:
                commands.append(command)
        return commands

    def _report(self, measures: Mapping[str, Any]) -> str:
        rows, undefined = [], []
        for variant in self.comparison.variants:
            own = [run for run in self.planned if run.variant == variant]
            found = {run.name: self.scores(run) for run in own}
            scores, names = report.defined(found, list(measures))
            undefined += names
            rows.append(Row(variant, own[0].steps, own[0].flops, scores))
        stem = self.output / self.comparison.name
        metrics = {name: measure.metric for name, measure in measures.items()}
        budget = max(run.flops for run in self.planned)
        head = f"`--scale {_SCALE.value}`, {budget:.3g} FLOPs at most for a run"
        if undefined:
            head += f". Left out, a score being undefined: {'; '.join(undefined)}"
        return report.write(stem, self.comparison, rows, metrics, head)


def chosen(comparison: Comparison) -> list[Variant]:
    """Those that --only names, or all; and random weights, to compare with."""
    # Of pairs random weights have half.
    variants = [*comparison.variants, *([] if comparison.recipes else [RANDOM])]
    known = {variant.name.lower(): variant for variant in variants}
    for name in _ONLY.value:
        if name.strip().lower() not in known:
            raise UserError(
                f"--only: unknown variant {name!r}.\n"
                f"There are: {', '.join(v.name for v in known.values())}."
            )
    wanted = [name.strip().lower() for name in _ONLY.value] or list(known)
    return [v for n, v in known.items() if n in wanted]


if __name__ == "__main__":
    names = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
    cli.run(main, dict.fromkeys(COMPARISONS, " ".join(names)))
