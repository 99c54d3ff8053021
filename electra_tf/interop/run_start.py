# SPDX-License-Identifier: Apache-2.0
"""What a run of pre-training begins with: found and checked, and loaded later.

The newest checkpoint in its directory, or one of the original that lies there; for a
new run the weights of the model that `init_checkpoint` names, or random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from electra_tf.config.hparams import applicable
from electra_tf.config.original import translated
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.data import token_counts
from electra_tf.errors import UserError
from electra_tf.interop import compatibility, sources, tf1, warm_start
from electra_tf.interop.sources import FoundModel
from electra_tf.interop.stored_model import check_trained, fit_rows
from electra_tf.pretrain import history, shards
from electra_tf.storage.checkpoint_manifest import Manifest
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import (
    TokenizerConfig,
    Vocabulary,
    recorded_settings,
    resolve_settings,
)


class Start(NamedTuple):
    """What a run begins with: one of the first three, or random weights."""

    saved: Manifest | None = None  # the newest checkpoint
    original: FoundModel | None = None  # another model to continue from or to evaluate
    initial: FoundModel | None = None  # whose weights a new run takes over
    generator: FoundModel | None = None  # of a new run, frozen; beside `initial` or not

    def load(
        self,
        config: PretrainingConfig,
        data,
        checkpoints: Checkpoints,
        state,
        log: Callable[[str], None],
    ) -> None:
        """Assigns it to the state of a run that trains.

        Args:
          data: a `pretrain.pretrain_data.RunData`.
          state: a `train.step.TrainState`.

        Raises `UserError` for a variable that is missing, or of another shape.
        """
        if self.saved:
            checkpoints.restore(self.saved, state.variables())
            log(f"Continuing from {checkpoints.prefix(self.saved.step)}.")
            return
        if self.original:
            variables = state.variables().items()
            theirs = {k: v for k, v in variables if not tf1.is_ours_alone(k)}
            stored = tf1.tensors_of(self.original.origin)
            fit_rows(stored, data.vocab, log).assign_to(theirs)
            checkpoints.last_saved_step = state.step  # Its files stay as they are.
            log(f"Continuing from the original's {self.original.origin}.")
            return
        if self.initial:
            weights = state.weights()
            warm_start.load(self.initial, config, data.vocab, weights, log)
        if self.generator:
            weights = state.weights()
            warm_start.load_generator(self.generator, config, data.vocab, weights, log)
        if config.needs_token_counts:
            state.model.generator.adapt(data.token_counts(config))

    def evaluate(
        self, weights: Mapping[str, Any], log: Callable[[str], None]
    ) -> int | None:
        """Assigns the weights of `original`, which is evaluated as it is.

        Returns: its step, None where it does not say it.

        Raises `UserError` when one of them is missing, or of another shape.
        """
        model = self.original
        tensors = model.tensors(log)
        step = int(tensors.get(tf1.STEP)) if tf1.STEP in tensors.shapes else None
        stages = {**model.settings.hparams, **model.identity}
        check_trained(model.origin, stages.get("stage_one_steps"), step)
        tf1.as_residuals(tensors, weights).assign_to(weights)
        return step


def find(
    config: PretrainingConfig,
    vocab: Vocabulary,
    checkpoints: Checkpoints,
    log: Callable[[str], None],
    is_chief: bool = True,
) -> Start:
    """What there is to begin with, checked as far as files say it.

    Nothing for other workers than the chief, which gives them what they need.

    Raises `UserError` for what the run cannot begin or go on with.
    """
    if not is_chief:
        return Start()
    original = sources.original_in(config.model_dir, log)
    saved = None if original else checkpoints.newest_intact()
    saved = saved and _in_one_spelling(saved)
    start = Start(saved, original)
    tokenizer = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    if saved or original:
        _keep_init_checkpoint(start, config, checkpoints)
    if saved:
        _check_saved(saved, config, tokenizer, vocab, checkpoints, log)
    elif config.do_eval and not original:
        start = Start(original=_to_evaluate(config, log))
    elif config.init_checkpoint and not original:
        start = Start(initial=sources.find(config.init_checkpoint, log))
        compatibility.check(start.initial, config, vocab, compatibility.WARM_START)
    if config.objective == "frozen_generator" and not (
        saved or config.do_eval or original
    ):
        start = start._replace(generator=_frozen(config, log))
    if start.original:
        purpose = compatibility.EVALUATE if config.do_eval else compatibility.RESUME
        compatibility.check(start.original, config, vocab, purpose)
    parts = config.phases_ahead(saved.step if saved else 0)
    if config.do_eval:
        parts = [config.phase_at(history.last_step_of(saved, config))]
    shards.check_tokenizers(parts, tokenizer)
    shares = [phase.config.unigram_share for phase in parts]
    counts_words = config.do_train and (config.rare_mask_power or any(shares))
    if counts_words or config.needs_token_counts and not (saved or start.original):
        token_counts.files_beside(shards.pattern_of(config))
    return start


def _in_one_spelling(saved: Manifest) -> Manifest:
    """Of a run that has the original's booleans beside objective and generator."""
    identity = applicable(PretrainingConfig, translated(saved.identity))
    return saved._replace(identity=identity, settings=translated(saved.settings))


def _check_saved(
    saved: Manifest,
    config: PretrainingConfig,
    tokenizer: TokenizerConfig,
    vocab: Vocabulary,
    checkpoints: Checkpoints,
    log: Callable[[str], None],
) -> None:
    """Refuses a checkpoint of another run; says what is changed since it was saved."""
    checkpoints.check_identity(saved)
    prefix = checkpoints.prefix(saved.step)
    recorded_settings(saved.settings, tokenizer, vocab.path, prefix)
    if not config.do_train:
        return
    history.check_passed(saved.settings, config, saved.step)
    ours = checkpoints.settings
    for note in (
        history.batch_size_note(saved.settings, config, saved.step),
        history.other_data_note(saved.settings, ours, config, saved.step),
    ):
        if note:
            log(note)


def _keep_init_checkpoint(
    start: Start, config: PretrainingConfig, checkpoints: Checkpoints
) -> None:
    """A run that has begun keeps what it began with; UserError for something else."""
    here, there = config.init_checkpoint, None
    if saved := start.saved:
        there = saved.settings.get("init_checkpoint")
        began = f"the weights of {there}" if there else "random weights"
        found = f"is at step {saved.step} and began with {began}"
    else:
        found = f"holds the original's {start.original.origin}"
    if here not in (None, there):
        raise UserError(
            f"{config.model_dir} {found}; init_checkpoint {here!r} would have no "
            "effect.\nLeave it out, or choose another --model-name."
        )
    checkpoints.settings["init_checkpoint"] = there


def _frozen(config: PretrainingConfig, log: Callable[[str], None]) -> FoundModel:
    """The model whose generator a new run takes over."""
    if config.init_generator is None:
        raise UserError(
            'objective "frozen_generator" needs a generator that is trained.\nSet '
            'init_generator to a checkpoint or run: of "mlm" in the generator\'s size, '
            "or of an ELECTRA."
        )
    return sources.find(config.init_generator, log)


def _to_evaluate(config: PretrainingConfig, log: Callable[[str], None]) -> FoundModel:
    """The init_checkpoint, where the run has no checkpoint of its own."""
    if config.init_checkpoint is None:
        raise UserError(
            f"{config.model_dir} has no checkpoint to evaluate.\n"
            "Check --data-dir and --model-name, set init_checkpoint, or train first."
        )
    return sources.find(config.init_checkpoint, log)
