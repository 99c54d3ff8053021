# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: whole or not at all, checked before they are trusted.

A checkpoint of step N is three files:

    model.ckpt-N.data-00000-of-00001, model.ckpt-N.index   TensorFlow's V2 format,
        tensors under the original program's names (`electra/...`, `<variable>/adam_m`,
        `global_step`), so that every reader of the original's checkpoints reads ours
    model.ckpt-N.json   the manifest: sizes and sha256 of the other two, what the run
        is (identity) and how it was set (settings). It is put in place last: without
        a manifest a checkpoint does not exist.

Everything is first written into `model.ckpt-N.partial/`, made durable, then moved.
A name that ends in `.partial` is therefore always the rest of an interrupted write or
removal, and is cleared at the next start; nothing else is ever deleted except the
oldest checkpoints beyond `keep_checkpoint_max`.

TensorFlow is imported only to read and write tensors; finding and checking
checkpoints works without it.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.paths import readable_by_tensorflow
from electra_tf.storage.files import PARTIAL, atomic_write, cannot_write, sync_directory
from electra_tf.storage.manifest import (
    CHECKPOINT_MANIFEST,
    CORRUPT,
    POINTER,
    CheckpointManifest,
    DamagedCheckpointError,
    complete_steps,
    name_of,
    pointer_to,
    split_name,
    verify_checkpoint,
    write_checkpoint_manifest,
)

if TYPE_CHECKING:
    from electra_tf.storage.mirror import Mirror

_SUFFIX = re.compile(r"\.(index|json|data-\d{5}-of-\d{5})")


