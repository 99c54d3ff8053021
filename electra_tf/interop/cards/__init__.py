# SPDX-License-Identifier: Apache-2.0
"""Model cards: the one template in this folder, and its filling.

Every format has the same card: its own text and programs, then what the files of the
model and its run record. Missing facts are marked.
"""

from __future__ import annotations

import dataclasses
import json
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.config.model import ModelConfig
from electra_tf.config.pretraining import data_folder, started_phases
from electra_tf.data.record_index import folders_of, read_manifest
from electra_tf.interop.checkpoint import StoredModel
from electra_tf.paths import joined
from electra_tf.storage.manifest import read_json_if_there
from electra_tf.train.reporting import data_of, results_of

CARD = "README.md"
_UNKNOWN = "Not recorded in the files of the model."
_HPARAMS = (
    "objective generator task_names num_train_epochs num_train_steps train_batch_size "
    "max_seq_length learning_rate num_warmup_steps weight_decay_rate "
    "layerwise_lr_decay mask_prob gen_weight disc_weight precision seed phases"
).split()


class Publication(NamedTuple):
    """What a publisher states of a model."""

    license: str | None = None
    language: str | None = None  # codes, separated by commas
    handle: str | None = None  # owner/model; the title is its second half


UNSTATED = Publication()


def fill(part: str, **facts: object) -> str:
    """A part of cards.md, with `$name` replaced by the fact of that name.

    Each part begins with a comment that holds its name. Integers are written as 1,024.
    """
    path = Path(__file__).with_name("cards.md")
    _, *found = re.split(r"(?m)^<!-- (.+) -->\n", path.read_text(encoding="utf-8"))
    parts = dict(zip(found[::2], found[1::2], strict=True))
    shown = {k: f"{v:,}" if isinstance(v, int) else v for k, v in facts.items()}
    text = string.Template(parts[part]).substitute(shown)
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
      facts: use (what it does, and programs), kind (behind the title), limits, and
        what else differs from the whole model's.
    """
    from huggingface_hub import ModelCardData  # reads the environment, and is slow

    license, language, handle = publication
    languages = language.split(",") if language else None
    front = ModelCardData(license=license, language=languages, **metadata)
    shape = shape or stored.config.model_config()
    positions = shape.max_position_embeddings if shape.kind.has_tables else "any number"
    known = dataclasses.asdict(shape) | {
        "positions": positions,
        "title": (handle or stored.name).split("/")[-1],
        **{"kind": "", "limits": ""},
        "license": license or "not stated",
        "embedding_size": stored.config.embedding_size,
        "tokenizer": stored.tokenizer_config,
        "length": stored.trained_length or "not known",
        "front_matter": front.to_yaml(),
    }
    text = fill("card", **known | _of_run(stored) | facts)
    (folder / CARD).write_text(f"{text}\n", encoding="utf-8")


def _of_run(stored: StoredModel) -> dict[str, str]:
    """What the files of its run record of its origin, data, training and evaluation."""
    place = Path(stored.origin)
    run = place if place.is_dir() else place.parent
    hparams = read_json_if_there(run / "config.json")
    values = {n: json.dumps(hparams[n]) for n in _HPARAMS if hparams.get(n)}
    known = dict.fromkeys(("data", "evaluation"), _UNKNOWN) | {
        "origin": "Exported with electra_tf.",
        "training": "\n".join(f"- `{n}`: {values[n]}" for n in values) or _UNKNOWN,
    }
    if "gen_weight" not in hparams:  # of another program, or of fine-tuning
        return known
    start = "/".join(Path(hparams.get("init_checkpoint") or "").parts[-2:])
    start = start and f", from the weights of {start}"
    results = results_of(run)
    where = f"step {results.get('global_step', '?')}, {data_of(results)}"
    labels, numbers = results.get("labels", {}), results.get("metrics", {}).items()
    rows = [f"| {labels.get(n, n)} | {v:.4f} |" for n, v in numbers if v is not None]
    table = fill("evaluation", where=where, rows="\n".join(rows))
    return known | {
        "origin": f"Pre-trained for {stored.step:,} steps with electra_tf{start}.",
        "data": "\n".join(_data(hparams, run, stored.step)),
        "evaluation": table if rows else "Not evaluated.",
    }


def _data(hparams: dict[str, Any], run: Path, step: int) -> Iterator[str]:
    """What the manifests of the data that a run has read record of each corpus."""
    for part in started_phases(hparams, step):
        usual = run.parent.parent / data_folder(part, hparams.get("phases", []))
        given = folders_of(joined(part.get("pretrain_tfrecords") or ""))
        for folder in given or [str(usual)]:
            manifest = read_manifest(folder) or {}
            corpus = manifest.get("corpus") or {}
            names = ", ".join(corpus.get("names", [])[:10])
            facts = {"names": names, "length": manifest.get("max_seq_length")}
            yield fill("corpus", **corpus | facts) if corpus else _UNKNOWN
