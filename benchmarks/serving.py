# SPDX-License-Identifier: Apache-2.0
"""Latency of served models beside Hugging Face's torch model with the same weights.

    python benchmarks/serving.py
    python benchmarks/serving.py --data-dir D --model-name M
    python benchmarks/serving.py --what encoder --jit_compile --onnx

Without a run, a model of ELECTRA-Small's size with random weights and a vocabulary
made from the examples. Each side runs in a process of its own; they take turns at the
same requests, and get the same ids (encoder) or the same strings (detector: tokenizer,
model, probabilities and character offsets). Batches follow each other through a text,
so their lengths differ as in practice. "Quiet" is the median over requests of each
one's fastest run; "times as fast" compares that.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from absl import flags
from measurement import ROOT, print_table, save
from preparation import train_vocabulary
from serving_sides import COMPILED, MULTIPLE, ONNX

from electra_tf import cli, startup
from electra_tf.errors import UserError

FLAGS = flags.FLAGS
KINDS = ("encoder", "detector")

flags.DEFINE_string("data_dir", None, "Of the run to serve.")
flags.DEFINE_string("model_name", None, "Of the run to serve.")
flags.DEFINE_string("hparams", "{}", "JSON: changes of the model without a run.")
flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Texts of a request.")
flags.DEFINE_list("what", [*KINDS], f"SavedModels to measure, of {', '.join(KINDS)}.")
flags.register_validator(
    "what", lambda given: set(given) <= set(KINDS), f"must be of {', '.join(KINDS)}."
)
flags.DEFINE_integer("requests", 60, "Requests of a measurement.")
flags.DEFINE_integer("rounds", 5, "Measurements of each side, in turns.")
flags.DEFINE_list("precisions", ["float32"], "Of our side; or mixed_bfloat16.")
flags.DEFINE_boolean(
    "jit_compile",
    False,
    "Another side of ours: the encoder compiled by XLA, in float32, for ids that are "
    f"padded to multiples of {MULTIPLE}.",
)
flags.DEFINE_boolean(
    "onnx", False, "Another side of ours: the encoder as ONNX, in onnxruntime."
)
flags.DEFINE_integer("threads", len(os.sched_getaffinity(0)), "Of each side.")
flags.DEFINE_integer(
    "intra_op_threads",
    None,
    "That share one operation of our side; default: all. TensorFlow Serving has "
    "--tensorflow_intra_op_parallelism.",
)
flags.DEFINE_string("peer_python", sys.executable, "Python with torch, transformers.")
flags.DEFINE_string("json", None, "File for all that was measured.")

HELDOUT = ROOT / "examples" / "heldout" / "lost_world_opening.txt"


def main(_):
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    texts = [line.strip() for line in lines if line.strip()]
    startup.import_tensorflow()
    from electra_tf.export import formats, saved_model
    from electra_tf.interop import huggingface

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored = stored_model(folder)
        peer = folder / "peer"
        huggingface.write_huggingface(stored, "discriminator", peer, log=lambda _: None)
        workers = {"torch": Worker("torch", peer / "discriminator")}
        for precision in FLAGS.precisions:
            source = saved_model.source_of(stored, precision)
            for what in FLAGS.what:
                saved_model.write_part(source, what, folder / precision)
            workers[precision] = Worker("ours", folder / precision)
        if FLAGS.jit_compile:
            source = saved_model.source_of(stored, "float32", True)
            saved_model.write_part(source, "encoder", folder / COMPILED)
            workers[COMPILED] = Worker("ours", folder / COMPILED)
        if FLAGS.onnx:
            request = {"init_checkpoint": str(peer / "discriminator")}
            request["what"] = "encoder"
            with contextlib.redirect_stdout(None):  # the verification
                formats.export(
                    formats.ExportRequest("onnx", str(folder / ONNX), **request)
                )
            workers[ONNX] = Worker("onnx", folder / ONNX)
        found = {}
        print_table(compare(workers, requests_of(texts, stored), found), COLUMNS)
        for worker in workers.values():
            worker.close()
    save(FLAGS.json, found)


def stored_model(folder: Path):
    """The run's newest checkpoint, or a model with random weights."""
    from electra_tf.interop import sources
    from electra_tf.interop.stored_model import StoredModel, empty_pretrainer

    if FLAGS.model_name:
        return sources.read(os.path.join(FLAGS.data_dir, "models", FLAGS.model_name))

    from electra_tf.config.pretraining import PretrainingConfig
    from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

    vocab_file = folder / "vocab.txt"
    train_vocabulary(ROOT / "examples" / "corpus", vocab_file, 8000)
    vocab = Vocabulary.load(vocab_file)
    hparams = {"vocab_size": len(vocab), "vocab_file": str(vocab_file)}
    config = PretrainingConfig.from_hparams(
        str(folder), "random", hparams | json.loads(FLAGS.hparams)
    )
    weights = {v.path: v.numpy() for v in empty_pretrainer(config, vocab).variables}
    return StoredModel(config, vocab, TokenizerConfig(), weights, {}, 0, "random")


