# SPDX-License-Identifier: Apache-2.0
"""Text in compressed files and tar archives as a stream; nothing goes to disk."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.text.corpus import (
    BLOCK_BYTES,
    DAMAGED,
    ZSTD_MAGIC,
    TextReader,
    missing_package,
    open_text,
    standard_input,
    too_large,
    zstd,
)

COMPRESSED = (".gz", ".xz", ".zst", ".bz2")  # how such a file's name ends

# What becomes more than this, and than so many times its size, is no text but an attack
# or a mistake: text comes to 3 to 20 times. So what is not compressed has no limit.
_ALWAYS_ALLOWED_BYTES = 64 << 30
_MAX_RATIO = 100
_TAR_BLOCK = 512
_STREAMS = {
    b"\xfd7zXZ\0": lzma.LZMADecompressor,
    b"BZh": bz2.BZ2Decompressor,
}
_MAX_ZSTD_WINDOW_LOG = 31  # of `zstd --long=31`, which large corpora are packed with


STANDARD_INPUT = "standard input"


@contextlib.contextmanager
def open_decompressed(path: str | os.PathLike | None) -> Iterator[BinaryIO]:
    """Opens a file, a pipe or standard input (None), which may be compressed.

    Raises UserError, of 65 if the bytes turn out to be damaged while they are read.
    """
    name = STANDARD_INPUT if path is None else os.fspath(path)
    opened = (
        contextlib.nullcontext(standard_input()) if path is None else open_text(path)
    )
    with opened as raw:
        try:
            with _decompressed(raw, name) as stream:
                yield stream
        except DAMAGED as e:
            raise UserError(f"{name}: damaged ({e}).", EXIT_DAMAGED) from None


def read_lines(
    path: str | os.PathLike | None, encoding_errors: str = "strict"
) -> Iterator[str]:
    """Yields lines in UTF-8, without their ends and a byte order mark.

    `path` as of `open_decompressed`, `encoding_errors` as of `TextReader`.
    """
    name = STANDARD_INPUT if path is None else os.fspath(path)
    with open_decompressed(path) as stream:
        again = _Again.of(stream)
        if again.is_archive:
            raise UserError(
                f"{name} is a tar archive, not lines of text.\nUnpack it, or read it "
                "as a corpus."
            )
        for block in TextReader(again, name, encoding_errors):
            yield from block


class _Again(io.BufferedReader):
    """A stream whose first bytes have been looked at, which a pipe gives once."""

    start: bytes

    @property
    def is_archive(self) -> bool:
        """Whether it is a tar archive."""
        return self.start[257:262] == b"ustar"

    @classmethod
    def of(cls, stream: BinaryIO) -> "_Again":
        """Reads as many bytes as tell what a stream is, in several reads if need be."""
        start, rest = b"", stream
        while rest and len(start) < _TAR_BLOCK:
            part = stream.read(_TAR_BLOCK - len(start))
            start, rest = start + part, rest if part else None
        again = cls(_Joint(start, rest), BLOCK_BYTES)
        again.start = start
        return again


class _Joint(io.RawIOBase):
    """Bytes and the rest of their stream; None: it has ended.

    After its end nothing is read again: a terminal would ask for another Ctrl-D.
    """

    def __init__(self, start: bytes, rest: BinaryIO | None):
        self._start, self._rest = start, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data, self._start = self._start[: len(buffer)], self._start[len(buffer) :]
        if not data and self._rest:
            data = self._rest.read(len(buffer))
            self._rest = self._rest if data else None
        buffer[: len(data)] = data
        return len(data)


class _Joined(io.RawIOBase):
    """The content of a file of one or more compressed streams, one after the other.

    Those of the standard library end without a word at a stream that is damaged at its
    beginning; here only zeros may follow the last.
    """

    def __init__(self, raw: BinaryIO, stream: Callable[[], Any]):
        self._raw, self._stream = raw, stream
        self._current = stream()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = b""
        while not data:
            rest = b""
            if self._current.eof:
                rest = self._current.unused_data
                while not (rest := rest.lstrip(b"\0")):
                    if not (rest := self._raw.read(BLOCK_BYTES)):
                        return 0
                self._current = self._stream()
            elif self._current.needs_input:
                if not (rest := self._raw.read(BLOCK_BYTES)):
                    raise EOFError("it ends within its data")
            data = self._current.decompress(rest, len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Member(tarfile.TarInfo):
    """A member whose damage is told: tarfile takes it for the archive's end."""

    @classmethod
    def fromtarfile(cls, archive):
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:
            while block := archive.fileobj.read(BLOCK_BYTES):
                if block.strip(b"\0"):
                    raise tarfile.ReadError("there is more after its end") from None
            raise
        except tarfile.SubsequentHeaderError:
            raise
        except tarfile.HeaderError as e:
            raise tarfile.ReadError(f"{e} instead of a member or the end") from None


