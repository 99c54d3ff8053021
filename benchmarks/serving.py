# SPDX-License-Identifier: Apache-2.0
"""Latency of served models beside Hugging Face's torch model with the same weights.

    python benchmarks/serving.py
    python benchmarks/serving.py --data-dir D --model-name M
    python benchmarks/serving.py --what encoder,classifier,qa --jit_compile --onnx

Without a run, a model of ELECTRA-Small's size with random weights and a vocabulary
made from the examples. Each side runs in a process of its own; they take turns at the
same requests, and see the same ids (encoder) or the same strings (detector: tokenizer,
model, probabilities and character offsets; classifier: probabilities; qa: the best
answer to a question on a text). What classifies and answers is fine-tuned for one step.
Batches follow each other through a text, so their lengths differ as they do in life.
"Quiet" is the median over requests of each one's fastest run; "times as fast" compares
that.
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
from measurement import ROOT, save
from preparation import train_vocabulary
from serving_sides import COMPILED, LONGEST_ANSWER, MULTIPLE, ONNX

from electra_tf import cli, startup
from electra_tf.errors import UserError

FLAGS = flags.FLAGS
KINDS = ("encoder", "detector", "classifier", "qa")

flags.DEFINE_string("data_dir", None, "Of the run to serve.")
flags.DEFINE_string("model_name", None, "Of the run to serve.")
flags.DEFINE_string(
    "hparams", "{}", "Changes of the made up model, JSON: other sizes, for example."
)
flags.DEFINE_string("text", None, "File with one text a line; default: the examples'.")
flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Texts of a request.")
flags.DEFINE_list(
    "what", ["encoder", "detector"], f"SavedModels to measure, of {', '.join(KINDS)}."
)
flags.register_validator(
    "what", lambda given: set(given) <= set(KINDS), f"must be of {', '.join(KINDS)}."
)
flags.DEFINE_integer(
    "length",
    None,
    "Tokens of every text of the encoder's requests, cut from all texts on end; "
    "default: as long as the text is.",
    lower_bound=3,
)
flags.DEFINE_integer("requests", 60, "Requests of a measurement.")
flags.DEFINE_integer("rounds", 5, "Measurements of each side, in turns.")
flags.DEFINE_list("precisions", ["float32"], "Of our side; mixed_bfloat16 is another.")
flags.DEFINE_boolean(
    "jit_compile",
    False,
    "Another side of ours: the encoder compiled by XLA, in float32, for ids that are "
    f"padded to multiples of {MULTIPLE}.",
)
flags.DEFINE_boolean(
    "onnx", False, "Another side of ours: the encoder as ONNX, in onnxruntime."
)
flags.DEFINE_integer(
    "threads",
    len(os.sched_getaffinity(0)),
    "Of each side; 1 suffers least from others.",
)
flags.DEFINE_integer(
    "intra_op_threads",
    None,
    "That share one operation of our side; default: all. TensorFlow Serving has "
    "--tensorflow_intra_op_parallelism.",
)
flags.DEFINE_string("peer_python", sys.executable, "Python with torch, transformers.")
flags.DEFINE_string("json", None, "File for all that was measured.")

HELDOUT = ROOT / "examples" / "heldout" / "lost_world_opening.txt"
TASKS = {
    "classifier": {"type": "classification", "text_a": "text", "label": "label"},
    "qa": {"type": "qa"},
}


def main(_):
    texts = read_texts()
    startup.import_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        stored = stored_model(folder)
        write_peer(stored, folder)
        write_tasks(stored, texts, folder)
        workers = {"torch": Worker("torch", folder)}
        sides = {precision: (precision, False) for precision in FLAGS.precisions}
        if FLAGS.jit_compile:
            sides[COMPILED] = "float32", True
        for side, (precision, jit_compile) in sides.items():
            write_ours(stored, folder, side, precision, jit_compile)
            workers[side] = Worker("ours", folder / side)
        if FLAGS.onnx:
            write_onnx(folder)
            workers[ONNX] = Worker("onnx", folder / ONNX)
        requests = batches_of(texts, stored)
        found = compare(workers, requests)
        for worker in workers.values():
            worker.close()
    save(FLAGS.json, found)
    return 0


# What is measured.


def read_texts() -> list[str]:
    path = Path(FLAGS.text) if FLAGS.text else HELDOUT
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()]


def stored_model(folder: Path):
    """The run's newest checkpoint, or a model that is made up."""
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
        str(folder), "made_up", hparams | json.loads(FLAGS.hparams)
    )
    weights = {v.path: v.numpy() for v in empty_pretrainer(config, vocab).variables}
    return StoredModel(config, vocab, TokenizerConfig(), weights, {}, 0, "made up")


def write_peer(stored, folder: Path) -> None:
    from electra_tf.interop import huggingface

    huggingface.write_huggingface(
        stored, "discriminator", folder / "peer", log=lambda line: None
    )


