# SPDX-License-Identifier: Apache-2.0
"""Writes the directory that is published: archives of SavedModels, pages, card."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from electra_tf.config import phases
from electra_tf.export import hub_card, saved_model
from electra_tf.export.hub_archives import CARD, CHECKSUMS, unpack
from electra_tf.export.signatures import ExportedModel
from electra_tf.inference import html_report
from electra_tf.paths import joined
from electra_tf.pretrain import history
from electra_tf.storage.manifest import read_json, sha256
from electra_tf.storage.new_folder import new_folder
from electra_tf.storage.remote import expand, fetch_once


def kinds_of(source: ExportedModel) -> list[str]:
    """The SavedModels that are published: a generator only if there is nothing else.

    And a preprocessor only beside the encoder whose inputs it packs.
    """
    kinds = saved_model.kinds_of(source)
    if "encoder" not in kinds:
        kinds.remove("preprocessor")
    if "detector" in kinds:
        kinds = [kind for kind in kinds if kind != "generator"]
    return kinds


def facts_of(source: ExportedModel, run_dir: Path | None = None) -> hub_card.RunFacts:
    """What a model card can say.

    Args:
      run_dir: of the run; None when there is only a checkpoint. One of fine-tuning
        knows nothing of the pre-training.
    """
    model = source.pretrainer
    fields = (
        "num_hidden_layers hidden_size num_attention_heads vocab_size "
        "max_position_embeddings"
    ).split()
    sizes = {name: getattr(model.model_config, name) for name in fields}
    hparams = run_dir and _json_if_there(run_dir / "config.json")
    if hparams and "task_names" in hparams:
        hparams = run_dir = None
    results, data = None, []
    step = source.facts.get("step", 0)
    if run_dir is not None:
        results = html_report.results_of(run_dir) or None
        data = _manifests(hparams or {}, run_dir, step)
    return hub_card.RunFacts(
        step=step,
        objective=model.objective.name,
        sizes=sizes | {"embedding_size": model.settings.embedding_size},
        tokenizer=str(source.tokenizer_config),
        trained_length=source.facts.get("trained_length"),
        hparams=hparams,
        results=results,
        data=data,
    )


def _manifests(hparams, run_dir: Path, step: int) -> list:
    """Those of the data that a run has read; None for one that is not there."""
    found = []
    for part in history.begun(hparams, step):
        usual = phases.folder_of(part, hparams.get("phases", []))
        shards = expand(joined(part.get("pretrain_tfrecords") or ""))
        folders = [Path(shard).parent for shard in shards]
        folders = folders or [run_dir.parent.parent / usual]
        found += [str(folder / "manifest.json") for folder in folders]
    return [_json_if_there(Path(fetch_once(path))) for path in dict.fromkeys(found)]


def _json_if_there(path: Path) -> dict[str, Any] | None:
    """A file's JSON object; `UserError` (65) for another content."""
    return read_json(path) if path.is_file() else None


def write_hub_directory(
    source: ExportedModel,
    facts: hub_card.RunFacts,
    handle: str,
    output_dir: str | os.PathLike,
    licence: str = hub_card.LICENCE,
) -> None:
    """Writes the directory, whole or not at all.

    Raises UserError: 73 when it cannot be written, 65 when an archive does not hold
    what was exported.
    """
    with new_folder(output_dir) as folder:
        (folder / "docs").mkdir()
        sums, differences = [], {}
        for kind in kinds_of(source):
            work, archive = folder / "work", folder / f"{kind}.tar.gz"
            work.mkdir()
            servable = saved_model.servable_of(source, kind)
            differences[kind] = saved_model.fill_folder(work, servable, source, kind)
            sums.append(f"{_pack(work, archive)}  {archive.name}\n")
            shutil.rmtree(work)
            page = hub_card.hub_page(kind, handle, facts, licence)
            (folder / "docs" / f"{kind}.md").write_text(page, encoding="utf-8")
        (folder / CHECKSUMS).write_text("".join(sums))
        kinds = list(differences)
        card = hub_card.model_card(
            source.name, handle, facts, licence, kinds, differences
        )
        (folder / CARD).write_text(card, encoding="utf-8")


def _pack(directory: Path, archive: Path) -> str:
    """Writes a .tar.gz of a directory's content; returns its sha256.

    Equal content gives equal archives: no times, owners or names of machines in them.
    """

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with open(archive, "wb") as f:
        with gzip.GzipFile("", "wb", 6, f, mtime=0) as compressed:
            with tarfile.open(fileobj=compressed, mode="w") as tar:
                for path in sorted(directory.iterdir()):
                    tar.add(path, path.name, filter=plain)
    with tempfile.TemporaryDirectory(dir=archive.parent) as unpacked:
        unpack(archive, Path(unpacked))
    return sha256(archive)
