# SPDX-License-Identifier: Apache-2.0
"""RunConfig: the settings that every run has, and how settings are resolved.

PretrainingConfig and FinetuningConfig add their own hparams to these.
"""

import copy
import dataclasses
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from electra_tf.config.hparams import (
    IDENTITY,
    PLACE,
    SETTING,
    applicable,
    check,
    defaults,
    identity,
    place,
    read_hparams,
    setting,
    show,
    values_in_roles,
    without_effect,
)
from electra_tf.config.model import BLOCK_HPARAMS, SIZES, ModelConfig, model_config
from electra_tf.errors import JSON_ERRORS, UserError
from electra_tf.paths import json_beside, shown
from electra_tf.storage.files import atomic_write
from electra_tf.storage.remote import fetch

# The data directory of settings that depend on no file: below it there can be none.
NO_DATA = os.devnull


@dataclasses.dataclass(frozen=True, init=False)
class RunConfig(ABC):
    """Hparams of pre-training and fine-tuning alike.

    `PretrainingConfig(model_size="base")` takes other values from the presets and
    defaults, and checks all. Raises `UserError` naming the hparam, its value and what
    is allowed.
    """

    has_one_length: ClassVar[bool] = True  # of all its batches

    data_dir: str = place("", "Directory of the data; from --data-dir.")
    model_name: str = place("", "Name of the pre-trained model; from --model-name.")

    # Optimization.
    weight_decay_rate: float = setting(
        0.01, "Decoupled weight decay; not on biases and LayerNorm.", ">= 0"
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Number of micro-batches per batch. Higher values need less memory and give "
        "the same result.",
        ">= 1",
    )
    on_nonfinite: str = setting(
        "stop",
        "What to do if a loss or gradient is not finite: stop, or skip the step.",
        ("stop", "skip"),
    )

    # Running.
    log_steps: int = setting(100, "Steps between progress lines.", ">= 1")
    precision: str = setting(
        "float32",
        "Number type of the computation; weights and losses stay float32.",
        ("float32", "mixed_bfloat16", "mixed_float16"),
    )
    jit_compile: bool | None = setting(
        None, "Compile the step with XLA; null: where that is faster."
    )

    # Model.
    model_size: str = setting(
        "small", "Size of the encoder; sets what is listed below.", tuple(SIZES)
    )
    model_hparam_overrides: dict[str, Any] = setting(
        {}, "Fields of ModelConfig to set by hand, such as num_hidden_layers."
    )
    embedding_size: int | None = identity(
        None, "Width of the embeddings; null: 128 for small, else the model's.", ">= 1"
    )
    vocab_size: int = identity(
        30522, "Number of tokens. Default: the number in vocab_file.", ">= 1"
    )
    do_lower_case: bool = identity(True, "The data and its vocabulary are lower-cased.")
    vocab_file: str = place(
        "<data-dir>/vocab.txt",
        "WordPiece vocabulary; fine-tuning prefers one in the model's directory.",
    )

    # TPU.
    use_tpu: bool = setting(False, "Run on a TPU.")
    num_tpu_cores: int = setting(1, "No effect: all cores are used.", ">= 1")
    tpu_job_name: str | None = setting(None, "Used with tpu_name only.")
    tpu_name: str | None = setting(
        None, "Cloud TPU; one of another machine is refused (docs/hardware.md)."
    )
    tpu_zone: str | None = setting(None, "Used with tpu_name only.")
    gcp_project: str | None = setting(None, "Used with tpu_name only.")

    def __init__(self, data_dir: str = NO_DATA, model_name: str = "model", **hparams):
        cls = type(self)
        if not data_dir:  # Files of the working directory would take part.
            raise UserError("--data-dir is empty: name the directory of the data.")
        run_directory(data_dir, model_name)
        explicit = cls._merged({}, cls.checked(hparams, f"{cls.__name__}(...)"))
        values = {"data_dir": data_dir, "model_name": model_name}
        values |= cls._presets(explicit) | explicit
        values = cls._default_locations(values) | values
        if "vocab_size" not in explicit:
            lines = count_lines(values["vocab_file"])
            values["vocab_size"] = lines or cls.vocab_size
        vars(self).update(defaults(cls) | values)
        vars(self).update(vars(self._completed()))
        self._check_together()

    def replaced(self, **changes) -> Self:
        """A copy with other values as they are: neither resolved nor checked."""
        copied = copy.copy(self)
        vars(copied).update(changes)
        return copied

    @classmethod
    def from_hparams(
        cls,
        data_dir: str,
        model_name: str,
        hparams: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        known: dict[str, Any] | None = None,
    ) -> Self:
        """The settings of a run, see the class.

        defaults < presets that explicit values imply (model_size, debug, ...) <
        `config` < `hparams`.

        Args:
            data_dir: the original's --data-dir, or NO_DATA.
            model_name: the original's --model-name.
            hparams: explicit values, from --hparams.
            config: explicit values, from the --config file.
            known: other known values, such as the shape of the model to start from,
                compared with the explicit values by the caller.

        """
        explicit = cls.explicit(hparams, config) | (known or {})
        for name, flag in (("data_dir", data_dir), ("model_name", model_name)):
            if explicit.pop(name, flag) != flag:
                raise UserError(f"{name} in the hparams is not the flag's {flag!r}")
        return cls(data_dir, model_name, **explicit)

    @classmethod
    def explicit(
        cls, hparams: dict[str, Any] | None, config: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The values that a user has set, each checked by itself."""
        first = cls.checked(config or {}, "--config")
        return cls._merged(first, cls.checked(hparams or {}, "--hparams"))

    @classmethod
    def _merged(cls, first: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
        """The checked hparams of --config, overridden by those of --hparams."""
        merged = first | then
        for field in dataclasses.fields(cls):
            old, new = first.get(field.name), then.get(field.name)
            is_place = field.metadata["role"] is PLACE  # Data sets replace others.
            if isinstance(old, dict) and isinstance(new, dict) and not is_place:
                merged[field.name] = old | new
        return merged

    @classmethod
    def checked(cls, hparams: dict[str, Any], source: str) -> dict[str, Any]:
        """Checks each hparam by itself, also the nested ones.

        Args:
            hparams: name -> value, from the user or a file.
            source: where they come from, for the message of a `UserError`.
        """
        # The block's hparams may stand beside the others, too.
        of_block = {k: v for k, v in hparams.items() if k in BLOCK_HPARAMS}
        others = {k: v for k, v in hparams.items() if k not in of_block}
        result = check(cls, others, source)
        overrides = of_block | result.get("model_hparam_overrides", {})
        if "vocab_size" in overrides:
            raise UserError(
                f"vocab_size in the model_hparam_overrides of {source}; set the hparam "
                "vocab_size instead"
            )
        if overrides:
            result["model_hparam_overrides"] = check(
                ModelConfig, overrides, f"the model_hparam_overrides of {source}"
            )
        return result

    @classmethod
    @abstractmethod
    def _presets(cls, explicit: dict[str, Any]) -> dict[str, Any]:
        """Values that explicit ones imply."""

    @classmethod
    @abstractmethod
    def _default_locations(cls, values: dict[str, Any]) -> dict[str, str]:
        """The default places of files: hparam -> path."""

    def _completed(self) -> Self:
        """The config with the values that follow from others."""
        if self.embedding_size is not None:
            return self
        width = self.model_config().hidden_size
        return self.replaced(embedding_size=width)

    def _check_together(self) -> None:
        """Raises a UserError for values that are right alone and wrong together."""
        shape = self.model_config()
        shape.check("the model", "model_hparam_overrides")
        values = vars(shape) | vars(self)
        for names, reason in self._broken_rules():
            found = [f"{name} {show(values[name])}" for name in names.split()]
            raise UserError(f"{' and '.join(found)}: {reason}")
        for part in (shape, self):
            for sentence in without_effect(part, "refuse"):
                raise UserError(sentence)

    def _broken_rules(self) -> Iterator[tuple[str, str]]:
        """(names, reason) of values that are right alone and wrong together."""
        if self.max_seq_length > self.model_config().max_length:
            reason = "lower the former, or raise the latter in model_hparam_overrides"
            yield "max_seq_length max_position_embeddings", reason

    @property
    def results_json(self) -> str:
        """Where results go as JSON."""
        return json_beside(self.results_txt)

    def model_config(self) -> ModelConfig:
        """The shape of the discriminator, or of the only encoder."""
        return model_config(
            self.model_size, self.vocab_size, self.model_hparam_overrides
        )

    def to_dict(self) -> dict[str, Any]:
        """All hparams by name."""
        return dataclasses.asdict(self)

    def save(self, path: str) -> None:
        """Writes a JSON file that `--config` takes, whole or not at all.

        Locations that were not set by hand are left out, so that the file can be used
        with another --data-dir and --model-name. An equal file is left unchanged, so
        that a full disk does not fail a later save.
        """
        values = self.to_dict()
        for name, usual in self.usual_locations().items():
            if values[name] == usual:
                del values[name]
        del values["data_dir"], values["model_name"]
        values = json.loads(shown(json.dumps(values, ensure_ascii=False)))
        text, file = json.dumps(values, indent=2) + "\n", Path(path)
        if not file.is_file() or file.read_bytes() != text.encode():
            atomic_write(path, text)

    def usual_locations(self) -> dict[str, str]:
        """The default places of this config: hparam -> path."""
        return self._default_locations(self.to_dict())

    def describe(self) -> list[str]:
        """A line for each hparam that was set to another value, one for the others."""
        values = self.to_dict()
        usual = defaults(type(self))
        usual |= self._presets(values) | self.usual_locations()
        unset = {name: None for name, value in usual.items() if value is None}
        completed = self.replaced(**unset)._completed()
        usual |= {name: getattr(completed, name) for name in unset}
        changed = [name for name in sorted(values) if values[name] != usual[name]]
        lines = [f"{name}: {json.dumps(values[name])}" for name in changed]
        return [*lines, f"{len(values) - len(changed)} others at their defaults"]

    def identity(self) -> dict[str, Any]:
        """The facts that identify a run: the model's shape and some hparams."""
        shape = values_in_roles(self.model_config(), IDENTITY)
        shape = applicable(ModelConfig, shape)
        if self.model_config().block == ModelConfig.block:
            del shape["block"]  # Runs of earlier versions do not have it.
        return shape | values_in_roles(self, IDENTITY)

    def settings(self) -> dict[str, Any]:
        """The hparams that are stored with a run's checkpoints and results."""
        return values_in_roles(self, IDENTITY, SETTING)


def run_directory(data_dir: str, model_name: str) -> str:
    """Where the run of that name lies; UserError for a name that leads elsewhere."""
    models = os.path.join(data_dir, "models")
    name = os.path.normpath(model_name)
    if name in (".", "..") or name.startswith(("/", "../")):
        raise UserError(
            f"--model-name {model_name!r} is not the name of a directory below "
            f"{models}."
        )
    return os.path.join(models, model_name)


def count_lines(path: str) -> int | None:
    """How many tokens a vocabulary has, if there is such a file.

    Lines, or entries of a tokenizer.json.
    """
    try:
        with open(fetch(path), "rb") as f:
            if path.endswith(".json"):
                return len(json.load(f)["model"]["vocab"])
            content = f.read().rstrip()  # as the vocabulary is read
            return content.count(b"\n") + 1 if content else 0
    except (OSError, *JSON_ERRORS):
        return None


# Recipes: configs/ of a checkout, or the copy that a wheel holds.
_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def recipes() -> dict[str, Path]:
    """Name -> file of each recipe."""
    paths = (path for folder in _FOLDERS for path in sorted(folder.glob("*.json")))
    return {path.stem: path for path in paths}


def read_config(name: str | None) -> dict[str, Any] | None:
    """The hparams of a --config: a recipe's name, or a JSON file; None: there is none.

    Raises `UserError` for anything else.
    """
    if name is None:
        return None
    found = recipes()
    if name.isidentifier() and name not in found and not Path(name).exists():
        raise UserError(
            f"--config {name}: neither a recipe nor a file.\n"
            f"Recipes: {', '.join(found)}."
        )
    return read_hparams(str(found.get(name, name)))
