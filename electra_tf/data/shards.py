# SPDX-License-Identifier: Apache-2.0
"""Shards of examples, put together from the files that the processes of a build wrote.

What is returned for a shard is its entry in the manifest, still without its name.
"""

import hashlib
import os
from typing import BinaryIO

from electra_tf.data import tfrecord


def join(parts: list[str], path: str, num_examples: int) -> dict:
    """Writes files one after the other to `path`."""
    sha256 = hashlib.sha256()
    with open(path, "wb") as f:
        for part in parts:
            with open(part, "rb") as source:
                while block := source.read(4 << 20):
                    sha256.update(block)
                    f.write(block)
        return _closed(f, num_examples, sha256)


def deal(parts: list[str], paths: list[str]) -> list[dict]:
    """Deals the records of files to several files in turn, as the original does."""
    counts = [0] * len(paths)
    turn = 0
    buffers: list[list[bytes]] = [[] for _ in paths]
    for path in paths:
        open(path, "wb").close()
    for part in parts:
        for record in tfrecord.read_records(part):
            buffers[turn].append(tfrecord.frame(record))
            counts[turn] += 1
            turn = (turn + 1) % len(paths)
        # A thousand files are too many to keep open.
        for path, buffer in zip(paths, buffers, strict=True):
            if buffer:
                with open(path, "ab") as f:
                    f.write(b"".join(buffer))
                buffer.clear()
    files = []
    for path, count in zip(paths, counts, strict=True):
        with open(path, "r+b") as f:
            sha256 = hashlib.file_digest(f, "sha256")
            files.append(_closed(f, count, sha256))
    return files


def _closed(f: BinaryIO, num_examples: int, sha256) -> dict:
    f.flush()
    os.fsync(f.fileno())
    return {
        "name": "",
        "examples": num_examples,
        "bytes": os.fstat(f.fileno()).st_size,
        "sha256": sha256.hexdigest(),
    }
