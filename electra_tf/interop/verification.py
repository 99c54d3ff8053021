# SPDX-License-Identifier: Apache-2.0
"""Exports are read again and compared with their source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.console import Log
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import checkpoint, networks
from electra_tf.interop.checkpoint import StoredModel
from electra_tf.interop.networks import Network
from electra_tf.storage import manifest
from electra_tf.storage.atomic_folder import atomic_folder, require_room

TOLERANCE = 1e-5
_TRAINED_LENGTH = "trained_length"  # in manifests
_ROUNDINGS = 5  # by how many of its own errors a library in float32 may differ
_PACKAGES = (
    "electra-tf", "tensorflow", "tensorflow-text", "keras", "keras-hub", "numpy",
    "safetensors", "tokenizers", "torch", "transformers",
)  # fmt: skip


class Result(NamedTuple):
    """One comparison."""

    quantity: str
    read_by: str  # the library that read and ran the files
    difference: float  # greatest absolute difference
    tolerance: float


def fixed_batch(shape: ModelConfig, pad_id: int) -> dict[str, np.ndarray]:
    """Four rows of ids with padding and two segments, int32 [4, L].

    L is at most 32, or longer than the window of local attention.
    """
    length = min(shape.max_position_embeddings, 32)
    if not shape.kind.has_tables:
        length = 3 * shape.local_window // 2
    rng = np.random.default_rng(6)
    ids = rng.integers(0, shape.vocab_size, (4, length)).astype(np.int32)
    real = np.linspace(length, max(3, length // 3), 4).astype(int)[:, None]
    mask = (np.arange(length) < real).astype(np.int32)
    segments = ((np.arange(length) >= real // 2) * mask).astype(np.int32)
    return {
        "input_ids": np.where(mask == 1, ids, pad_id).astype(np.int32),
        "input_mask": mask,
        "segment_ids": segments % shape.type_vocab_size,
    }


def difference(expected, found, mask=None, relative: bool = False) -> float:
    """The greatest absolute difference, infinite for another shape, text or no number.

    Args:
      mask: [B, L], which tokens count, of an output of tokens [B, L, ...]; None: all.
      relative: whether it is divided by expected numbers beyond 1.
    """
    expected, found = np.asarray(expected), np.asarray(found)
    if expected.shape != found.shape:
        return float("inf")
    if expected.dtype.kind in "SUO":
        same = np.array_equal(expected.astype(object), found.astype(object))
        return 0.0 if same else float("inf")
    gap = np.abs(found.astype(np.float64) - expected)
    if relative:
        gap /= np.maximum(1.0, np.abs(expected))
    if mask is not None and gap.shape[:2] == np.shape(mask):
        gap = gap[np.asarray(mask, bool)]
    worst = float(np.max(gap, initial=0.0))
    return worst if np.isfinite(worst) else float("inf")


def scale_of(expected) -> float:
    """The greatest value of numbers, where it exceeds 1; 1 of texts."""
    expected = np.asarray(expected)
    is_number = expected.dtype.kind in "iuf"
    return float(np.max(np.abs(expected), initial=1.0)) if is_number else 1.0


def compare(
    read_by: str,
    ours: dict[str, np.ndarray],
    theirs: dict[str, np.ndarray],
    mask=None,
    in_float64: Callable[[], dict[str, np.ndarray]] | None = None,
    tolerance: float = TOLERANCE,
) -> list[Result]:
    """Results for outputs by name; raises `UserError` (65) beyond the tolerance.

    The tolerance is relative to the greatest value of an output where that exceeds 1.

    Args:
      in_float64: runs the other library in float64. Where float32 itself is coarser
        than the tolerance, by that library's outputs in both, that decides.
    """
    results = []
    for name, expected in ours.items():
        found = difference(expected, theirs[name], mask)
        results.append(Result(name, read_by, found, tolerance * scale_of(expected)))
    if in_float64 and not all(r.difference <= r.tolerance for r in results):
        exact = in_float64()
        for i, r in enumerate(results):
            rounding = difference(exact[r.quantity], theirs[r.quantity], mask)
            if np.isfinite(rounding):  # Some libraries give NaN in float64.
                coarser = max(r.tolerance, _ROUNDINGS * rounding)
                results[i] = r._replace(tolerance=coarser)
    require(results)
    return results


def require(results: Iterable[Result]) -> None:
    """Raises `UserError` (65) for the first result beyond its tolerance."""
    for r in results:
        if not r.difference <= r.tolerance:
            raise UserError(
                f"{r.quantity} differs by {r.difference:.3g} as read by {r.read_by}; "
                f"{r.tolerance:.3g} is allowed.\nNothing was written. Is that library "
                "of another version, or the model of another kind?",
                EXIT_DAMAGED,
            )


def show(results: Iterable[Result], log: Log) -> None:
    """A line for each comparison."""
    for r in results:
        gap = f"max difference {r.difference:.3g} (allowed {r.tolerance:.3g})"
        log(f"verified with {r.read_by}: {r.quantity}, {gap}")


def identical(stored: StoredModel, again: StoredModel) -> list[Result]:
    """Compares weights, slots, step and the identity of the config, exactly."""
    arrays, others = (
        {**model.tensors, **model.slots, checkpoint.STEP: model.step}
        for model in (stored, again)
    )
    gap = float("inf")
    if arrays.keys() == others.keys():
        gap = max(difference(array, others[name]) for name, array in arrays.items())
    configs = stored.config.identity(), again.config.identity()
    other = float("inf") if checkpoint.differences(*configs) else 0.0
    results = [
        Result("weights, slots and step", "electra_tf", gap, 0.0),
        Result("config", "electra_tf", other, 0.0),
    ]
    require(results)
    return results


def reread(
    network: Network, again: Network, pad_id: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[Result]]:
    """Compares a network with the one that was read from its files.

    Returns (a fixed batch, the network's `networks.outputs` on it, results).  Raises
    `UserError` (65) if it does not compute the same.
    """
    batch = fixed_batch(network.shape, pad_id)
    ours, theirs = (networks.outputs(one, batch) for one in (network, again))
    return batch, ours, compare("electra_tf", ours, theirs, batch["input_mask"])


def write_networks(
    found: Mapping[str, Network],
    stored: StoredModel,
    output_dir: str | os.PathLike,
    kind: str,
    write: Callable[[Network, Path], tuple[list[Result], Mapping[str, Any]]],
    log: Log,
) -> Path:
    """Writes networks into folders of their names below `output_dir`, all or none.

    Args:
      kind: the name of the format.
      write: (network, folder) -> (how it was verified, facts for the manifest).
    """
    shown = []
    with atomic_folder(output_dir) as parent:
        for name, network in found.items():
            folder = parent / name
            folder.mkdir()
            require_room(folder, network.tensors)
            results, facts = write(network, folder)
            write_manifest(folder, {**facts_of(stored, kind, name), **facts}, results)
            shown += [r._replace(quantity=f"{name}/{r.quantity}") for r in results]
    show(shown, log)
    return Path(output_dir)


def facts_of(stored: StoredModel, kind: str, what: str) -> dict[str, Any]:
    """The facts about a model in the manifest of an export of the format `kind`."""
    return {
        "format": kind,
        "what": what,
        "model": stored.name,
        "step": stored.step,
        _TRAINED_LENGTH: stored.trained_length,
        "vocab_sha256": stored.vocab.sha256,
        **stored.tokenizer_config._asdict(),
    }


def write_manifest(
    folder: Path, facts: Mapping[str, Any], results: Sequence[Result]
) -> None:
    """Writes the manifest: facts, the results of the comparison, every checksum."""
    compared = {
        "max_difference": max(r.difference for r in results),
        "verification": [r._asdict() for r in results],
    }
    manifest.write_manifest(folder, {**facts, **compared}, _PACKAGES)


def trained_length_in(folder: Path) -> int | None:
    """`StoredModel.trained_length` by the manifest of a folder that we have written."""
    found = manifest.read_json_if_there(folder / manifest.MANIFEST)
    return found.get(_TRAINED_LENGTH)
