# SPDX-License-Identifier: Apache-2.0
"""PretrainingConfig: every setting of a pre-training run, checked and saved.

The hparams are the original's, with the same names and defaults. What base and large
need beyond their size (the paper, Table 6) is a default here; in the original it is a
comment, and runs that set only `model_size` diverged.
"""

import dataclasses
import os
from typing import Any, Self

from electra_tf.config.generators import GENERATORS, by_original_hparams
from electra_tf.config.hparams import (
    IDENTITY,
    PLACE,
    SETTING,
    hparam,
    read_hparams,
    show,
)
from electra_tf.config.model import ModelConfig, generator_config
from electra_tf.config.run import RunConfig, check_heads, run_directory
from electra_tf.errors import UserError
from electra_tf.paths import escape

__all__ = ["ModelConfig", "PretrainingConfig", "read_hparams"]


# What else Table 6 of the paper changes with the size of the encoder.
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
ELECTRIC_PRESET = {"electra_objective": False, "two_tower_generator": True}
DEBUG_PRESET = {
    "train_batch_size": 8,
    "num_train_steps": 20,
    "eval_batch_size": 4,
    "iterations_per_loop": 1,
    "num_eval_steps": 2,
}


def max_predictions_per_seq(mask_prob: float, max_seq_length: int) -> int:
    """The number of masked-position slots per sequence."""
    return int((mask_prob + 0.005) * max_seq_length)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(RunConfig):
    """All hparams of one pre-training run; make it with `from_hparams`."""

    # What is run.
    debug: bool = hparam(
        False, "A few steps on small batches, to see that it runs.", SETTING
    )
    do_train: bool = hparam(True, "Pre-train.", PLACE)
    do_eval: bool = hparam(False, "Evaluate; exactly one of do_train, do_eval.", PLACE)
    seed: int = hparam(
        42,
        "Key of all random numbers: masking, shuffling, dropout, initialisation.",
        SETTING,
        minimum=0,
        maximum=2**31 - 1,
    )
    init_checkpoint: str | None = hparam(
        None,
        "Checkpoint whose weights the run starts from; null: random weights.",
        SETTING,
    )

    # Objectives.
    electra_objective: bool = hparam(
        True,
        "Replaced token detection; false: masked language modeling, as BERT.",
        IDENTITY,
    )
    electric_objective: bool = hparam(
        False,
        "Electric: noise-contrastive estimation with the generator as noise.",
        IDENTITY,
    )
    gen_weight: float = hparam(
        1.0, "Weight of the generator's (masked or cloze) loss.", SETTING, minimum=0
    )
    disc_weight: float = hparam(
        50.0, "Weight of the discriminator's loss.", SETTING, minimum=0
    )
    mask_prob: float = hparam(
        0.15,
        "Fraction of the tokens that are masked or replaced.",
        SETTING,
        above=0,
        below=1,
    )
    repeated_masks: str = hparam(
        "original",
        "A position drawn twice: original gives it the mean of the sampled ids; "
        "fixed draws without replacement.",
        SETTING,
        choices=("original", "fixed"),
    )

    # Optimization.
    optimizer: str = hparam(
        "original",
        "original: Adam without bias correction, as BERT; adamw: with it; lamb: and "
        "each variable's update scaled to its norm, for large batches.",
        SETTING,
        choices=("original", "adamw", "lamb"),
    )
    schedule: str = hparam(
        "original",
        "original: warm-up times polynomial decay; after the warm-up: linear goes down "
        "to 0, wsd stays and goes down at the end, constant stays.",
        SETTING,
        choices=("original", "linear", "wsd", "constant"),
    )
    decay_proportion: float = hparam(
        0.1, "Part of the run in which wsd goes down to 0.", SETTING, above=0, maximum=1
    )
    learning_rate: float = hparam(
        5e-4,
        "Peak of the schedule; the original's warm-up multiplies a decay from step 0.",
        SETTING,
        above=0,
    )
    lr_decay_power: float = hparam(
        1.0, "Power of the original's polynomial decay.", SETTING, minimum=0
    )
    num_warmup_steps: int = hparam(
        10000, "Steps of linear warm-up.", SETTING, minimum=0
    )
    on_bad_record: str = hparam(
        "stop",
        "On a damaged record in the data: stop, or leave it out and count it.",
        SETTING,
        choices=("stop", "skip"),
    )

    on_alarm: str = hparam(
        "warn",
        "On a sign that the run goes wrong (docs/metrics.md): warn, or stop (saved, "
        "exit code 70).",
        SETTING,
        choices=("warn", "stop"),
    )

    # Training.
    iterations_per_loop: int = hparam(
        200, "Steps that run without coming back to Python.", SETTING, minimum=1
    )
    save_checkpoints_steps: int = hparam(
        1000, "Steps from one checkpoint to the next.", SETTING, minimum=1
    )
    keep_checkpoint_max: int = hparam(
        5, "Newest checkpoints that are kept; 0 keeps all.", SETTING, minimum=0
    )
    num_train_steps: int = hparam(
        1000000, "Optimizer steps; the schedule ends here.", SETTING, minimum=1
    )
    num_eval_steps: int = hparam(100, "Batches of an evaluation.", SETTING, minimum=1)
    eval_every_steps: int = hparam(
        0,
        "Steps from one evaluation to the next in training (eval_tfrecords); 0: none.",
        SETTING,
        minimum=0,
    )
    peer_timeout: float = hparam(
        600.0,
        "Seconds that a worker waits for the others (TF_CONFIG), at the start and at "
        "each exchange.",
        PLACE,
        above=0,
    )

    # Generator.
    generator: str | None = hparam(
        None,
        "Kind of generator; null: the one that uniform_generator, two_tower_generator "
        "and untied_generator choose. unigram draws each token as often as it is in "
        "the data.",
        IDENTITY,
        choices=(None, *GENERATORS),
    )
    uniform_generator: bool = hparam(
        False,
        "Replacements are uniform over the vocabulary; nothing to train.",
        IDENTITY,
    )
    two_tower_generator: bool = hparam(
        False, "Left-to-right and right-to-left towers instead of masking.", IDENTITY
    )
    untied_generator_embeddings: bool = hparam(
        False, "The generator has embeddings of its own.", IDENTITY
    )
    untied_generator: bool = hparam(
        True, "False: generator and discriminator are one encoder.", IDENTITY
    )
    generator_layers: float = hparam(
        1.0,
        "Generator's depth, as a fraction of the discriminator's.",
        IDENTITY,
        above=0,
    )
    generator_hidden_size: float = hparam(
        0.25,
        "Generator's width, as a fraction of the discriminator's.",
        IDENTITY,
        above=0,
    )
    cloze_chunk_size: int = hparam(
        1024,
        "Positions whose vocabulary scores the towers hold at one time.",
        SETTING,
        minimum=1,
    )
    disallow_correct: bool = hparam(
        False, "Never sample the original token, so that every sample is fake.", SETTING
    )
    temperature: float = hparam(
        1.0,
        "The generator's logits are divided by it before sampling.",
        SETTING,
        above=0,
    )

    # Batches.
    max_seq_length: int = hparam(
        128, "Tokens per sequence, as in the data.", SETTING, minimum=4
    )
    train_batch_size: int = hparam(
        128, "Sequences per step, over all devices together.", SETTING, minimum=1
    )
    eval_batch_size: int = hparam(
        128, "Sequences per evaluation batch.", SETTING, minimum=1
    )

    # Locations.
    pretrain_tfrecords: str = hparam(
        "<data-dir>/pretrain_tfrecords/pretrain_data.tfrecord*",
        "Pattern of the training files.",
        PLACE,
    )
    eval_tfrecords: str = hparam(
        "<pretrain_tfrecords>", "Pattern of the files to evaluate on.", PLACE
    )
    model_dir: str = hparam(
        "<data-dir>/models/<model-name>", "Checkpoints, metrics and results.", PLACE
    )
    results_txt: str = hparam(
        "<model_dir>/results/unsup_results.txt", "Evaluation results, as text.", PLACE
    )
    results_pkl: str = hparam(
        "<model_dir>/results/unsup_results.pkl",
        "Taken but not written: results are JSON, beside results_txt.",
        PLACE,
    )

    @property
    def max_predictions_per_seq(self) -> int:
        """The number of masked-position slots per sequence."""
        return max_predictions_per_seq(self.mask_prob, self.max_seq_length)

    @property
    def objective(self) -> str:
        """What is trained: electra, electric or mlm."""
        if self.electric_objective:
            return "electric"
        return "electra" if self.electra_objective else "mlm"

    @property
    def generator_kind(self) -> str:
        """The kind of generator, a key of `generators.GENERATORS`."""
        return self.generator or by_original_hparams(self.to_dict(), self.objective)

    @property
    def uses_generator_config(self) -> bool:
        """Whether there is a generator encoder with a shape of its own."""
        return GENERATORS[self.generator_kind].has_own_encoders

    def generator_config(self) -> ModelConfig:
        """The generator's shape; only meaningful if `uses_generator_config`."""
        return generator_config(
            self.model_config(), self.generator_hidden_size, self.generator_layers
        )

    def identity(self) -> dict[str, Any]:
        """What makes a run the run that it is; a generator's shape where it has one."""
        identity = super().identity()
        if not self.uses_generator_config:
            del identity["generator_layers"], identity["generator_hidden_size"]
        if self.generator is None:
            del identity["generator"]
        return identity

    def notes(self) -> list[str]:
        """What a user should be told before a run starts; not errors."""
        notes = super().notes()
        if self.num_warmup_steps > self.num_train_steps and not self.debug:
            notes.append(
                f"num_warmup_steps ({self.num_warmup_steps}) exceeds num_train_steps "
                f"({self.num_train_steps}): the learning rate never reaches its peak"
            )
        return notes

    @classmethod
    def from_hparams(cls, *args, **kwargs) -> Self:
        """See `RunConfig.from_hparams`.

        A `generator` that the original's hparams can say as well is said by them, so
        that both spellings are the same run.
        """
        config = super().from_hparams(*args, **kwargs)
        if config.generator and GENERATORS[config.generator].original:
            config = dataclasses.replace(config, generator=None)
        return config

    @classmethod
    def _checked(cls, hparams: dict[str, Any], source: str) -> dict[str, Any]:
        if "max_predictions_per_seq" in hparams:
            raise UserError(
                f"unknown hparam max_predictions_per_seq in {source}: it follows from "
                "mask_prob and max_seq_length"
            )
        return super()._checked(hparams, source)

    @classmethod
    def _presets(cls, explicit: dict[str, Any]) -> dict[str, Any]:
        presets = dict(SIZE_PRESETS[explicit.get("model_size", "small")])
        if explicit.get("electric_objective"):
            presets.update(ELECTRIC_PRESET)
        if kind := explicit.get("generator"):
            presets.update(GENERATORS[kind].original or {"two_tower_generator": False})
        if explicit.get("debug"):
            presets.update(DEBUG_PRESET)
        return presets

    @classmethod
    def _default_locations(cls, values: dict[str, Any]) -> dict[str, str]:
        data_dir = values["data_dir"]
        records = os.path.join(
            escape(data_dir), "pretrain_tfrecords/pretrain_data.tfrecord*"
        )
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

    def _check_together(self) -> None:
        if self.do_train == self.do_eval:
            raise UserError(
                f"do_train and do_eval are both {show(self.do_train)}; exactly one "
                'must be true.\nTo evaluate: {"do_train": false, "do_eval": true}'
            )
        _check_generator_kind(self)
        _check_objective(self)
        super()._check_together()
        _check_schedule(self)
        _check_generator(self)
        if self.max_predictions_per_seq < 1:
            raise UserError(
                f"mask_prob {self.mask_prob} of max_seq_length {self.max_seq_length} "
                "is less than one token; raise one of them"
            )


