# SPDX-License-Identifier: Apache-2.0
"""TFRecord framing and the pre-training Example, as bytes.

A TFRecord file is a sequence of records: length (uint64, little endian), masked CRC-32C
of the length, data, masked CRC-32C of the data. The data is a serialised
`tf.train.Example` with the int64 features input_ids, input_mask and segment_ids, as the
original writes them. This module works without TensorFlow: protobuf objects would take
longer than the rest of a build, and TensorFlow's reader neither names the damaged
record nor survives a forged length.
"""

import functools
import mmap
import os
import struct

import google_crc32c
import numpy as np

from electra_tf.errors import EXIT_DAMAGED, UserError

FEATURES = ("input_ids", "input_mask", "segment_ids")

HEADER_BYTES = 12  # length, CRC of the length
FRAME_BYTES = 16  # header, and the CRC of the data behind it

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_CRC_MASK_DELTA = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """CRC-32C as TFRecord stores it: rotated and shifted by a constant."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _CRC_MASK_DELTA) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Returns `data` as one TFRecord record."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, _CRC.pack(masked_crc(length)), data, _CRC.pack(masked_crc(data)))
    )


# Examples.


def varint(value: int) -> bytes:
    """A protocol buffer's integer: seven bits a byte, the lowest first."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _entry_prefix(name: str, payload_bytes: int) -> bytes:
    """The bytes before the packed values of a feature in `Features.feature`."""
    # Int64List.value (packed) < Feature.int64_list < map value < map entry.
    prefix = b"\x0a" + varint(payload_bytes)
    for tag in (b"\x1a", b"\x12"):
        prefix = tag + varint(len(prefix) + payload_bytes) + prefix
    key = name.encode()
    prefix = b"\x0a" + varint(len(key)) + key + prefix
    return b"\x0a" + varint(len(prefix) + payload_bytes) + prefix


@functools.lru_cache(maxsize=4096)
def _prefixes(ids_bytes: int, length: int) -> tuple[bytes, bytes, bytes]:
    """The constant bytes before the values of the three features of an Example."""
    ids, mask, segments = FEATURES
    first = _entry_prefix(ids, ids_bytes)
    second, third = _entry_prefix(mask, length), _entry_prefix(segments, length)
    total = len(first) + ids_bytes + len(second) + len(third) + 2 * length
    return b"\x0a" + varint(total) + first, second, third


def encode_examples(
    input_ids: np.ndarray, input_mask: np.ndarray, segment_ids: np.ndarray
) -> list[bytes]:
    """Serialises examples [n, L] as n `tf.train.Example`s.

    Byte for byte as protobuf serialises features in the order of `FEATURES`.
    `input_ids` are below 2^21, three bytes; the other two 0 or 1.
    """
    bits = input_ids[..., None] >> np.array([0, 7, 14])  # [n, L, 3]
    is_there = (bits > 0) | [True, False, False]
    bits = (bits & 0x7F).astype(np.uint8)
    bits[..., :-1] |= np.where(is_there[..., 1:], 0x80, 0).astype(np.uint8)
    ids, sizes = bits[is_there].tobytes(), is_there.sum(axis=(1, 2)).tolist()
    masks, segments = input_mask.astype(np.uint8), segment_ids.astype(np.uint8)
    records, start = [], 0
    for size, mask, segment in zip(sizes, masks, segments, strict=True):
        first, second, third = _prefixes(size, len(mask))
        parts = (first, ids[start : start + size], second, mask.tobytes(), third)
        records.append(b"".join((*parts, segment.tobytes())))
        start += size
    return records


# Records in a file.


def damaged(path: str, record: int, offset: int, reason: str) -> UserError:
    """The error for a damaged record, exit code 65.

    Args:
      record: its number in the file, from 0.
      offset: byte at which it starts.
    """
    hint = " Is it a TFRecord file, uncompressed?" if not offset else ""
    return UserError(
        f"{path}: record {record} at byte {offset} is damaged: {reason}.{hint}\n"
        "Restore the file, build the data again, or leave this shard out of the "
        "pattern.",
        EXIT_DAMAGED,
    )


def scan(path: str | os.PathLike) -> np.ndarray:
    """Finds the records of a TFRecord file by stepping over their lengths.

    Returns: the offsets of the records and the size of the file, int64 [n + 1].

    Raises `UserError` (65) at the first damaged length.
    """
    path = os.fspath(path)
    size = os.path.getsize(path)
    if not size:
        return np.zeros(1, np.int64)
    offsets = [0]
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        while (position := offsets[-1]) < size:
            if problem := problem_of_length(m, position, size):
                raise damaged(path, len(offsets) - 1, position, problem)
            offsets.append(position + _HEADER.unpack_from(m, position)[0] + FRAME_BYTES)
    return np.array(offsets, np.int64)


def problem_of_length(data: bytes | mmap.mmap, position: int, size: int) -> str | None:
    """Describes the damage of a record's header in a file of `size` bytes, if any.

    A length beyond the end of the file, even with a correct checksum, must never reach
    TensorFlow's reader, which would allocate that much.
    """
    header = data[position : position + HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        return f"the file ends within the record's {HEADER_BYTES} header bytes"
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        return "the checksum of its length is wrong"
    left = size - position
    if length + FRAME_BYTES > left:
        return f"it claims {length} bytes, but the file has {left} left"
    return None


def problem_of(framed: bytes, size: int) -> str | None:
    """Describes the damage of a record with its frame; None if it is sound.

    Args:
      size: when it was counted; the file may have changed since.
    """
    if len(framed) < size:
        return "the file is shorter than it was when its records were counted"
    if int.from_bytes(framed[:8], "little") + FRAME_BYTES != size:
        problem = problem_of_length(framed, 0, size)
        return problem or "the file has other records than when they were counted"
    if masked_crc(framed[HEADER_BYTES:-4]) != int.from_bytes(framed[-4:], "little"):
        return "the checksum of its data is wrong"
    return None
