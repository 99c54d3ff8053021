# SPDX-License-Identifier: Apache-2.0
"""Streams text from files, one block of lines in memory at a time.

Compressed files and tar archives are streamed too, also inside each other, without
unpacking to disk.
"""

import bz2
import codecs
import contextlib
import dataclasses
import gzip
import io
import itertools
import lzma
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO

from electra_tf import startup
from electra_tf.console import printable
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.storage.remote import fetch

ENCODING_ERRORS = ("strict", "replace")

BLOCK_BYTES = 1 << 20  # read at a time
# A longer line is cut (at a space, if it has one near) to bound memory.
_MAX_LINE_BYTES = 16 << 20


def _zstd():
    """The module of Python 3.14, or its backport."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


# Exceptions for damaged files and archives.
DAMAGED = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError)
with contextlib.suppress(ImportError):
    DAMAGED += (_zstd().ZstdError,)
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BOM = b"\xef\xbb\xbf"

COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
_ARCHIVES = (".tar", ".tgz", ".txz", ".tzst", ".tbz2")

_HEAD_BYTES = 512  # a block of tar
_BUFFER_BYTES = 32 << 10  # larger buffers slow down small members
# A frame, or a skippable one, which some programs with several threads write first.
_ZSTD = b"\x28\xb5\x2f\xfd", *(bytes([n]) + b"\x2a\x4d\x18" for n in range(80, 96))
_JOINED = {b"\xfd7zXZ\0": lzma.LZMADecompressor, b"BZh": bz2.BZ2Decompressor}
_PACKED = (b"\x1f\x8b", *_JOINED, *_ZSTD)
_MAX_ZSTD_WINDOW_LOG = 31  # `zstd --long=31`, common for large corpora

STANDARD_INPUT = "standard input"
_HIDDEN = re.compile(r"(^|/)\.(?!\.?(/|$))")  # a part of a path


def list_files(corpus_dir: str | os.PathLike) -> list[str]:
    """The files below a directory, sorted by path, without hidden ones.

    Links are followed. `corpus_dir` may be a single file or a glob. Raises UserError
    for no files, unreadable files, and a directory that would be read twice.
    """
    corpus_dir = fetch(corpus_dir)
    if os.path.isfile(corpus_dir):
        return [corpus_dir]
    if not os.path.isdir(corpus_dir):
        if found := sorted(filter(os.path.isfile, glob(corpus_dir, recursive=True))):
            return found
        raise UserError(
            f"the corpus {corpus_dir} does not exist.\nIt is a directory of text "
            "files, a file, or a glob of files."
        )
    paths = []
    seen: dict[str, str] = {}  # real path of a folder -> the path that led to it

    def unreadable(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename}: {error.strerror}.")

    for folder, folders, names in os.walk(
        corpus_dir, onerror=unreadable, followlinks=True
    ):
        first = seen.setdefault(os.path.realpath(folder), folder)
        if first != folder:
            raise UserError(
                f"the corpus has one directory twice, as {folder} and as {first}."
            )
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names[:] = [name for name in names if not name.startswith(".")]
        paths += [os.path.join(folder, name) for name in names]
    for path in paths:
        if not os.path.isfile(path):  # a pipe would never end
            raise UserError(f"{path} is a broken link, or not a file.")
    if not paths:
        raise UserError(f"the corpus directory {corpus_dir} holds no files.")
    return sorted(paths)


def check_outside(path: str, corpus_dir: str, flag: str) -> None:
    """Raises UserError for an output path in a directory that is read."""
    output, folder = Path(path).resolve(), Path(corpus_dir).resolve()
    if folder in (output, *output.parents):
        raise UserError(
            f"{flag} {path} is in {corpus_dir}, and would be read as input the next "
            "time."
        )


def open_text(path: str | os.PathLike) -> BinaryIO:
    """Opens a file of the corpus; UserError if that fails."""
    try:
        return open(path, "rb")
    except OSError as e:
        raise UserError(f"cannot read {e.filename}: {e.strerror}.") from None


@dataclasses.dataclass
class TextReader:
    """Iterates over a binary stream of UTF-8 text, as blocks of lines.

    Only LF and CRLF end lines. Lines of more than 16 MB are cut.

    Args:
      stream: the bytes; seekable if `start` is given.
      name: of the file, for messages.
      encoding_errors: "strict" raises UserError (65) naming file and offset of
        bytes that are not UTF-8; "replace" puts U+FFFD there, which tokenizers drop.
      start, end: only lines that begin within these bytes are read.
      place: returns the place of the text, for errors; by default `name`.
      head: first bytes of a member of an archive.
      is_record: whether the text is a record, such as a line of JSON Lines, whose
        blank lines separate paragraphs.

    Attributes:
        num_bytes: bytes read so far.
        num_replaced: bytes replaced so far, because they were not UTF-8.
    """

    stream: BinaryIO
    name: str
    encoding_errors: str = "strict"
    start: int = 0
    end: int | None = None
    place: Callable[[], str] | None = None
    head: bytes = b""
    is_record: bool = False
    num_bytes: int = 0
    num_replaced: int = 0

    def __iter__(self) -> Iterator[list[str]]:
        position = self._seek_line()
        rest = b""  # of a line that was cut
        in_line = False  # A line that begins before `end` is read to its own end.
        while in_line or self.end is None or position < self.end:
            wanted = BLOCK_BYTES
            if self.end is not None:
                wanted = max(0, min(wanted, self.end - position - len(rest)))
            block = rest + self._read(wanted)
            if not block:
                return
            rest = b""
            in_line = not block.endswith(b"\n")
            if in_line and len(block) >= _MAX_LINE_BYTES:
                block, rest = _cut(block)
            lines = self._decode(block, position)
            position += len(block)
            self.num_bytes += len(block)
            yield lines

    def _seek_line(self) -> int:
        """Goes to the first line that begins at or after `start`."""
        if not self.start:
            return 0
        self.stream.seek(self.start - 1)
        while (part := self.stream.readline(BLOCK_BYTES)) and part[-1:] != b"\n":
            pass
        return self.stream.tell()

    def _read(self, size: int) -> bytes:
        """Reads to the end of the line that holds the last of `size` bytes."""
        with _damage_named(self.name):
            block = self.stream.read(size)
            if not block.endswith(b"\n"):
                block += self.stream.readline(_MAX_LINE_BYTES)
            return block

    def _decode(self, block: bytes, position: int) -> list[str]:
        if position == 0 and block[:2] in UTF16:
            raise UserError(
                f"{self.name} is UTF-16, not UTF-8.\nConvert it: iconv -f UTF-16 -t "
                f"UTF-8 {Path(self.name).name} > new",
                EXIT_DAMAGED,
            )
        if position == 0 and block.startswith(_BOM):
            block, position = block[len(_BOM) :], len(_BOM)
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError as e:
            if self.encoding_errors == "strict":
                place = self.place() if self.place else self.name
                raise UserError(
                    f"{place}: byte 0x{block[e.start]:02x} at offset "
                    f"{position + e.start} is not UTF-8 ({e.reason}).\nConvert the "
                    "file, or drop such bytes of a corpus: --encoding-errors replace",
                    EXIT_DAMAGED,
                ) from None
            text = block.decode("utf-8", "replace")
            sound = block.decode("utf-8", "ignore").encode()
            self.num_replaced += len(block) - len(sound)
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()  # after the last line end
        return lines


def record(
    text: bytes | None, name: str, encoding_errors: str, place: Callable[[], str]
) -> TextReader:
    """A reader of a record's text; None is an empty text."""
    stream = io.BytesIO(text or b"")
    return TextReader(stream, name, encoding_errors, place=place, is_record=True)