def _check_generator_kind(config: PretrainingConfig) -> None:
    """Raises a UserError for a `generator` that other hparams contradict."""
    if config.generator is None:
        return
    kind = GENERATORS[config.generator]
    said = {"uniform_generator": False, "two_tower_generator": False}
    for name, value in (said | (kind.original or {"untied_generator": True})).items():
        if getattr(config, name) != value:
            raise UserError(
                f"generator {show(config.generator)} and {name} "
                f"{show(getattr(config, name))} exclude each other: leave {name} out"
            )
    if config.objective not in kind.objectives:
        name = f"{config.objective}_objective"
        if config.objective == "mlm":
            name = "electra_objective false"
        raise UserError(
            f"generator {show(config.generator)} does not go with {name}; it goes with "
            f"{' and '.join(kind.objectives)}"
        )


def _check_schedule(config: PretrainingConfig) -> None:
    """Raises a UserError for a hparam that the schedule would not look at."""
    for name, schedule in (("lr_decay_power", "original"), ("decay_proportion", "wsd")):
        changed = getattr(config, name) != getattr(type(config), name)
        if changed and config.schedule != schedule:
            raise UserError(
                f"{name} belongs to schedule {show(schedule)}, but schedule is "
                f"{show(config.schedule)}: leave {name} out, or change the schedule"
            )


