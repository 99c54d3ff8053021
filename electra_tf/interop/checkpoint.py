# SPDX-License-Identifier: Apache-2.0
"""One description of a checkpoint, whatever its format, and the model read from it.

One function compares it with a run, for every purpose, and gives all differences at
once. It compares what files state, without TensorFlow; only the original's checkpoints
have to be opened for their shape.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from electra_tf import startup
from electra_tf.config import objectives
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import IDENTITY, names_in_roles
from electra_tf.config.model import BLOCKS, SIZES, ModelConfig, model_config
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import Log, silent
from electra_tf.errors import UserError
from electra_tf.storage import manifest
from electra_tf.storage.checkpoints import SLOTS, StoredTensors, as_text
from electra_tf.text import vocabulary
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

DISCRIMINATOR_HEAD = f"{objectives.DISCRIMINATOR_HEAD}/"
GENERATOR_HEAD = f"{objectives.MASKED_LM_HEAD}/"
HEADS = (
    *{f"{head}/" for kind in objectives.OBJECTIVES.values() for head in kind.heads},
    *{f"{kind.head}/" for kind in objectives.GENERATORS.values() if kind.head},
)
# Tables with a row for each token.
BY_TOKEN = ("/word_embeddings", "_predictions/output_bias", "/token_counts")
BY_TOKEN += ("/word_embeddings_residual",)
STEP, _TASKS = "global_step", "task_specific/"
# Heads of earlier versions that nothing reads, unless a row of today has them.
_LEFT = {"contrast_head/"} - {*HEADS}
RESUME, EVALUATE, EXPORT = "resume", "evaluate", "export"
WARM_START, FINETUNE = "warm start", "fine-tune"
# Fields that do not count: how a model was trained, which does not matter to its
# evaluation; a longer table of positions can be filled.
_IGNORED = {
    EVALUATE: {"stage_one_steps", "init_discriminator", "init_generator"},
    WARM_START: {"max_position_embeddings"},
}
_WEIGHTS = (".safetensors", ".h5")  # files of weights in directories
OF_IDENTITY = {
    *names_in_roles(PretrainingConfig, IDENTITY),
    *names_in_roles(ModelConfig, IDENTITY),
}
# The encoder's fields. Heads and activation leave no trace in its weights.
SHAPE = ["embedding_size", *names_in_roles(ModelConfig, IDENTITY)]
SHAPE.remove("vocab_size")
_OVERRIDES = "model_hparam_overrides"
_FINAL_NORM = "final_LayerNorm/gamma"  # of an encoder that is pre-norm
WORDS = f"{objectives.ENCODER}/embeddings/word_embeddings"
# The generator's sizes are fractions of these.
_FRACTIONS = {
    "generator_hidden_size": "hidden_size",
    "generator_layers": "num_hidden_layers",
}
_OF_ENCODER = {f.name for f in dataclasses.fields(ModelConfig)} - {"vocab_size"}
# Of a run: it has the settings of its last phase, and no data. The vocabulary decides
# its own size.
_NOT_OF_WEIGHTS = {"model_size", "phases", "sampling_alpha", "vocab_size"}

Shapes = Mapping[str, list[int]]
Difference = tuple[str, Any, Any]  # field, one value, the other


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """The model at a path, by its files; weights are read on request.

    Attributes:
      origin: the checkpoint's prefix, or the directory.
      known: the config fields that its files state, as `fields_of_hparams` has them.
      tokenizer_config, vocab_file: None if unknown.
      open: opens the tensors, by the original's names, and logs what it leaves out;
        TensorFlow's are read one at a time.
      run_library: runs the library that wrote the files, on the same input, and returns
        a note on the difference; "" if there is none. `UserError` (65) if it is large.
      run: the directory of its run, if this project wrote it.
      recorded_sha256: of that run's vocabulary.
    """

    origin: str
    known: dict[str, Any]
    tokenizer_config: TokenizerConfig | None
    vocab_file: str | None
    open: Callable[[Log], StoredTensors]
    run_library: Callable[[], str] = lambda: ""
    run: Path | None = None
    recorded_sha256: str | None = None

    @functools.cached_property
    def vocab_sha256(self) -> str | None:
        """The hash of its vocabulary, if known."""
        if self.recorded_sha256 or self.vocab_file is None:
            return self.recorded_sha256
        return Vocabulary.load(self.vocab_file).sha256

    @functools.cached_property
    def do_lower_case(self) -> bool | None:
        """None if unknown."""
        if self.tokenizer_config:
            return self.tokenizer_config.do_lower_case
        return self.known.get("do_lower_case")

    @functools.cached_property
    def inferred(self) -> dict[str, Any]:
        """The fields that its weights show; needs TensorFlow."""
        startup.import_tensorflow()
        return fields_of_shapes(self.open(silent).shapes, self.origin)

    @functools.cached_property
    def shape(self) -> dict[str, Any]:
        """The fields of SHAPE that are known or can be inferred."""
        found = self.known
        if "embedding_size" not in found:
            found = self.inferred | found
        return {name: found[name] for name in SHAPE if name in found}

    def compare(
        self,
        config: PretrainingConfig | FinetuningConfig | Mapping[str, Any],
        purpose: str,
    ) -> list[Difference]:
        """Where it and the config of a run differ, as far as its files state it.

        Args:
          config: or the hparams that a user sets.
          purpose: RESUME or EVALUATE: the same model; WARM_START: weights whose
            objective, vocabulary and length may differ; FINETUNE: the encoder; EXPORT:
            files and hparams of one whole model.
        """
        there = self.shape if purpose == FINETUNE else self.known
        if purpose == WARM_START:
            there = {name: there[name] for name in SHAPE if name in there}
        elif self.do_lower_case is not None:
            there = there | {"do_lower_case": self.do_lower_case}
        if isinstance(config, Mapping):
            here = fields_of_hparams(config, defaults=False)
        else:
            here = dataclasses.asdict(config.model_config()) | config.identity()
            here["embedding_size"] = config.embedding_size
            here["do_lower_case"] = config.do_lower_case
        ignored = _IGNORED.get(purpose, ())
        return [d for d in differences(there, here) if d[0] not in ignored]

    def check(
        self,
        config: PretrainingConfig | FinetuningConfig | Mapping[str, Any],
        vocab: Vocabulary | None,
        purpose: str,
    ) -> None:
        """Raises a `UserError` for another vocabulary or model, with hparams that fit.

        Args:
          config, purpose: see `compare`.
          vocab: of the config; None: of hparams, which are compared alone.
        """
        if vocab and purpose != WARM_START:
            advice = "Set vocab_file to its vocabulary."
            if self.vocab_file:
                own = json.dumps({"vocab_file": self.vocab_file})
                advice = f"These hparams fit it: {own}"
            vocab.check_same(self.vocab_sha256, f"{self.origin} was trained", advice)
        if vocab and purpose == FINETUNE and (stored := self.tokenizer_config):
            lower = config.do_lower_case
            ours = vocabulary.resolve_settings(vocab, do_lower_case=lower)
            same_case = stored.do_lower_case == ours.do_lower_case
            if same_case and not stored.equivalent(ours):
                raise UserError(
                    f"{self.origin} is another model: its text is {stored} there, "
                    f"{ours} here.\nSet strip_accents in {vocab.path}.json as it was."
                )
        if not (found := self.compare(config, purpose)):
            return
        fitting = hparams_of_fields((name, there) for name, there, _ in found)
        if purpose == FINETUNE and any(name in SHAPE for name, _, _ in found):
            fitting |= size_hparams(self.shape)
        remedy = f"These hparams fit it: {json.dumps(fitting)}"
        if purpose == EXPORT:
            remedy = "The files beside the weights and hparams must agree."
        raise UserError(
            f"{self.origin} is another model: {as_text(found, None)}.\n{remedy}"
        )

    def finetuning_hparams(self, explicit: Mapping[str, Any]) -> dict[str, Any]:
        """Its shape and casing, as hparams of a fine-tuning run that sets `explicit`.

        Raises a `UserError` if these contradict it.
        """
        self.check(explicit, None, FINETUNE)
        found = size_hparams(self.shape, explicit.get("model_size"))
        found[_OVERRIDES] = explicit.get(_OVERRIDES, {}) | found.get(_OVERRIDES, {})
        if self.do_lower_case is not None:
            found["do_lower_case"] = self.do_lower_case
        return found

    def weights_sha256(self) -> str:
        """A hash of the files of its weights."""
        path = Path(self.origin)
        files = [path.parent / f"{path.name}.index"]
        files += path.parent.glob(f"{glob.escape(path.name)}.data-*-of-*")
        if path.is_dir():
            files = [p for p in path.rglob("*") if p.suffix in _WEIGHTS]
        hashes = [manifest.sha256(file) for file in sorted(files)]
        return hashlib.sha256(" ".join(hashes).encode()).hexdigest()

    def tensors(self, log: Log) -> StoredTensors:
        """Its tensors by the original's names; of a fine-tuned run also its heads.

        They are not yet checked for completeness.
        """
        found = self.open(log)
        self.compare_with_library(log)
        if self.run or self.vocab_file is None:
            return found
        return fit_rows(found, Vocabulary.load(self.vocab_file), log)

    def compare_with_library(self, log: Log, strict: bool = False) -> None:
        """Notes how far the library that wrote the files is, if there is one.

        Args:
          strict: raise `UserError` (65) if it is far, as before an export.
        """
        try:
            note = self.run_library()
        except UserError as error:
            if strict:
                raise
            note = str(error).splitlines()[0].removesuffix(".")
        if note:
            log(f"Note: {self.origin}: {note}.")

    def unknown_casing(self, vocab: Vocabulary) -> str | None:
        """The error message if the casing is unknown and matters; else None."""
        if self.do_lower_case is not None:
            return None
        return vocabulary.unsettled(vocab, self.origin, TokenizerConfig())

    def check_casing(self, vocab: Vocabulary) -> None:
        """Raises a `UserError` if the casing is unknown and matters."""
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
        log: Log = print,
        slots: bool = False,
    ) -> StoredModel:
        """The model, consistent with its files and the hparams.

        `pretrain.stored` reads it whole: weights may be missing or unexpected here.

        Args:
          vocab_file: the vocabulary; None: the one beside the weights.
          hparams: fields that the files do not state; they must agree with them.
          slots: whether to read the optimizer's slots, twice as large, as well.

        Raises `UserError` when something does not fit.
        """
        path = vocab_file or self.vocab_file
        if path is None:
            raise UserError(
                f"{self.origin} comes without a vocabulary.\nPut its vocab.txt beside "
                "the weights, or give export_model.py --vocab-file."
            )
        vocab, advice = Vocabulary.load(path), "Give its own vocabulary."
        vocab.check_same(self.vocab_sha256, f"{self.origin} was trained", advice)
        every = fit_rows(self.open(log), vocab, log)
        model = dataclasses.replace(self, open=lambda log: every)
        inferred = model.inferred  # Other models are refused before they are read.
        tensors = weights_in(every, log)
        moments = [name for name in every.shapes if slots and name.endswith(SLOTS)]
        step = int(every.get(STEP)) if STEP in every.shapes else 0
        hparams = hparams or {}
        vocab.check_size(hparams.get("vocab_size", len(vocab)))
        model.check(hparams, None, EXPORT)
        unknown = _assumed(every.shapes)
        known = {k: v for k, v in inferred.items() if k not in unknown}
        known |= self.known | fields_of_hparams(hparams, defaults=False)
        if self.tokenizer_config:
            known["do_lower_case"] = self.do_lower_case
        merged = inferred | known
        if "num_attention_heads" not in known:
            log(note_of_heads(merged["hidden_size"], self.origin))
        tokenizer = self.tokenizer_config or vocabulary.resolve_settings(
            vocab, do_lower_case=merged.get("do_lower_case")
        )
        path = Path(os.path.abspath(self.origin))  # "." also has a name.
        name = path.parent.name if manifest.split_name(path.name) else path.name
        name = merged.pop("model_name", None) or name
        merged |= {"do_lower_case": tokenizer.do_lower_case, "vocab_file": vocab.path}
        config = PretrainingConfig.from_hparams(
            str(path.parent), name, hparams_of_fields(merged.items())
        )
        stored = StoredModel(
            *(config, vocab, tokenizer, tensors, {n: every.get(n) for n in moments}),
            *(step, self.origin, known),
        )
        self.check_trained(stored.step)
        if "do_lower_case" not in hparams:
            self.check_casing(vocab)
        return stored


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
    # The fields of `config` that files, weights and hparams state, as in
    # `fields_of_hparams`; the others are assumed.
    known: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        """The name of the run, or of the file or folder."""
        return self.config.model_name

    @property
    def trained_length(self) -> int | None:
        """Tokens of the sequences that it was trained on; None if unknown.

        Positions behind them have learned nothing.
        """
        return self.known.get("max_seq_length")


def as_float32(array: np.ndarray) -> np.ndarray:
    """Floats as float32; integers unchanged."""
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float32) if is_float else array


def weights_in(stored: StoredTensors, log: Log) -> dict[str, np.ndarray]:
    """The weights of a pre-trained model, read."""
    names = [n for n in stored.shapes if n != STEP and not n.endswith(SLOTS)]
    if any(name.startswith(_TASKS) for name in names):
        log(f"Note: {stored.origin}: left out: the fine-tuned heads.")
    return {n: stored.get(n) for n in names if not n.startswith((_TASKS, *_LEFT))}


def fit_rows(
    stored: StoredTensors, vocab: Vocabulary, log: Log = silent
) -> StoredTensors:
    """Cuts rows beyond the vocabulary from the tables of tokens, with a note.

    Raises `UserError` where there are more tokens than rows.
    """
    size, [rows, *_] = len(vocab), stored.shapes.get(WORDS, [len(vocab)])
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


# Config fields on one level.


def fields_of_hparams(
    hparams: Mapping[str, Any], defaults: bool = True
) -> dict[str, Any]:
    """Fields that hparams set, also by `model_size` and the overrides.

    Args:
      defaults: whether a model_size also implies the defaults of `ModelConfig`, as in
        the config of a run.
    """
    found = objectives.translated(hparams)
    size, overrides = found.get("model_size"), found.pop(_OVERRIDES, None) or {}
    if size:
        implied = model_config(size, 1, overrides).overrides()
        names = implied if defaults else SIZES[size]
        overrides = {name: implied[name] for name in names} | overrides
    found |= overrides
    if defaults and "embedding_size" in found and found["embedding_size"] is None:
        found["embedding_size"] = overrides.get("hidden_size")
    kept = found.keys() - _NOT_OF_WEIGHTS
    return {k: v for k, v in found.items() if k in kept and v is not None}


def hparams_of_fields(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields as hparams, with the encoder's in model_hparam_overrides."""
    found: dict[str, Any] = {}
    for name, value in fields:
        place = found.setdefault(_OVERRIDES, {}) if name in _OF_ENCODER else found
        place[name] = value
    return found


