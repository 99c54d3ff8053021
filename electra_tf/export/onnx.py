# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX, for onnxruntime: ids in, numbers out, any batch and length.

The graph is written node by node: an encoder and its heads are few kinds of nodes, and
the converter from TensorFlow's graphs (tf2onnx) looks for a maintainer. Inputs and
outputs are those of the signature `ids` of the SavedModels, whose checks each file has
to pass in onnxruntime.

Shapes: B batch, L length, N masked positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.export import finetuned_task, saved_model
from electra_tf.export.formats import ExportRequest
from electra_tf.export.onnx_graph import Graph, encode
from electra_tf.export.signatures import NAMES, Check, Servable
from electra_tf.finetune.heads import IMPOSSIBLE_POSITION
from electra_tf.inference import huggingface_heads
from electra_tf.interop import networks, readers, verification
from electra_tf.interop.checkpoint import (
    DISCRIMINATOR_HEAD,
    GENERATOR_HEAD,
    StoredModel,
)
from electra_tf.interop.networks import ENCODER
from electra_tf.storage.atomic_folder import atomic_folder, require_room
from electra_tf.text.vocabulary import write_settings, write_tokens

WHAT = ("encoder", "detector", "generator", "scorer")
POSITIONS = "masked_lm_positions"
OPSET = 20  # the first with Gelu
# Type of the weights -> allowed difference, relative beyond 1; None: only measured.
TOLERANCE = {"float32": 1e-4, "int8": None}
_CARD = """\
# {name}: {what} as ONNX

{what}.onnx takes the ids of packed texts, of any number and length up to {length}:

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{what}.onnx")
ids = np.array([{ids}], np.int32)  # [CLS] text [SEP], by vocab.txt
batch = {{"input_word_ids": ids, "input_mask": ids * 0 + 1, "input_type_ids": ids * 0}}
{more}names = [output.name for output in session.get_outputs()]
found = dict(zip(names, session.run(None, batch)))
print(found)
```
{meaning}
`manifest.json` holds the checksums and how far the outputs are from the model's.
"""
_LABELS = """
The last axis of `logits` and `probabilities` is the labels, in the order of `labels` in
`manifest.json`.
"""
_SETTINGS = """
`task` in `manifest.json` says how windows on a text are cut and which answers count.
"""


# Adds its nodes on the states [B, L, H]; returns the names of its outputs, which are
# those of the signature `ids` of the SavedModels.
Head = Callable[[Graph, str], list[str]]


class Part(NamedTuple):
    """What a file is made of."""

    tensors: Mapping[str, np.ndarray]  # by the original's names
    shape: ModelConfig
    head: Head
    check: Check  # what the model says to a batch, by the outputs' names
    types: str = NAMES[2]  # the input that segments are read from
    least_length: int = 2  # of the ids of a text


def model_of(part: Part) -> Any:
    """An ONNX model, checked by the library.

    Its inputs are those of the check, int32 [B, L] (masked positions [B, N]).
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = Graph(part.tensors, part.shape.hidden_act)
    outputs = part.head(graph, encode(graph, part.shape, types=part.types))
    inputs = part.check.inputs
    axes = {name: ["batch", "length"] for name in inputs} | {
        POSITIONS: ["batch", "masks"]
    }
    kinds = {True: TensorProto.INT32, False: TensorProto.FLOAT}
    made = helper.make_graph(
        graph.nodes,
        "electra",
        [
            helper.make_tensor_value_info(name, TensorProto.INT32, axes[name])
            for name in inputs
        ],
        [
            helper.make_tensor_value_info(name, kinds[name.endswith("_index")], None)
            for name in outputs
        ],
        [numpy_helper.from_array(a, name) for name, a in graph.constants.items()],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(made, opset_imports=[opset], producer_name="electra_tf")
    model.ir_version = 10  # what opset 20 came with, for older runtimes
    model = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(model)
    return model


def write(model, path: Path, precision: str) -> None:
    """Writes a model; int8 quantises its weights, activations as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx.save_model(model, path)
    if precision == "int8":
        whole = path.with_suffix(".float32")
        path.rename(whole)
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8)
        whole.unlink()


