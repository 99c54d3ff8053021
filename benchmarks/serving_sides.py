# SPDX-License-Identifier: Apache-2.0
"""One side of benchmarks/serving.py, which starts it: answers and times requests.

    python benchmarks/serving_sides.py ours|onnx|torch DIRECTORY THREADS \
        THREADS_AN_OPERATION

Orders come on standard input, answers go to standard output, a line of JSON each.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

# Sides of ours that have an encoder only.
COMPILED = "float32, XLA"
ONNX = "float32, onnxruntime"
MULTIPLE = 16  # XLA compiles each length, so lengths are multiples of this


def main(side: str, directory: str, threads: str, operation_threads: str) -> None:
    """Answers orders from standard input until it ends."""
    answer = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    make = {"ours": our_functions, "onnx": onnx_functions, "torch": torch_functions}
    functions = make[side](Path(directory), int(threads), int(operation_threads))
    for line in sys.stdin:
        order = json.loads(line)
        prepare, run, numbers = functions[order["what"]]
        if "first" in order:
            found = numbers(order["first"], run(prepare(order["first"])))
        else:
            found = []
            prepared = [prepare(request) for request in order["requests"]]
            for request in prepared:  # XLA compiles each length
                run(request)
            for request in prepared:
                start = time.perf_counter()
                run(request)
                found.append(time.perf_counter() - start)
        print(json.dumps(found), file=answer, flush=True)


def our_functions(directory: Path, threads: int, operation_threads: int) -> dict:
    """What -> (prepare a request, run it, numbers per row of the result)."""
    from electra_tf import startup

    startup.import_tensorflow()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    multiple = MULTIPLE if directory.name == COMPILED else 1
    tf.config.threading.set_intra_op_parallelism_threads(operation_threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    loaded = {p.name: tf.saved_model.load(str(p / "1")) for p in directory.iterdir()}

    def ask(what, **inputs):
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        outputs = loaded[what].signatures["serving_default"](**inputs)
        return {name: x.numpy() for name, x in outputs.items()}

    def encode(inputs):
        return ask("encoder", **inputs)["sequence_output"]

    def detected(texts, found):
        pairs = zip(found["probabilities"], found["num_tokens"], strict=True)
        return [row[:count].tolist() for row, count in pairs]

    return {
        "encoder": (partial(padded, multiple=multiple), encode, real_rows),
        "detector": (unchanged, lambda texts: ask("detector", text=texts), detected),
    }


def onnx_functions(directory: Path, threads: int, _: int) -> dict:
    """The encoder in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        directory / "encoder.onnx", options, providers=["CPUExecutionProvider"]
    )

    def encode(inputs):
        return session.run(["sequence_output"], inputs)[0]

    return {"encoder": (padded, encode, real_rows)}


def torch_functions(directory: Path, threads: int, _: int) -> dict:
    """The same by transformers: fast tokenizer and ElectraForPreTraining."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads)
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
    main(*sys.argv[1:])