def size_hparams(shape: Mapping[str, Any], size: str | None = None) -> dict[str, Any]:
    """The hparams with the fewest overrides that give the SHAPE of an encoder."""
    found = []
    for name in [size] if size else SIZES:
        usual = dataclasses.asdict(
            model_config(name, 1, {"hidden_size": shape["hidden_size"]})
        )
        usual |= SIZES[name]
        overrides = {k: v for k, v in shape.items() if v != usual.get(k, v)}
        hparams = {"model_size": name, "embedding_size": shape["embedding_size"]}
        found.append(hparams | ({_OVERRIDES: overrides} if overrides else {}))
    return min(found, key=lambda hparams: len(hparams.get(_OVERRIDES, ())))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """Where two descriptions of a model contradict each other.

    Only fields that both have and that identify a model count. Fractions are equal if
    they give the same size: 0.33333 of 768 is 256.
    """

    def size(name: str, fields: Mapping[str, Any]) -> Any:
        if whole := (one | other).get(_FRACTIONS.get(name)):
            return round(whole * fields[name])
        return fields[name]

    return [
        (name, one[name], other[name])
        for name in sorted(one.keys() & other.keys() & OF_IDENTITY)
        if size(name, one) != size(name, other)
    ]


# Inferred from the names and shapes of weights.