def measure(path: Path, check: Check, precision: str) -> list[verification.Result]:
    """How far onnxruntime is from what the model says; `UserError` (65) if too far."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, check.inputs), strict=True))
    results = []
    for name in names:
        expected = check.expected[name]
        counts = _comparable(name, check)
        gap = verification.difference(expected, found[name], counts, relative=True)
        quantity, reader = f"{path.stem}/{name}", f"onnxruntime, {precision}"
        results.append(verification.Result(quantity, reader, gap, TOLERANCE[precision]))
    verification.require(results)
    return results


def _comparable(name: str, check: Check) -> np.ndarray | None:
    """Where an output is compared; None: everywhere.

    Of the best starts and ends those that stand clear of the next, whose order no
    rounding changes.
    """
    if name.startswith(("start_top_", "end_top_")):
        starts, ends = (
            _apart(check.expected[f"{end}_top_log_probs"]) for end in ("start", "end")
        )
        return starts if name.startswith("start") else starts[..., None] & ends
    mask = check.inputs["input_mask"]
    by_token = check.expected[name].shape[:2] == mask.shape and name != "mlm_logits"
    return mask if by_token else None


def _apart(falling: np.ndarray) -> np.ndarray:
    gaps = -np.diff(falling, axis=-1, prepend=np.inf, append=np.inf)
    gaps[..., -1] = 0  # The next best is not known.
    return np.minimum(gaps[..., :-1], gaps[..., 1:]) > 1e-3


def export_onnx(request: ExportRequest) -> str:
    """A file for each part, or for one task, with the vocabulary and a card."""
    for package in ("onnx", "onnxruntime"):
        _need(package)
    parts: dict[str, Part]
    facts = {"precision": request.precision, "opset": OPSET}
    if request.what in (None, *WHAT):
        stored = request.read_model()
        parts = _parts(stored, request.what)
    else:
        stored, parts, meaning = _task(request)
        facts |= meaning
    results = []
    with atomic_folder(request.output_dir) as folder:
        for what, part in parts.items():
            require_room(folder, part.tensors)
            path = folder / f"{what}.onnx"
            write(model_of(part), path, request.precision)
            results += measure(path, part.check, request.precision)
        write_settings(
            write_tokens(folder / "vocab.txt", stored.vocab.tokens),
            stored.tokenizer_config,
        )
        card = _card(stored, parts, facts)
        (folder / "README.md").write_text(card, encoding="utf-8")
        what = request.what or "all"
        verification.write_manifest(folder, stored, "onnx", what, results, facts)
    verification.show(results, print)
    return request.output_dir


def _card(
    stored: StoredModel, parts: Mapping[str, Part], facts: Mapping[str, Any]
) -> str:
    what, part = next(iter(parts.items()))
    is_qa = "has_impossible" in facts.get("task", {})
    more = f'batch["{POSITIONS}"] = ids[:, :1] * 0\n' if what == "generator" else ""
    cls, sep = stored.vocab.cls_id, stored.vocab.sep_id
    ids = [cls, *[sep] * (part.least_length - 1)]
    return _CARD.format(
        name=stored.name,
        what=what,
        length=part.shape.max_position_embeddings,
        ids=f"[{cls}] + [{sep}] * {len(ids) - 1}" if len(ids) > 3 else ids,
        more=more,
        meaning=_LABELS if facts.get("labels") else _SETTINGS if is_qa else "",
    )


def _parts(stored: StoredModel, what: str | None) -> dict[str, Part]:
    """What can be written of a pre-trained model."""
    source = saved_model.source_of(stored)
    there = [kind for kind in saved_model.kinds_of(source) if kind in WHAT]
    if not networks.is_representable(stored):
        there = [kind for kind in there if kind != "generator"]
    if what not in (None, *there) or not there:
        saved_model.check_part(source, what if what and there else "encoder")
        raise UserError(
            f"{stored.origin} has no {what} that ONNX can hold; --format onnx has "
            f"--what {', '.join(there)}."
        )
    return {kind: _part(stored, source, kind) for kind in ([what] if what else there)}


def _part(stored: StoredModel, source, kind: str) -> Part:
    head = _HEADS[kind]
    check = _check_of(saved_model.servable_of(source, kind))
    if kind == "detector" and source.pretrainer.objective.needs_log_q:
        head = electric_detector(stored.config)
        return Part(stored.tensors, source.shape, head, check)
    name = {"detector": "discriminator", "scorer": "discriminator"}.get(kind, kind)
    network = networks.split(stored, name)[name]
    return Part(network.tensors, network.shape, head, check)


def _task(
    request: ExportRequest,
) -> tuple[StoredModel, dict[str, Part], dict[str, Any]]:
    """(the encoder with its facts, the part, what it means) of a fine-tuned model."""
    folder = finetuned_task.trial_dir_of(request)
    task = finetuned_task.read_task(folder, request.what, vocab_file=request.vocab_file)
    stored = readers.read(folder, task.config.vocab_file)
    config, kind = task.config, task.facts.kind
    part = Part(
        {v.path: np.asarray(v) for v in task.variables},
        config.model_config(),
        of_task(task),
        _check_of(saved_model.TASKS[kind](task)),
    )
    if kind == "tagging":  # Taggers are trained with segment 1 throughout.
        part = part._replace(types=NAMES[1])
    if kind == "qa" and config.joint_prediction:
        part = part._replace(least_length=max(2, config.beam_size))
    settings = huggingface_heads.settings_of(task.facts, config)
    meaning = {"labels": list(task.facts.labels), "task": settings}
    return stored, {request.what.replace(":", "."): part}, meaning


def _check_of(served: Servable) -> Check:
    """All outputs for the batch of ids that checks a SavedModel."""
    check = next(check for check in served.checks if NAMES[0] in check.inputs)
    found = served.signatures[check.signature](**check.inputs)
    return check._replace(expected={k: np.asarray(v) for k, v in found.items()})


def _need(package: str) -> None:
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise UserError(
            f'--format onnx needs the package {package}: pip install -e ".[onnx]"'
        )


def encoder(graph: Graph, hidden: str) -> list[str]:
    """The states, and that at [CLS] [B, H]."""
    graph.op("Identity", hidden, output="sequence_output")
    graph.at_cls(hidden, "pooled_output")
    return ["sequence_output", "pooled_output"]


def _energies(graph: Graph, hidden: str) -> str:
    dense = graph.activation(graph.dense(hidden, f"{DISCRIMINATOR_HEAD}dense"))
    return graph.squeeze(graph.dense(dense, f"{DISCRIMINATOR_HEAD}dense_1"), 2)


def detector(graph: Graph, hidden: str) -> list[str]:
    """Logits of "replaced" and their probabilities [B, L]."""
    logits = graph.op("Identity", _energies(graph, hidden), output="logits")
    return [logits, graph.op("Sigmoid", logits, output="probabilities")]


def scorer(graph: Graph, hidden: str) -> list[str]:
    """Electric's scores of the tokens [B, L], 0 at padding."""
    real = graph.op("Cast", NAMES[1], to=1)
    scores = graph.op("Neg", _energies(graph, hidden))
    return [graph.op("Mul", scores, real, output="token_scores")]


