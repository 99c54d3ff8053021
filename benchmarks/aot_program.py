# SPDX-License-Identifier: Apache-2.0
"""Compiles what aot_compile.py has lowered, for a device that is not there. JAX only.

    python benchmarks/aot_program.py FOLDER             # writes step.jax
    python benchmarks/aot_program.py FOLDER PLATFORM    # compiled.json and .txt, too
    python benchmarks/aot_program.py FOLDER PLATFORM 4  # of several chips

FOLDER holds step.hlo and step.json. step.jax is the step in JAX's own portable format
(`jax.export`: StableHLO) in gzip, which run_compiled_step.py runs; compiled.json says
what the platform's compiler made of it, compiled.txt is its program. Private parts of
JAX are used: the versions that test.sh installs are those that were tried.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    # Looks for no device: for no driver, and not for a TPU's metadata server.
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

import jax
import jax.export
import numpy as np
from jax._src.lib import xla_client
from jax.experimental import topologies
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, stablehlo
from platforms import GPU_TARGET, PLATFORMS

# Counted in the program: what a step should have none of comes first.
HOST = ("infeed", "outfeed", "send", "recv")
RARE = ("while", "conditional", "sort", "scatter", "gather", "custom-call", "fusion")
RARE += ("all-reduce", "all-reduce-start")


def export(folder: Path) -> jax.export.Exported:
    """Makes step.jax of step.hlo."""
    spec = json.loads((folder / "step.json").read_text())
    given = [*spec["state"].values(), *spec["inputs"].values()]
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in given]

    def like_the_step(*tensors):
        rows = np.zeros(spec["row"], np.float32)
        return (*tensors[: len(spec["state"])], rows)

    checks = [jax.export.DisabledSafetyCheck.platform()]
    exported = jax.export.export(
        jax.jit(like_the_step), platforms=["cpu"], disabled_checks=checks
    )(*arguments)
    exported = dataclasses.replace(
        exported,
        fun_name="step",
        mlir_module_serialized=_portable((folder / "step.hlo").read_bytes()),
        module_kept_var_idx=tuple(range(len(arguments))),
    )
    content = bytes(exported.serialize())
    (folder / "step.jax").write_bytes(gzip.compress(content, mtime=0))
    spec["step_sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "step.json").write_text(json.dumps(spec, indent=1))
    return exported


def _portable(hlo: bytes) -> bytes:
    """An HLO module as StableHLO of a version that JAX of a year ago reads."""
    computation = xla_client.XlaComputation(hlo)
    text = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        for function in module.body.operations:
            for block in function.regions[0]:
                for op in list(block.operations):
                    if op.operation.name == "mhlo.erf":  # has no portable form
                        with ir.InsertionPoint(op):
                            erf = chlo.erf(op.operands[0])
                        op.result.replace_all_uses_with(erf)
                        op.operation.erase()
        return stablehlo.serialize_portable_artifact(module, "1.9.0", True)


def compile_for(
    platform: str, folder: Path, exported: jax.export.Exported, chips: int = 1
) -> dict:
    """Compiles for chips of a platform; what there is to know of the program.

    Of several, each has its part of the batch and all of the state: XLA divides the
    program, and finds out where sums need an all-reduce.
    """
    spec = json.loads((folder / "step.json").read_text())
    kind = PLATFORMS[platform]
    if not kind.topology:
        options = {"target_config": GPU_TARGET.format(**kind.gpu)}
        options["topology"] = f"1x1x{chips}"
        found = topologies.get_topology_desc("", "cuda", **options)
    else:
        found = topologies.get_topology_desc(kind.topology, "tpu")
    mesh = jax.sharding.Mesh(np.array(found.devices[:chips]), ("rows",))
    whole, rows = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        for axes in ((), ("rows",))
    )
    donated = tuple(range(len(spec["state"])))
    step = jax.jit(
        exported.call,
        donate_argnums=donated,
        in_shardings=(*(whole for _ in donated), *(rows for _ in spec["inputs"])),
        out_shardings=whole,
    )
    since = time.monotonic()
    program = step.trace(*exported.in_avals).lower().compile()
    report = {"device": found.devices[0].device_kind, "jax": jax.__version__}
    report["compile_s"] = time.monotonic() - since
    text = program.as_text()
    (folder / "compiled.txt").write_text(text)
    report |= _memory(program, spec["state"]) | _costs(program) | _content(text)
    (folder / "compiled.json").write_text(json.dumps(report, indent=1))
    return report


def _memory(program, state: dict) -> dict:
    found = program.memory_analysis()
    sizes = {
        name: getattr(found, f"{name}_size_in_bytes")
        for name in ("argument", "output", "alias", "temp", "generated_code")
    }
    peak = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    sizes = {f"{name}_bytes": value for name, value in sizes.items()}
    nbytes = sum(
        np.prod(s, dtype=int) * np.dtype(d).itemsize for s, d in state.values()
    )
    return sizes | {
        "peak_bytes": peak,
        "state_bytes": int(nbytes),
        "variables": len(state),
    }


def _costs(program) -> dict:
    costs = program.cost_analysis()
    if not costs:  # None of GPUs' compiler: then XLA's own count of its program.
        hlo = program.runtime_executable().hlo_modules()[0]
        client = jax.devices("cpu")[0].client
        costs = xla_client._xla.hlo_module_cost_analysis(client, hlo)
    return {"flops": costs["flops"], "bytes": costs["bytes accessed"]}


_OPERATION = re.compile(
    r"^\s*(?:ROOT )?(?P<name>%\S+) = (?P<shape>\(.*?\)|\S+) "
    r"(?P<op>[a-z0-9-]+)\((?P<rest>.*)$"
)
_ARRAY = re.compile(r"\b(pred|[a-z]+?(\d+))[a-z0-9]*\[([\d,]*)\]")
# They move nothing.
_FREE = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "call")


def _content(text: str) -> dict:
    """What a compiled program consists of, and which parts of the step take the most.

    By the cycles that TPUs' compiler estimates; else by the bytes that each operation
    reads and writes.
    """
    header = text[: text.index("\n")]
    aliases = re.search(r"input_output_alias=\{(.*?)\}, \w+=", header)
    report = {"aliased": aliases[1].count("-alias") if aliases else 0}
    counts, sizes, found = collections.Counter(), {}, []
    lines, report["loops_of_unknown_length"] = _executed(text)
    for line, times in lines:
        match = _OPERATION.match(line)
        if not match:
            continue
        sizes[match["name"]] = _nbytes(match["shape"])
        counts[match["op"]] += 1
        if match["op"] in _FREE:
            continue
        operands = re.findall(r"%[^\s,()]+", match["rest"].split("), ")[0])
        moved = sizes[match["name"]] + sum(sizes.get(name, 0) for name in operands)
        cycles = re.search(r'"estimated_cycles":"(\d+)"', line)
        own = int(cycles[1]) if cycles else 0
        found.append((_part(line), times * moved, times * own))
    cycles = sum(c for *_, c in found)
    parts = collections.Counter()
    for part, moved, own in found:
        parts[part] += own if cycles else moved
    total = sum(parts.values()) or 1
    report["parts"] = {name: value / total for name, value in parts.most_common()}
    report["parts_by"] = "the compiler's cycles" if cycles else "bytes"
    report["ops"] = {name: counts[name] for name in (*HOST, *RARE)}
    targets = set(re.findall(r'custom_call_target="([^"]+)"', text))
    report |= {"custom_calls": sorted(targets), "ops_in_entry": len(found)}
    return report | ({"cycles": cycles} if cycles else {})


def _executed(text: str) -> tuple[list[tuple[str, int]], int]:
    """The lines of the entry computation and of those that it calls or repeats.

    With each, how often it is executed. Then the number of loops of which the program
    does not say it: what is in them counts once.
    """
    blocks = re.split(r"\n(?=(?:ENTRY )?%\S+ \()", text)
    bodies = {block.split(" (")[0].split()[-1]: block.splitlines() for block in blocks}
    todo = [
        (block.split(" (")[0].split()[-1], 1)
        for block in blocks
        if "ENTRY" in block[:6]
    ]
    lines, unknown = [], 0
    while todo:
        name, times = todo.pop()
        for line in bodies.get(name, []):
            lines.append((line, times))
            if call := re.search(r" call\(.*to_apply=(%[^\s,]+)", line):
                todo.append((call[1], times))
            elif loop := re.search(r" while\(.*body=(%[^\s,]+)", line):
                count = _length_of(line, bodies)
                unknown += count is None
                todo.append((loop[1], times * (count or 1)))
    return lines, unknown


def _length_of(loop: str, bodies: dict[str, list[str]]) -> int | None:
    """How often a loop runs; None if the program does not say it.

    TPUs' compiler does not note it. The loops of a step count up from 0, and their
    conditions compare with a constant.
    """
    if noted := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop):
        return int(noted[1])
    condition = "\n".join(bodies[re.search(r"condition=(%[^\s,]+)", loop)[1]])
    end = re.search(r"ROOT .* compare\(%\S+, (%\S+)\), direction=LT", condition)
    constants = dict(re.findall(r"(%\S+) = s32\[\]\S* constant\((\d+)\)", condition))
    return int(constants[end[1]]) if end and end[1] in constants else None


def _nbytes(shape: str) -> int:
    """Bytes of the arrays of a shape in a program's text."""
    total = 0
    for _, bits, dims in _ARRAY.findall(shape):
        count = int(np.prod([int(n) for n in dims.split(",") if n], dtype=np.int64))
        total += count * int(bits or 8) // 8
    return total


def _part(line: str) -> str:
    """The part of the step that an operation belongs to, by its name in TensorFlow."""
    name = re.search(r'op_name="([^"]*)"', line)
    scopes = name[1].split("call_exported/", 1)[1:] if name else []
    if not scopes:
        return "without a name"
    # Of what was merged the last name is a whole one.
    scopes = re.sub(r"_\d+\b", "", scopes[0].split(";")[-1])
    scopes = scopes.removeprefix("gradient_tape/")
    if scopes.startswith("AdamWeightDecay"):
        return "optimizer" + ", norm" * ("global_norm" in scopes)
    if scopes.startswith("PartitionedCall"):
        return "layers of both networks, backward"
    if "/PartitionedCall" in scopes:
        return scopes.split("/PartitionedCall")[0] + ", layers forward"
    return "/".join(scopes.split("/")[:2]) if "/" in scopes else "small operations"


def main(folder: str, platform: str | None = None, chips: str = "1") -> None:
    jax.config.update("jax_enable_x64", True)  # the state has int64 counters
    exported = export(Path(folder))
    if platform:
        compile_for(platform, Path(folder), exported, int(chips))


if __name__ == "__main__":
    main(*sys.argv[1:])