def requests_of(texts: list[str], stored) -> dict[int, dict[str, list]]:
    """Batch size -> requests of texts, and of their padded ids."""
    from electra_tf.text import packing
    from electra_tf.text.tokenization import Tokenizer

    tokenizer = Tokenizer(stored.vocab, *stored.tokenizer_config)
    longest = stored.config.max_seq_length - 2
    encoded = [tokenizer.encode(text)[:longest] for text in texts]
    found = {}
    for size in map(int, FLAGS.batch_sizes):
        found[size] = {"encoder": [], "detector": []}
        for number in range(FLAGS.requests):
            first = number * size % (len(texts) - size + 1)
            packed = packing.pack(stored.vocab, encoded[first : first + size])
            ids = [packed.input_ids.tolist(), packed.input_mask.tolist()]
            found[size]["encoder"].append(ids)
            found[size]["detector"].append(texts[first : first + size])
    return found


COLUMNS = {
    "what": lambda row: row["what"],
    "batch": lambda row: str(row["batch"]),
    "side": lambda row: row["side"],
    "quiet ms": lambda row: f"{1e3 * row['quiet_s']:.2f}",
    "p50 ms": lambda row: f"{1e3 * statistics.median(row['sorted_s']):.2f}",
    "p99 ms": lambda row: (
        f"{1e3 * row['sorted_s'][int(0.99 * (len(row['sorted_s']) - 1))]:.2f}"
    ),
    "times as fast": lambda row: f"{row['torch_s'] / row['quiet_s']:.2f}",
    "difference": lambda row: f"{row['difference']:.1e}",
}


def compare(workers: dict, requests: dict, found: dict):
    """Measures all sides in turns: rows of the table; `found` gets all seconds."""
    for what in FLAGS.what:
        for size, of_size in requests.items():
            sides = {
                side: worker
                for side, worker in workers.items()
                if side not in (COMPILED, ONNX) or what == "encoder"
            }
            answers = {
                side: worker.ask(what=what, first=of_size[what][0])
                for side, worker in sides.items()
            }
            seconds = {side: [] for side in sides}
            for _ in range(FLAGS.rounds):
                for side, worker in sides.items():
                    seconds[side].append(worker.ask(what=what, requests=of_size[what]))
            found[f"{what} {size}"] = seconds
            quiet = {side: quiet_seconds(rounds) for side, rounds in seconds.items()}
            for side, rounds in seconds.items():
                row = {"what": what, "batch": size, "side": side}
                row |= {"quiet_s": quiet[side], "torch_s": quiet["torch"]}
                row["sorted_s"] = sorted(s for r in rounds for s in r)
                row["difference"] = max_difference(answers[side], answers["torch"])
                yield (row,)


def quiet_seconds(rounds: list[list[float]]) -> float:
    """The median over requests of each one's fastest run.

    So the cost of other programs is left out, as far as there was a quiet moment.
    """
    return statistics.median(map(min, zip(*rounds, strict=True)))


def max_difference(ours: list, theirs: list) -> float:
    """The greatest difference of two lists of rows of numbers."""
    return max(
        abs(a - b)
        for row, other in zip(ours, theirs, strict=True)
        for a, b in zip(row, other, strict=True)
    )


class Worker:
    """A process that runs one side."""

    def __init__(self, side: str, directory: Path):
        python = FLAGS.peer_python if side == "torch" else sys.executable
        self._process = subprocess.Popen(
            [
                *(python, ROOT / "benchmarks" / "serving_sides.py", side, directory),
                *(str(FLAGS.threads), str(FLAGS.intra_op_threads or FLAGS.threads)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        )

    def ask(self, **order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UserError("a side ended early; see its error above.", 1)
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


if __name__ == "__main__":
    cli.run(main)
