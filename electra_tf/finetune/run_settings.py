# SPDX-License-Identifier: Apache-2.0
"""What the results of a run follow from, beside its data; what of it has changed.

Results and checkpoints of a trial both store it, and are compared by the same rule:
hparams that change no number may change, and what one side does not say is unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import PLACE, default_of, show
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.paths import shown
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

# The keys of a task's description that name files.
FILES = ("train", "dev", "test")
# Beside the hparams; earlier versions did not store all of them.
_FACTS = ("init_checkpoint", "init_sha256", "vocab_sha256", "tokenizer")
_HASHES = {
    "init_sha256": "the hash of the weights of init_checkpoint",
    "vocab_sha256": "the hash of the vocabulary",
}
_DIGITS = 12  # of a hash that a message shows
# Hparams that say where the work is done, or nothing.
_WITHOUT_INFLUENCE = (
    *("debug", "write_distill_outputs", "use_tpu", "num_tpu_cores"),
    *("tpu_job_name", "tpu_name", "tpu_zone", "gcp_project"),
)


def settings_of(
    config: FinetuningConfig, source: CheckpointInfo | None, vocab: Vocabulary | None
) -> dict[str, Any]:
    """All that is stored of a run.

    Args:
      source: where the weights come from; None: they are random, or, where nothing is
        trained, each trial has its own, which its result names.
      vocab: None where the vocabulary is not to be looked at.
    """
    found = _without_places(config.settings())
    if source or config.do_train:
        found["init_checkpoint"] = shown(source.origin) if source else None
    if source:
        found["init_sha256"] = source.weights_sha256()
    if vocab:
        found["vocab_sha256"] = vocab.sha256
        tokenizer = resolve_settings(vocab, do_lower_case=config.do_lower_case)
        found["tokenizer"] = tokenizer._asdict()
    return found


def without_files(description: Any, files: Collection[str] = FILES) -> Any:
    """The description of a task without its files: what is in them has hashes."""
    if not isinstance(description, Mapping):
        return description
    return {key: value for key, value in description.items() if key not in files}


def differences(
    stored: Mapping[str, Any], ours: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
    """(name, value there, value here) of all that differs and counts.

    Args:
      stored: what `settings_of` once returned, perhaps that of an earlier version:
        hparams that it did not have were as they are by default.
      ours: the same of this run, out of JSON as well.
      ignored: names that are not compared.
    """
    fields = dataclasses.fields(FinetuningConfig)
    defaults = {
        f.name: default_of(f)
        for f in fields
        if f.name in ours and f.metadata["role"] is not PLACE
    }
    stored, ours = (_without_places(x) for x in (defaults | dict(stored), ours))
    if "init_sha256" in stored and "init_sha256" in ours:
        ignored = {*ignored, "init_checkpoint"}  # The weights count, not their place.
    found = []
    for name in sorted({*stored, *ours} - {*ignored, *_WITHOUT_INFLUENCE}):
        if name in _FACTS and not (name in stored and name in ours):
            continue
        there, here = stored.get(name), ours.get(name)
        if there != here:
            found.append((name, there, here))
    return found


def said(changed: Sequence[tuple[str, Any, Any]]) -> str:
    """The text of what `differences` found: the first, and the names of all.

    Values are written as in --hparams.
    """

    def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
        keys = sorted({*a, *b})
        return next(k for k in keys if (k in a, a.get(k)) != (k in b, b.get(k)))

    name, there, here = changed[0]
    while isinstance(there, Mapping) and isinstance(here, Mapping):
        inner = differing(there, here)
        name, there, here = f"{name}: {inner}", there.get(inner), here.get(inner)
    if name in _HASHES:
        there, here = str(there)[:_DIGITS], str(here)[:_DIGITS]
    name = _HASHES.get(name, name)
    count = f"{len(changed)} in all"
    if len(changed) > 1:
        names = [_HASHES.get(name, name) for name, _, _ in changed]
        count += f": {', '.join(names)}"
    return f"{name} is {show(there)} there, {show(here)} here ({count})"


def taken_over(stored: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that are stored and that this run does not know."""
    return {k: stored[k] for k in _FACTS if k in stored and k not in ours}


def _without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the descriptions of the tasks that are trained, without files."""
    names, described = settings.get("task_names", ()), settings.get("tasks", {})
    tasks = {n: without_files(described[n]) for n in names if n in described}
    return {**settings, "tasks": tasks}
