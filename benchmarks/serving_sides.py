# SPDX-License-Identifier: Apache-2.0
"""One side of benchmarks/serving.py, which starts it: answers and times requests.

    python benchmarks/serving_sides.py ours|onnx|torch DIRECTORY THREADS \
        THREADS_AN_OPERATION

Orders come on standard input, answers go to standard output, a line of JSON each. What
is served is in the directory: for torch the folders "peer" and "peer_<task>".
"""

import json
import sys
import time
from pathlib import Path

# Sides of ours that have an encoder only.
COMPILED = "float32, XLA"
ONNX = "float32, onnxruntime"
MULTIPLE = 16  # of which lengths are for XLA, which compiles each
LONGEST_ANSWER = 30  # tokens: the default of "max_answer_length"


def main(side: str, directory: str, threads: str, operation_threads: str) -> None:
    """Answers orders from standard input until it ends."""
    answer = sys.stdout
    sys.stdout = sys.stderr  # Libraries print.
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
            for request in prepared:  # XLA compiles each length.
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
    import numpy as np
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    multiple = MULTIPLE if directory.name == COMPILED else 1
    tf.config.threading.set_intra_op_parallelism_threads(operation_threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    loaded = {
        path.name: tf.saved_model.load(str(path / "1"))
        for path in directory.iterdir()
        if path.is_dir()
    }

    def ids_of(request):
        ids, mask = (np.array(x, np.int32) for x in request)
        padding = (0, 0), (0, -ids.shape[1] % multiple)
        ids, mask = (np.pad(x, padding) for x in (ids, mask))
        return ids, mask, np.zeros_like(ids)

    def encode(arrays):
        names = ("input_word_ids", "input_mask", "input_type_ids")
        inputs = {n: tf.constant(x) for n, x in zip(names, arrays, strict=True)}
        return (
            loaded["encoder"]
            .signatures["serving_default"](**inputs)["sequence_output"]
            .numpy()
        )

    def ask(what, **texts):
        inputs = {name: tf.constant(value) for name, value in texts.items()}
        outputs = loaded[what].signatures["serving_default"](**inputs)
        return {name: x.numpy() for name, x in outputs.items()}

    def detected(texts, found):
        counts = found["num_tokens"]
        pairs = zip(found["probabilities"], counts, strict=True)
        return [row[:count].tolist() for row, count in pairs]

    return {
        "encoder": (ids_of, encode, real_rows),
        "detector": (same, lambda texts: ask("detector", text=texts), detected),
        "classifier": (
            same,
            lambda texts: ask("classifier", text=texts),
            lambda texts, found: found["probabilities"].tolist(),
        ),
        "qa": (
            same,
            lambda asked: ask("qa", question=asked[0], context=asked[1]),
            lambda asked, found: found["score"][:, None].tolist(),
        ),
    }


def onnx_functions(directory: Path, threads: int, _: int) -> dict:
    """The encoder in onnxruntime."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        directory / "encoder.onnx", options, providers=["CPUExecutionProvider"]
    )
    names = "input_word_ids", "input_mask", "input_type_ids"

    def ids_of(request):
        ids, mask = (np.array(x, np.int32) for x in request)
        return dict(zip(names, (ids, mask, np.zeros_like(ids)), strict=True))

    def encode(inputs):
        return session.run(["sequence_output"], inputs)[0]

    return {"encoder": (ids_of, encode, real_rows)}


def same(request):
    """A request as it is."""
    return request


def torch_functions(directory: Path, threads: int, _: int) -> dict:
    """The same by transformers: fast tokenizer and the class for each task."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads)

    def model_in(name, folder):
        path = directory / folder
        if not path.is_dir():
            return None
        return getattr(transformers, name).from_pretrained(path).eval()

    discriminator = "peer/discriminator"
    model = model_in("ElectraForPreTraining", discriminator)
    classifier = model_in(
        "ElectraForSequenceClassification", "peer_classifier/classifier"
    )
    answerer = model_in("ElectraForQuestionAnswering", "peer_qa/qa")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory / discriminator)
    usual = {"padding": True, "max_length": tokenizer.model_max_length}
    usual |= {"truncation": True, "return_tensors": "pt"}

    def ids_of(request):
        return [torch.tensor(x) for x in request]

    @torch.inference_mode()
    def encode(request):
        ids, mask = request
        return model.electra(ids, attention_mask=mask).last_hidden_state.numpy()

    @torch.inference_mode()
    def detect(texts):
        inputs = tokenizer(texts, **usual, return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping").numpy()
        probabilities = torch.sigmoid(model(**inputs).logits).numpy()
        return probabilities, offsets, inputs["attention_mask"].numpy()

    @torch.inference_mode()
    def classify(texts):
        return torch.softmax(classifier(**tokenizer(texts, **usual)).logits, -1).numpy()

    @torch.inference_mode()
    def answer(asked):
        cut = usual | {"truncation": "only_second", "return_offsets_mapping": True}
        inputs = tokenizer(*asked, **cut)
        offsets = inputs.pop("offset_mapping").numpy()
        outputs = answerer(**inputs)
        best = best_spans(
            *(x.numpy() for x in (outputs.start_logits, outputs.end_logits)),
            *(inputs[name].numpy() for name in ("attention_mask", "token_type_ids")),
        )
        rows = zip(asked[1], offsets, *best[:2], strict=True)
        return [text[row[a, 0] : row[b, 1]] for text, row, a, b in rows], best[2]

    def detected(texts, found):
        counts = found[2].sum(axis=1)
        pairs = zip(found[0], counts, strict=True)
        return [row[1 : count - 1].tolist() for row, count in pairs]

    return {
        "encoder": (ids_of, encode, real_rows),
        "detector": (same, detect, detected),
        "classifier": (same, classify, lambda texts, found: found.tolist()),
        "qa": (same, answer, lambda asked, found: found[1][:, None].tolist()),
    }


def best_spans(starts, ends, mask, type_ids) -> tuple:
    """First and last token of the best span in each row's text, and their score."""
    import numpy as np

    inside = mask * type_ids > 0
    inside[np.arange(len(mask)), mask.sum(1) - 1] = False  # [SEP]
    pairs = starts[:, :, None] + ends[:, None, :]
    spans = np.triu(np.ones(pairs.shape[1:], bool))
    spans &= ~np.triu(spans, LONGEST_ANSWER)
    pairs[~(spans & inside[:, :, None] & inside[:, None, :])] = -np.inf
    best = pairs.reshape(len(pairs), -1).argmax(1)
    return *np.divmod(best, pairs.shape[2]), pairs.max((1, 2))


def real_rows(request, sequence) -> list:
    """The first numbers of the vectors of real tokens, row by row."""
    counts = [sum(row) for row in request[1]]
    pairs = zip(sequence, counts, strict=True)
    return [row[:count, 0].tolist() for row, count in pairs]


if __name__ == "__main__":
    main(*sys.argv[1:])
