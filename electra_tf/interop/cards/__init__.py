# SPDX-License-Identifier: Apache-2.0
"""Model cards: the one template in this folder, and its filling."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_tf.config.model import ModelConfig

if TYPE_CHECKING:
    from electra_tf.interop.checkpoint import StoredModel

CARD = "README.md"


class Publication(NamedTuple):
    """What a publisher states of a model."""

    license: str | None = None
    language: str | None = None  # codes, separated by commas


UNSTATED = Publication()


def fill(part: str, **facts: object) -> str:
    """A part of cards.md, with `$name` replaced by the fact of that name.

    Each part begins with a comment that holds its name. Paragraphs may be empty.
    """
    path = Path(__file__).with_name("cards.md")
    _, *found = re.split(r"(?m)^<!-- (.+) -->\n", path.read_text(encoding="utf-8"))
    parts = dict(zip(found[::2], found[1::2], strict=True))
    text = string.Template(parts[part]).substitute(facts)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def write(
    folder: Path,
    stored: StoredModel,
    publication: Publication,
    metadata: Mapping[str, Any],
    shape: ModelConfig | None = None,
    **facts: object,
) -> None:
    """Writes README.md of a model, with the front matter that Hugging Face reads.

    Args:
      metadata: more fields of `ModelCardData`.
      shape: of a network of the model; None: of its discriminator.
      facts: use (what it does, and programs); title, more (sections) and what else
        differs from the whole model's.
    """
    from huggingface_hub import ModelCardData  # reads the environment, and is slow

    license, language = publication
    languages = language.split(",") if language else None
    data = ModelCardData(license=license, language=languages, **metadata)
    length = stored.trained_length
    defaults = dataclasses.asdict(shape or stored.config.model_config()) | {
        "title": stored.name,
        "more": "",
        "license": fill("license", license=license) if license else "",
        "embedding_size": stored.config.embedding_size,
        "tokenizer": stored.tokenizer_config,
        "length": f"{length} tokens" if length else "not known",
        "front_matter": data.to_yaml(),
    }
    text = fill("card", **defaults | facts)
    (folder / CARD).write_text(f"{text}\n", encoding="utf-8")