def electric_detector(config: PretrainingConfig) -> Head:
    """`detector` with the noise's log q and prior (see `objectives.Electric`)."""
    prior = math.log(config.mask_prob / (1 - config.mask_prob))
    log_q = {"two_tower": _log_q_of_towers, "unigram": _log_q_of_counts}

    def logits(graph: Graph, hidden: str) -> list[str]:
        op, net = graph.op, _energies(graph, hidden)
        noise = log_q[config.generator](graph, config)
        noise = op("Add", noise, graph.constant(prior, np.float32))
        found = op("Add", net, noise, output="logits")
        return [found, op("Sigmoid", found, output="probabilities")]

    return logits


def _log_q_of_towers(graph: Graph, config: PretrainingConfig) -> str:
    """Of each token by what is before and after it (see `TwoTowerGenerator`)."""
    op, constant = graph.op, graph.constant
    shape, ends = config.generator_config(), constant([2**31])

    def states(direction):
        return encode(graph, shape, f"generator_{direction}/", direction)

    def part(x, first, last):
        return op("Slice", x, constant([first]), last, constant([1]))

    before, after = states("ltr"), states("rtl")
    before = part(before, -1, ends), part(before, 0, constant([-1]))
    after = part(after, 1, ends), part(after, 0, constant([1]))
    both = [op("Concat", *halves, axis=1) for halves in (before, after)]
    own = "generator_ltr/embeddings/word_embeddings"
    table = own if own in graph.tensors else f"{ENCODER}embeddings/word_embeddings"
    scores = _vocabulary_scores(
        graph, op("Concat", *both, axis=-1), "cloze_predictions/", table
    )
    ids = op("Unsqueeze", op("Cast", NAMES[0], to=7), constant([2]))
    log_q = op("GatherElements", op("LogSoftmax", scores, axis=-1), ids, axis=2)
    return graph.squeeze(log_q, 2)


