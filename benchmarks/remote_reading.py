# SPDX-License-Identifier: Apache-2.0
"""Batches from shards in a bucket whose every answer takes 50 ms: examples/s, memory.

    python benchmarks/remote_reading.py
    python benchmarks/remote_reading.py --delay 0.01 --copy

The store is a file system of fsspec in this process, which waits and then reads a local
file: what s3fs itself costs (about a millisecond of a processor for a request) comes on
top. Without --copy every record is read by range; with it the shards are copied
meanwhile, as in a training, and the rate is that of the last --seconds.
"""

import asyncio
import functools
import os
import tempfile
import time
from pathlib import Path

import fsspec
from absl import flags
from fsspec.asyn import AsyncFileSystem
from measurement import memory_now
from preparation import numbers, write_shards

from electra_tf import cli, startup
from electra_tf.data import record_index
from electra_tf.paths import local_of

FLAGS = flags.FLAGS

flags.DEFINE_float("delay", 0.05, "Seconds that each request takes.")
flags.DEFINE_integer("examples", 200_000, "Examples in the bucket.")
flags.DEFINE_integer("batch_size", 128, "Examples of a batch.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.")
flags.DEFINE_float("seconds", 10.0, "Length of the measurement.")
flags.DEFINE_boolean("copy", False, "Copy the shards meanwhile.")


@functools.cache
def _opened(path):
    return os.open(path, os.O_RDONLY)


class SlowStore(AsyncFileSystem):
    """Local files below `root`, each request `delay` seconds late."""

    root = ""
    requests = waiting = most_waiting = 0

    async def _request(self):
        cls = SlowStore
        cls.requests += 1
        cls.waiting += 1
        cls.most_waiting = max(cls.most_waiting, cls.waiting)
        await asyncio.sleep(FLAGS.delay)
        cls.waiting -= 1

    def _local(self, path):
        return os.path.join(self.root, self._strip_protocol(path))

    def _facts(self, path):
        size = os.path.getsize(self._local(path))
        return {"name": path, "size": size, "ETag": "1", "type": "file"}

    async def _cat_file(self, path, start=None, end=None, **_):
        await self._request()
        return os.pread(_opened(self._local(path)), end - start, start)

    async def _get_file(self, rpath, lpath, **_):
        await self._request()
        Path(lpath).write_bytes(Path(self._local(rpath)).read_bytes())

    async def _find(self, path, detail=False, **_):
        await self._request()
        there = self._local(path)
        found = [path] if os.path.isfile(there) else []
        if os.path.isdir(there):
            found = [f"{path}/{name}" for name in sorted(os.listdir(there))]
        return {name: self._facts(name) for name in found}

    async def _glob(self, path, **_):
        found = await self._find(os.path.dirname(path))
        return {name: facts for name, facts in found.items() if "tfrecord" in name}

    async def _exists(self, path, **_):
        return os.path.exists(self._local(path))


def main(_):
    startup.import_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ELECTRA_TF_CACHE"] = os.path.join(folder, "cache")
        os.environ["ELECTRA_TF_COPY_GB"] = "100" if FLAGS.copy else "0"
        data = Path(folder, "store", "bucket")
        data.mkdir(parents=True)
        SlowStore.root = str(data.parent)
        fsspec.register_implementation("memory", SlowStore, clobber=True)
        vocab = numbers(30522)
        write_shards(data, len(vocab), FLAGS.max_seq_length, FLAGS.examples, 8)
        record_index.write(sorted(str(path) for path in data.glob("*tfrecord*")))
        measure(vocab)


def wait_for_copies(iterator) -> None:
    """Reads until nothing is asked for any more: copies are made in the background."""
    deadline, quiet = time.monotonic() + 600, time.monotonic()
    while time.monotonic() < quiet + FLAGS.seconds and time.monotonic() < deadline:
        requests = SlowStore.requests
        next(iterator)
        if SlowStore.requests != requests:
            quiet = time.monotonic()


def measure(vocab) -> None:
    from electra_tf.pretrain import pretrain_data

    dataset = pretrain_data.make_dataset(
        local_of("memory://bucket/*tfrecord*"),
        batch_size=FLAGS.batch_size,
        max_seq_length=FLAGS.max_seq_length,
        vocab=vocab,
        seed=1,
        mask_prob=0.15,
        max_predictions_per_seq=int(0.155 * FLAGS.max_seq_length),
    )
    started = time.perf_counter()
    iterator = iter(dataset)
    next(iterator)
    print(f"first batch after {time.perf_counter() - started:.2f} s")
    if FLAGS.copy:
        wait_for_copies(iterator)
    before = memory = memory_now()
    requests, batches, started = SlowStore.requests, 0, time.perf_counter()
    processor = time.process_time()
    while time.perf_counter() - started < FLAGS.seconds:
        next(iterator)
        batches += 1
        memory = max(memory, memory_now()) if batches % 100 == 0 else memory
    seconds = time.perf_counter() - started
    examples = batches * FLAGS.batch_size
    print(
        f"{examples / seconds:,.0f} examples/s, each request {FLAGS.delay * 1e3:g} ms; "
        f"{(SlowStore.requests - requests) / seconds:,.0f} requests/s, at most "
        f"{SlowStore.most_waiting:,} at a time; "
        f"{(time.process_time() - processor) / examples * 1e6:.0f} us of a processor "
        f"each; memory +{(memory - before) / 1e6:,.0f} MB"
    )


if __name__ == "__main__":
    cli.run(main)
