# SPDX-License-Identifier: Apache-2.0
"""A model at rest: its weights under the original's names, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from electra_tf.config import objectives
from electra_tf.config.generators import GENERATORS, MASKED_LM_HEAD
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.original import translated
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import shapes
from electra_tf.storage.checkpoint_manifest import split_name
from electra_tf.storage.checkpoints import as_text, differences
from electra_tf.storage.manifest import MANIFEST, read_json
from electra_tf.text.vocabulary import (
    TokenizerConfig,
    Vocabulary,
    recorded_settings,
)

if TYPE_CHECKING:
    from electra_tf.pretrain.pretraining import ElectraPretrainer

DISCRIMINATOR_HEAD = f"{objectives.DISCRIMINATOR_HEAD}/"
GENERATOR_HEAD = f"{MASKED_LM_HEAD}/"
TRAINED_LENGTH = "trained_length"  # in manifests
_FEW_CAPITALS = 0.01  # of the tokens; uncased vocabularies have none
HEADS = (
    *{f"{head}/" for kind in OBJECTIVES.values() for head in kind.heads},
    *{f"{kind.head}/" for kind in GENERATORS.values() if kind.head},
)


class Settings(NamedTuple):
    """What the files beside a model's weights say; read without TensorFlow."""

    hparams: dict[str, Any]  # what they say beyond the shapes of the weights
    tokenizer_config: TokenizerConfig | None
    vocab_file: str | None

    def as_recorded(self, manifest: Mapping[str, Any], prefix: str) -> Settings:
        """The same with what a run's checkpoint has recorded of its tokenizer.

        The file beside the vocabulary may be lost where the vocabulary was copied.
        """
        found = self.tokenizer_config, self.vocab_file
        told = recorded_settings(manifest.get("settings", {}), *found, prefix)
        return self._replace(tokenizer_config=told)


class Contents(NamedTuple):
    """What one reader found in one place."""

    origin: str  # the checkpoint's prefix or the directory, for messages
    tensors: dict[str, np.ndarray]  # weights by the original's names
    slots: dict[str, np.ndarray]  # `<weight>/adam_m`, `<weight>/adam_v`
    step: int
    settings: Settings
    notes: list[str]
    # Compares with the library that the files are of, once they are known to be whole;
    # says how far it is, `UserError` (65) if too far.
    compare: Callable[[], str] | None = None

    def compare_with_library(self, log: Callable[[str], None]) -> None:
        """Says how far that library is, if there is one; `UserError` (65) if far."""
        if self.compare:
            log(f"Note: {self.origin}: {self.compare()}.")


class StoredModel(NamedTuple):
    """Weights, settings and tokenizer of a model.

    `tensors` may lack whole parts (an encoder without heads, a discriminator without
    generator), never a part of a part.
    """

    config: PretrainingConfig
    vocab: Vocabulary
    tokenizer_config: TokenizerConfig
    tensors: dict[str, np.ndarray]
    slots: dict[str, np.ndarray]
    step: int
    origin: str  # where it was read
    # What files, user and weights say of `config`; the rest of it is assumed.
    known: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        """The run's name, or that of the file or folder it came from."""
        return self.config.model_name

    @property
    def trained_length(self) -> int | None:
        """Tokens of the sequences that it was trained on; None: not known.

        Positions behind them have learned nothing.
        """
        return self.known.get("max_seq_length")


def trained_length_in(folder: Path) -> int | None:
    """`StoredModel.trained_length` by the manifest of a folder that we have written."""
    manifest = folder / MANIFEST
    return read_json(manifest).get(TRAINED_LENGTH) if manifest.is_file() else None


def empty_pretrainer(
    config: PretrainingConfig, vocab: Vocabulary, dtype: str = "float32"
) -> ElectraPretrainer:
    """The model of a config, as it is stored, with weights of no meaning."""
    from electra_tf.pretrain.pretraining import build_pretrainer

    ids = vocab.cls_id, vocab.sep_id, vocab.mask_id
    return build_pretrainer(config, ids, dtype, at_rest=True)