def _scopes(shapes: Shapes) -> set[str]:
    return {name.partition("/")[0] for name in shapes}


def _depth(shapes: Shapes, scope: str) -> int:
    start = f"{scope}/encoder/layer_"
    return len({name.split("/")[2] for name in shapes if name.startswith(start)})


def _block_of(shapes: Shapes) -> dict[str, Any]:
    """The kind of block, and the sizes of its tables; KeyError if it is neither."""
    if any(name.endswith(f"/{_FINAL_NORM}") for name in shapes):
        return {"block": next(n for n, kind in BLOCKS.items() if kind.is_pre_norm)}
    positions = shapes["electra/embeddings/position_embeddings"][0]
    return {
        "block": ModelConfig.block,
        "max_seq_length": positions,
        "max_position_embeddings": positions,
        "type_vocab_size": shapes["electra/embeddings/token_type_embeddings"][0],
    }


def fields_of_shapes(shapes: Shapes, origin: str) -> dict[str, Any]:
    """Fields that the weights of an ELECTRA model show.

    An encoder without heads counts as one with a uniform generator. Raises `UserError`
    for weights of another model.
    """
    scopes = _scopes(shapes)
    generator = objectives.by_scopes(scopes)
    kind, main = objectives.GENERATORS[generator], objectives.ENCODER
    # Without an encoder of a main network, the generator may be the model.
    has_main = _depth(shapes, main) or not kind.encoders
    main = main if has_main else kind.encoders[0]
    kernel = f"{main}/encoder/layer_0/intermediate/dense/kernel"
    try:
        vocab_size, embedding_size = shapes[WORDS]
        hidden, intermediate = shapes[kernel]
        found = _block_of(shapes)
    except (KeyError, ValueError):
        names = [name for name in sorted(shapes) if "/" in name]
        first = f"its first name is {names[0]}" if names else "it holds no weights"
        raise UserError(
            f"{origin} is not an ELECTRA model: {first}.\nAn ELECTRA model has an "
            "encoder under electra/ with word, position and segment embeddings."
        ) from None
    layers = _depth(shapes, main)
    found |= {
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "objective": objectives.by_weights(scopes, generator, bool(has_main)),
        "generator": generator,
    }
    if kind.has_own_encoders:
        scope = kind.encoders[0]
        found["embedding_sharing"] = "shared"
        parts = {name.split("/")[1] for name in shapes if name.startswith(f"{scope}/")}
        if "embeddings" in parts:
            # Those of an untied generator have its width.
            summed = "embeddings_project" in parts
            found["embedding_sharing"] = "disentangled" if summed else "untied"
        [width, *_] = shapes[f"{scope}/encoder/layer_0/attention/self/query/kernel"]
        found["generator_hidden_size"] = width / hidden
        found["generator_layers"] = _depth(shapes, scope) / layers
    return found


def _assumed(shapes: Shapes) -> set[str]:
    """Fields of `fields_of_shapes` that no weight shows.

    No shape shows how many positions were trained. A generator without weights may be
    uniform, or stored elsewhere.
    """
    scopes = _scopes(shapes)
    if objectives.GENERATORS[objectives.by_scopes(scopes)].scopes:
        return {"max_seq_length"}
    unknown = set() if len(objectives.with_heads(scopes)) == 1 else {"objective"}
    return {"max_seq_length", "generator"} | unknown


def note_of_heads(width: int, origin: str) -> str:
    """The note on heads that are inferred from the width, one per 64.

    Raises `UserError` asking for them where that gives no whole number.
    """
    if width % 64:
        hparams = '{"model_hparam_overrides": {"num_attention_heads": N}}'
        raise UserError(
            f"{origin} does not say its number of attention heads, and its width, "
            f"{width}, is not a multiple of 64.\nSet num_attention_heads in the "
            f"hparams: {hparams}; or write that into hparams.json beside it."
        )
    return (
        f"Note: {origin} does not say its number of attention heads: {width // 64} "
        "inferred, one per 64 of its width."
    )