def _log_q_of_counts(graph: Graph, config: PretrainingConfig) -> str:
    """Of each token by how often it is in the data (see `UnigramGenerator`)."""
    del config
    counts = np.asarray(graph.tensors["unigram_generator/token_counts"], np.float32)
    table = np.log(np.maximum(counts, 1)) - np.log(counts.sum())
    return graph.op("Gather", graph.constant(table, np.float32), NAMES[0])


def generator(graph: Graph, hidden: str) -> list[str]:
    """Scores of all tokens at the masked positions [B, N, V]."""
    states = _states_at(graph, hidden, POSITIONS)
    table = f"{ENCODER}embeddings/word_embeddings"
    scores = _vocabulary_scores(graph, states, GENERATOR_HEAD, table)
    return [graph.op("Identity", scores, output="mlm_logits")]


_HEADS = {
    "encoder": encoder,
    "detector": detector,
    "generator": generator,
    "scorer": scorer,
}


def _states_at(graph: Graph, hidden: str, positions: str) -> str:
    """The states [B, N, H] at positions [B, N]."""
    places = graph.op("Unsqueeze", positions, graph.constant([2]))
    places = graph.op("Cast", places, to=7)
    return graph.op("GatherND", hidden, places, batch_dims=1)


def _vocabulary_scores(graph: Graph, states: str, head: str, table: str) -> str:
    """Scores of all tokens by a head like a masked language model's [B, N, V]."""
    states = graph.activation(graph.dense(states, f"{head}dense"))
    states = graph.norm(states, f"{head}LayerNorm")
    columns = graph.op("Transpose", graph.weight(table))
    scores = graph.op("MatMul", states, columns)
    return graph.op("Add", scores, graph.weight(f"{head}output_bias"))


def of_task(task: finetuned_task.ExportedTask) -> Head:
    """The head of a classifier, a regression, a tagger or of question answering."""
    facts, name = task.facts, f"task_specific/{task.facts.name}/dense"

    def labels(graph: Graph, hidden: str) -> list[str]:
        op = graph.op
        states = hidden if facts.kind == "tagging" else graph.at_cls(hidden)
        logits = op("Identity", graph.dense(states, name), output="logits")
        if facts.kind == "multilabel":
            return [logits, op("Sigmoid", logits, output="probabilities")]
        return [logits, op("Softmax", logits, axis=-1, output="probabilities")]

    def number(graph: Graph, hidden: str) -> list[str]:
        op = graph.op
        share = graph.squeeze(graph.dense(graph.at_cls(hidden), name), 1)
        ends = (graph.constant(value, np.float32) for value in (0, 1))
        share = op("Clip", share, *ends)
        width = graph.constant(facts.highest - facts.lowest, np.float32)
        lowest = graph.constant(facts.lowest, np.float32)
        return [op("Add", op("Mul", share, width), lowest, output="value")]

    if facts.kind == "qa":
        return _answers(task)
    return labels if facts.labels else number