def read_archive(
    path: str | os.PathLike, encoding_errors: str = "strict"
) -> Iterator[TextReader]:
    """Yields a reader for each text file in a tar archive (.xz, .gz, .bz2 or plain).

    The members are read straight from the compressed stream, in their order, and must
    be read before the next one is asked for; hidden ones are left out. Nothing is
    written to disk, so a hostile archive has nothing to overwrite; one that tries
    (links, devices, absolute names, "..") or that becomes absurdly large is refused all
    the same: it is no corpus.

    Raises UserError (exit code 65) for such archives and for damaged ones.
    """
    path = os.fspath(path)
    num_bytes = num_members = 0
    with open_text(path) as raw:
        limit = _limit_of(raw)
        try:
            # Not tarfile's own decompression: of what compresses well it makes one
            # piece, which it then shortens block by block, in quadratic time.
            text = _decompressed(raw, path)
            options = {"fileobj": text, "mode": "r|", "tarinfo": _Member}
            with text, tarfile.open(**options) as archive:
                for member in archive:
                    archive.members = []  # or it would remember them all
                    num_members += 1
                    num_bytes += _TAR_BLOCK + member.size
                    _check_member(path, member)
                    if num_bytes > limit:
                        raise too_large(path, limit)
                    if member.isreg() and not _is_hidden(member.name):
                        name = f"{path}:{member.name}"
                        stream = archive.extractfile(member)
                        yield TextReader(stream, name, encoding_errors)
        except DAMAGED as e:
            raise UserError(
                f"{path}: not a sound tar archive, after {num_members} members "
                f"({e}).\nFetch the file again, or move it out of the directory.",
                EXIT_DAMAGED,
            ) from None


def read_compressed(
    path: str | os.PathLike, encoding_errors: str = "strict"
) -> Iterator[TextReader]:
    """Yields a reader for a text file in .gz, .xz, .zst or .bz2, or plain after all.

    Where the file turns out to be a tar archive, one for each of its text files.
    Raises UserError (65) for what is damaged, cut short or of absurd size.
    """
    path = os.fspath(path)
    with open_text(path) as raw:
        try:
            stream = _Again.of(_decompressed(raw, path))
        except DAMAGED as e:
            raise UserError(f"{path}: damaged ({e}).", EXIT_DAMAGED) from None
        if not stream.is_archive:
            with stream:
                limit = _limit_of(raw)
                yield TextReader(stream, path, encoding_errors, max_bytes=limit)
    if stream.is_archive:
        yield from read_archive(path, encoding_errors)


def _decompressed(raw: BinaryIO, path: str) -> BinaryIO:
    """The content of a file that may be compressed, told by its first bytes."""
    raw = _Again.of(raw)
    start = raw.start
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(raw)
    for magic, stream in _STREAMS.items():
        if start.startswith(magic):
            return io.BufferedReader(_Joined(raw, stream), BLOCK_BYTES)
    if start.startswith(ZSTD_MAGIC):
        if zstd is None:
            raise missing_package(path, "backports.zstd")
        limit = {zstd.DecompressionParameter.window_log_max: _MAX_ZSTD_WINDOW_LOG}
        return zstd.open(raw, options=limit)
    named = path.lower().endswith(COMPRESSED)
    if named and not raw.is_archive and not _is_text(start):
        raise UserError(
            f"{path} is compressed by its name, but not by gzip, xz, zstd or bzip2: it "
            f"begins with {start[:4].hex(' ')}.\nFetch the file again, or take it out "
            "of the corpus.",
            EXIT_DAMAGED,
        )
    return raw


def _is_text(start: bytes) -> bool:
    """Whether the first bytes of a file can be those of text in UTF-8."""
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False


def _limit_of(raw: BinaryIO) -> int:
    """How many bytes may come out of a file."""
    return max(_ALWAYS_ALLOWED_BYTES, _MAX_RATIO * os.fstat(raw.fileno()).st_size)


def _is_hidden(name: str) -> bool:
    return any(p.startswith(".") and p not in (".", "..") for p in name.split("/"))


def _check_member(path: str, member: tarfile.TarInfo) -> None:
    """Refuses what has no place in an archive of texts."""
    problem = None
    parts = member.name.replace("\\", "/").split("/")
    if member.issym() or member.islnk():
        problem = f"is a link to {member.linkname!r}"
    elif not member.isreg() and not member.isdir() or member.issparse():
        problem = "is neither a file nor a directory"
    elif re.match(r"[/\\]|[A-Za-z]:[/\\]", member.name) or ".." in parts:
        problem = "lies outside of the archive's directory"
    if problem:
        raise UserError(
            f"{path}: refused, because its member {member.name!r} {problem}.\n"
            "Take it out of the archive, or the archive out of the directory.",
            EXIT_DAMAGED,
        )