def write_tasks(stored, texts: list[str], folder: Path) -> None:
    """Fine-tunes for the tasks that are measured, and writes them for transformers."""
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(texts[:8])]
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "text.jsonl").write_text("".join(lines), encoding="utf-8")
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": str(number),
                    "question": question_on(text),
                    "answers": [{"text": text.split()[0], "answer_start": 0}],
                }
            ],
        }
        for number, text in enumerate(texts[:8])
    ]
    content = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
    (folder / "qa.json").write_text(json.dumps(content), encoding="utf-8")
    files = {"classifier": "text.jsonl", "qa": "qa.json"}
    for what in FLAGS.what:
        if what not in TASKS:
            continue
        data = {"train": files[what], "dev": files[what]}
        hparams = {
            "task_names": [what],
            "tasks": {what: TASKS[what] | data},
            "init_checkpoint": str(folder / "peer" / "discriminator"),
            "max_seq_length": stored.config.max_seq_length,
            "train_batch_size": 8,
            "num_train_epochs": 1,
            "do_eval": False,
            "jit_compile": False,
        }
        if what == "qa":
            hparams |= {"joint_prediction": False, "answerable_classifier": False}
            hparams |= {"max_answer_length": LONGEST_ANSWER}
        command = [sys.executable, str(ROOT / "run_finetuning.py")]
        command += [f"--data-dir={folder}", f"--model-name={what}"]
        command += [f"--hparams={json.dumps(hparams)}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        export_task(what, folder, folder / f"peer_{what}", "huggingface")


def export(form: str, output_dir: Path, **request) -> None:
    """As export_model.py does, with its flags."""
    from electra_tf.export import formats

    with contextlib.redirect_stdout(None):  # how far from the model it is
        formats.export(formats.ExportRequest(form, str(output_dir), **request))


def export_task(what: str, folder: Path, output_dir: Path, form: str, **request):
    run = {"data_dir": str(folder), "model_name": what, "what": what}
    export(form, output_dir, **run, **request)


def write_onnx(folder: Path) -> None:
    peer = str(folder / "peer" / "discriminator")
    export("onnx", folder / ONNX, init_checkpoint=peer, what="encoder")


def question_on(text: str) -> str:
    return " ".join(text.split()[:5]) + "?"


def write_ours(stored, folder: Path, side: str, precision: str, jit_compile: bool):
    from electra_tf.export import saved_models

    source = saved_models.source_of(stored, precision, jit_compile)
    for what in ["encoder"] if jit_compile else FLAGS.what:
        if what in TASKS:
            place = folder / side
            export_task(what, folder, place, "saved_model", precision=precision)
        else:
            saved_models.write_part(source, what, folder / side)


def batches_of(texts: list[str], stored) -> dict[int, dict[str, list]]:
    """Batch size -> requests of texts, and of their padded ids."""
    from electra_tf.text import packing
    from electra_tf.text.tokenization import Tokenizer

    tokenizer = Tokenizer(stored.vocab, *stored.tokenizer_config)
    longest = stored.config.max_seq_length - 2
    encoded = [tokenizer.encode(text)[:longest] for text in texts]
    if FLAGS.length:
        encoded = of_one_length(encoded, len(texts), FLAGS.length - 2)
    found = {}
    for size in map(int, FLAGS.batch_sizes):
        if size > len(texts):
            raise UserError(f"a batch of {size} texts: there are {len(texts)}.")
        requests: dict[str, list] = {"encoder": [], "qa": [], "texts": []}
        for number in range(FLAGS.requests):
            first = number * size % (len(texts) - size + 1)
            batch = texts[first : first + size]
            packed = packing.pack(stored.vocab, encoded[first : first + size])
            requests["texts"].append(batch)
            requests["qa"].append([list(map(question_on, batch)), batch])
            ids, mask = packed.input_ids, packed.input_mask
            requests["encoder"].append([ids.tolist(), mask.tolist()])
        found[size] = requests | dict.fromkeys(
            ("detector", "classifier"), requests["texts"]
        )
    return found


def of_one_length(rows: list[list[int]], count: int, length: int) -> list[list[int]]:
    """As many rows of exactly `length` ids, from all ids on end, in a circle."""
    ids = [token for row in rows for token in row]
    return [
        [ids[(number * length + i) % len(ids)] for i in range(length)]
        for number in range(count)
    ]


def compare(workers: dict, requests: dict) -> dict:
    """Measures all sides in turns and prints a table."""
    found = {}
    print(
        "| | batch | side | quiet ms | p50 ms | p99 ms | texts/s | times as fast "
        "| difference |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
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
                    seconds[side] += [worker.ask(what=what, requests=of_size[what])]
            quiet = {side: quiet_seconds(rounds) for side, rounds in seconds.items()}
            for side in sides:
                flat = sorted(s for r in seconds[side] for s in r)
                gap = max_difference(answers[side], answers["torch"])
                print(
                    f"| {what} | {size} | {side} | {1e3 * quiet[side]:.2f} "
                    f"| {1e3 * statistics.median(flat):.2f} "
                    f"| {1e3 * flat[int(0.99 * (len(flat) - 1))]:.2f} "
                    f"| {size * len(flat) / sum(flat):.0f} "
                    f"| {quiet['torch'] / quiet[side]:.2f} | {gap:.1e} |",
                    flush=True,
                )
            found[f"{what} {size}"] = seconds
    return found


def quiet_seconds(rounds: list[list[float]]) -> float:
    """The median over requests of each one's fastest run: what other programs cost
    is left out, as far as there was a quiet moment."""
    return statistics.median(map(min, zip(*rounds, strict=True)))


def max_difference(ours: list, theirs: list) -> float:
    """Of the numbers of tokens that both have: padding differs."""
    return max(
        abs(a - b)
        for row, other in zip(ours, theirs, strict=True)
        for a, b in zip(row, other, strict=True)
    )


class Worker:
    """A process that measures one side when it is asked to."""

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
            raise UserError("a process that measures ended; its error stands above.")
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


if __name__ == "__main__":
    cli.run(main)