@dataclasses.dataclass(eq=False)
class Checkpoints:
    """The checkpoints of one run directory.

    Args:
      directory: the run directory; created by the first save.
      keep: how many checkpoints stay (`keep_checkpoint_max`); 0 keeps all.
      identity: facts that identify the run (model shape, vocabulary,
        objective); restoring a checkpoint with others is refused.
      settings: the rest of the configuration; differences are logged.
      advice: what a user can do if this directory cannot be used.
      read_only: neither clears nor renames anything (evaluation beside a running
        training).
      before_save: called before each save; its errors prevent the save.
      mirror: of the run, which is checked before each save and uploads what is saved.
      log: called with one line of text.
    """

    directory: Path
    _: dataclasses.KW_ONLY
    keep: int = 0
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    advice: str = "choose another --model-name"
    read_only: bool = False
    before_save: Callable[[], None] = lambda: None
    mirror: Mirror | None = None
    log: Callable[[str], None] = print
    last_saved_step: int | None = dataclasses.field(default=None, init=False)

    def __post_init__(self):
        self.directory = Path(self.directory)
        # Through JSON and back, to be compared with values that were read.
        self.identity = json.loads(json.dumps(self.identity))
        self.settings = json.loads(json.dumps(self.settings))

    def prefix(self, step: int) -> str:
        """TensorFlow's path of the checkpoint of `step`."""
        return str(self.directory / name_of(step))

    def steps(self) -> list[int]:
        """Steps with any checkpoint file in the directory, intact or not, ascending."""
        return sorted(self._groups())

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _groups(self) -> dict[int, set[str]]:
        groups: dict[int, set[str]] = {}
        for name in self._names():
            parts = split_name(name)
            if parts and _SUFFIX.fullmatch(parts[1]):
                groups.setdefault(parts[0], set()).add(name)
        return groups

    def _partial(self, step: int) -> Path:
        return self.directory / (name_of(step) + PARTIAL)

    # ---------------------------------------------------------------- finding

    def clear_partial(self) -> None:
        """Removes the rest of interrupted writes and removals."""
        for name in filter(lambda name: name.endswith(PARTIAL), self._names()):
            path, parts = self.directory / name, split_name(name)
            if not path.is_dir():
                path.unlink()
            elif parts and parts[1] == PARTIAL:
                self._discard(parts[0])
                self.log(f"Cleared {path}, left by an interrupted save.")

    def _discard(self, step: int) -> None:
        """Removes an unfinished checkpoint: its folder and what had left it already."""
        if not Path(self.prefix(step) + CHECKPOINT_MANIFEST).exists():
            for orphan in self._groups().get(step, ()):
                (self.directory / orphan).unlink()
        shutil.rmtree(self._partial(step), ignore_errors=True)

    def verify(self, step: int) -> CheckpointManifest:
        """`verify_checkpoint` of a step."""
        return verify_checkpoint(self.directory, step)

    def newest_intact(self) -> CheckpointManifest | None:
        """The newest checkpoint that is whole; None in a directory that never had one.

        Damaged ones that are newer are reported and, once an intact one is found,
        renamed to `*.corrupt`. Raises `UserError`: 65 when there are traces of
        checkpoints but none is intact, so that a run never silently starts over.
        """
        if not self.read_only:
            self.clear_partial()
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                manifest = self.verify(step)
            except DamagedCheckpointError as error:
                damaged[step] = str(error)
                continue
            for bad, reason in damaged.items():
                self._pass_over(bad, f"{reason}; going back to step {step}")
            self.last_saved_step = step
            return manifest
        if self.read_only and max(self.steps(), default=-1) > max(damaged, default=-1):
            return self.newest_intact()  # The training beside us has gone on.
        traces = sorted(n for n in self._names() if n == POINTER or split_name(n))
        if traces:
            found = next(iter(damaged.values()), f"only {traces[0]} is left")
            raise UserError(
                f"{self.directory} holds no intact checkpoint: {found}.\nPut one back "
                "(model.ckpt-N.{data-*,index,json} belong together), or start anew: "
                f"{self.advice}.",
                EXIT_DAMAGED,
            )
        return None

    def _pass_over(self, step: int, reason: str) -> None:
        self.log(f"Damaged checkpoint of step {step} passed over: {reason}.")
        if self.read_only:
            return
        for name in sorted(self._groups()[step]):
            target = self.directory / (name + CORRUPT)
            number = 2
            while target.exists():
                target = self.directory / f"{name}{CORRUPT}-{number}"
                number += 1
            os.replace(self.directory / name, target)
        sync_directory(self.directory)

    def check_identity(self, manifest: CheckpointManifest) -> None:
        """Refuses a checkpoint of another run and logs changed settings.

        Raises `UserError` (2) with both values.
        """
        if found := differences(manifest.identity, self.identity):
            raise UserError(
                f"{self.prefix(manifest.step)} belongs to another run: "
                f"{as_text(found)}.\nRestore the old value, or {self.advice}."
            )
        if self.read_only:
            return
        for key, old, new in differences(manifest.settings, self.settings):
            self.log(f"Changed since step {manifest.step}: {key} {old!r} -> {new!r}")

    # ------------------------------------------------------- reading, writing

    def restore(
        self,
        manifest: CheckpointManifest,
        variables: Mapping[str, Any],
        partial: bool = False,
    ) -> None:
        """Assigns the tensors of a verified checkpoint to `variables`.

        Args:
          manifest: from `newest_intact` or `verify`.
          variables: name -> tf.Variable.
          partial: whether the checkpoint may also hold other tensors.

        Raises `UserError` (2) when names or shapes differ, naming the first.
        """
        stored = of_checkpoint(self.prefix(manifest.step))
        extra = sorted(set(stored.shapes) - set(variables))
        if extra and not partial:
            raise UserError(
                f"{stored.origin} holds {extra[0]} ({len(extra)} in all), which this "
                "run does not have."
            )
        stored.assign_to(variables)

    def save(self, step: int, variables: Mapping[str, Any]) -> None:
        """Writes the checkpoint of `step`; a no-op when that step is saved already.

        Raises `UserError` (73) when it cannot be written; earlier checkpoints are then
        untouched and nothing of the new one is left.
        """
        if step == self.last_saved_step:
            return
        if self.mirror:
            self.mirror.check()
        self.before_save()
        partial = self._partial(step)
        try:
            partial.mkdir(parents=True)
            write_tensors(partial / name_of(step), variables)
            write_checkpoint_manifest(partial, step, self.identity, self.settings)
            # The manifest comes last, when the others are durable.
            manifest = partial / (name_of(step) + CHECKPOINT_MANIFEST)
            for path in sorted(set(partial.iterdir()) - {manifest}):
                os.replace(path, self.directory / path.name)
            sync_directory(self.directory)
            os.replace(manifest, self.directory / manifest.name)
            sync_directory(self.directory)
            partial.rmdir()
        except OSError as error:
            self._discard(step)
            raise cannot_write(self.prefix(step), error) from error
        self.last_saved_step = step
        self._remove_old()
        # For `tf.train.latest_checkpoint`; it is never read here.
        text = pointer_to([name_of(s) for s in self.steps()])
        atomic_write(self.directory / POINTER, text)
        if self.mirror:
            self.mirror.upload()

    def _remove_old(self) -> None:
        if not self.keep:
            return
        # The last save stays, even if there are higher steps.
        ours = complete_steps(self._names())
        ours.sort(key=lambda step: (step == self.last_saved_step, step))
        for step in ours[: -self.keep]:
            try:
                self._remove(step)
            except OSError as error:
                # The save has succeeded, so this ends no run. On NFS a folder cannot
                # go while somebody reads a file of it.
                self.log(
                    f"The old checkpoint of step {step} could not be removed: "
                    f"{error.strerror}; the next start clears what is left of it."
                )

    def _remove(self, step: int) -> None:
        # The manifest goes first, beside a directory that marks the rest as ours to
        # clear, so that a kill in between leaves no half checkpoint.
        self._partial(step).mkdir(exist_ok=True)
        os.unlink(self.prefix(step) + CHECKPOINT_MANIFEST)
        self._discard(step)


