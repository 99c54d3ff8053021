# SPDX-License-Identifier: Apache-2.0
"""PretrainingConfig: every setting of a pre-training run, checked and saved.

The hparams are the original's, with the same names and defaults. Other settings of
base and large (the paper, Table 6) are defaults here; in the original they are a
comment, and runs that set only `model_size` diverged. Above 600 lines, since most are
the list of hparams; phases and rules are read beside it.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from electra_tf.config.hparams import (
    SHARE,
    applicable,
    check,
    identity,
    place,
    read_hparams,
    setting,
    show,
    without_effect,
)
from electra_tf.config.model import ModelConfig, generator_config
from electra_tf.config.objectives import (
    GENERATOR,
    GENERATORS,
    MAIN,
    OBJECTIVES,
    ORIGINAL_NAMES,
    GeneratorKind,
    ObjectiveKind,
    OriginalHparams,
    original_of_generator,
    translated,
)
from electra_tf.config.run import RunConfig, run_directory
from electra_tf.errors import UserError
from electra_tf.paths import escape, joined

__all__ = ["ModelConfig", "PretrainingConfig", "read_hparams"]

# Other settings that depend on the size in Table 6 of the paper.
SIZE_PRESETS: dict[str, dict[str, Any]] = {
    "small": {"embedding_size": 128},
    "base": {
        "generator_hidden_size": 0.33333,
        "max_seq_length": 512,
        "learning_rate": 2e-4,
        "train_batch_size": 256,
        "num_train_steps": 766_000,
    },
    "large": {
        "mask_prob": 0.25,
        "max_seq_length": 512,
        "learning_rate": 2e-4,
        "train_batch_size": 2048,
        "num_train_steps": 400_000,
    },
}
DEBUG_PRESET = {
    "train_batch_size": 8,
    "num_train_steps": 20,
    "eval_batch_size": 4,
    "iterations_per_loop": 1,
    "num_eval_steps": 2,
}

# Settings that each phase has (the run has those of the last); settings that a phase
# may override; places of its files.
PHASE_SETTINGS = (
    *("num_train_steps", "max_seq_length", "train_batch_size"),
    *("gradient_accumulation_steps", "learning_rate", "num_warmup_steps"),
    *("schedule", "lr_decay_power", "decay_proportion"),
)
PHASE_INSTEAD = ("mask_prob", "temperature", "temperature_start", "sampling_alpha")
_PHASE_PLACES = ("pretrain_tfrecords", "eval_tfrecords")


def _objectives(fits: Callable[[ObjectiveKind], bool]) -> dict[str, Any]:
    return {"objective": [name for name, kind in OBJECTIVES.items() if fits(kind)]}


def _generators(fits: Callable[[GeneratorKind], bool]) -> dict[str, Any]:
    return {"generator": [name for name, kind in GENERATORS.items() if fits(kind)]}


def _own(hparam: str) -> dict[str, Any]:
    return _objectives(lambda kind: hparam in kind.own)


# Values of `applies_to`.
_MASKING = _generators(lambda kind: kind.predicts == "masked")
_OWN_ENCODERS = _generators(lambda kind: kind.has_own_encoders)
_SIZE: Any = {"applies_to": _OWN_ENCODERS, "if_idle": "ignore"}
_LEARNS = _objectives(lambda kind: GENERATOR in kind.learns or kind.begins_with)
_SAMPLES = _objectives(lambda kind: MAIN in kind.learns)
_OWN_LEARNS = _OWN_ENCODERS | _LEARNS
_LOGITS = _SAMPLES | _generators(lambda kind: kind.head)
_MASKS_SOME = _objectives(lambda kind: kind.main_network)
_CURRICULUM = _objectives(lambda kind: MAIN in kind.learns and not kind.uses_q)
_CURRICULUM |= _generators(lambda kind: kind.predicts != "none")
_WSD, _POLYNOMIAL = {"schedule": ["wsd"]}, {"schedule": ["original", "polynomial"]}


def max_predictions_per_seq(mask_prob: float, max_seq_length: int) -> int:
    """The number of masked-position slots per sequence."""
    return min(max_seq_length, int((mask_prob + 0.005) * max_seq_length))


class Phase(NamedTuple):
    """Steps in a row that have data, batches and schedule in common.

    Model, optimizer and step counter are those of the whole run.

    Attributes:
      number: of the phase, from 1.
      first, end: its steps are first ... end - 1, counted from 0.
      config: the settings of these steps: that of an ordinary run.
      objective: that of the run, or of its first stage.
    """

    number: int
    first: int
    end: int
    config: "PretrainingConfig"
    objective: str

    @property
    def learns(self) -> tuple[str, ...]:
        """The networks that it trains, see `ObjectiveKind`."""
        return OBJECTIVES[self.objective].learns

    def __str__(self) -> str:
        c = self.config
        return (
            f"Phase {self.number}: steps {self.first:,} to {self.end:,}, "
            f"{c.train_batch_size} x {c.max_seq_length} tokens, learning rate "
            f"{c.learning_rate:g} ({c.schedule}, {c.num_warmup_steps:,} warm-up steps)"
        )


@dataclasses.dataclass(frozen=True, init=False)
class PretrainingConfig(RunConfig):
    """All hparams of one pre-training run."""

    # The run.
    debug: bool = setting(False, "A few steps on small batches; same model size.")
    do_train: bool = place(True, "Pre-train.")
    do_eval: bool = place(False, "Evaluate; exactly one of do_train, do_eval.")
    seed: int = setting(
        42,
        "Seed of all random numbers: masking, sampling, dropout, initial weights.",
        ">= 0",
    )
    init_checkpoint: str | None = setting(None, "Weights to start from; null: random.")
    init_generator: str | None = identity(
        None,
        "frozen_generator: the masked language model that fills the masks.",
        applies_to=_own("init_generator"),
    )

    # Objectives.
    objective: str = identity(
        "electra",
        "Pre-training objective; docs/objectives.md explains each.",
        tuple(OBJECTIVES),
    )
    gen_weight: float = setting(1.0, "Weight of the generator's loss.", ">= 0", _LEARNS)
    disc_weight: float = setting(50.0, "Weight of the discriminator's loss.", ">= 0")
    mask_prob: float = setting(0.15, "Fraction of tokens to mask.", "> 0 and < 1")
    repeated_masks: str = setting(
        "original",
        "Positions are drawn with replacement. original: one that is drawn twice gets "
        "the average of two token ids, as in the original program; fixed: positions "
        "are distinct.",
        ("original", "fixed"),
        _MASKS_SOME,
    )
    mask_unit: str = setting(
        "token",
        "Unit of masking: single tokens or whole words.",
        ("token", "word"),
        _MASKING,
    )
    mask_token_share: float = setting(
        0.85, "Share of masked positions that become [MASK].", SHARE, _MASKING
    )
    random_token_share: float = setting(
        0.0,
        "Share that becomes a random token; the rest keeps its token.",
        SHARE,
        _MASKING,
    )
    token_weight: float = setting(
        1.0,
        "corrective_lm, multi_choice: weight of the loss of predicting the original "
        "token.",
        "> 0",
        _own("token_weight"),
    )
    num_candidates: int = setting(
        5, "multi_choice: number of candidate tokens.", ">= 2", _own("num_candidates")
    )
    stage_one_steps: int | None = identity(
        None,
        "two_stage: steps of stage one; null: half.",
        ">= 1",
        _own("stage_one_steps"),
    )
    init_discriminator: bool = identity(
        True,
        "two_stage: start the discriminator from the generator's weights.",
        applies_to=_own("init_discriminator"),
    )

    # Optimization.
    optimizer: str = setting(
        "original",
        "original: Adam without bias correction, with weight decay; adamw: with it; "
        "muon: of the matrices in layers, with adamw of all else.",
        ("original", "adamw", "lamb", "muon"),
    )
    adam_beta_1: float = setting(
        0.9, "Decay rate of Adam's first moment.", ">= 0 and < 1"
    )
    adam_beta_2: float = setting(
        0.999, "Decay rate of Adam's second moment.", ">= 0 and < 1"
    )
    schedule: str = setting(
        "original",
        "original: linear warm-up multiplied by the decay; linear, polynomial: the "
        "decay starts after the warm-up; wsd: constant, decays at the end.",
        ("original", "linear", "polynomial", "wsd", "constant"),
    )
    decay_proportion: float = setting(
        0.1,
        "wsd: share of the steps, at the end, in which the rate decays.",
        "> 0 and <= 1",
        _WSD,
    )
    learning_rate: float = setting(5e-4, "Peak of the schedule.", "> 0")
    generator_learning_rate: float | None = setting(
        None,
        "Peak of the schedule for the generator; null: the same.",
        "> 0",
        _OWN_LEARNS,
    )
    clip_by: str = setting(
        "all",
        "Clip gradients by one global norm (all) or by one norm per network (network).",
        ("all", "network"),
        _OWN_LEARNS,
    )
    lr_decay_power: float = setting(
        1.0, "Power of the polynomial decay.", ">= 0", _POLYNOMIAL
    )
    num_warmup_steps: int = setting(10000, "Steps of linear warm-up.", ">= 0")
    on_alarm: str = setting(
        "warn",
        "What to do on an alarm (docs/metrics.md): warn, or save and stop.",
        ("warn", "stop"),
    )

    # Training.
    iterations_per_loop: int = setting(
        200, "Training steps per call of the compiled loop (an upper limit).", ">= 1"
    )
    save_checkpoints_steps: int = setting(1000, "Steps between checkpoints.", ">= 1")
    keep_checkpoint_max: int = setting(5, "Checkpoints kept; 0: all.", ">= 0")
    num_train_steps: int = setting(1000000, "Optimizer steps of the run.", ">= 1")
    phases: list[dict[str, Any]] = setting(
        [], "Parts of the run, each an object (docs/pretraining.md)."
    )
    num_eval_steps: int = setting(100, "Batches of an evaluation.", ">= 1")
    eval_every_steps: int = setting(
        0, "Steps between evaluations in training; 0: none.", ">= 0"
    )
    peer_timeout: float = place(
        600.0, "Seconds to wait for other workers (TF_CONFIG).", "> 0"
    )

    # Generator.
    generator: str | None = identity(
        None,
        "Kind of generator; null: by objective (docs/objectives.md).",
        (None, *GENERATORS),
    )
    embedding_sharing: str = identity(
        "shared",
        "untied: two tables; disentangled: shared without gradient plus a residual.",
        ("shared", "untied", "disentangled"),
        _OWN_ENCODERS,
        if_idle="note",
    )
    generator_layers: float = identity(
        1.0, "Generator's depth, as a fraction of the discriminator's.", "> 0", **_SIZE
    )
    generator_hidden_size: float = identity(
        0.25, "Generator's width, as a fraction of the discriminator's.", "> 0", **_SIZE
    )
    disallow_correct: bool = setting(
        False, "Never sample the original token.", applies_to=_SAMPLES, if_idle="note"
    )
    temperature: float = setting(
        1.0, "Divides the generator's logits.", "> 0", _LOGITS, if_idle="note"
    )
    temperature_start: float | None = setting(
        None, "Temperature at the first step.", "> 0", _CURRICULUM
    )
    generator_dropout: float | None = setting(
        None,
        "Dropout of the generator; null: the discriminator's.",
        ">= 0 and < 1",
        _OWN_ENCODERS,
    )

    # Batches.
    max_seq_length: int = setting(128, "Tokens per sequence, as in the data.", ">= 4")
    train_batch_size: int = setting(
        128, "Sequences per step, over all devices.", ">= 1"
    )
    eval_batch_size: int = setting(128, "Sequences per evaluation batch.", ">= 1")

    # Locations.
    pretrain_tfrecords: str | list | dict = place(
        "<data-dir>/pretrain_tfrecords/pretrain_data.tfrecord*",
        "Training files; a list or {pattern: weight} mixes them (docs/objectives.md).",
    )
    eval_tfrecords: str | list | dict = place(
        "<pretrain_tfrecords>", "Files to evaluate on."
    )
    sampling_alpha: float = setting(
        1.0, "Data sets of a list are sampled in proportion to size ** alpha.", SHARE
    )
    model_dir: str = place(
        "<data-dir>/models/<model-name>", "Checkpoints, metrics and results."
    )
    results_txt: str = place(
        "<model_dir>/results/unsup_results.txt", "Evaluation results, as text."
    )
    results_pkl: str = place(
        "<model_dir>/results/unsup_results.pkl", "Unused: results are JSON."
    )

    @property
    def max_predictions_per_seq(self) -> int:
        """The number of masked-position slots per sequence."""
        return max_predictions_per_seq(self.mask_prob, self.max_seq_length)

    @property
    def generator_kind(self) -> GeneratorKind:
        """The facts about its generator."""
        return GENERATORS[self.generator]

    def generator_config(self) -> ModelConfig:
        """The generator's shape; only meaningful if it has encoders of its own."""
        shape = self.model_config()
        # Else it is the main network's: one becomes the other, or the towers are all.
        if "generator_hidden_size" not in OBJECTIVES[self.objective].needs:
            fractions = self.generator_hidden_size, self.generator_layers
            shape = generator_config(shape, *fractions)
        if (rate := self.generator_dropout) is not None:
            names = "hidden_dropout_prob", "attention_probs_dropout_prob"
            shape = dataclasses.replace(shape, **dict.fromkeys(names, rate))
        return shape

    def identity(self) -> dict[str, Any]:
        """The facts that identify a run, without hparams that have no effect."""
        return applicable(type(self), super().identity())

    def settings(self) -> dict[str, Any]:
        """The hparams that are stored with a run's checkpoints and results."""
        phases = [
            {k: v for k, v in phase.items() if k not in _PHASE_PLACES}
            for phase in self.phases
        ]
        return super().settings() | {"phases": phases}

    def run_phases(self) -> list[Phase]:
        """The parts of the run, in order; one for most runs."""
        configs = [self._of_phase(phase) for phase in self.phases] or [self]
        objectives = [self.objective] * len(configs)
        begins_with = OBJECTIVES[self.objective].begins_with
        if begins_with and (first := self.stage_one_steps) and not self.phases:
            objectives = [begins_with, self.objective]
            parts = first, self.num_train_steps - first
            whole = self.replaced(stage_one_steps=None)
            configs = [whole.replaced(num_train_steps=n) for n in parts]
        ends = list(itertools.accumulate(c.num_train_steps for c in configs))
        rows = zip([0, *ends[:-1]], ends, configs, objectives, strict=True)
        return [Phase(i, *row) for i, row in enumerate(rows, start=1)]

    def _of_phase(self, phase: Mapping[str, Any]) -> Self:
        """The config of an ordinary run, for one of `phases`."""
        usual = self.usual_locations()
        records = phase.get("pretrain_tfrecords", self.pretrain_tfrecords)
        if records == usual["pretrain_tfrecords"]:
            records = _records_in(self.data_dir, data_folder(phase, self.phases))
        is_usual = self.eval_tfrecords == usual["eval_tfrecords"]
        evaluated = records if is_usual else self.eval_tfrecords
        own = {"pretrain_tfrecords": records, "eval_tfrecords": evaluated, **phase}
        if not isinstance(records, list):  # It is for those phases that have several.
            own.setdefault("sampling_alpha", type(self).sampling_alpha)
        return self.replaced(**own, phases=[])

    def data_files(self) -> str:
        """The files that the run reads in all phases, as a list of globs."""
        name = "pretrain_tfrecords" if self.do_train else "eval_tfrecords"
        places = [joined(getattr(phase.config, name)) for phase in self.run_phases()]
        return ",".join(dict.fromkeys(places))

    def phase_at(self, step: int) -> Phase:
        """The phase that a step belongs to, the first being 0; the last after the end.

        The phase of `step - 1` made the state of `step`.
        """
        return self.phases_ahead(step)[0]

    def phases_ahead(self, step: int) -> list[Phase]:
        """The phases that end after `step`; after all of them, the last."""
        parts = self.run_phases()
        return [phase for phase in parts if phase.end > step or phase is parts[-1]]

    def notes(self) -> list[str]:
        """Notes for the user before a run starts."""
        found = [*without_effect(self, "note")]
        kind = OBJECTIVES[self.objective]
        for name in ("temperature", "disallow_correct"):
            value = getattr(self, name)
            is_usual = value == getattr(type(self), name)
            if kind.is_original and kind.uses_q and not is_usual:
                found.append(
                    f"{name} is {show(value)}: Electric's samples are not of the q that"
                    " its loss is made of, as in the original; its scores are not log p"
                )
        parts = self.run_phases()
        for phase in parts:
            warmup, steps = phase.config.num_warmup_steps, phase.config.num_train_steps
            where = f" in phase {phase.number}" if len(parts) > 1 else ""
            if warmup > steps and not self.debug:
                found.append(
                    f"num_warmup_steps ({warmup}) exceeds num_train_steps ({steps})"
                    f"{where}: the learning rate never reaches its peak"
                )
        return found

    @classmethod
    def _merged(cls, first: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
        """As in `RunConfig`, without the original's booleans."""
        # A generator that the original's booleans choose stays with another objective.
        chosen = original_of_generator("").keys() & first.keys()
        chosen = set() if "generator" in then else chosen
        then = {name: first[name] for name in chosen} | then
        first = translated(first)
        then = translated(then, first)
        if then.get("phases") != []:
            # A saved config also has the last phase's values as the run's. They would
            # contradict other phases that --hparams gives.
            idle = _common_to_phases(first)
            first = {k: v for k, v in first.items() if k not in idle or v != idle[k]}
        explicit = super()._merged(first, then)
        for name, value in _common_to_phases(explicit).items():
            if (given := explicit.pop(name, value)) != value:
                raise UserError(
                    f"{name} {show(given)} has no effect: each phase has its own, and "
                    f"the run {show(value)}. Leave it out, or set it in phases"
                )
        return explicit

    @classmethod
    def checked(cls, hparams: dict[str, Any], source: str) -> dict[str, Any]:
        ours, booleans = dict(hparams), {}
        for name in ORIGINAL_NAMES & hparams.keys():
            booleans[name] = ours.pop(name)
        if "objective" in ours and ours["objective"] is None:
            del ours["objective"]  # as configs had it beside the booleans
        result = super().checked(ours, source)
        result |= check(OriginalHparams, booleans, source)
        phases = list(result.get("phases", ()))
        for number, phase in enumerate(phases, start=1):
            place = f"phase {number} of {source}"
            names = PHASE_SETTINGS + PHASE_INSTEAD + _PHASE_PLACES
            if not isinstance(phase, dict) or "num_train_steps" not in phase:
                raise UserError(
                    f"{place} is {show(phase)}; it must be an object with "
                    "num_train_steps"
                )
            phases[number - 1] = check(cls, phase, place)
            if others := phase.keys() - names:
                raise UserError(
                    f"{', '.join(others)} in {place}: it is one for the whole run.\n"
                    f"A phase has {', '.join(names)}."
                )
        return result | ({"phases": phases} if phases else {})

    @classmethod
    def _presets(cls, explicit: dict[str, Any]) -> dict[str, Any]:
        kind = OBJECTIVES[explicit.get("objective", "electra")]
        implied = SIZE_PRESETS[explicit.get("model_size", "small")]
        implied = implied | {"generator": kind.generators[0]}
        implied |= kind.presets | kind.needs
        if explicit.get("mask_unit") == "word":
            implied["repeated_masks"] = "fixed"
        return implied | (DEBUG_PRESET if explicit.get("debug") else {})

    @classmethod
    def _default_locations(cls, values: dict[str, Any]) -> dict[str, str]:
        data_dir = values["data_dir"]
        records = _records_in(data_dir, "pretrain_tfrecords")
        model_dir = run_directory(data_dir, values["model_name"])
        results = os.path.join(values.get("model_dir", model_dir), "results")
        return {
            "pretrain_tfrecords": records,
            "eval_tfrecords": values.get("pretrain_tfrecords", records),
            "vocab_file": os.path.join(data_dir, "vocab.txt"),
            "model_dir": model_dir,
            "results_txt": os.path.join(results, "unsup_results.txt"),
            "results_pkl": os.path.join(results, "unsup_results.pkl"),
        }

    def _completed(self) -> Self:
        config = super()._completed()
        has_stages = OBJECTIVES[self.objective].begins_with
        if has_stages and self.stage_one_steps is None:
            # So that another num_train_steps does not move the stages.
            half = max(1, self.num_train_steps // 2)
            config = config.replaced(stage_one_steps=half)
        if not self.phases:
            return config
        usual = {name: getattr(self, name) for name in PHASE_SETTINGS}
        phases = [usual | phase for phase in self.phases]
        last = {name: phases[-1][name] for name in PHASE_SETTINGS}
        last["num_train_steps"] = sum(phase["num_train_steps"] for phase in phases)
        return config.replaced(**last, phases=phases)

    def _check_together(self) -> None:
        """As in `RunConfig`, for each phase as well."""
        has_stages = OBJECTIVES[self.objective].begins_with
        for part in self.run_phases() if self.phases and not has_stages else ():
            try:
                part.config._check_together()
            except UserError as error:
                raise UserError(f"phase {part.number}: {error}") from None
        super()._check_together()
        if self.generator_kind.has_own_encoders:
            self.generator_config().check("the generator", "generator_hidden_size")

    def _broken_rules(self) -> Iterator[tuple[str, str]]:
        yield from super()._broken_rules()
        for name in ("pretrain_tfrecords", "eval_tfrecords"):
            if not _are_data_sets(getattr(self, name)):
                yield (
                    name,
                    "these must be patterns, which are text, none of them twice,\nor "
                    "{pattern: weight}, each weight above 0",
                )
        if self.do_train == self.do_eval:
            yield "do_train do_eval", "exactly one must be true"
        kind, generator = OBJECTIVES[self.objective], self.generator_kind
        if kind.begins_with and self.phases:
            reason = "its stages are phases already. Leave phases out"
            yield "objective phases", reason
        if (self.stage_one_steps or 0) >= self.num_train_steps:
            yield "stage_one_steps num_train_steps", "no step is left for stage two"
        if self.max_predictions_per_seq < 1:
            reason = "less than one token is masked. Raise one"
            yield "mask_prob max_seq_length", reason
        data = [phase.config.pretrain_tfrecords for phase in self.run_phases()]
        mixes = any(isinstance(sets, list) and len(sets) > 1 for sets in data)
        if self.sampling_alpha != 1 and not mixes:
            reason = "it gives shares to a list\nof data sets without weights"
            yield "sampling_alpha pretrain_tfrecords", f"{reason}. Leave it out"
        # 0.7 and 0.3 pass, whatever their rounding.
        if self.mask_token_share + self.random_token_share > 1 + 1e-9:
            names = "mask_token_share random_token_share"
            yield names, "together they are at most 1"
        if self.mask_unit == "word" and self.repeated_masks != "fixed":
            reason = 'no position may be drawn twice.\nSet "repeated_masks": "fixed"'
            yield "mask_unit repeated_masks", reason
        is_masked_lm = generator.has_own_encoders and generator.predicts == "masked"
        if self.embedding_sharing == "disentangled" and not is_masked_lm:
            reason = "it needs a discriminator beside a\ngenerator that is a masked LM"
            yield "embedding_sharing objective generator", reason
        shape = self.generator_config()
        is_empty = not (shape.hidden_size and shape.num_hidden_layers)
        if generator.has_own_encoders and is_empty:
            names = "model_size generator_hidden_size generator_layers"
            yield names, "the generator would have no width or no layers"
        needed = self.replaced(**kind.needs)._completed()
        for name in kind.needs:
            if getattr(self, name) != (value := getattr(needed, name)):
                reason = f"the objective needs {show(value)}. Leave {name} out"
                yield f"{name} objective", reason


def _are_data_sets(data: str | list | dict) -> bool:
    """Whether these are patterns, each once, any weights above 0."""
    names = [data] if isinstance(data, str) else list(data)
    weights = data.values() if isinstance(data, dict) else ()
    return (
        bool(names)
        and all(isinstance(name, str) and name for name in names)
        and len({*names}) == len(names)
        and all(type(w) in (int, float) and 0 < w < float("inf") for w in weights)
    )


def _common_to_phases(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """The run's values of the hparams that each of its phases has."""
    phases = hparams.get("phases") or [{}]
    steps = sum(phase.get("num_train_steps", 0) for phase in phases)
    return {
        name: steps if name == "num_train_steps" else phases[-1][name]
        for name in PHASE_SETTINGS
        if all(name in phase for phase in phases)
    }


def data_folder(phase: Mapping[str, Any], phases: Sequence[Mapping[str, Any]]) -> str:
    """Where a phase's data are in a data directory, unless that is set."""
    several = len({phase["max_seq_length"] for phase in phases}) > 1
    return "pretrain_tfrecords" + (f"_{phase['max_seq_length']}" if several else "")


def _records_in(data_dir: str, folder: str) -> str:
    return os.path.join(escape(data_dir), folder, "pretrain_data.tfrecord*")


def started_phases(hparams: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    """The hparams of each phase of a run that started before a step.

    Args:
      hparams: the saved config of the run.
    """
    found, end = [], 0
    for phase in hparams.get("phases") or [{}]:
        if not found or end < step:
            found.append({**hparams, **phase})
        end += phase.get("num_train_steps", 0)
    return found


def switches(hparams: Mapping[str, Any]) -> list[int]:
    """The steps at which a run goes from one phase to the next.

    Args:
      hparams: as `started_phases`.
    """
    if first := hparams.get("stage_one_steps"):
        return [first]
    steps = [phase["num_train_steps"] for phase in hparams.get("phases") or ()]
    return list(itertools.accumulate(steps))[:-1]
