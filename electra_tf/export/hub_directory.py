# SPDX-License-Identifier: Apache-2.0
"""Writes the directory that is published: archives of SavedModels, pages, card."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from electra_tf.export import hub_card, saved_models
from electra_tf.export.exported import Source
from electra_tf.export.formats import read_source
from electra_tf.export.hub_archives import (
    CARD,
    CHECKSUMS,
    check_empty,
    check_handle,
    unpack,
)
from electra_tf.storage.files import PARTIAL, cannot_write, sync_directory
from electra_tf.storage.manifest import sha256, verify_checksums


def kinds_of(source: Source) -> list[str]:
    """The SavedModels that are published: a generator only if there is nothing else."""
    kinds = saved_models.kinds_of(source)
    if "detector" in kinds:
        kinds = [kind for kind in kinds if kind != "generator"]
    return kinds


def facts_of(source: Source, run_dir: Path | None = None) -> hub_card.RunFacts:
    """What a model card can say.

    Args:
      run_dir: of the pre-training run; None when there is only a checkpoint.
    """
    model = source.pretrainer
    fields = (
        "num_hidden_layers hidden_size num_attention_heads vocab_size "
        "max_position_embeddings"
    ).split()
    sizes = {name: getattr(model.model_config, name) for name in fields}
    hparams = results = data = None
    if run_dir is not None:
        hparams = hub_card.read_json(run_dir / "config.json")
        results = hub_card.read_json(run_dir / "results" / "unsup_results.json")
        records = (hparams or {}).get("pretrain_tfrecords")
        folder = Path(records).parent if records else None
        folder = folder or run_dir.parent.parent / "pretrain_tfrecords"
        data = hub_card.read_json(folder / "manifest.json")
    return hub_card.RunFacts(
        step=source.facts.get("step", 0),
        objective=model.objective.name,
        sizes=sizes | {"embedding_size": model.settings.embedding_size},
        tokenizer=str(source.tokenizer_config),
        max_seq_length=source.max_seq_length,
        hparams=hparams,
        results=results,
        data=data,
    )


def write(
    source: Source,
    facts: hub_card.RunFacts,
    handle: str,
    output_dir: str | os.PathLike,
    licence: str = "apache-2.0",
) -> Path:
    """Writes the directory, whole or not at all.

    Raises UserError: 2 for a directory that is there already, 73 when it cannot be
    written, 65 when an archive does not hold what was exported.
    """
    check_handle(handle)
    final = Path(output_dir)
    check_empty(final)
    partial = final.with_name(final.name + PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "docs").mkdir(parents=True)
        sums, differences = [], {}
        for kind in kinds_of(source):
            exported = saved_models.export_saved_model(source, kind, partial / "work")
            manifest = verify_checksums(exported)
            differences[kind] = manifest["max_difference"]
            archive = partial / f"{kind}.tar.gz"
            sums.append(f"{_pack(exported, archive)}  {archive.name}")
            page = hub_card.hub_page(kind, handle, 1, facts, licence)
            (partial / "docs" / f"{kind}.md").write_text(page, encoding="utf-8")
        shutil.rmtree(partial / "work")
        (partial / CHECKSUMS).write_text("\n".join(sums) + "\n")
        kinds = list(differences)
        card = hub_card.model_card(
            source.name, handle, facts, licence, kinds, differences
        )
        (partial / CARD).write_text(card, encoding="utf-8")
        if final.exists():
            final.rmdir()
        os.replace(partial, final)
        sync_directory(final.parent)
    except OSError as error:
        raise cannot_write(final, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


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
        f.flush()
        os.fsync(f.fileno())
    with tempfile.TemporaryDirectory(dir=archive.parent) as unpacked:
        unpack(archive, Path(unpacked))
    return sha256(archive)


def write_request(request) -> Path:
    """The directory for a request of export_model.py's command line."""
    source = saved_models.source_of(read_source(request))
    run_dir = Path(request.model_dir) if request.model_dir else None
    facts = facts_of(source, run_dir)
    handle, licence = request.handle, request.license
    return write(source, facts, handle, request.output_dir, licence)