def _check_objective(config: PretrainingConfig) -> None:
    """Raises a UserError for objectives that exclude each other."""
    two = "two_tower_generator"
    electric, electra = "electric_objective", "electra_objective"
    tied = not config.untied_generator
    mlm = not (config.electra_objective or config.electric_objective)
    impossible = [
        (config.electra_objective and config.electric_objective, electra, electric,
         "a run has one objective"),
        (config.electric_objective and config.uniform_generator,
         electric, "uniform_generator", "Electric needs a two-tower generator"),
        (config.electric_objective and config.generator_kind == "two_tower"
         and not config.two_tower_generator, electric, two,
         "Electric needs a two-tower generator"),
        (config.electric_objective and tied, electric, "untied_generator",
         "the towers cannot be the discriminator"),
        (config.two_tower_generator and mlm, two, electra,
         "masked language modeling has no separate generator"),
        (config.two_tower_generator and tied, two, "untied_generator",
         "the towers cannot be the discriminator"),
        (config.two_tower_generator and config.uniform_generator,
         two, "uniform_generator", "there is one generator"),
        (config.uniform_generator and tied, "uniform_generator", "untied_generator",
         "a uniform generator has no weights to share"),
        (config.uniform_generator and mlm, "uniform_generator", electra,
         "nothing would be trained"),
    ]  # fmt: skip
    for is_impossible, first, second, reason in impossible:
        if is_impossible:
            raise UserError(
                f"{first} {show(getattr(config, first))} and "
                f"{second} {show(getattr(config, second))} exclude each other: {reason}"
            )


def _check_generator(config: PretrainingConfig) -> None:
    """Raises a UserError for a generator of an impossible shape."""
    if not config.uses_generator_config:
        return
    shape, generator = config.model_config(), config.generator_config()
    for name, fraction in (
        ("hidden_size", "generator_hidden_size"),
        ("num_hidden_layers", "generator_layers"),
    ):
        if getattr(generator, name) < 1:
            raise UserError(
                f"{fraction} {getattr(config, fraction)} of {name} "
                f"{getattr(shape, name)} is {getattr(generator, name)}; it must be 1 "
                "or more"
            )
    check_heads("the generator", generator, "generator_hidden_size")
