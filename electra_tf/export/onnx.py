# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX, for onnxruntime: ids in, numbers out, any batch and length.

The graph is written node by node: an encoder and its heads are few kinds of nodes, and
the converter from TensorFlow's graphs (tf2onnx) looks for a maintainer. Inputs and
outputs are those of the signature `ids` of the SavedModels, whose checks each file has
to pass in onnxruntime.

Shapes: B batch, L length, N masked positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.errors import UserError
from electra_tf.export import finetuned, onnx_heads, saved_models
from electra_tf.export.encoder import need_encoder
from electra_tf.export.exported import Check, Servable
from electra_tf.export.formats import ExportRequest
from electra_tf.export.inputs import NAMES
from electra_tf.export.onnx_graph import Graph, encode
from electra_tf.export.onnx_heads import POSITIONS
from electra_tf.inference import huggingface_heads
from electra_tf.interop import networks, sources, verification
from electra_tf.interop.stored_model import StoredModel
from electra_tf.storage.new_folder import new_folder, require_room
from electra_tf.text.vocabulary import write_settings, write_tokens

WHAT = ("encoder", "detector", "generator", "scorer")
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


class Part(NamedTuple):
    """What a file is made of."""

    tensors: Mapping[str, np.ndarray]  # by the original's names
    shape: ModelConfig
    head: onnx_heads.Head
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
    with new_folder(request.output_dir) as folder:
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
    source = saved_models.source_of(stored)
    there = [kind for kind in saved_models.kinds_of(source) if kind in WHAT]
    if not networks.is_representable(stored):
        there = [kind for kind in there if kind != "generator"]
    if not there:
        need_encoder(source)  # Else it would have one.
    if what not in (None, *there):
        raise UserError(
            f"{stored.origin} has no {what} that can be written as ONNX; it has "
            f"{', '.join(there)}."
        )
    return {kind: _part(stored, source, kind) for kind in ([what] if what else there)}


def _part(stored: StoredModel, source, kind: str) -> Part:
    head = getattr(onnx_heads, kind)
    check = _check_of(saved_models.servable_of(source, kind))
    if kind == "detector" and source.pretrainer.objective.needs_log_q:
        head = onnx_heads.electric_detector(stored.config)
        return Part(stored.tensors, source.shape, head, check)
    name = {"detector": "discriminator", "scorer": "discriminator"}.get(kind, kind)
    network = networks.split(stored, name)[name]
    return Part(network.tensors, network.shape, head, check)


def _task(
    request: ExportRequest,
) -> tuple[StoredModel, dict[str, Part], dict[str, Any]]:
    """(the encoder with its facts, the part, what it means) of a fine-tuned model."""
    folder = finetuned.trial_dir_of(request)
    task = finetuned.read_task(folder, request.what, vocab_file=request.vocab_file)
    stored = sources.read(folder, task.config.vocab_file)
    config, kind = task.config, task.facts.kind
    part = Part(
        {v.path: np.asarray(v) for v in task.variables},
        config.model_config(),
        onnx_heads.of_task(task),
        _check_of(saved_models.TASKS[kind](task)),
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