def lines_before(path: str, start: int) -> int:
    """The number of lines that begin before a byte; 0 unless it is a regular file."""
    number, last = 0, b"\n"
    if start and os.path.isfile(path):
        with open(path, "rb") as f:
            while start > 0 and (block := f.read(min(start, BLOCK_BYTES))):
                number, last = number + block.count(b"\n"), block[-1:]
                start -= len(block)
    # The line of the last byte before `start` belongs to the piece before.
    return number + (last != b"\n")


def describe_replaced(by_file: Mapping[str, int]) -> str:
    """A summary of the replaced bytes by file, the most first."""
    most = sorted(by_file, key=by_file.get, reverse=True)
    where = printable(", ".join(f"{name} ({by_file[name]:,})" for name in most[:3]))
    more = f", and {len(most) - 3:,} more files" if len(most) > 3 else ""
    return f"{sum(by_file.values()):,} bytes that were not UTF-8 in {where}{more}"


def _cut(block: bytes) -> tuple[bytes, bytes]:
    """Cuts a long line after its last space, else between two characters."""
    end = block.rfind(b" ", len(block) - BLOCK_BYTES) + 1
    if not end:
        end = len(block)
        while end > len(block) - 4 and block[end - 1] & 0xC0 == 0x80:
            end -= 1
        end -= block[end - 1] >= 0xC0
    return block[:end], block[end:]


# Compressed files and archives.


