# SPDX-License-Identifier: Apache-2.0
"""The TPU's path, CPU devices in a TPU's place; only its program is not executed."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.runs import ROOT, pretrain, tiny
from tests.helpers.tpu_stand_in import CORES


def run(data) -> subprocess.CompletedProcess:
    hparams = tiny(use_tpu=True)
    del hparams["jit_compile"]
    command = [sys.executable, "-m", "tests.helpers.tpu_stand_in", str(data), "tpu"]
    return subprocess.run(
        [*command, json.dumps(hparams)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=300,
        check=False,
    )


@pytest.mark.thorough
def test_all_but_the_tpus_program_is_executed(tiny_data):
    done = run(tiny_data)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["line"] == (
        f"Devices: {CORES} x TPU (TPUStrategy), precision float32, compiled by XLA"
    )
    assert found["replicas"] == CORES
    assert found["inter_op_threads"] == 0  # TensorFlow chooses
    assert found["kind_of_variable"] == "TPUDistributedVariable"
    assert found["restored"]
    assert found["target_is_tpu"]
    assert "belongs to another machine" in found["refused"]
    assert found["parts"] == [[8 // CORES, 32]] * CORES  # of a batch of 8
    counts = found["operations"]
    assert counts["TPUReplicateMetadata"] == counts["While"] == 1
    assert counts["CrossReplicaSum"] > 10  # gradients and sums
    # Nothing that only the host could compute, and no generator that is TPUs' own.
    strange = [op for op in counts if "PyFunc" in op or "Random" in op]
    assert not strange
    # In the form that suits TPUs: no search of a cumulative sum.
    assert counts["Einsum"] and "Cumsum" not in counts


def test_without_a_tpu_the_error_names_the_package(tiny_data):
    done = pretrain(tiny_data, "no_tpu", tiny(use_tpu=True, tpu_name="my-tpu"))
    assert done.returncode == 2, done.stderr
    assert "no TPU my-tpu" in done.stderr
    assert "tensorflow-tpu" in done.stderr and "Traceback" not in done.stderr
