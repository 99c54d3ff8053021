# SPDX-License-Identifier: Apache-2.0
"""Prints docs/hparams.md: python3 docs/make_hparams.py > docs/hparams.md"""

import dataclasses
from typing import Any

from electra_tf.config import finetuning, pretraining
from electra_tf.config.hparams import default_of, show
from electra_tf.config.model import SIZES, ModelConfig
from electra_tf.config.objectives import OBJECTIVES, OriginalHparams
from electra_tf.config.run import RunConfig

_PAGE = """\
<!-- Written by `python3 docs/make_hparams.py > docs/hparams.md`; do not edit. -->
# Hparams

`--hparams` takes JSON text or a JSON file, `--config` a file or a recipe's name.
Order: defaults < presets (`model_size`, `objective`, a single task, `debug`) <
`--config` < `--hparams`. The saved config.json of a run is itself a `--config`.
Each line has the default and, where they are few, all choices.

## Every run

{common}

## Pre-training

{pretraining}

`model_size` sets (the paper, Table 6):

{sizes}

`objective` sets:

{objectives}

`debug` sets {debug}.

The original's booleans are accepted and translated:

{original}

## Fine-tuning

{finetuning}

A single task sets: `rte`, `sts` {long}; `squad`, `squadv1`, names with "qa" {qa};
`chunk` {chunk}; your own of type `qa` or `tagging` the same. `model_size` large sets
{large}; `debug` {finetuning_debug}.

## model_hparam_overrides

Defaults of the small size; `num_attention_heads` is hidden_size / 64 and
`intermediate_size` 4 * hidden_size unless set.

{model}
"""


def _list(cls: type, without: type | None = None) -> str:
    """A dataclass's hparams, a line each: name, default, meaning, choices.

    Args:
        without: a class whose hparams are left out.
    """
    left_out = {f.name for f in dataclasses.fields(without)} if without else set()
    rows = []
    for field in dataclasses.fields(cls):
        doc, default = field.metadata["doc"], default_of(field)
        allowed = field.metadata["allowed"]
        choices = () if isinstance(allowed, str) else allowed
        if names := ", ".join(show(choice) for choice in choices):
            doc += f" Choices: {names}."
        if field.name not in left_out:
            text = default if isinstance(default, str) else show(default)
            rows.append(f"- `{field.name}` (`{text or '-'}`): {doc}")
    return "\n".join(rows)


def _page() -> str:
    def settings(preset: dict[str, Any]) -> str:
        return ", ".join(f"`{name}` {show(value)}" for name, value in preset.items())

    return _PAGE.format(
        common=_list(RunConfig),
        pretraining=_list(pretraining.PretrainingConfig, RunConfig),
        sizes="\n".join(
            f"- {size}: {settings({**SIZES[size], **preset})}"
            for size, preset in pretraining.SIZE_PRESETS.items()
        ),
        objectives="\n".join(
            f"- {name}: {settings(kind.presets | kind.needs)}"
            for name, kind in OBJECTIVES.items()
            if kind.presets or kind.needs
        ),
        original=_list(OriginalHparams),
        debug=settings(pretraining.DEBUG_PRESET),
        finetuning=_list(finetuning.FinetuningConfig, RunConfig),
        long=settings(finetuning.LONG_PRESET),
        qa=settings(finetuning.QA_PRESET),
        chunk=settings(finetuning.CHUNK_PRESET),
        large=settings(finetuning.SIZE_PRESETS["large"]),
        finetuning_debug=settings(finetuning.DEBUG_PRESET),
        model=_list(ModelConfig),
    )


if __name__ == "__main__":
    print(_page(), end="")
