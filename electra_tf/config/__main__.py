# SPDX-License-Identifier: Apache-2.0
"""Prints docs/hparams.md: python -m electra_tf.config > docs/hparams.md"""

from typing import Any

from electra_tf.config import finetuning, original, pretraining
from electra_tf.config.hparams import markdown_table, show
from electra_tf.config.model import SIZES, ModelConfig
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.run import RunConfig

_PAGE = """\
<!-- Written by `python -m electra_tf.config > docs/hparams.md`; do not edit. -->
# Hparams

`--hparams` takes them as JSON text or as a JSON file, `--config` as a file. Order:
defaults < what `model_size`, `objective`, a single task and `debug` imply <
`--config` < `--hparams`; what is given explicitly always wins. The resolved settings
are saved in the run directory and are themselves a `--config`.

## Every run

{common}

## Pre-training

{pretraining}

What else `model_size` sets (the paper, Table 6):

{sizes}

What `objective` sets:

{objectives}

`debug` sets {debug}.

The original's spelling of `objective`, `generator` and `embedding_sharing` is accepted
everywhere, and saved as these:

{original}

## Fine-tuning

{finetuning}

What a single task sets: `rte` and `sts` {long}; `squad`, `squadv1` and the names with
"qa" in them {qa}; `chunk` {chunk}; a task of your own of type `qa` or `tagging` what
these set. `model_size` large sets {large}; `debug` sets
{finetuning_debug}.

## Shape of the model: model_hparam_overrides

The defaults are those of the small size. `num_attention_heads` is hidden_size / 64 and
`intermediate_size` 4 * hidden_size unless they are set; `vocab_size` is set above.

{model}
"""


def _page() -> str:
    def settings(preset: dict[str, Any]) -> str:
        return ", ".join(f"`{name}` {show(value)}" for name, value in preset.items())

    return _PAGE.format(
        common=markdown_table(RunConfig),
        pretraining=markdown_table(pretraining.PretrainingConfig, RunConfig),
        sizes="\n".join(
            f"- {size}: {settings({**SIZES[size], **preset})}"
            for size, preset in pretraining.SIZE_PRESETS.items()
        ),
        objectives="\n".join(
            f"- {name}: {settings(kind.presets)}"
            for name, kind in OBJECTIVES.items()
            if kind.presets
        ),
        original=markdown_table(original.OriginalHparams),
        debug=settings(pretraining.DEBUG_PRESET),
        finetuning=markdown_table(finetuning.FinetuningConfig, RunConfig),
        long=settings(finetuning.LONG_PRESET),
        qa=settings(finetuning.QA_PRESET),
        chunk=settings(finetuning.CHUNK_PRESET),
        large=settings(finetuning.LARGE_PRESET),
        finetuning_debug=settings(finetuning.DEBUG_PRESET),
        model=markdown_table(ModelConfig),
    )


if __name__ == "__main__":
    print(_page(), end="")