def assemble(
    contents: Contents,
    vocab_file: str | None,
    hparams: Mapping | None = None,
) -> StoredModel:
    """A StoredModel from what was read, checked from all sides.

    Args:
      vocab_file: overrides the vocabulary that lies beside the weights.
      hparams: what the user says of the model; must agree with its shapes.

    Raises `UserError`: 2 when something does not fit, 65 when weights are missing,
    unexpected or of a wrong shape.
    """
    origin = contents.origin
    settings = contents.settings
    vocab_file = vocab_file or settings.vocab_file
    if vocab_file is None:
        raise UserError(
            f"{origin} comes without a vocabulary.\nPut its vocab.txt beside the "
            "weights; export_model.py takes --vocab-file, too."
        )
    vocab = Vocabulary.load(vocab_file)
    found = {name: list(array.shape) for name, array in contents.tensors.items()}
    derived = shapes.hparams_of(found, origin)
    if derived["vocab_size"] != len(vocab):
        raise UserError(
            f"{origin} has {derived['vocab_size']} word embeddings, {vocab_file} has "
            f"{len(vocab)} tokens.\nGive the vocabulary the model was trained with."
        )
    given = translated(hparams or {})
    merged = shapes.merge(derived, settings.hparams, given, origin)
    said = {**settings.hparams, **given}
    guesses = shapes.guessed(found) - said.keys()
    known = {name: value for name, value in merged.items() if name not in guesses}
    tokenizer = _tokenizer_config(vocab, settings.tokenizer_config, said)
    merged |= {"vocab_file": vocab_file, "do_lower_case": tokenizer.do_lower_case}
    path = Path(os.path.abspath(origin))  # "." has a name, too.
    name = path.parent.name if split_name(path.name) else path.name
    name = merged.pop("model_name", None) or name
    config = PretrainingConfig.from_hparams(str(path.parent), name, merged)
    _check_as_said(config, settings.hparams, origin)
    stored = StoredModel(
        config,
        vocab,
        tokenizer,
        contents.tensors,
        contents.slots,
        contents.step,
        origin,
        known,
    )
    _check_complete(stored)
    check_trained(origin, config.stage_one_steps, stored.step)
    return stored


def _check_as_said(config, from_files: Mapping[str, Any], origin: str) -> None:
    """Refuses a model that is another one than its files say.

    No shape shows heads, activation or casing, so nothing else would notice.
    """
    told = shapes.identity_by(config, from_files, f"the files of {origin}")
    if found := differences(told, config.identity()):
        raise UserError(
            f"the files of {origin} are of another model: {as_text(found)}."
            "\nWhat they say, no hparams can change: leave it out."
        )


def _tokenizer_config(vocab, found, given) -> TokenizerConfig:
    """What the user says, else what lies beside weights or vocabulary."""
    from electra_tf.text.vocabulary import resolve_settings

    lower = given.get("do_lower_case")
    if found is None:
        return resolve_settings(vocab, do_lower_case=lower)
    if lower is not None and lower != found.do_lower_case:
        raise UserError(
            f"do_lower_case is {lower} in the hparams, {found.do_lower_case} in the "
            "files of the model."
        )
    return found


def note_capitals(
    settings: Settings, vocab: Vocabulary, origin: str, log: Callable[[str], None]
) -> None:
    """What is not said of the casing is the original's default: lower case."""
    from electra_tf.text.vocabulary import read_settings

    said = settings.tokenizer_config or read_settings(vocab.path)
    if said or "do_lower_case" in settings.hparams:
        return
    capitals = sum(
        token != token.lower() and not token.startswith("[") for token in vocab.tokens
    )
    if capitals > _FEW_CAPITALS * len(vocab):
        log(
            f"Note: {origin} does not say whether it reads capitals, and "
            f"{capitals:,} tokens of its vocabulary have some: they are taken for "
            'unused, all text is lower-cased. {"do_lower_case": false} in '
            f"{vocab.path}.json says otherwise."
        )


def check_trained(origin: str, stage_one_steps: int | None, step: int | None) -> None:
    """Raises `UserError` for a model whose main network has not learned anything yet.

    Args:
      stage_one_steps: None where there are no stages.
      step: None where it is not known.
    """
    if stage_one_steps is not None and step is not None and step <= stage_one_steps:
        raise UserError(
            f"{origin} is of step {step} of a two-stage run, whose discriminator "
            f"learns after step {stage_one_steps}.\nTrain on; for a masked language "
            'model alone set objective "mlm".'
        )


def _check_complete(stored: StoredModel) -> None:
    """Every weight of every part that is there, in its shape; nothing else."""
    import tensorflow as tf

    with tf.Graph().as_default():  # Its names and shapes; no weight is ever made.
        model = empty_pretrainer(stored.config, stored.vocab)
        expected = {v.path: tuple(v.shape) for v in model.variables}
    has_heads = any(name.startswith(HEADS) for name in stored.tensors)
    if not has_heads:
        expected = {k: v for k, v in expected.items() if not k.startswith(HEADS)}
    problems = [f"{k} is missing" for k in sorted(set(expected) - set(stored.tensors))]
    problems += [
        f"{k} is unexpected" for k in sorted(set(stored.tensors) - set(expected))
    ]
    problems += [
        f"{k} has shape {list(stored.tensors[k].shape)}, its place has {list(shape)}"
        for k, shape in expected.items()
        if k in stored.tensors and stored.tensors[k].shape != shape
    ]
    problems += [
        f"{k} is not finite"
        for k, array in stored.tensors.items()
        if not np.isfinite(array).all()
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(
            f"{stored.origin} is not a whole model: {problems[0]}{more}.\n"
            "Is it the right file, and of the ELECTRA family?",
            EXIT_DAMAGED,
        )
