# SPDX-License-Identifier: Apache-2.0
"""Latency of served models beside Hugging Face's torch model with the same weights.

    python benchmarks/serving.py
    python benchmarks/serving.py --what encoder --jit_compile --onnx

The model has ELECTRA-Small's size, random weights and a vocabulary made from the
examples. The sides take turns at the same requests, and get the same ids
(encoder) or the same strings (detector: tokenizer, model, probabilities and character
offsets). Batches follow each other through a text, so their lengths differ as in
practice. "Quiet" is the median over requests of each one's fastest run; "times as fast"
compares that.
"""

import contextlib
import json
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from absl import flags
from measurement import ROOT, print_table, save
from preparation import train_vocabulary

from electra_tf import cli, startup

FLAGS = flags.FLAGS
KINDS = ("encoder", "detector")
# Sides of ours that have an encoder only.
COMPILED = "float32, XLA"
ONNX = "float32, onnxruntime"
MULTIPLE = 16  # XLA compiles each length, so lengths are multiples of this

flags.DEFINE_string("hparams", "{}", "JSON: changes of the model.")
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
flags.DEFINE_string("json", None, "File for all that was measured.")

HELDOUT = ROOT / "examples" / "heldout" / "lost_world_opening.txt"


def main(_):
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    texts = [line.strip() for line in lines if line.strip()]
    startup.import_tensorflow()
    import tensorflow as tf

    operation_threads = FLAGS.intra_op_threads or FLAGS.threads
    tf.config.threading.set_intra_op_parallelism_threads(operation_threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    from electra_tf.export import formats, saved_model
    from electra_tf.interop import huggingface

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored = stored_model(folder)
        peer = folder / "peer"
        huggingface.write_huggingface(stored, "discriminator", peer, log=lambda _: None)
        sides = {"torch": torch_functions(peer / "discriminator")}
        for precision in FLAGS.precisions:
            source = saved_model.source_of(stored, precision)
            for what in FLAGS.what:
                saved_model.write_part(source, what, folder / precision)
            sides[precision] = our_functions(folder / precision)
        if FLAGS.jit_compile:
            source = saved_model.source_of(stored, "float32", True)
            saved_model.write_part(source, "encoder", folder / COMPILED)
            sides[COMPILED] = our_functions(folder / COMPILED)
        if FLAGS.onnx:
            request = {"init_checkpoint": str(peer / "discriminator")}
            request["what"] = "encoder"
            with contextlib.redirect_stdout(None):  # the verification
                formats.export(
                    formats.ExportRequest("onnx", str(folder / ONNX), **request)
                )
            sides[ONNX] = onnx_functions(folder / ONNX)
        found = {}
        print_table(compare(sides, requests_of(texts, stored), found), COLUMNS)
    save(FLAGS.json, found)


def stored_model(folder: Path):
    """A model with random weights."""
    from electra_tf.config.pretraining import PretrainingConfig
    from electra_tf.interop.checkpoint import StoredModel, empty_pretrainer
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


def compare(sides: dict, all_requests: dict, found: dict):
    """Measures all sides in turns: rows of the table; `found` gets all seconds."""
    for what in FLAGS.what:
        for size, of_size in all_requests.items():
            own = {side: found for side, found in sides.items() if what in found}
            requests = of_size[what]
            answers = {side: ask(own[side], what, requests[0]) for side in own}
            seconds = {side: [] for side in own}
            for _ in range(FLAGS.rounds):
                for side in own:
                    seconds[side].append(time_requests(own[side], what, requests))
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


def ask(side: dict, what: str, request: list) -> list:
    """The numbers that a side answers."""
    prepare, run, numbers = side[what]
    return numbers(request, run(prepare(request)))


def time_requests(side: dict, what: str, requests: list) -> list[float]:
    """Seconds of each request."""
    prepare, run, _ = side[what]
    prepared, found = [prepare(request) for request in requests], []
    for request in prepared:  # XLA compiles each length
        run(request)
    for request in prepared:
        start = time.perf_counter()
        run(request)
        found.append(time.perf_counter() - start)
    return found


def our_functions(directory: Path) -> dict:
    """What -> (prepare a request, run it, numbers per row of the result)."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    multiple = MULTIPLE if directory.name == COMPILED else 1
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


def onnx_functions(directory: Path) -> dict:
    """The encoder in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = FLAGS.threads
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
    torch.set_num_threads(FLAGS.threads)
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