class BackgroundSaver:
    """Saves to `checkpoints` during training, one after the other.

    Training waits only for the copy of the variables; the rest is the work of a thread,
    in the order and with the guarantees of `Checkpoints.save`.

    Attributes:
      checkpoints: where to.
      seconds: how long the last save took, from the copy to the last rename.
    """

    def __init__(self, checkpoints: Checkpoints):
        self.checkpoints = checkpoints
        self.seconds = 0.0
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._future: Future[None] | None = None

    def save(self, step: int, variables: Mapping[str, Any]) -> None:
        """Copies the variables and starts to write them; waits for an earlier save.

        Raises what the earlier save failed with.
        """
        import tensorflow as tf

        self.wait()
        if step == self.checkpoints.last_saved_step:
            return
        self.checkpoints.log(f"Saving {self.checkpoints.prefix(step)}")
        started = time.monotonic()
        # The host must hold the state twice: the copy lives until it is written.
        with tf.device("CPU:0"):
            copies = {k: np.array(tf.identity(v)) for k, v in variables.items()}

        def write() -> None:
            self.checkpoints.save(step, copies)
            self.seconds = time.monotonic() - started

        self._future = self._pool.submit(write)

    def check(self) -> None:
        """Raises what a save that has ended failed with."""
        if self._future and self._future.done():
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written; raises what the save failed with."""
        future, self._future = self._future, None
        if future:
            future.result()


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) wherever the two differ; first what both have."""
    old, new = flat(old), flat(new)
    keys = sorted(set(old) | set(new), key=lambda k: (k not in old or k not in new, k))
    return [
        (key, old.get(key), new.get(key))
        for key in keys
        if old.get(key) != new.get(key)
    ]


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by names such as "tasks: mine: text_a"."""
    found = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}: ")
        else:
            found[prefix + name] = value
    return found


def as_text(found: list[tuple[str, Any, Any]], most: int | None = 3) -> str:
    """The first of `differences`, for a message; most None: all."""
    return "; ".join(
        f"{key} is {old!r} there, {new!r} here" for key, old, new in found[:most]
    )


# Tensors by name.

# Endings of the names of a variable's optimizer slots.
SLOTS = ("/adam_m", "/adam_v")


class StoredTensors(NamedTuple):
    """Tensors by name, read one at a time."""

    origin: str  # for messages
    shapes: dict[str, list[int]]
    get: Callable[[str], np.ndarray]

    def assign_to(self, variables: Mapping[str, Any]) -> None:
        """Assigns the tensors to name -> tf.Variable.

        Every variable must be there in its shape; other tensors are ignored. Raises
        `UserError` naming the first that does not fit.
        """
        slots = [any(n.endswith(SLOTS) for n in s) for s in (variables, self.shapes)]
        if slots == [True, False]:
            raise UserError(
                f"{self.origin} has no Adam slots, so it cannot be continued.\nGive it "
                "as init_checkpoint to a new --model-name; its optimizer starts anew."
            )
        if missing := sorted(set(variables) - set(self.shapes)):
            count = len(missing)
            raise UserError(f"{self.origin} has no {missing[0]} ({count} missing).")
        for name, variable in variables.items():
            if (wanted := list(variable.shape)) != (shape := self.shapes[name]):
                raise UserError(
                    f"{self.origin}: {name} has shape {shape}, this run needs {wanted}."
                )
        for name, variable in variables.items():
            variable.assign(self.get(name))


def of_arrays(origin: str, arrays: Mapping[str, np.ndarray]) -> StoredTensors:
    """Tensors that are in memory already."""
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return StoredTensors(origin, shapes, arrays.__getitem__)


def of_checkpoint(prefix: str) -> StoredTensors:
    """The tensors of a checkpoint of this or of the original program.

    Raises `UserError` (65) when it cannot be read.
    """
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(readable_by_tensorflow(prefix))
    except (tf.errors.OpError, ValueError) as error:
        raise UserError(
            f"cannot read {prefix}: {reason_of(error)}", EXIT_DAMAGED
        ) from error
    return StoredTensors(prefix, reader.get_variable_to_shape_map(), reader.get_tensor)


def write_tensors(prefix: str | os.PathLike, named: Mapping[str, Any]) -> None:
    """Writes tensors, arrays or variables by name, in TensorFlow's V2 format.

    Raises `OSError`.
    """
    import tensorflow as tf

    names = sorted(named)
    with tf.device("CPU:0"):
        tensors = [tf.identity(named[name]) for name in names]
        try:
            tf.raw_ops.SaveV2(
                prefix=str(prefix),
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=tensors,
            )
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, error.message.splitlines()[0]) from error
