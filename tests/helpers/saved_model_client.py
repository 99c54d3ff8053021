# SPDX-License-Identifier: Apache-2.0
"""A process that uses SavedModels with tensorflow and tensorflow_text alone.

Run as `python -I saved_model_client.py ORDER.json`, which holds "jobs" (pairs of a name
and its arguments) and where to write the "answer".
"""

import importlib.abc
import json
import sys
import traceback


class Absent(importlib.abc.MetaPathFinder):
    """Makes packages unimportable, whatever is installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("electra_tf", "keras_hub", "tests"):
            raise ModuleNotFoundError(f"{name} is not on this machine")
        return None


sys.meta_path.insert(0, Absent())

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_text  # noqa: E402, F401


def plain(outputs):
    """Tensors by name as lists; strings as text."""
    found = {}
    for name, tensor in outputs.items():
        array = tensor.numpy()
        if array.dtype == object:
            decode = np.vectorize(lambda b: b.decode("utf-8"), otypes=[object])
            array = decode(array) if array.size else array
        found[name] = array.tolist()
    return found


def attempt(function, *args, **kwargs):
    """The result of a call, or its error."""
    try:
        return {"ok": plain(function(*args, **kwargs))}
    except Exception as error:  # noqa: BLE001 - any kind is an answer
        return {"error": type(error).__name__, "message": str(error)}


def as_bytes(texts):
    if isinstance(texts, str):
        return texts.encode("utf-8", "surrogateescape")
    return [as_bytes(text) for text in texts]


def serve(model, calls):
    """Calls signatures: (signature, {input: [dtype, values, shape if empty]}) each."""
    loaded = tf.saved_model.load(model)
    answers = []
    for signature, inputs in calls:
        tensors = {}
        for name, (dtype, values, *shape) in inputs.items():
            if dtype == "string":
                values = as_bytes(values) if values else values
            tensors[name] = tf.constant(values, dtype, *shape)
        answers.append(attempt(loaded.signatures[signature], **tensors))
    return answers


def tokenize(model, texts):
    """The ids of many texts, by the preprocessor and its tokenizer."""
    loaded = tf.saved_model.load(model)
    return loaded.tokenize(tf.constant(as_bytes(texts))).to_list()


def pack(model, first, second, lengths):
    """bert_pack_inputs of one segment and of two, by length."""
    loaded = tf.saved_model.load(model)
    segments = [
        loaded.tokenize(tf.constant(as_bytes(texts))) for texts in (first, second)
    ]
    found = {"special": plain(loaded.tokenize.get_special_tokens_dict())}
    packed = loaded.bert_pack_inputs
    found["default"] = plain(packed(segments))
    for length in lengths:
        found[f"one {length}"] = attempt(packed, segments[:1], seq_length=length)
        found[f"two {length}"] = attempt(packed, segments, seq_length=length)
    return found


def fine_tune(model, inputs):
    """Dropout on and off, and a few steps of plain gradient descent."""
    loaded = tf.saved_model.load(model)
    inputs = {name: tf.constant(x, tf.int32) for name, x in inputs.items()}
    evaluated = [loaded(inputs)["default"].numpy() for _ in range(2)]
    dropped = [loaded(inputs, training=True)["default"].numpy() for _ in range(2)]
    outputs = loaded(inputs, training=False)
    target = tf.cast(tf.range(tf.shape(inputs["input_mask"])[0]) % 2, tf.float32)

    def descent(training):
        with tf.GradientTape() as tape:
            logits = loaded(inputs, training=training)["pooled_output"][:, 0]
            loss = tf.reduce_mean((logits - target) ** 2)
        return float(loss), tape.gradient(loss, loaded.trainable_variables)

    without_gradient = sum(g is None for g in descent(training=True)[1])
    losses = []
    for _ in range(12):  # Without dropout: small enough steps must lead downwards.
        loss, gradients = descent(training=False)
        losses.append(loss)
        for variable, gradient in zip(
            loaded.trainable_variables, gradients, strict=True
        ):
            variable.assign_sub(0.02 * tf.convert_to_tensor(gradient))
    return {
        "deterministic": bool(np.array_equal(*evaluated)),
        "dropout": float(np.abs(dropped[0] - dropped[1]).max()),
        "outputs": {
            k: v.numpy().tolist() for k, v in outputs.items() if k != "encoder_outputs"
        },
        "layers": [list(layer.shape) for layer in outputs["encoder_outputs"]],
        "last_layer_is_sequence": bool(
            np.array_equal(outputs["encoder_outputs"][-1], outputs["sequence_output"])
        ),
        "variables": len(loaded.variables),
        "without_gradient": without_gradient,
        "regularization_losses": len(loaded.regularization_losses),
        "losses": losses,
    }


JOBS = {job.__name__: job for job in (serve, tokenize, pack, fine_tune)}


def main(path):
    """Runs the jobs of a file one after the other; one that fails fails alone."""
    with open(path, encoding="utf-8") as f:
        order = json.load(f)
    answers = []
    for job, arguments in order["jobs"]:
        try:
            answers.append({"done": JOBS[job](**arguments)})
        except Exception:  # noqa: BLE001 - reported to the test that asked
            answers.append({"failed": traceback.format_exc()})
    with open(order["answer"], "w", encoding="utf-8") as f:
        json.dump(answers, f)


if __name__ == "__main__":
    main(sys.argv[1])
