# SPDX-License-Identifier: Apache-2.0
"""The start of a pre-training run: found and checked first, loaded later.

The newest checkpoint in its directory, or one of the original that lies there; for a
new run the weights of the model that `init_checkpoint` names, or random ones.

The model that `init_checkpoint` names may have been trained for another objective, with
another vocabulary or for shorter texts. Weights that fit are loaded, the tables below
are adapted, and parts that the other model lacks stay as initialised; anything else is
an error.

- Another vocabulary: rows are matched by token; new tokens stay as initialised.
- Another number of positions: the first rows are taken; if this run has more, row i is
  row i mod n of the n rows there.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.config.hparams import IDENTITY, SETTING, applicable, defaults, show
from electra_tf.config.objectives import GENERATOR, OBJECTIVES, translated
from electra_tf.config.pretraining import (
    PHASE_INSTEAD,
    PHASE_SETTINGS,
    PretrainingConfig,
)
from electra_tf.console import Log
from electra_tf.data import record_index
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import checkpoint, networks, readers, tf1
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.interop.networks import ENCODER
from electra_tf.paths import joined
from electra_tf.pretrain.stored import read
from electra_tf.storage.checkpoints import Checkpoints, as_text
from electra_tf.storage.manifest import CheckpointManifest
from electra_tf.text.vocabulary import Vocabulary, recorded_settings, resolve_settings

_BY_POSITION = ("/position_embeddings", "/position_embeddings_residual")
_LAYER = re.compile(r"\w+/encoder/layer_\d+/")


class Start(NamedTuple):
    """The start of a run: one of the first three, or random weights."""

    saved: CheckpointManifest | None = None  # the newest checkpoint
    original: CheckpointInfo | None = None  # to continue from or to evaluate
    initial: CheckpointInfo | None = None  # whose weights a new run takes over
    generator: CheckpointInfo | None = None  # of a new run, frozen

    def load(
        self, config: PretrainingConfig, data, checkpoints: Checkpoints, state, log: Log
    ) -> None:
        """Assigns it to the state of a run that trains.

        Args:
          data: a `pretrain_data.RunData`.
          state: a `train.step.TrainState`.

        Raises `UserError` for a variable that is missing, or of another shape.
        """
        if self.saved:
            checkpoints.restore(self.saved, state.variables())
            log(f"Continuing from {checkpoints.prefix(self.saved.step)}.")
            return
        if self.original:
            variables = state.variables().items()
            theirs = {k: v for k, v in variables if not tf1.OURS.match(k)}
            stored = tf1.tensors_of(self.original.origin)
            checkpoint.fit_rows(stored, data.vocab, log).assign_to(theirs)
            checkpoints.last_saved_step = state.step  # Its files stay as they are.
            log(f"Continuing from the original's {self.original.origin}.")
            return
        weights = state.weights()
        if self.initial:
            load_initial(self.initial, config, data.vocab, weights, log)
        if self.generator:
            load_generator(self.generator, config, data.vocab, weights, log)
        if config.generator_kind.needs_token_counts:
            state.model.generator.adapt(data.token_counts(config))

    def evaluate(self, weights: Mapping[str, Any], log: Log) -> int | None:
        """Assigns the weights of `original`, which is evaluated unchanged.

        Returns: its step, None where it does not say it.

        Raises `UserError` when one of them is missing, or of another shape.
        """
        model = self.original
        tensors = model.tensors(log)
        has_step = checkpoint.STEP in tensors.shapes
        step = int(tensors.get(checkpoint.STEP)) if has_step else None
        model.check_trained(step)
        tf1.as_residuals(tensors, weights).assign_to(weights)
        return step


def find(
    config: PretrainingConfig,
    vocab: Vocabulary,
    checkpoints: Checkpoints,
    log: Log,
    is_chief: bool = True,
) -> Start:
    """Finds the start of a run and checks it as far as files allow.

    Empty on workers other than the chief, which get their values from it.

    Raises `UserError` if the run cannot start or continue from it.
    """
    if not is_chief:
        return Start()
    original = readers.original_in(config.model_dir, log)
    saved = None if original else checkpoints.newest_intact()
    if saved:  # It may be of a version that spelled hparams otherwise, or lacked some.
        kind = PretrainingConfig
        identity = defaults(kind, IDENTITY) | translated(saved.identity)
        settings = defaults(kind, IDENTITY, SETTING) | translated(saved.settings)
        saved = saved._replace(identity=applicable(kind, identity), settings=settings)
    start = Start(saved, original)
    tokenizer = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    if saved or original:
        _keep_init_checkpoint(start, config, checkpoints)
    if saved:
        checkpoints.check_identity(saved)
        prefix, settings = checkpoints.prefix(saved.step), saved.settings
        recorded_settings(settings, tokenizer, vocab.path, prefix)
        if config.do_train:
            check_passed(settings, config, saved.step)
    elif config.do_eval and not original:
        missing = (
            f"{config.model_dir} has no checkpoint to evaluate.\n"
            "Check --data-dir and --model-name, set init_checkpoint, or train first."
        )
        start = Start(original=_named(config.init_checkpoint, missing, log))
    elif config.init_checkpoint and not original:
        start = Start(initial=readers.find(config.init_checkpoint, log))
        start.initial.check(config, vocab, checkpoint.WARM_START)
    kind = OBJECTIVES[config.objective]
    if GENERATOR not in kind.learns and not (
        kind.begins_with or saved or original or config.do_eval
    ):
        missing = (
            f'objective "{config.objective}" needs a generator that is trained.\nSet '
            'init_generator to a checkpoint or run: of "mlm" in the generator\'s size, '
            "or of an ELECTRA."
        )
        generator = _named(config.init_generator, missing, log)
        start = start._replace(generator=generator)
    if start.original:
        purpose = checkpoint.EVALUATE if config.do_eval else checkpoint.RESUME
        start.original.check(config, vocab, purpose)
    parts = config.phases_ahead(saved.step if saved else 0)
    if config.do_eval:
        parts = [config.phase_at(last_step_of(saved, config))]
    for part in (phase.config for phase in parts):
        if config.do_train:
            record_index.check_tokenizer(joined(part.pretrain_tfrecords), tokenizer)
        if config.do_eval or config.eval_every_steps:
            record_index.check_tokenizer(joined(part.eval_tfrecords), tokenizer)
    if config.generator_kind.needs_token_counts and not (saved or start.original):
        record_index.token_count_files(config.data_files())
    return start


def _keep_init_checkpoint(
    start: Start, config: PretrainingConfig, checkpoints: Checkpoints
) -> None:
    """A started run keeps its first weights; UserError for others."""
    here = config.init_checkpoint
    there = start.saved and start.saved.settings.get("init_checkpoint")
    if here not in (None, there):
        raise UserError(
            f"{config.model_dir} began with init_checkpoint {there}: {here!r} would "
            "have no effect.\nLeave it out, or choose another --model-name."
        )
    checkpoints.settings["init_checkpoint"] = there


def check_passed(
    stored: Mapping[str, Any], config: PretrainingConfig, step: int
) -> None:
    """Raises a UserError if the config changes what the run has finished by `step`.

    Phases that ended before `step`, or end there now, are fixed, and so is the start
    of the current phase. The current phase and later ones may change.

    Args:
      stored: the settings in the checkpoint of `step`.
    """
    usual = {name: stored[name] for name in PHASE_SETTINGS if name in stored}
    before = stored.get("phases") or [usual]
    now = config.phases or [{name: getattr(config, name) for name in PHASE_SETTINGS}]
    end = 0
    for number, (old, new) in enumerate(zip(before, now, strict=False), start=1):
        ended = number < len(before) and end + old["num_train_steps"] < step
        here = end + new["num_train_steps"] - step if number < len(now) else 1
        # A phase may end sooner than planned, with the same settings up to there.
        steps, others = PHASE_SETTINGS[:1], PHASE_SETTINGS[1:]
        names = steps + others if ended else others if here == 0 else steps
        names += tuple(k for k in PHASE_INSTEAD if k in old or k in new)
        old, new = {**stored, **old}, {**vars(config), **new}
        differ = [k for k in names if k in old and old[k] != new[k]]
        if differ and (ended or here <= 0):
            raise UserError(
                f"phase {number} of this run, which is at step {step:,}, had "
                f"{differ[0]} {show(old[differ[0]])}, here it has "
                f"{show(new[differ[0]])}.\nFinished phases cannot be changed: restore "
                "the old value, or choose another --model-name."
            )
        if not ended:
            return
        end += old["num_train_steps"]


def last_step_of(saved: CheckpointManifest | None, config: PretrainingConfig) -> int:
    """The step, from 0, whose stage and phase a model is evaluated in.

    The model of another run counts as finished.
    """
    return max(0, saved.step - 1) if saved else config.num_train_steps - 1


def _named(path: str | None, question: str, log: Log) -> CheckpointInfo:
    """The model at a path; `UserError` with the question where there is none."""
    if path is None:
        raise UserError(question)
    return readers.find(path, log)


# Weights of another model.


class WeightReport(NamedTuple):
    """The weights by where their values come from."""

    loaded: list[str]
    changed: dict[str, str]  # name -> how
    initialised: list[str]
    left_out: list[str]  # of the other model

    def lines(self) -> Iterator[str]:
        """For the log: parts with their numbers of weights, changes one by one."""
        for title in ("loaded", "initialised", "left_out"):
            counts = collections.Counter(map(_part, getattr(self, title))).items()
            if text := ", ".join(f"{part} {count}" for part, count in counts):
                yield f"{title.capitalize().replace('_', ' ')}: {text}"
        for name, how in self.changed.items():
            yield f"Changed: {name}: {how}"


def load_initial(
    model: CheckpointInfo,
    config,
    vocab: Vocabulary,
    variables: Mapping[str, Any],
    log: Log,
) -> WeightReport:
    """Assigns the weights of another model to the variables of a new run.

    Args:
      model: checked by `CheckpointInfo.check`.
      config, vocab: PretrainingConfig and vocabulary of the new run.
      variables: name -> tf.Variable, initialised.

    Raises `UserError` if the model is damaged or does not fit; nothing is assigned
    then.
    """
    path = model.origin
    stored = model.tensors(log)
    rows, *_ = stored.shapes.get(checkpoint.WORDS, [len(vocab)])
    if model.vocab_file:
        theirs, advice = Vocabulary.load(model.vocab_file), "Restore its vocabulary."
        theirs.check_same(model.vocab_sha256, f"{path} was trained", advice)
    elif rows == len(vocab):
        theirs = vocab
        log(f"No vocabulary lies beside {path}: it is taken to be {vocab.path}.")
    else:
        raise UserError(
            f"init_checkpoint {path} has {rows} word embeddings, {vocab.path} has "
            f"{len(vocab)} tokens, and no vocabulary lies beside it.\nPut its own "
            "there as vocab.txt, so that rows can be matched by token."
        )
    if config.do_lower_case:
        if question := model.unknown_casing(theirs):
            log(f"Note: {question.splitlines()[0]} This run lower-cases it.")
    if "num_attention_heads" not in model.shape:
        heads = config.model_config().num_attention_heads
        log(
            f"Note: {path} does not say its number of attention heads: {heads} "
            "assumed, as in this run."
        )
    ours = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    if model.tokenizer_config and not model.tokenizer_config.equivalent(ours):
        log(f"Changed: text is {ours} here, {model.tokenizer_config} in {path}")
    tensors = checkpoint.weights_in(tf1.as_residuals(stored, variables), log)
    path = f"init_checkpoint {model.origin}"
    report = _assign(tensors, variables, theirs, vocab, path)
    log(f"Weights initialised from {model.origin}; the optimizer starts anew.")
    for line in report.lines():
        log(line)
    return report


def load_generator(
    model: CheckpointInfo,
    config,
    vocab: Vocabulary,
    variables: Mapping[str, Any],
    log: Log,
) -> None:
    """Assigns the generator of a model, or a masked language model, to a run's own.

    Raises `UserError` unless it is the same network with the same vocabulary.
    """
    whole = read(model, log=log)
    path = f"init_generator {whole.origin}"
    advice = "Build the data with its vocabulary, and set vocab_file."
    vocab.check_same(whole.vocab.sha256, f"{path} was trained", advice)
    if not networks.is_representable(whole):
        raise UserError(f"{path} has a generator that is not a masked language model.")
    [network] = networks.split(whole, networks.GENERATOR).values()
    shapes = network.shape, config.generator_config()
    if found := checkpoint.differences(*map(dataclasses.asdict, shapes)):
        raise UserError(
            f"{path}: {as_text(found)}, of the generator.\nSet "
            "generator_hidden_size, generator_layers and model_hparam_overrides to fit."
        )
    needed = {k: v for k, v in variables.items() if k.startswith("generator")}
    tensors = {
        name.replace(ENCODER, "generator/", 1): value
        for name, value in network.tensors.items()
    }
    _assign(tensors, needed, vocab, vocab, path)
    log(f"Generator from {whole.origin}; it does not learn.")


def _assign(
    tensors: Mapping[str, np.ndarray],
    variables: Mapping[str, Any],
    theirs: Vocabulary,
    ours: Vocabulary,
    path: str,
) -> WeightReport:
    """Assigns all weights that fit, or none and raises `UserError` naming `path`."""

    def misfit(problem: str) -> UserError:
        return UserError(
            f"{path} {problem}.\nIf it is an ELECTRA model, set model_size, "
            "embedding_size, generator_hidden_size,\ngenerator_layers and "
            "num_hidden_layers (model_hparam_overrides) as they are there."
        )

    here, parts = ({_part(name) for name in names} for names in (variables, tensors))
    left_out, changed = sorted(tensors.keys() - variables.keys()), {}
    for name in left_out:
        if _LAYER.match(name) and _part(name) in here:
            raise misfit(f"has {name}, a layer more than this run")
    values: dict[str, np.ndarray] = {}
    for name, variable in variables.items():
        if name not in tensors:
            # A model has a part completely or not at all.
            if _part(name) in {*parts, ENCODER}:
                raise misfit(f"has no {name}, which this run needs")
            continue
        array = tensors[name]
        if name.endswith(checkpoint.BY_TOKEN) and theirs.tokens != ours.tokens:
            array, changed[name] = _by_token(array, variable, theirs.ids, ours.tokens)
        elif name.endswith(_BY_POSITION) and len(array) != variable.shape[0]:
            there, rows = len(array), variable.shape[0]
            how = f"{there} rows there, {rows} here: row i is row i mod {there}"
            changed[name] = how
            array = array[np.arange(rows) % there]
        if array.shape != tuple(variable.shape):
            there, here = list(array.shape), list(variable.shape)
            raise misfit(f"has {name} of shape {there}, this run needs {here}")
        if not np.isfinite(array).all():
            raise UserError(f"{path}: {name} is not finite.", EXIT_DAMAGED)
        values[name] = array
    for name, value in values.items():
        variables[name].assign(value)
    loaded = [name for name in values if name not in changed]
    initialised = [name for name in variables if name not in values]
    return WeightReport(loaded, changed, initialised, left_out)


def _by_token(array, variable, theirs: Mapping[str, int], ours: Sequence[str]):
    """Rows of the same tokens; the others as they are in the variable."""
    result = np.array(variable.numpy())
    here = [i for i, token in enumerate(ours) if token in theirs]
    result[here] = array[[theirs[ours[i]] for i in here]]
    kept, new = len(here), len(ours) - len(here)
    how = f"{kept} rows matched by token, {new} new ones initialised, "
    return result, how + f"{len(theirs) - kept} left out"


def _part(name: str) -> str:
    """The part of a weight: a scope, or the embeddings of a generator's own.

    A model has a part completely or not at all.
    """
    scope, _, rest = name.partition("/")
    own = not name.startswith(ENCODER) and rest.startswith("embeddings/")
    return f"{scope}/embeddings/" if own else f"{scope}/"
