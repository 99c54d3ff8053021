# SPDX-License-Identifier: Apache-2.0
"""Text to TFRecord: MB/s by number of processes, and peak memory.

    python benchmarks/build_dataset.py --corpus-dir C --vocab-file V
    python benchmarks/build_dataset.py --corpus-dir C --vocab-file V --megabytes 700

The corpus is repeated, or cut short, to --megabytes of text. Without --corpus-dir it is
the text in examples/, whose few words make it faster than other text; without
--vocab-file a vocabulary is trained on that.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import flags
from measurement import ROOT, train_vocabulary

from electra_tf import cli
from electra_tf.text import corpus

FLAGS = flags.FLAGS

flags.DEFINE_string("corpus_dir", str(ROOT / "examples/corpus"), "Text files.")
flags.DEFINE_string("vocab_file", None, "Vocabulary.")
flags.DEFINE_integer("megabytes", 70, "Size of the corpus.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.")
flags.DEFINE_list("num_processes", ["1", "2"], "Numbers of processes to compare.")
flags.DEFINE_list("flags", [], "More flags of the script, as for filters.")

_SCRIPT = "build_pretraining_dataset.py"


def main(_):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = repeat(FLAGS.corpus_dir, folder / "corpus", FLAGS.megabytes * 1e6) / 1e6
        vocab = FLAGS.vocab_file
        vocab = vocab or train_vocabulary(FLAGS.corpus_dir, folder / "vocab.txt", 8192)
        print(f"{size:.1f} MB of text, max_seq_length {FLAGS.max_seq_length}\n")
        print("processes   MB/s   MB per CPU second   largest process")
        for processes in FLAGS.num_processes:
            wall, cpu, memory = build(folder, vocab, processes)
            print(
                f"{processes:>9} {size / wall:6.1f} {size / cpu:19.1f} "
                f"{memory / 1e6:14.0f} MB",
                flush=True,
            )


def repeat(source: str, target: Path, num_bytes: float) -> int:
    """Copies the files of a corpus again and again; returns their size."""
    target.mkdir()
    size = copies = 0
    while size < num_bytes:
        for number, path in enumerate(corpus.list_files(source)):
            copy = target / f"{number:05d}-{copies}.txt"
            shutil.copyfile(path, copy)
            size += copy.stat().st_size
            if size >= num_bytes:
                break
        copies += 1
    return size


def build(folder: Path, vocab: str, processes: str) -> tuple[float, float, int]:
    """Runs the script; returns wall seconds, CPU seconds, peak bytes of a process."""
    output = folder / "output"
    command = [sys.executable, str(ROOT / _SCRIPT), f"--num-processes={processes}"]
    command += FLAGS.flags
    command += [f"--corpus-dir={folder / 'corpus'}", f"--vocab-file={vocab}"]
    command += [f"--output-dir={output}", f"--max-seq-length={FLAGS.max_seq_length}"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    if status:
        raise SystemExit(f"{_SCRIPT} failed")
    shutil.rmtree(output)
    # Includes the processes that it waited for.
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


if __name__ == "__main__":
    cli.run(main)
