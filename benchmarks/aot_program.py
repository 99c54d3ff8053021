# SPDX-License-Identifier: Apache-2.0
"""Compiles what aot_compile.py has lowered, for a device that is not there. JAX only.

    python benchmarks/aot_program.py FOLDER

FOLDER holds step.hlo and step.json; compiled.json gets what the platform's compiler
made of it, compiled.txt its program. Private parts of JAX are used: only the versions
that benchmarks/install_compilers.sh installs were tried.
"""

from __future__ import annotations

import dataclasses
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

# Counted in the program; a step should have none of the first kind.
HOST = ("infeed", "outfeed", "send", "recv")
RARE = ("while", "conditional", "sort", "scatter", "gather", "custom-call", "fusion")
RARE += ("all-reduce", "all-reduce-start")


def main(folder: Path) -> None:
    jax.config.update("jax_enable_x64", True)  # the state has int64 counters
    spec = json.loads((folder / "step.json").read_text())
    step = as_function((folder / "step.hlo").read_bytes(), spec)
    program, report = compile_step(step, spec)
    text = program.as_text()
    (folder / "compiled.txt").write_text(text)
    report |= memory_of(program, spec["state"]) | costs_of(program) | content_of(text)
    (folder / "compiled.json").write_text(json.dumps(report, indent=1))


def as_function(hlo: bytes, spec: dict) -> jax.export.Exported:
    """An HLO module as a function of (state, inputs): (new state, row of metrics)."""
    given = [*spec["state"].values(), *spec["inputs"].values()]
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in given]

    def of_the_same_types(*tensors):
        return (*tensors[: len(spec["state"])], np.zeros(spec["row"], np.float32))

    checks = [jax.export.DisabledSafetyCheck.platform()]
    exported = jax.export.export(
        jax.jit(of_the_same_types), platforms=["cpu"], disabled_checks=checks
    )(*arguments)
    return dataclasses.replace(
        exported,
        fun_name="step",
        mlir_module_serialized=_portable(hlo),
        module_kept_var_idx=tuple(range(len(arguments))),
    )


def _portable(hlo: bytes) -> bytes:
    """An HLO module as portable StableHLO, which jax.export takes."""
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


def compile_step(exported: jax.export.Exported, spec: dict):
    """The compiled program and a report of how it was made.

    With several chips, each has its part of the batch and all of the state: XLA divides
    the program, and finds out where sums need an all-reduce.
    """
    chips = spec["chips"]
    if spec["topology"]:
        found = topologies.get_topology_desc(spec["topology"], "tpu")
    else:
        options = {"target_config": spec["gpu"], "topology": f"1x1x{chips}"}
        found = topologies.get_topology_desc("", "cuda", **options)
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
    started = time.monotonic()
    program = step.trace(*exported.in_avals).lower().compile()
    seconds = time.monotonic() - started
    return program, {"device": found.devices[0].device_kind, "compile_s": seconds}


def memory_of(program, state: dict) -> dict:
    """Bytes by the compiler's own count, and how many variables the state has."""
    found = program.memory_analysis()
    peak = found.argument_size_in_bytes + found.output_size_in_bytes
    peak += found.temp_size_in_bytes - found.alias_size_in_bytes
    sizes = {"peak_bytes": peak, "temp_bytes": found.temp_size_in_bytes}
    return sizes | {"variables": len(state)}


def costs_of(program) -> dict:
    """FLOPs and bytes read and written."""
    costs = program.cost_analysis()
    if not costs:  # the compiler for GPUs has none: XLA's own count of its program
        hlo = program.runtime_executable().hlo_modules()[0]
        client = jax.devices("cpu")[0].client
        costs = xla_client._xla.hlo_module_cost_analysis(client, hlo)
    return {"flops": costs["flops"], "bytes": costs["bytes accessed"]}


def content_of(text: str) -> dict:
    """The operations of a compiled program; on a TPU the cycles that it may take.

    What a loop repeats is counted once.
    """
    header = text[: text.index("\n")]
    aliases = re.search(r"input_output_alias=\{(.*?)\}, \w+=", header)
    kinds = re.findall(r" = (?:\(.*?\)|\S+) ([a-z0-9-]+)\(", text)
    cycles = re.findall(r'"estimated_cycles":"(\d+)"', text)
    return {
        "aliased": aliases[1].count("-alias") if aliases else 0,
        "ops": {name: kinds.count(name) for name in (*HOST, *RARE)},
        "cycles": sum(map(int, cycles)),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
