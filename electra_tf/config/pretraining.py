# SPDX-License-Identifier: Apache-2.0
"""PretrainingConfig: every setting of a pre-training run, checked and saved.

The hparams are the original's, with the same names and defaults. What base and large
need beyond their size (the paper, Table 6) is a default here; in the original it is a
comment, and runs that set only `model_size` diverged.
"""

import dataclasses
import os
from typing import Any, Self

from electra_tf.config import combinations, objectives, phases, presets, same_run
from electra_tf.config.generators import GENERATORS, by_original_hparams
from electra_tf.config.hparams import (
    IDENTITY,
    PLACE,
    SETTING,
    hparam,
    read_hparams,
)
from electra_tf.config.model import ModelConfig, generator_config
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.phases import Phase
from electra_tf.config.run import RunConfig, run_directory
from electra_tf.errors import UserError
from electra_tf.paths import escape

__all__ = ["ModelConfig", "PretrainingConfig", "read_hparams"]


def max_predictions_per_seq(mask_prob: float, max_seq_length: int) -> int:
    """The number of masked-position slots per sequence."""
    return min(max_seq_length, int((mask_prob + 0.005) * max_seq_length))


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(RunConfig):
    """All hparams of one pre-training run; make it with `from_hparams`."""

    # What is run.
    debug: bool = hparam(
        False,
        "A few steps on small batches, to see that it runs; the model keeps its size "
        "(configs/debug.json has a tiny one).",
        SETTING,
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
    objective: str | None = hparam(
        None,
        "What is learned; null: what electra_objective and electric_objective say.",
        IDENTITY,
        choices=(None, *OBJECTIVES),
    )
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
    mask_unit: str = hparam(
        "token",
        "What is masked: single tokens, or whole words (docs/recipes.md).",
        SETTING,
        choices=("token", "word"),
    )
    word_list: str | None = hparam(
        None, "Words of scripts without spaces, one a line (docs/recipes.md).", PLACE
    )
    mask_token_share: float = hparam(
        0.85,
        "Of the masked positions, those whose input becomes [MASK].",
        SETTING,
        minimum=0,
        maximum=1,
    )
    random_token_share: float = hparam(
        0.0,
        "The same for a random token; the rest keep theirs. BERT: 0.8 and 0.1.",
        SETTING,
        minimum=0,
        maximum=1,
    )
    rare_mask_power: float = hparam(
        0.0,
        "In training, tokens are masked in proportion to their count in the data to "
        "the power of minus this; 0: all alike. Needs repeated_masks fixed.",
        SETTING,
        minimum=0,
        maximum=2,  # beyond it draws of rare tokens are equal in float32
    )
    intact_share: float = hparam(
        0.2,
        "electra_sentence: of the sequences, those in which nothing is replaced.",
        SETTING,
        minimum=0,
        maximum=1,
    )
    sentence_weight: float = hparam(
        1.0,
        "electra_sentence: weight of the loss of the verdict on whole sequences.",
        SETTING,
        minimum=0,
    )
    electra_15_positions: str = hparam(
        "masked",
        "What electra_15 learns from: the masked tokens, or another draw from all.",
        SETTING,
        choices=("masked", "other"),
    )
    stage_one_steps: int | None = hparam(
        None,
        "Steps of two_stage in which the generator alone learns; null: half of "
        "num_train_steps. Each stage has a learning-rate schedule of its own.",
        IDENTITY,
        minimum=1,
    )
    init_discriminator: bool = hparam(
        True,
        "two_stage: the generator's weights initialise the discriminator; false: it "
        "starts from random weights, as the paper's control.",
        IDENTITY,
    )

    # Optimization.
    optimizer: str = hparam(
        "original",
        "original: Adam without bias correction, as BERT; adamw: with it; lamb: and "
        "each variable's update scaled to its norm, for large batches.",
        SETTING,
        choices=("original", "adamw", "lamb"),
    )
    adam_beta_1: float = hparam(
        0.9,
        "Share of the gradients' mean that a step keeps.",
        SETTING,
        minimum=0,
        below=1,
    )
    adam_beta_2: float = hparam(
        0.999, "The same of the mean of their squares.", SETTING, minimum=0, below=1
    )
    schedule: str = hparam(
        "original",
        "original: warm-up times polynomial decay; after the warm-up: linear and "
        "polynomial go down to 0, wsd stays and goes down at the end, constant stays.",
        SETTING,
        choices=("original", "linear", "polynomial", "wsd", "constant"),
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
        1.0, "Power of the decay, original or polynomial.", SETTING, minimum=0
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
        200, "Most steps that run without coming back to Python.", SETTING, minimum=1
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
    phases: list[dict[str, Any]] = hparam(
        [],
        "Parts of the run, one after the other, each with its num_train_steps and what "
        "it has of its own (docs/phases.md); [] for one alone.",
        SETTING,
    )
    num_eval_steps: int = hparam(100, "Batches of an evaluation.", SETTING, minimum=1)
    eval_every_steps: int = hparam(
        0,
        "Steps from one evaluation to the next in training (eval_tfrecords); 0: none.",
        SETTING,
        minimum=0,
    )
    sample_steps: int = hparam(
        0,
        "Steps from one look at what the discriminator says of passages of "
        "eval_tfrecords to the next (docs/metrics.md); 0: none.",
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
    embedding_sharing: str = hparam(
        "shared",
        "untied: as untied_generator_embeddings; disentangled: the discriminator's are "
        "the generator's, without gradient, plus a residual (docs/recipes.md).",
        IDENTITY,
        choices=("shared", "untied", "disentangled"),
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
    cloze_chunk_size: int | None = hparam(
        None,
        "Positions whose vocabulary scores the towers, or all_tokens_mlm, hold at one "
        "time; null: 128 on CPUs, 1024 elsewhere.",
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
    pretrain_tfrecords: str | list | dict = hparam(
        "<data-dir>/pretrain_tfrecords/pretrain_data.tfrecord*",
        "Pattern of the training files; a list of several data sets, or an object "
        "{pattern: weight}, mixes them (docs/recipes.md).",
        PLACE,
    )
    eval_tfrecords: str | list | dict = hparam(
        "<pretrain_tfrecords>", "Pattern of the files to evaluate on.", PLACE
    )
    sampling_alpha: float = hparam(
        1.0,
        "Of a list of data sets, each is seen by its number of examples to this power.",
        SETTING,
        minimum=0,
        maximum=1,
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

    def masking_settings(self) -> dict[str, Any]:
        """Keyword arguments of `masking.mask_batch` that do not need the vocabulary."""
        names = "mask_prob max_predictions_per_seq repeated_masks mask_unit "
        names += "mask_token_share random_token_share"
        found = {name: getattr(self, name) for name in names.split()}
        found["draw_others"] = self.electra_15_positions == "other"
        has_verdict = self.objective_kind == "electra_sentence"
        return found | {"intact_share": self.intact_share if has_verdict else 0.0}

    @property
    def objective_kind(self) -> str:
        """What is learned, a key of `objectives.OBJECTIVES`."""
        return self.objective or objectives.by_original_hparams(self.to_dict())

    @property
    def generator_kind(self) -> str:
        """The kind of generator, a key of `generators.GENERATORS`."""
        return self.generator or by_original_hparams(
            self.to_dict(), self.objective_kind
        )

    @property
    def needs_token_counts(self) -> bool:
        """Whether the generator starts from how often each token is in the data."""
        return GENERATORS[self.generator_kind].needs_token_counts

    @property
    def uses_generator_config(self) -> bool:
        """Whether there is a generator encoder with a shape of its own."""
        return GENERATORS[self.generator_kind].has_own_encoders

    def generator_config(self) -> ModelConfig:
        """The generator's shape; only meaningful if `uses_generator_config`."""
        # One network's weights become the other's, or there is no other.
        if self.objective_kind in ("two_stage", "two_tower"):
            return self.model_config()
        return generator_config(
            self.model_config(), self.generator_hidden_size, self.generator_layers
        )

    def identity(self) -> dict[str, Any]:
        """What makes a run the run that it is; a generator's shape where it has one."""
        return same_run.without_idle(self, super().identity())

    def settings(self) -> dict[str, Any]:
        """The hparams that are stored with a run's checkpoints and results."""
        return super().settings() | {"phases": phases.without_places(self.phases)}

    def run_phases(self) -> list[Phase]:
        """The parts of the run, in order; one for most runs."""
        return phases.of(self)

    def phase_at(self, step: int) -> Phase:
        """The phase that a step belongs to, the first being 0; the last after the end.

        What `step - 1` belongs to has made the state of `step`.
        """
        found = self.run_phases()
        return next((phase for phase in found if step < phase.end), found[-1])

    def notes(self) -> list[str]:
        """What a user should be told before a run starts; not errors."""
        return super().notes() + combinations.notes(self) + phases.notes(self)

    @classmethod
    def from_hparams(
        cls, data_dir, model_name, hparams=None, config=None, **kw
    ) -> Self:
        """See `RunConfig.from_hparams`.

        An `objective` or `generator` that the original's hparams can say as well is
        said by them, so that both spellings are the same run.
        """
        if cls.explicit(hparams, config).get("phases"):
            explicit = cls.explicit(hparams, config := phases.without_idle(config))
            usual = {f.name: f.default for f in dataclasses.fields(cls)}
            hparams = phases.resolve(explicit, usual | cls._presets(explicit))
        config = super().from_hparams(data_dir, model_name, hparams, config, **kw)
        staged = same_run.with_stages(config)
        if staged is not config:
            staged._check_together()
        return same_run.in_one_spelling(staged)

    @classmethod
    def checked(cls, hparams: dict[str, Any], source: str) -> dict[str, Any]:
        if "max_predictions_per_seq" in hparams:
            raise UserError(
                f"unknown hparam max_predictions_per_seq in {source}: it follows from "
                "mask_prob and max_seq_length"
            )
        result = super().checked(hparams, source)
        if parts := result.get("phases"):
            result["phases"] = phases.checked(cls, parts, source)
        return result

    @classmethod
    def _presets(cls, explicit: dict[str, Any]) -> dict[str, Any]:
        return presets.implied_by(explicit)

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
        combinations.check_action(self)
        combinations.check_phases(self)
        for part in self.run_phases() if self.phases else ():
            try:
                part.config._check_together()
            except UserError as error:
                raise UserError(f"phase {part.number}: {error}") from None
        combinations.check(self)
        super()._check_together()
        combinations.check_sizes(self)