def _answers(task: finetuned_task.ExportedTask) -> Head:
    """What `heads.QuestionAnsweringHead` gives when it is not trained."""
    config, scope = task.config, f"task_specific/{task.facts.name}/"
    # Layers are named in the order in which they are made.
    start, end, *others = (f"{scope}dense{n}" for n in ("", "_1", "_2", "_3"))

    def outputs(graph: Graph, hidden: str) -> list[str]:
        op, penalty = graph.op, _penalty(graph)
        starts = graph.squeeze(graph.dense(hidden, start), 2)
        starts = op("Add", starts, penalty, output="start_logits")
        names = [starts]
        if config.joint_prediction:
            names += _beams(
                graph, hidden, starts, penalty, scope, end, config.beam_size
            )
        else:
            ends = graph.squeeze(graph.dense(hidden, end), 2)
            names.append(op("Add", ends, penalty, output="end_logits"))
        if config.answerable_classifier:
            state, layers = graph.at_cls(hidden), iter(others)
            if config.answerable_uses_start_logits:
                weights = op("Unsqueeze", op("Softmax", starts), graph.constant([1]))
                expected = graph.squeeze(op("MatMul", weights, hidden), 1)
                both = op("Concat", state, expected, axis=-1)
                state = op("Gelu", graph.dense(both, next(layers)))
            logit = graph.dense(state, next(layers))
            names.append(graph.squeeze(logit, 1, "answerable_logit"))
        return names

    return outputs


def _penalty(graph: Graph) -> str:
    """What keeps answers out of the question and the padding [B, L]."""
    op, constant = graph.op, graph.constant
    in_text = op("Cast", op("Mul", NAMES[1], NAMES[2]), to=1)
    length = op("Shape", NAMES[0], start=1, end=2)
    cls = op("OneHot", constant([0]), length, constant([0, 1], np.float32))
    outside = op("Sub", constant(1, np.float32), op("Add", in_text, cls))
    return op("Mul", outside, constant(IMPOSSIBLE_POSITION, np.float32))


def _beams(graph, hidden, starts, penalty, scope, end, count) -> list[str]:
    """The best starts and for each the best ends, with their log-probabilities."""
    op, constant = graph.op, graph.constant
    names = ["start_top_index", "start_top_log_probs"]
    names += ["end_top_index", "end_top_log_probs"]

    def best(logits, index, log_probs):
        most, where = graph.top(op("LogSoftmax", logits, axis=-1), count)
        op("Identity", most, output=log_probs)
        return op("Identity", where, output=index)

    states = _states_at(graph, hidden, best(starts, *names[:2]))
    # The layer sees start and end side by side: its product is a sum of two.
    kernel = graph.weight(f"{scope}qa_hidden/kernel")
    parts = [graph.new_name("Split"), graph.new_name("SplitEnd")]
    of_start, of_end = graph.ops("Split", kernel, outputs=parts, axis=0, num_outputs=2)
    of_start = op("MatMul", states, of_start)
    of_start = op("Add", of_start, graph.weight(f"{scope}qa_hidden/bias"))
    of_start = op("Unsqueeze", of_start, constant([2]))
    of_end = op("Unsqueeze", op("MatMul", hidden, of_end), constant([1]))
    pairs = op("Gelu", op("Add", of_start, of_end))
    scores = graph.squeeze(graph.dense(pairs, end), 3)
    best(op("Add", scores, op("Unsqueeze", penalty, constant([1]))), *names[2:])
    return names
