# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX, for onnxruntime: ids in, numbers out, any batch and length.

tf2onnx converts the SavedModels' signatures for ids. Each file has to pass the
signature's own check in onnxruntime. ONNX has no assertions: invalid ids are not
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from electra_tf import startup
from electra_tf.export import ExportRequest, saved_model
from electra_tf.export.signatures import NAMES, Check, Servable
from electra_tf.inference.finetuned import FinetunedModel
from electra_tf.inference.model import Model
from electra_tf.interop import cards, verification
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.text.vocabulary import write_settings, write_tokens

WHAT = tuple(kind for kind in saved_model.WHAT if kind != "preprocessor")
POSITIONS = "masked_lm_positions"
OPSET = 18
TOLERANCE = 1e-4  # relative beyond 1


def convert(signature: Any) -> Any:
    """A tf.function with an input signature as an ONNX model, checked by the library.

    Inputs and outputs keep their names; outputs are in alphabetical order.
    """
    import onnx
    from tf2onnx import optimizer, tf_loader, tfonnx

    function = signature.get_concrete_function()
    inputs = [x.name for x in function.inputs if x.dtype != tf.resource]
    outputs = [x.name for x in function.outputs]
    names = {name: name.partition(":")[0] for name in inputs}
    names |= zip(outputs, sorted(function.structured_outputs), strict=True)
    frozen = tf_loader.from_function(function, inputs, outputs)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen, name="")
        ends = {"input_names": inputs, "output_names": outputs}
        made = tfonnx.process_tf_graph(
            graph, opset=OPSET, tensors_to_rename=names, **ends
        )
    # Not its TransposeOptimizer: of one attention head it makes a wrong reshape.
    steps = (
        optimizer.ConstFoldOptimizer,
        optimizer.MergeDuplicatedNodesOptimizer,
        optimizer.IdentityOptimizer,
        optimizer.BackToBackOptimizer,
    )
    steps = {step.__name__: step for step in steps}
    model = optimizer.optimize_graph(made, False, steps).make_model("electra")
    onnx.checker.check_model(model)
    return model


def measure(path: Path, check: Check) -> list[verification.Result]:
    """Compares onnxruntime with the model; `UserError` (65) beyond the tolerance."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [*check.expected]
    mask, results = check.inputs[NAMES[1]], []
    for name, found in zip(names, session.run(names, check.inputs), strict=True):
        expected = check.expected[name]
        gap = verification.difference(expected, found, mask, relative=True)
        quantity = f"{path.stem}/{name}"
        results.append(verification.Result(quantity, "onnxruntime", gap, TOLERANCE))
    verification.require(results)
    return results


def export_onnx(request: ExportRequest) -> str:
    """A file for each part, or for one task, with the vocabulary and a card."""
    with startup.optional("tf2onnx", "--format onnx", "onnx"):
        import onnx
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    facts: dict[str, Any] = {"opset": OPSET}
    source, parts = saved_model.servables_of(request, known=WHAT)
    if isinstance(source, FinetunedModel):
        facts["task"] = source.reader.settings()
        facts["labels"] = facts["task"]["labels"]
    stored, results = source.stored(), []
    with atomic_folder(request.output_dir) as folder:
        for what, part in parts.items():
            path = folder / f"{what}.onnx"
            check = part.checks[-1]
            onnx.save_model(convert(part.signatures[check.signature]), path)
            results += measure(path, check)
        vocab = write_tokens(folder / "vocab.txt", stored.vocab.tokens)
        write_settings(vocab, stored.tokenizer_config)
        what = request.what or "all"
        cards.write(
            folder,
            stored,
            request.publication,
            {"library_name": "onnx", "tags": ["electra"]},
            kind=f": {what} as ONNX",
            use=_use(source, parts, facts),
        )
        facts = verification.facts_of(stored, "onnx", what) | facts
        verification.write_manifest(folder, facts, results)
    verification.show(results, print)
    return request.output_dir


def _use(source: Model, parts: Mapping[str, Servable], facts: Mapping[str, Any]) -> str:
    """How to ask the first part, for the card."""
    what = next(iter(parts))
    more = f'batch["{POSITIONS}"] = ids[:, :1] * 0\n' if what == "generator" else ""
    is_qa = "has_impossible" in facts.get("task", {})
    meaning = "labels" if facts.get("labels") else "settings" if is_qa else None
    return cards.fill(
        "onnx",
        what=what,
        length=source.shape.max_length,
        ids=f"[{source.vocab.cls_id}, {source.vocab.sep_id}]",
        more=more,
        meaning=cards.fill(f"onnx: {meaning}") if meaning else "",
    )
