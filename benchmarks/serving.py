# SPDX-License-Identifier: Apache-2.0
"""Latency of served models beside Hugging Face's torch model with the same weights.

    python benchmarks/serving.py
    python benchmarks/serving.py --what encoder --sides float32,onnx

The model has ELECTRA-Small's size, random weights and a vocabulary made from the
examples. The sides take turns at the same requests, and get the same ids
(encoder) or the same strings (detector: tokenizer, model, probabilities and character
offsets). Batches follow each other through a text, so their lengths differ as in
practice. The time is the median over requests of each one's fastest run.
"""

import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import measurement
from absl import flags
from measurement import ROOT, print_table, random_model, save

import electra_tf
from electra_tf import cli, startup

FLAGS = flags.FLAGS
KINDS = ("encoder", "detector")
SIDES = ("float32", "mixed_bfloat16", "onnx")
THREADS = len(os.sched_getaffinity(0))

flags.DEFINE_string("hparams", "{}", "JSON: changes of the model.")
flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Texts of a request.")
measurement.define_choices("what", [*KINDS], KINDS, "SavedModels to measure")
measurement.define_choices(
    "sides", ["float32"], SIDES, "Ours (onnx: the encoder in float32)"
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
        electra_tf.train_vocabulary(ROOT / "examples" / "corpus", 8000, vocab)
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
    """Batch size -> requests of texts, and of their padded ids with masks."""
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
            found[size]["encoder"].append(packed[:2])
            found[size]["detector"].append(texts[first : first + size])
    return found


HEAD = "what | batch | side | ms | times as fast"
FORM = "{what} | {batch} | {side} | {ms:.2f} | {speed:.2f}"


def compare(sides: dict, all_requests: dict, found: dict):
    """Measures all sides in turns: rows of the table; `found` gets all seconds."""
    for what, (size, of_size) in itertools.product(FLAGS.what, all_requests.items()):
        seconds = {side: [] for side, known in sides.items() if what in known}
        for _ in range(FLAGS.rounds):
            for side, rounds in seconds.items():
                rounds.append(time_requests(sides[side][what], of_size[what]))
        found[f"{what} {size}"] = seconds
        quiet = {side: quiet_seconds(rounds) for side, rounds in seconds.items()}
        for side, value in quiet.items():
            row = {"what": what, "batch": size, "side": side, "ms": 1e3 * value}
            yield row | {"speed": quiet["torch"] / value}


def quiet_seconds(rounds: list[list[float]]) -> float:
    """The median over requests of each one's fastest run.

    So the cost of other programs is left out, as far as there was a quiet moment.
    """
    return statistics.median(map(min, zip(*rounds, strict=True)))


def time_requests(run, requests: list) -> list[float]:
    """Seconds of each request."""
    found = []
    for request in requests:  # the first of a length may take longer
        run(request)
    for request in requests:
        start = time.perf_counter()
        run(request)
        found.append(time.perf_counter() - start)
    return found


def our_functions(side: str, stored, peer: Path, directory: Path) -> dict:
    """What -> a function that answers a request."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    from electra_tf.export import saved_model
    from electra_tf.inference.pretrained_model import PretrainedModel

    if side == "onnx":
        return onnx_functions(peer, directory)
    source = PretrainedModel.of(stored, side)
    for what in FLAGS.what:
        made = {what: saved_model.WHAT[what](source)}
        saved_model.write_saved_models(made, source, directory)
    loaded = {p.name: tf.saved_model.load(str(p / "1")) for p in directory.iterdir()}

    def answer(what, **inputs):
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        outputs = loaded[what].signatures["serving_default"](**inputs)
        return {name: x.numpy() for name, x in outputs.items()}

    found = {
        "encoder": lambda request: answer("encoder", **inputs_of(request)),
        "detector": lambda texts: answer("detector", text=texts),
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

    def encode(request):
        return session.run(["sequence_output"], inputs_of(request))[0]

    return {"encoder": encode}


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

    @torch.inference_mode()
    def encode(request):
        ids, mask = map(torch.from_numpy, request)
        return model.electra(ids, attention_mask=mask).last_hidden_state.numpy()

    @torch.inference_mode()
    def detect(texts):
        inputs = tokenizer(texts, **options, return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping").numpy()
        probabilities = torch.sigmoid(model(**inputs).logits).numpy()
        return probabilities, offsets, inputs["attention_mask"].numpy()

    return {"encoder": encode, "detector": detect}


def inputs_of(request) -> dict:
    """The encoder's inputs."""
    ids, mask = request
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return dict(zip(names, (ids, mask, 0 * ids), strict=True))


if __name__ == "__main__":
    cli.run(main)
