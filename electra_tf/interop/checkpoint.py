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
from electra_tf.console import say_nothing
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import shapes
from electra_tf.storage.checkpoint_manifest import split_name
from electra_tf.storage.checkpoints import as_text, differences
from electra_tf.storage.manifest import MANIFEST, read_json
from electra_tf.storage.stored_tensors import SLOTS, StoredTensors, of_arrays
from electra_tf.text.vocabulary import (
    TokenizerConfig,
    Vocabulary,
    read_settings,
    recorded_settings,
    resolve_settings,
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


# Tables with a row for each token.
BY_TOKEN = ("/word_embeddings", "_predictions/output_bias", "/token_counts")
BY_TOKEN += ("/word_embeddings_residual",)
_WORDS = "electra/embeddings/word_embeddings"


def as_float32(array: np.ndarray) -> np.ndarray:
    """The same in float32, where it is of another width; whole numbers as they are."""
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float32) if is_float else array


def fit_rows(
    stored: StoredTensors, vocab: Vocabulary, log: Callable[[str], None]
) -> StoredTensors:
    """Without the rows of ids that a model's vocabulary does not have, with a note.

    Raises `UserError` where there are more tokens than rows.
    """
    size, [rows, *_] = len(vocab), stored.shapes.get(_WORDS, [len(vocab)])
    if rows < size:
        raise UserError(
            f"{stored.origin} has {rows} word embeddings, {vocab.path} has {size} "
            "tokens.\nGive the vocabulary the model was trained with (vocab_file)."
        )
    if rows == size:
        return stored
    log(
        f"Note: {stored.origin}: left out: {rows - size} rows of the embeddings beyond "
        f"the {size} tokens of {vocab.path}."
    )
    slots = ("", *SLOTS)
    tables = tuple(f"{name}{slot}" for name in BY_TOKEN for slot in slots)
    cut = {name for name in stored.shapes if name.endswith(tables)}
    shapes = {k: [size, *v[1:]] if k in cut else v for k, v in stored.shapes.items()}

    def get(name: str) -> np.ndarray:
        return stored.get(name)[:size] if name in cut else stored.get(name)

    return StoredTensors(stored.origin, shapes, get)


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

    def compare_with_library(
        self, log: Callable[[str], None], strict: bool = False
    ) -> None:
        """Notes how far that library is, if there is one.

        Args:
          strict: raise `UserError` (65) if it is far, as before an export.
        """
        if self.compare is None:
            return
        try:
            note = self.compare()
        except UserError as error:
            if strict:
                raise
            note = str(error).splitlines()[0].removesuffix(".")
        log(f"Note: {self.origin}: {note}.")


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
    log: Callable[[str], None] = say_nothing,
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
    fitted = fit_rows(of_arrays(origin, contents.tensors | contents.slots), vocab, log)
    tensors, slots = (
        {name: fitted.get(name) for name in names}
        for names in (contents.tensors, contents.slots)
    )
    found = {name: fitted.shapes[name] for name in tensors}
    derived = shapes.hparams_of(found, origin)
    given = translated(hparams or {})
    # How many rows count is for the vocabulary to decide.
    from_files = {k: v for k, v in settings.hparams.items() if k != "vocab_size"}
    merged = shapes.merge(derived, from_files, given, origin)
    said = {**from_files, **given}
    guesses = shapes.guessed(found) - said.keys()
    known = {name: value for name, value in merged.items() if name not in guesses}
    tokenizer = _tokenizer_config(vocab, settings.tokenizer_config, said)
    merged |= {"vocab_file": vocab_file, "do_lower_case": tokenizer.do_lower_case}
    path = Path(os.path.abspath(origin))  # "." has a name, too.
    name = path.parent.name if split_name(path.name) else path.name
    name = merged.pop("model_name", None) or name
    config = PretrainingConfig.from_hparams(str(path.parent), name, merged)
    _check_as_said(config, from_files, origin)
    stored = StoredModel(
        config,
        vocab,
        tokenizer,
        tensors,
        slots,
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
    lower = given.get("do_lower_case")
    if found is None:
        return resolve_settings(vocab, do_lower_case=lower)
    if lower is not None and lower != found.do_lower_case:
        raise UserError(
            f"do_lower_case is {lower} in the hparams, {found.do_lower_case} in the "
            "files of the model."
        )
    return found


def check_casing(settings: Settings, vocab: Vocabulary, origin: str) -> None:
    """Raises a `UserError` if `unknown_casing` says something."""
    if question := unknown_casing(settings, vocab, origin):
        raise UserError(question)


def unknown_casing(settings: Settings, vocab: Vocabulary, origin: str) -> str | None:
    """What to ask for where nothing says whether text is lower-cased, and it matters.

    The original's default, lower case, would make tokens with capitals unused.
    """
    if settings.tokenizer_config or read_settings(vocab.path):
        return None
    capitals = sum(t != t.lower() and not t.startswith("[") for t in vocab.tokens)
    if "do_lower_case" in settings.hparams or capitals <= _FEW_CAPITALS * len(vocab):
        return None
    return (
        f"{origin} does not say whether it lower-cases text, and {capitals:,} tokens "
        f"of {vocab.path} have capitals.\nSet the hparam do_lower_case, or write "
        f'{{"do_lower_case": false}} (or true) into {vocab.path}.json.'
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
