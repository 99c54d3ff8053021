# SPDX-License-Identifier: Apache-2.0
"""One description of a checkpoint, whatever its format, and the model read from it.

Whether it fits a run is one rule for every purpose, which gives all differences at
once. Compared is what files say, without TensorFlow; only the original's checkpoints
have to be opened for their shape.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from electra_tf import startup
from electra_tf.config import objectives
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.objectives import GENERATORS, MASKED_LM_HEAD, OBJECTIVES
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import say_nothing
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import fields
from electra_tf.storage.checkpoints import SLOTS, StoredTensors
from electra_tf.storage.manifest import (
    CHECKPOINT_MANIFEST,
    read_json,
    sha256,
    split_name,
)
from electra_tf.text.vocabulary import (
    TokenizerConfig,
    Vocabulary,
    read_settings,
    resolve_settings,
)

if TYPE_CHECKING:
    from electra_tf.pretrain.pretraining import ElectraPretrainer

DISCRIMINATOR_HEAD = f"{objectives.DISCRIMINATOR_HEAD}/"
GENERATOR_HEAD = f"{MASKED_LM_HEAD}/"
HEADS = (
    *{f"{head}/" for kind in OBJECTIVES.values() for head in kind.heads},
    *{f"{kind.head}/" for kind in GENERATORS.values() if kind.head},
)
# Tables with a row for each token.
BY_TOKEN = ("/word_embeddings", "_predictions/output_bias", "/token_counts")
BY_TOKEN += ("/word_embeddings_residual",)
STEP, _TASKS = "global_step", "task_specific/"
RESUME, EVALUATE, WARM_START, FINETUNE = "resume", "evaluate", "warm start", "fine-tune"
# Fields that do not count: how a model was trained, which does not matter to its
# evaluation; a longer table of positions can be filled.
_IGNORED = {
    EVALUATE: {"stage_one_steps", "init_discriminator", "init_generator"},
    WARM_START: {"max_position_embeddings"},
}
_FEW_CAPITALS = 0.01  # of the tokens; uncased vocabularies have none
# Files of weights: of directories, and of a checkpoint behind its prefix.
_WEIGHTS = (".safetensors", ".h5")
_OF_CHECKPOINT = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")


class Opened(NamedTuple):
    """The tensors of a checkpoint."""

    tensors: StoredTensors  # by the original's names
    notes: tuple[str, ...] = ()
    # Runs the library that wrote the files and returns a note on the difference;
    # `UserError` (65) if that is too large. None: nothing to compare with.
    compare: Callable[[], str] | None = None

    def weights(self, log: Callable[[str], None]) -> dict[str, np.ndarray]:
        """Those of the pre-trained model, read."""
        names = [n for n in self.tensors.shapes if n != STEP and not n.endswith(SLOTS)]
        if heads := sorted(name for name in names if name.startswith(_TASKS)):
            # An export of a task reads them by itself: "left out" would be wrong there.
            log(
                f"Note: {self.tensors.origin}: {heads[0]} and the other fine-tuned "
                "heads do not belong to the pre-trained model."
            )
        return {n: self.tensors.get(n) for n in names if not n.startswith(_TASKS)}


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """What lies at a path, by its files; weights are read on request.

    Attributes:
      origin: the checkpoint's prefix, or the directory.
      known: the config fields that its files state, as `fields.of_hparams` has them.
      tokenizer_config, vocab_file: None where no file says it.
      open: opens the tensors; those of TensorFlow are read one at a time.
      run: the directory of the run of this project that it belongs to.
      recorded_sha256: of the vocabulary of that run.
    """

    origin: str
    known: dict[str, Any]
    tokenizer_config: TokenizerConfig | None
    vocab_file: str | None
    open: Callable[[], Opened]
    run: Path | None = None
    recorded_sha256: str | None = None

    @functools.cached_property
    def vocab_sha256(self) -> str | None:
        """The hash of its vocabulary, if that is known."""
        if self.recorded_sha256 or self.vocab_file is None:
            return self.recorded_sha256
        return Vocabulary.load(self.vocab_file).sha256

    @functools.cached_property
    def do_lower_case(self) -> bool | None:
        """None where no file says it."""
        stored = self.tokenizer_config and self.tokenizer_config.do_lower_case
        return self.known.get("do_lower_case", stored)

    @functools.cached_property
    def shape(self) -> dict[str, Any]:
        """The fields of `fields.SHAPE` that are known or can be inferred.

        The original's checkpoints are opened for it, which needs TensorFlow.
        """
        found = self.known
        if "embedding_size" not in found:
            startup.import_tensorflow()
            found = fields.of_shapes(self.open().tensors.shapes, self.origin) | found
        return {name: found[name] for name in fields.SHAPE if name in found}

    def compare(
        self, config: PretrainingConfig | FinetuningConfig, purpose: str
    ) -> list[fields.Difference]:
        """Where it and the config of a run differ, as far as its files say it.

        Args:
          purpose: RESUME or EVALUATE: the same model; WARM_START: weights whose
            objective, vocabulary and length may differ; FINETUNE: the encoder.
        """
        there = self.shape if purpose == FINETUNE else self.known
        if purpose == WARM_START:
            there = {name: there[name] for name in fields.SHAPE if name in there}
        elif self.do_lower_case is not None:
            there = there | {"do_lower_case": self.do_lower_case}
        here = dataclasses.asdict(config.model_config()) | config.identity()
        here["embedding_size"] = config.embedding_size
        here["do_lower_case"] = config.do_lower_case
        ignored = _IGNORED.get(purpose, ())
        return [d for d in fields.differences(there, here) if d[0] not in ignored]

    def check(
        self,
        config: PretrainingConfig | FinetuningConfig,
        vocab: Vocabulary,
        purpose: str,
    ) -> None:
        """Raises a `UserError` with all differences and the hparams that fit."""
        found = self.compare(config, purpose)
        fitting = fields.as_hparams((name, there) for name, there, _ in found)
        if purpose == FINETUNE and any(name in fields.SHAPE for name, _, _ in found):
            fitting |= fields.size_hparams(self.shape)
        reasons, remedies = [fields.text_of(found)] if found else [], []
        sha256 = self.vocab_sha256
        if purpose != WARM_START and sha256 not in (None, vocab.sha256):
            reasons.append(
                f"it was trained with another vocabulary than {vocab.path}: sha256 "
                f"{sha256:.16}... there, {vocab.sha256:.16}... here"
            )
            theirs = self.vocab_file
            is_file = theirs and os.path.isfile(theirs)
            if is_file and Vocabulary.load(theirs).sha256 == sha256:
                fitting["vocab_file"] = theirs
            else:
                remedies.append("Set vocab_file to its vocabulary.")
        ours = resolve_settings(vocab, do_lower_case=config.do_lower_case)
        stored = self.tokenizer_config
        same_case = stored and stored.do_lower_case == ours.do_lower_case
        if purpose == FINETUNE and same_case and not stored.equivalent(ours):
            reasons.append(f"its text is {stored} there, {ours} here")
            remedies.append(f"Set strip_accents in {vocab.path}.json as it was there.")
        if fitting:
            remedies.append(f"These hparams fit it: {json.dumps(fitting)}")
        if reasons:
            raise UserError(
                f"{self.origin} is another model than this run's: "
                f"{'; '.join(reasons)}.\n{' '.join(remedies)}"
            )

    def finetuning_hparams(self, explicit: Mapping[str, Any]) -> dict[str, Any]:
        """Its shape and casing, as hparams of a fine-tuning run.

        Raises a `UserError` with all hparams of `explicit` that give another shape.
        """
        shape, given = self.shape, fields.of_hparams(explicit, False)
        if differences := fields.differences(shape, given):
            raise UserError(
                f"{self.origin} is another model: {fields.text_of(differences)}.\n"
                "Leave the shape out: the checkpoint decides it. These hparams fit it: "
                f"{json.dumps(fields.size_hparams(shape))}"
            )
        found = fields.size_hparams(shape, explicit.get("model_size"))
        more = explicit.get("model_hparam_overrides", {})
        found["model_hparam_overrides"] = more | found.get("model_hparam_overrides", {})
        if "do_lower_case" not in explicit and self.do_lower_case is not None:
            found["do_lower_case"] = self.do_lower_case
        return found

    def weights_sha256(self) -> str:
        """A hash of the files of its weights, of a run as the manifest has theirs."""
        if os.path.isdir(self.origin):
            files = Path(self.origin).rglob("*")
            paths = [p for p in files if p.suffix in _WEIGHTS and p.is_file()]
        else:
            manifest = Path(self.origin + CHECKPOINT_MANIFEST)
            files = read_json(manifest).get("files") if manifest.is_file() else None
            if files:
                return _hash_of(one["sha256"] for _, one in sorted(files.items()))
            folder, start = os.path.split(self.origin)
            names = [n for n in os.listdir(folder or ".") if n.startswith(f"{start}.")]
            paths = [Path(folder, n) for n in names if _OF_CHECKPOINT.search(n)]
        return _hash_of(_file_sha256(p, p.stat().st_mtime_ns) for p in sorted(paths))

    def tensors(self, log: Callable[[str], None]) -> StoredTensors:
        """Its tensors by the original's names; of a fine-tuned run also its heads."""
        opened = self.opened(log)
        self.compare_with_library(opened, log)
        if self.run is not None or self.vocab_file is None:
            return opened.tensors
        return fit_rows(opened.tensors, Vocabulary.load(self.vocab_file), log)

    def opened(self, log: Callable[[str], None]) -> Opened:
        """All that it holds, not yet checked for completeness."""
        found = self.open()
        for note in found.notes:
            log(f"Note: {self.origin}: {note}.")
        return found

    def compare_with_library(
        self, opened: Opened, log: Callable[[str], None], strict: bool = False
    ) -> None:
        """Notes how far the library that wrote the files is, if there is one.

        Args:
          strict: raise `UserError` (65) if it is far, as before an export.
        """
        if opened.compare is None:
            return
        try:
            note = opened.compare()
        except UserError as error:
            if strict:
                raise
            note = str(error).splitlines()[0].removesuffix(".")
        log(f"Note: {self.origin}: {note}.")

    def unknown_casing(self, vocab: Vocabulary) -> str | None:
        """What to ask for where nothing says whether text is lower-cased.

        And it matters: the original's default, lower case, would make tokens with
        capitals unused.
        """
        if self.do_lower_case is not None or read_settings(vocab.path):
            return None
        capitals = sum(t != t.lower() and not t.startswith("[") for t in vocab.tokens)
        if capitals <= _FEW_CAPITALS * len(vocab):
            return None
        return (
            f"{self.origin} does not say whether it lower-cases text, and {capitals:,} "
            f"tokens of {vocab.path} have capitals.\nSet the hparam do_lower_case, or "
            f'write {{"do_lower_case": false}} (or true) into {vocab.path}.json.'
        )

    def check_casing(self, vocab: Vocabulary) -> None:
        """Raises a `UserError` if `unknown_casing` asks something."""
        if question := self.unknown_casing(vocab):
            raise UserError(question)

    def check_trained(self, step: int | None) -> None:
        """Raises `UserError` for a main network that has not learned anything yet.

        Args:
          step: None where it is unknown.
        """
        first = self.known.get("stage_one_steps")
        if first is not None and step is not None and step <= first:
            raise UserError(
                f"{self.origin} is of step {step} of a two-stage run, whose "
                f"discriminator learns after step {first}.\nTrain on; for a masked "
                'language model alone set objective "mlm".'
            )

    def read(
        self,
        vocab_file: str | None = None,
        hparams: Mapping[str, Any] | None = None,
        log: Callable[[str], None] = print,
        slots: bool = True,
        strict: bool = True,
    ) -> StoredModel:
        """The whole model: complete, and as its files, its weights and the user say.

        Args:
          vocab_file: the vocabulary; None: the one beside the weights.
          hparams: what the files do not say; must agree with them.
          slots: whether those of the optimizer are wanted, twice as large.
          strict: whether a library that computes something else is an error.

        Raises `UserError`: 2 when something does not fit, 65 when weights are missing,
        unexpected or of a wrong shape.
        """
        vocab = self._vocabulary(vocab_file)
        opened = self.opened(log)
        opened = opened._replace(tensors=fit_rows(opened.tensors, vocab, log))
        every = opened.tensors
        tensors = opened.weights(log)
        moments = [name for name in every.shapes if slots and name.endswith(SLOTS)]
        step = int(every.get(STEP)) if STEP in every.shapes else 0
        shapes = {name: every.shapes[name] for name in tensors}
        hparams = hparams or {}
        given = fields.of_hparams(hparams, defaults=False)
        vocab.check_size(hparams.get("vocab_size", len(vocab)))
        known, merged = self._merged(shapes, given)
        if "num_attention_heads" not in known:
            log(fields.note_of_heads(merged["hidden_size"], self.origin))
        tokenizer = self.tokenizer_config or resolve_settings(
            vocab, do_lower_case=merged.get("do_lower_case")
        )
        path = Path(os.path.abspath(self.origin))  # "." has a name, too.
        name = path.parent.name if split_name(path.name) else path.name
        name = merged.pop("model_name", None) or name
        merged |= {"do_lower_case": tokenizer.do_lower_case, "vocab_file": vocab.path}
        config = PretrainingConfig.from_hparams(
            str(path.parent), name, fields.as_hparams(merged.items())
        )
        stored = StoredModel(
            *(config, vocab, tokenizer, tensors, {n: every.get(n) for n in moments}),
            *(step, self.origin, known),
        )
        _check_complete(stored)
        self.check_trained(stored.step)
        if "do_lower_case" not in given:
            self.check_casing(vocab)
        self.compare_with_library(opened, log, strict)
        return stored

    def _vocabulary(self, vocab_file: str | None) -> Vocabulary:
        path = vocab_file or self.vocab_file
        if path is None:
            raise UserError(
                f"{self.origin} comes without a vocabulary.\nPut its vocab.txt beside "
                "the weights; export_model.py takes --vocab-file, too."
            )
        vocab = Vocabulary.load(path)
        advice = "Give its own vocabulary."
        vocab.check_same(self.vocab_sha256, f"{self.origin} was trained", advice)
        return vocab

    def _merged(
        self, shapes: fields.Shapes, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(known fields, all fields) of the model with weights of these shapes.

        Raises a `UserError` with all contradictions between shapes, files and user.
        """
        inferred = fields.of_shapes(shapes, self.origin)
        files = dict(self.known)
        if self.tokenizer_config:
            files["do_lower_case"] = self.tokenizer_config.do_lower_case
        weights, beside = self.origin, "the config beside it"
        contradictions = [
            f"{name} is {there!r} in {one}, {here!r} in {other}"
            for found, one, other in (
                (fields.contradictions(inferred, files), weights, beside),
                (fields.contradictions(inferred, given), weights, "the hparams"),
                (fields.differences(files, given), beside, "the hparams"),
            )
            for name, there, here in found
        ]
        if contradictions:
            raise UserError(
                f"{'; '.join(contradictions)}.\nHparams can add what weights and files "
                "do not say, and change nothing that they do."
            )
        known = {k: v for k, v in inferred.items() if k not in fields.assumed(shapes)}
        known |= files | given
        return known, inferred | known


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
    # What files, user and weights say of `config`, as `fields.of_hparams` has it; the
    # rest of it is assumed.
    known: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        """The run's name, or that of the file or folder it came from."""
        return self.config.model_name

    @property
    def trained_length(self) -> int | None:
        """Tokens of the sequences that it was trained on; None if unknown.

        Positions behind them have learned nothing.
        """
        return self.known.get("max_seq_length")


def as_float32(array: np.ndarray) -> np.ndarray:
    """The same in float32, where it has another width; integers unchanged."""
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float32) if is_float else array


