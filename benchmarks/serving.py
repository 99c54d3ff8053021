# SPDX-License-Identifier: Apache-2.0
"""Latency of served models beside Hugging Face's torch model with the same weights.

    python benchmarks/serving.py
    python benchmarks/serving.py --what encoder --sides float32,xla,onnx

The model has ELECTRA-Small's size, random weights and a vocabulary made from the
examples. The sides take turns at the same requests, and get the same ids
(encoder) or the same strings (detector: tokenizer, model, probabilities and character
offsets). Batches follow each other through a text, so their lengths differ as in
practice. "Quiet" is the median over requests of each one's fastest run; "times as fast"
compares that.
"""

import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import measurement
from absl import flags
from measurement import ROOT, print_table, random_model, save, train_vocabulary

from electra_tf import cli, startup

FLAGS = flags.FLAGS
KINDS = ("encoder", "detector")
SIDES = ("float32", "mixed_bfloat16", "xla", "onnx")
MULTIPLE = 16  # XLA compiles each length, so lengths are multiples of this
THREADS = len(os.sched_getaffinity(0))

flags.DEFINE_string("hparams", "{}", "JSON: changes of the model.")
flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Texts of a request.")
measurement.define_choices("what", [*KINDS], KINDS, "SavedModels to measure")
measurement.define_choices(
    "sides", ["float32"], SIDES, "Ours (xla, onnx: the encoder in float32)"
)
flags.DEFINE_integer("requests", 60, "Requests of a measurement.")
flags.DEFINE_integer("rounds", 5, "Measurements of each side, in turns.")
flags.DEFINE_integer(
    "intra_op_threads",
    None,
    "That share one operation of our side; default: all. TensorFlow Serving has "
    "--tensorflow_intra_op_parallelism.",
)
flags.DEFINE_string("json", None, "File for all that was measured.")

HELDOUT = ROOT / "examples" / "heldout" / "lost_world_opening.txt"


def main(_):
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    texts = [line.strip() for line in lines if line.strip()]
    startup.import_tensorflow()
    import tensorflow as tf

    operation_threads = FLAGS.intra_op_threads or THREADS
    tf.config.threading.set_intra_op_parallelism_threads(operation_threads)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    from electra_tf.interop import huggingface

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocab = folder / "vocab.txt"
        train_vocabulary(ROOT / "examples" / "corpus", vocab, 8000)
        stored = random_model(folder, str(vocab), json.loads(FLAGS.hparams))
        peer = folder / "peer"
        huggingface.write_huggingface(stored, "discriminator", peer, log=lambda _: None)
        sides = {"torch": torch_functions(peer / "discriminator")}
        for side in FLAGS.sides:
            sides[side] = our_functions(side, stored, peer, folder / side)
        found = {}
        rows = compare(sides, requests_of(texts, stored), found)
        print_table(HEAD, FORM, rows)
    save(FLAGS.json, found)


def requests_of(texts: list[str], stored) -> dict[int, dict[str, list]]:
    """Batch size -> requests of texts, and of their padded ids."""
    from electra_tf.text import tokenization
    from electra_tf.text.tokenization import Tokenizer

    tokenizer = Tokenizer(stored.vocab, *stored.tokenizer_config)
    longest = stored.config.max_seq_length - 2
    encoded = [tokenizer.encode(text)[:longest] for text in texts]
    found = {}
    for size in map(int, FLAGS.batch_sizes):
        found[size] = {"encoder": [], "detector": []}
        for number in range(FLAGS.requests):
            first = number * size % (len(texts) - size + 1)
            packed = tokenization.pack(stored.vocab, encoded[first : first + size])
            ids = [packed.input_ids.tolist(), packed.input_mask.tolist()]
            found[size]["encoder"].append(ids)
            found[size]["detector"].append(texts[first : first + size])
    return found


HEAD = "what | batch | side | quiet ms | p50 ms | p99 ms | times as fast | difference"
FORM = (
    "{what} | {batch} | {side} | {quiet:.2f} | {p50:.2f} | {p99:.2f} | {speed:.2f} | "
    "{difference:.1e}"
)


def compare(sides: dict, all_requests: dict, found: dict):
    """Measures all sides in turns: rows of the table; `found` gets all seconds."""
    for what, (size, of_size) in itertools.product(FLAGS.what, all_requests.items()):
        own = {
            side: functions[what]
            for side, functions in sides.items()
            if what in functions
        }
        requests, seconds = of_size[what], {side: [] for side in own}
        answers = {
            side: numbers(requests[0], run(prepare(requests[0])))
            for side, (prepare, run, numbers) in own.items()
        }
        for _ in range(FLAGS.rounds):
            for side, (prepare, run, _) in own.items():
                seconds[side].append(time_requests(prepare, run, requests))
        found[f"{what} {size}"] = seconds
        quiet = {side: quiet_seconds(rounds) for side, rounds in seconds.items()}
        for side, rounds in seconds.items():
            in_order = sorted(1e3 * s for r in rounds for s in r)
            yield {
                "what": what,
                "batch": size,
                "side": side,
                "quiet": 1e3 * quiet[side],
                "p50": statistics.median(in_order),
                "p99": in_order[int(0.99 * (len(in_order) - 1))],
                "speed": quiet["torch"] / quiet[side],
                "difference": max_difference(answers[side], answers["torch"]),
            }


