# SPDX-License-Identifier: Apache-2.0
"""The same files read and run by transformers and torch, where they are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from electra_tf.errors import EXIT_DAMAGED, UserError

NAME = "transformers"


def installed() -> bool:
    """Whether both packages are there."""
    return all(importlib.util.find_spec(name) for name in (NAME, "torch"))


def outputs(
    folder: Path, architecture: str, batch: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What `networks.outputs` returns, by transformers.

    Raises `UserError` (65) if it finds names missing or left over.
    """
    import torch
    import transformers

    cls = getattr(transformers, architecture)
    logging = transformers.utils.logging
    logging.disable_progress_bar()
    model, loading = cls.from_pretrained(
        str(folder), output_loading_info=True, local_files_only=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading[kind]:
            raise UserError(
                f"{folder}: transformers finds {kind.replace('_', ' ')} "
                f"{sorted(loading[kind])[0]}.",
                EXIT_DAMAGED,
            )
    inputs = {
        "input_ids": torch.tensor(batch["input_ids"], dtype=torch.long),
        "attention_mask": torch.tensor(batch["input_mask"], dtype=torch.long),
        "token_type_ids": torch.tensor(batch["segment_ids"], dtype=torch.long),
    }
    with torch.no_grad():
        result = model.eval()(**inputs, output_hidden_states=True)
    found = {"hidden": result.hidden_states[-1].numpy()}
    head = {
        "ElectraForPreTraining": "discriminator",
        "ElectraForMaskedLM": "generator",
        "ElectraForTokenClassification": "classifier",
    }.get(architecture)
    if head:
        found[head] = result.logits.numpy()
    return found
