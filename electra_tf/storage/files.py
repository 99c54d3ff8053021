# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from electra_tf.console import silence
from electra_tf.errors import EXIT_CANNOT_WRITE, UserError, reason_of
from electra_tf.paths import cache_root, url_of

# A name with this ending is the rest of an interrupted write, and safe to remove.
PARTIAL = ".partial"


def cannot_write(path: str | os.PathLike, error: BaseException) -> UserError:
    """The error for a failed write: what failed, and what helps."""
    reason = getattr(error, "strerror", None) or reason_of(error)
    copy = f"the copy in {cache_root()} of " if url_of(path) else ""
    return UserError(
        f"cannot write {copy}{path}: {reason}\nWhat was saved before is intact. Make "
        "room, fix the permissions or the place, and run the command again.",
        EXIT_CANNOT_WRITE,
    )


def check_place(directory: str | os.PathLike) -> None:
    """Raises a UserError (73) for a directory that cannot be made or written into."""
    directory = Path(directory).absolute()
    there = next(p for p in (directory, *directory.parents) if os.path.lexists(p))
    if not there.is_dir():
        raise cannot_write(directory, OSError(errno.ENOTDIR, f"{there} is a file"))
    if not os.access(there, os.W_OK | os.X_OK):
        raise cannot_write(directory, OSError(errno.EACCES, f"{there} is read-only"))


def open_own(path: str | os.PathLike, mode: str) -> IO[Any]:
    """Opens a file of a run for writing; `OSError` if a symbolic link has its name.

    Directories are shared, and a link could lead the write to any other file.
    """

    def opener(name: str, flags: int) -> int:
        try:
            return os.open(name, flags | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP and os.path.islink(name):
                reason = "it is a symbolic link; remove it"
                raise OSError(error.errno, reason, name) from None
            raise

    return open(path, mode, opener=opener)


def names_below(folder: str | os.PathLike) -> list[str]:
    """The files below a folder; not those in folders of interrupted writes."""
    found = []
    for directory, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(PARTIAL)]
        found += [os.path.join(directory, name) for name in files]
    return sorted(os.path.relpath(path, folder) for path in found)


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
    temporary = os.path.join(folder, name)
    f = open(temporary, "wb")
    try:
        yield f
        f.flush()
        os.fsync(f.fileno())
        f.close()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            f.close()  # on a full disk it fails again
        with contextlib.suppress(OSError):
            os.unlink(temporary)
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
    """Whether a path is a pipe or a device."""
    name = os.path.abspath(path)
    if name in ("/dev/stdout", "/dev/stderr") or name.startswith("/dev/fd/"):
        return True  # also where the shell has led it to a file
    return os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name))


def flock(file: IO, waits: bool = False, shared: bool = False) -> bool:
    """Whether this process has the lock of an open file now, until it is closed.

    Raises `OSError`, also where the file system has no locks.

    Args:
      waits: for another process that has it.
      shared: with other processes that ask for it so.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, operation | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        reason = f"it cannot be locked (flock): {error.strerror}"
        raise OSError(error.errno, reason) from None
    return True


@contextlib.contextmanager
def line_writer(path: str | os.PathLike | None) -> Iterator[Callable[[str], None]]:
    """A function that writes one line to a file, or to standard output (None).

    The file appears when it is whole; a link leads to it. A pipe or device gets each
    line at once; a reader that goes away, such as head, ends the block quietly. Raises
    `UserError` (73) when the file cannot be written.
    """
    place = "/dev/stdout" if path is None else path
    file: IO[bytes] | None = None

    def write(line: str) -> None:
        with _writing(place):
            if file:
                file.write(f"{line}\n".encode())
            else:
                print(line, flush=True)

    with contextlib.ExitStack() as stack:
        if path is not None:
            with _writing(place):
                if is_stream(path):
                    # Not "w", which would empty a file behind /dev/stdout; without a
                    # buffer, which would be written again at the end.
                    file = stack.enter_context(open(path, "ab", buffering=0))
                else:
                    target = os.path.realpath(path)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    file = stack.enter_context(replacing(target))
        try:
            yield write
        except BrokenPipeError:
            if not is_stream(place):
                raise
            if path is None:
                silence(sys.stdout)
        with _writing(place):
            stack.close()


@contextlib.contextmanager
def _writing(path: str | os.PathLike) -> Iterator[None]:
    """Encloses writing alone: other errors in a block are not the output's."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from error