def fit_rows(
    stored: StoredTensors, vocab: Vocabulary, log: Callable[[str], None] = say_nothing
) -> StoredTensors:
    """Without the rows of ids that a model's vocabulary does not have, with a note.

    Raises `UserError` where there are more tokens than rows.
    """
    size, [rows, *_] = len(vocab), stored.shapes.get(fields.WORDS, [len(vocab)])
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
    tables = tuple(f"{name}{slot}" for name in BY_TOKEN for slot in ("", *SLOTS))
    cut = {name for name in stored.shapes if name.endswith(tables)}
    shapes = {k: [size, *v[1:]] if k in cut else v for k, v in stored.shapes.items()}

    def get(name: str) -> np.ndarray:
        return stored.get(name)[:size] if name in cut else stored.get(name)

    return StoredTensors(stored.origin, shapes, get)


def empty_pretrainer(
    config: PretrainingConfig, vocab: Vocabulary, dtype: str = "float32"
) -> ElectraPretrainer:
    """The model of a config, as files store it, with arbitrary weights."""
    from electra_tf.pretrain.pretraining import build_pretrainer

    ids = vocab.cls_id, vocab.sep_id, vocab.mask_id
    return build_pretrainer(config, ids, dtype, at_rest=True)


def _check_complete(stored: StoredModel) -> None:
    """Every weight of every part that is there, in its shape; nothing else."""
    import tensorflow as tf

    with tf.Graph().as_default():  # Its names and shapes; no weight is ever made.
        model = empty_pretrainer(stored.config, stored.vocab)
        expected = {v.path: tuple(v.shape) for v in model.variables}
    if not any(name.startswith(HEADS) for name in stored.tensors):
        expected = {k: v for k, v in expected.items() if not k.startswith(HEADS)}
    problems = [f"{k} is missing" for k in sorted(expected.keys() - stored.tensors)]
    for name, array in sorted(stored.tensors.items()):
        if name not in expected:
            problems.append(f"{name} is unexpected")
        elif array.shape != expected[name]:
            there, here = list(array.shape), list(expected[name])
            problems.append(f"{name} has shape {there}, its place has {here}")
        elif not np.isfinite(array).all():
            problems.append(f"{name} is not finite")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(
            f"{stored.origin} is not a whole model: {problems[0]}{more}.\n"
            "Is it the right file, and of the ELECTRA family?",
            EXIT_DAMAGED,
        )


def _hash_of(texts: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()


@functools.cache
def _file_sha256(path: Path, changed: int) -> str:
    del changed  # part of the key
    return sha256(path)
