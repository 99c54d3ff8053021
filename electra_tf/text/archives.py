# SPDX-License-Identifier: Apache-2.0
"""Text in compressed files and tar archives as a stream; nothing goes to disk.

Archives may hold compressed files and other archives, to any depth.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.text.corpus import (
    BLOCK_BYTES,
    DAMAGED,
    TextReader,
    missing_package,
    open_text,
    standard_input,
    zstd,
)

COMPRESSED = (".gz", ".xz", ".zst", ".bz2")  # how such a file's name ends
_ARCHIVES = (".tar", ".tgz", ".txz", ".tzst", ".tbz2")

_HEAD_BYTES = 512  # a block of tar
_BUFFER_BYTES = 32 << 10  # a larger one costs more than reading a small member
# A frame, or one to skip, which some programs that use several threads begin with.
_ZSTD = b"\x28\xb5\x2f\xfd", *(bytes([n]) + b"\x2a\x4d\x18" for n in range(80, 96))
_PACKED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", *_ZSTD)
_MAX_ZSTD_WINDOW_LOG = 31  # of `zstd --long=31`, which large corpora are packed with


STANDARD_INPUT = "standard input"


@contextlib.contextmanager
def open_decompressed(path: str | os.PathLike | None) -> "Iterator[Content]":
    """Opens a file, a pipe or standard input (None), which may be compressed.

    Raises UserError, of 65 if the bytes turn out to be damaged while they are read.
    """
    name = STANDARD_INPUT if path is None else os.fspath(path)
    opened = open_text(path) if path else contextlib.nullcontext(standard_input())
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
        if is_archive(stream.head):
            raise UserError(
                f"{name} is a tar archive, not lines of text.\nUnpack it, or read it "
                "as a corpus."
            )
        for block in TextReader(stream, name, encoding_errors):
            yield from block


def is_named(name: str) -> bool:
    """Whether a file is an archive by its name."""
    return ending_of(name) in _ARCHIVES


def ending_of(name: str) -> str:
    """The end of a file's name without that of its compression."""
    stem, ending = os.path.splitext(name.lower())
    return os.path.splitext(stem)[1] if ending in COMPRESSED else ending


def is_archive(head: bytes) -> bool:
    """Whether something that begins so is a tar archive."""
    return head[257:262] == b"ustar"


class Content(io.BufferedReader):
    """A stream whose first bytes are known, though a pipe gives them only once."""

    head: bytes
    is_compressed = False

    @classmethod
    def of(cls, stream: Any) -> "Content":
        """Reads as many bytes as tell what a stream is, in several reads if need be."""
        head, rest = b"", stream
        while rest and len(head) < _HEAD_BYTES:
            part = stream.read(_HEAD_BYTES - len(head))
            head, rest = head + part, rest if part else None
        content = cls(_Joint(head, rest), _BUFFER_BYTES)
        content.head = head
        return content


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

    The standard library silently ends at a stream whose beginning is damaged; here only
    zeros may follow the last.
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
    """A member whose damage is an error: tarfile takes it for the archive's end."""

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


def head_of(path: str) -> tuple[bytes, bool]:
    """The first bytes of a file's content, and whether the file is compressed."""
    with open_text(path) as raw:
        content = _decompressed(raw, path)
        return content.head, content.is_compressed


def read_packed(
    path: str | os.PathLike, encoding_errors: str = "strict", must_be: bool = False
) -> Iterator[TextReader]:
    """Yields a reader for the text of a compressed file, or each text in an archive.

    What an archive holds may be compressed or an archive again. Members are read
    straight from the stream, in their order, and must be read before the next one is
    asked for; hidden ones are left out. Nothing is written to disk.

    Args:
      must_be: the file must be an archive.

    Raises UserError (65) for damaged or truncated files.
    """
    path = os.fspath(path)
    with open_text(path) as raw:
        yield from _texts(raw, path, encoding_errors, must_be)


def _texts(
    raw: Any, name: str, errors: str, must_be: bool = False
) -> Iterator[TextReader]:
    content = _decompressed(raw, name)
    if not must_be and not is_archive(content.head):
        yield TextReader(content, name, errors, head=content.head)
        return
    num_members = 0
    try:
        # Not tarfile's own decompression: of what compresses well it makes one
        # piece, which it then shortens block by block, in quadratic time.
        with tarfile.open(fileobj=content, mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                archive.members = []  # or it would remember them all
                num_members += 1
                if member.isreg() and not _is_hidden(member.name):
                    stream = archive.extractfile(member)
                    inner = f"{name}:{member.name}"
                    head = stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]
                    named = is_named(inner)
                    if named or is_archive(head) or head.startswith(_PACKED):
                        yield from _texts(stream, inner, errors, named)
                    else:  # most members; this is faster
                        yield TextReader(stream, inner, errors, head=head)
    except DAMAGED as e:
        raise UserError(
            f"{name}: not a sound tar archive, after {num_members} members "
            f"({e}).\nFetch the file again, or move it out of the directory.",
            EXIT_DAMAGED,
        ) from None


def _decompressed(raw: Any, path: str) -> Content:
    """The content of a file that may be compressed, as its first bytes show."""
    try:
        content = Content.of(raw)
        while stream := _decompressor(content, path):
            content = Content.of(stream)
            content.is_compressed = True
        return content
    except DAMAGED as e:
        raise UserError(f"{path}: damaged ({e}).", EXIT_DAMAGED) from None


def _decompressor(content: Content, path: str) -> Any:
    """The decompressed stream; None if it is not compressed."""
    head = content.head
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(content)
    if head.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(_Joined(content, lzma.LZMADecompressor), BLOCK_BYTES)
    if head.startswith(b"BZh"):
        return io.BufferedReader(_Joined(content, bz2.BZ2Decompressor), BLOCK_BYTES)
    if head.startswith(_ZSTD):
        if zstd is None:
            raise missing_package(path, "backports.zstd")
        options = {zstd.DecompressionParameter.window_log_max: _MAX_ZSTD_WINDOW_LOG}
        return zstd.open(content, options=options)
    return None


def _is_hidden(name: str) -> bool:
    return any(p.startswith(".") and p not in (".", "..") for p in name.split("/"))
