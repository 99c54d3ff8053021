# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from electra_tf.console import closed_streams, silence
from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_LOCKED, UserError
from electra_tf.paths import cache_root, url_of

# A name with this ending is the rest of an interrupted write, and safe to remove.
PARTIAL = ".partial"
_FULL_OR_FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM)
_FULL_OR_FORBIDDEN += (errno.EROFS,)
# What flock fails with where the file system does not have it; EBADF is what NFS says
# of a folder.
_NO_FLOCK = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_NO_FLOCK += (errno.EBADF,)


def cannot_write(path: str | os.PathLike, error: BaseException) -> UserError:
    """The error for a failed write: what failed, and what helps.

    Where it is for room or permissions, how much room is left.
    """
    path = Path(path)
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    advice = "Put that right, and run the command again."
    # TensorFlow's errors have the words alone.
    if getattr(error, "errno", None) in _FULL_OR_FORBIDDEN or any(
        os.strerror(code) in reason for code in _FULL_OR_FORBIDDEN
    ):
        advice = (
            f"{_room_at(path)}What was saved before is intact; make room or fix the "
            "permissions and run the command again."
        )
    copy = f"the copy in {cache_root()} of " if url_of(path) else ""
    return UserError(
        f"cannot write {copy}{path}: {reason}\n{advice}", EXIT_CANNOT_WRITE
    )


def _room_at(path: Path) -> str:
    try:
        left = shutil.disk_usage(path if path.is_dir() else path.parent).free / 1e6
    except OSError:
        return ""
    return f"{left:.0f} MB are free there. "


def check_place(directory: str | os.PathLike) -> None:
    """Raises a UserError (73) for a directory that cannot be made or written into."""
    directory = Path(directory).absolute()
    there = next(p for p in (directory, *directory.parents) if os.path.lexists(p))
    if not there.is_dir():
        raise cannot_write(directory, OSError(errno.ENOTDIR, f"{there} is a file"))
    if not os.access(there, os.W_OK | os.X_OK):
        raise cannot_write(directory, OSError(errno.EACCES, f"{there} is read-only"))


def sync_directory(directory: str | os.PathLike) -> None:
    """Makes renames in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; the rename still holds.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path`, whole, when the block ends well.

    Until then it is `.<name>.<letters>.partial`, so several processes may do so at
    once. Raises `OSError`.
    """
    folder, name = os.path.split(path)
    name = f".{name.lstrip('.')}.{os.urandom(8).hex()}{PARTIAL}"
    partial = os.path.join(folder, name)
    try:
        with open(partial, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def atomic_write(path: str | os.PathLike, data: str | bytes) -> None:
    """Writes a whole file or nothing, also where several processes write it.

    Missing directories are created. Raises `UserError` (73) when the file cannot be
    written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as f:
            f.write(data.encode() if isinstance(data, str) else data)
        sync_directory(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def is_stream(path: str | os.PathLike) -> bool:
    """Whether a path is a pipe or a device: what is written there is gone at once."""
    name = os.path.abspath(path)
    if name in ("/dev/stdout", "/dev/stderr") or name.startswith("/dev/fd/"):
        return True  # also where the shell has led it to a file
    return os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name))


def flock(file: IO | int, waits: bool = False) -> bool | None:
    """Whether this process has the lock of an open file now, until it is closed.

    None where the file system has no locks. Raises `OSError` for whatever else fails.

    Args:
      waits: for another process that has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        return None
    return True


def keep_others_out(file: IO, path: str | os.PathLike) -> None:
    """Keeps other processes from a file until it is closed, where files have locks.

    Raises `UserError` (75) where another process has it, or has just finished it.
    """
    is_ours = flock(file)
    if is_ours:
        try:
            is_ours = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
        except FileNotFoundError:
            is_ours = False
    if is_ours is False:
        raise UserError(
            f"another process is writing {path}.\nWait for it, or name another "
            "--output.",
            EXIT_LOCKED,
        )


@contextlib.contextmanager
def line_writer(path: str | os.PathLike | None) -> Iterator[Callable[[str], None]]:
    """A function that writes one line to a file, or to standard output (None).

    The file appears when it is whole; a link leads to it. A pipe or device gets each
    line at once; a reader that goes away, such as head, ends the block quietly. Raises
    `UserError`: 73 when the file cannot be written, 75 while another process does so.
    """
    if path is None or is_stream(path):
        with _stream(path) as stream:
            try:
                yield lambda line: _print(line, stream, path)
            except BrokenPipeError:
                silence(stream)
        return
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + PARTIAL)
    with _in_words(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(partial, "a", encoding="utf-8")
    with file:
        keep_others_out(file, partial)
        try:
            with _in_words(path):
                file.truncate(0)
            yield lambda line: _print(line, file, path, flush=False)
            with _in_words(path):
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise


def _print(
    line: str, file: IO[str], path: str | os.PathLike | None, flush: bool = True
) -> None:
    with _in_words(path):
        print(line, file=file, flush=flush)


@contextlib.contextmanager
def _in_words(path: str | os.PathLike | None) -> Iterator[None]:
    """Encloses writing alone: what else fails is not the output's fault."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write(path or "/dev/stdout", error) from error


@contextlib.contextmanager
def _stream(path: str | os.PathLike | None) -> Iterator[IO[str]]:
    is_stdout = path is None or os.path.abspath(path) in ("/dev/stdout", "/dev/fd/1")
    if is_stdout and "stdout" in closed_streams:
        raise UserError("standard output is closed; name a file.", EXIT_CANNOT_WRITE)
    if path is None:
        yield sys.stdout
        return
    with _in_words(path):
        # Not "w", which would empty a file behind /dev/stdout.
        stream = open(path, "a", encoding="utf-8")
    with stream:
        try:
            yield stream
        except BaseException:
            silence(stream)  # Closing it would try again to write.
            raise