def quiet_seconds(rounds: list[list[float]]) -> float:
    """The median over requests of each one's fastest run.

    So the cost of other programs is left out, as far as there was a quiet moment.
    """
    return statistics.median(map(min, zip(*rounds, strict=True)))


def max_difference(ours: list, theirs: list) -> float:
    """The greatest difference of two lists of rows of numbers."""
    sides = [list(itertools.chain(*rows)) for rows in (ours, theirs)]
    return max(abs(a - b) for a, b in zip(*sides, strict=True))


def time_requests(prepare, run, requests: list) -> list[float]:
    """Seconds of each request."""
    prepared, found = [prepare(request) for request in requests], []
    for request in prepared:  # XLA compiles each length
        run(request)
    for request in prepared:
        start = time.perf_counter()
        run(request)
        found.append(time.perf_counter() - start)
    return found


def our_functions(side: str, stored, peer: Path, directory: Path) -> dict:
    """What -> (prepare a request, run it, numbers per row of the result)."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    from electra_tf.export import saved_model
    from electra_tf.inference.pretrained_model import PretrainedModel

    if side == "onnx":
        return onnx_functions(peer, directory)
    is_compiled = side == "xla"
    precision = "float32" if is_compiled else side
    source = PretrainedModel.of(stored, precision)
    for what in ("encoder",) if is_compiled else FLAGS.what:
        made = {what: saved_model.WHAT[what](source, is_compiled)}
        saved_model.write_saved_models(made, source, directory, is_compiled)
    multiple = MULTIPLE if is_compiled else 1
    loaded = {p.name: tf.saved_model.load(str(p / "1")) for p in directory.iterdir()}

    def answer(what, **inputs):
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        outputs = loaded[what].signatures["serving_default"](**inputs)
        return {name: x.numpy() for name, x in outputs.items()}

    def encode(inputs):
        return answer("encoder", **inputs)["sequence_output"]

    def detected(texts, found):
        pairs = zip(found["probabilities"], found["num_tokens"], strict=True)
        return [row[:count].tolist() for row, count in pairs]

    found = {
        "encoder": (partial(padded, multiple=multiple), encode, real_rows),
        "detector": (unchanged, lambda texts: answer("detector", text=texts), detected),
    }
    return {what: found[what] for what in loaded}


def onnx_functions(peer: Path, directory: Path) -> dict:
    """The encoder in onnxruntime."""
    import onnxruntime

    from electra_tf.export.formats import ExportRequest, export

    start = str(peer / "discriminator")
    request = ExportRequest(
        "onnx", str(directory), what="encoder", init_checkpoint=start
    )
    with contextlib.redirect_stdout(None):  # the verification
        export(request)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(
        directory / "encoder.onnx", options, providers=["CPUExecutionProvider"]
    )

    def encode(inputs):
        return session.run(["sequence_output"], inputs)[0]

    return {"encoder": (padded, encode, real_rows)}


def torch_functions(directory: Path) -> dict:
    """The same by transformers: fast tokenizer and ElectraForPreTraining."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(THREADS)
    model = transformers.ElectraForPreTraining.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    options = {"padding": True, "max_length": tokenizer.model_max_length}
    options |= {"truncation": True, "return_tensors": "pt"}

    def tensors(request):
        return [torch.tensor(x) for x in request]

    @torch.inference_mode()
    def encode(request):
        ids, mask = request
        return model.electra(ids, attention_mask=mask).last_hidden_state.numpy()

    @torch.inference_mode()
    def detect(texts):
        inputs = tokenizer(texts, **options, return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping").numpy()
        probabilities = torch.sigmoid(model(**inputs).logits).numpy()
        return probabilities, offsets, inputs["attention_mask"].numpy()

    def detected(texts, found):
        pairs = zip(found[0], found[2].sum(axis=1), strict=True)
        return [row[1 : count - 1].tolist() for row, count in pairs]

    return {
        "encoder": (tensors, encode, real_rows),
        "detector": (unchanged, detect, detected),
    }


def unchanged(request):
    return request


def padded(request, multiple: int = 1) -> dict:
    """The encoder's inputs, as long as a multiple of that."""
    import numpy as np

    ids, mask = (np.array(x, np.int32) for x in request)
    padding = (0, 0), (0, -ids.shape[1] % multiple)
    ids, mask = (np.pad(x, padding) for x in (ids, mask))
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return dict(zip(names, (ids, mask, np.zeros_like(ids)), strict=True))


def real_rows(request, sequence) -> list:
    """The first number of each real token's vector, row by row."""
    counts = [sum(row) for row in request[1]]
    pairs = zip(sequence, counts, strict=True)
    return [row[:count, 0].tolist() for row, count in pairs]


if __name__ == "__main__":
    cli.run(main)