@contextlib.contextmanager
def open_decompressed(path: str | os.PathLike | None) -> Iterator["Content"]:
    """Opens a file, a pipe or standard input (None), which may be compressed.

    Raises UserError (65) if the bytes turn out to be damaged.
    """
    name = STANDARD_INPUT if path is None else os.fspath(path)
    opened = open_text(path) if path else contextlib.nullcontext(sys.stdin.buffer)
    with opened as raw, _damage_named(name), _decompressed(raw, name) as stream:
        yield stream


@contextlib.contextmanager
def _damage_named(name: str) -> Iterator[None]:
    try:
        yield
    except DAMAGED as e:
        raise UserError(f"{name}: damaged ({e}).", EXIT_DAMAGED) from None


def read_lines(
    path: str | os.PathLike | None, encoding_errors: str = "strict"
) -> Iterator[str]:
    """Yields lines in UTF-8, without line ends and byte order mark.

    Args: see `open_decompressed` and `TextReader`.
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
    """Whether a file's name is that of an archive."""
    return ending_of(name) in _ARCHIVES


def ending_of(name: str) -> str:
    """The suffix of a file's name before that of a compression."""
    stem, ending = os.path.splitext(name.lower())
    return os.path.splitext(stem)[1] if ending in COMPRESSED else ending


def is_archive(head: bytes) -> bool:
    """Whether content with these first bytes is a tar archive."""
    return head[257:262] == b"ustar"


class Content(io.BufferedReader):
    """A stream whose first bytes are known, though a pipe gives them only once."""

    head: bytes
    is_compressed = False

    @classmethod
    def of(cls, stream: Any) -> "Content":
        """Reads enough of a buffered stream to recognise its format."""
        head = stream.read(_HEAD_BYTES)
        # Nothing is read after the end, as a terminal would ask for another Ctrl-D.
        rest = _blocks_of(stream) if len(head) == _HEAD_BYTES else ()
        content = cls(_Blocks(itertools.chain([head], rest)), _BUFFER_BYTES)
        content.head = head
        return content


class _Blocks(io.RawIOBase):
    """A stream of bytes that come in blocks."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        rest = self._rest or memoryview(next(self._blocks, b""))
        data, self._rest = rest[: len(buffer)], rest[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def _blocks_of(stream: Any) -> Iterator[bytes]:
    return iter(lambda: stream.read(_BUFFER_BYTES), b"")


def _joined_streams(raw: Any, new: Callable[[], Any]) -> Iterator[bytes]:
    """The content of one or more compressed streams, one after the other.

    The standard library ends silently at a stream with a damaged beginning; here only
    zeros may follow the last stream.
    """
    stream = new()
    for block in _blocks_of(raw):
        while block:
            if stream.eof:
                if not (block := block.lstrip(b"\0")):
                    break
                stream = new()
            data = stream.decompress(block, BLOCK_BYTES)
            while data:
                yield data
                has_more = not (stream.eof or stream.needs_input)
                data = stream.decompress(b"", BLOCK_BYTES) if has_more else b""
            block = stream.unused_data
    if not stream.eof:
        raise EOFError("it ends within its data")


class _Member(tarfile.TarInfo):
    """A member whose damage is an error; to tarfile it is the archive's end."""

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


def read_packed(
    path: str | os.PathLike, encoding_errors: str = "strict", must_be: bool = False
) -> Iterator[TextReader]:
    """Yields a reader for the text of a compressed file, or each text in an archive.

    Members may be compressed files or archives themselves. They are streamed in order,
    without hidden ones; each must be read before the next is requested.

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
        # Not tarfile's own decompression, which takes quadratic time for content that
        # compresses well.
        with tarfile.open(fileobj=content, mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                archive.members = []  # would grow with each member
                num_members += 1
                if member.isreg() and not _HIDDEN.search(member.name):
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
            f"{name}: not a sound tar archive, after {num_members} members ({e}).",
            EXIT_DAMAGED,
        ) from None


def _decompressed(raw: Any, path: str) -> Content:
    """The content of a file that may be compressed, as its first bytes show."""
    with _damage_named(path):
        content = Content.of(raw)
        while stream := _decompressor(content, path):
            content = Content.of(stream)
            content.is_compressed = True
        return content


def _decompressor(content: Content, path: str) -> Any:
    """The decompressed stream; None if it is not compressed."""
    head = content.head
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(content)
    for magic, stream in _JOINED.items():
        if head.startswith(magic):
            blocks = _Blocks(_joined_streams(content, stream))
            return io.BufferedReader(blocks, _BUFFER_BYTES)
    if head.startswith(_ZSTD):
        with startup.optional("backports.zstd", path, "data"):
            zstd = _zstd()
        options = {zstd.DecompressionParameter.window_log_max: _MAX_ZSTD_WINDOW_LOG}
        return zstd.open(content, options=options)
    return None
