# SPDX-License-Identifier: Apache-2.0
"""What is known of accelerators: their rates, and what compilers ask about them."""

from __future__ import annotations

import math
from typing import NamedTuple


class Platform(NamedTuple):
    """One chip, by its maker's data sheet; operations in bfloat16, without sparsity."""

    topology: str  # for TPUs' compiler; "" of a GPU
    flops: float  # per second
    bandwidth: float  # bytes per second
    memory: float  # bytes
    hertz: float = 0  # of a TPU, to make times of its compiler's cycles; 0: not known
    cores: int = 0  # of a GPU

    @property
    def chips(self) -> float:
        """How many there are to compile for; of GPUs any number."""
        sizes = self.topology.partition(":")[2]
        return math.prod(map(int, sizes.split("x"))) if sizes else math.inf

    @property
    def gpu(self) -> dict[str, int]:
        """What GPU_TARGET asks for."""
        numbers = {"bandwidth": self.bandwidth, "memory": self.memory}
        return {name: int(n) for name, n in numbers.items()} | {"cores": self.cores}


PLATFORMS = {
    # 4 units of 128 x 128 x 2 operations at 1.5 GHz make 197e12 a second.
    "tpu-v5e": Platform("v5e:2x2", 197e12, 819e9, 16e9, hertz=1.5e9),
    "tpu-v5p": Platform("v5p:2x2x1", 459e12, 2765e9, 95e9),
    "tpu-v6e": Platform("v6e:2x2", 918e12, 1640e9, 32e9),
    "h100": Platform("", 989e12, 3352e9, 80e9, cores=132),
    "h200": Platform("", 989e12, 4800e9, 141e9, cores=132),
}

# What XLA would ask the driver of a Hopper GPU for.
GPU_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 core_count: {cores} fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: {memory} cuda_compute_capability {{ major: 9 }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 13 }} device_description_str: "GPU"
"""
