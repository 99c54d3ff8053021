# SPDX-License-Identifier: Apache-2.0
"""What pretraining_step.py prints: the machine, a line for each process, the tables."""

import os
import platform
import re
import statistics
from pathlib import Path

from step_measurement import Sizes


def print_header(sizes: Sizes) -> None:
    """Names the machine and the model, and warns when the machine is busy."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"{processor()}, {cores} cores, load {load:.1f}; {platform.platform()}")
    if load > 0.3 * cores:
        print("Other programs are running: times and rates are not to be quoted.")
    network = sizes.discriminator
    print(
        f"{network.layers} layers of {network.hidden}, generator "
        f"{sizes.generator.hidden}, {sizes.batch} x {sizes.length} tokens, "
        f"{sizes.masked} masked: {sizes.step_flops() / 1e9:.1f} GFLOP per step",
        flush=True,
    )


def processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def progress_line(name: str, result: dict) -> str:
    seconds = statistics.median(result["seconds"])
    return (
        f"  {name}: {result['version']} on {result['device']}, {seconds:.4g} s, "
        f"loss {result['loss'][0]:.3f} to {result['loss'][1]:.3f}, "
        f"{result['faults']:,.0f} page faults per step"
    )


def print_tables(results: dict[str, list[dict]], batch_size: int) -> None:
    """Medians over the processes of each variant, as Markdown."""

    def median(runs, key):
        return statistics.median(key(run) for run in runs)

    def rate(run, when):
        return statistics.median(run["rates"][when])

    def fraction(run):
        """The step's rate relative to that of the products made between the steps."""
        return run["flops"] / statistics.median(run["seconds"]) / rate(run, "during")

    print(
        "\n| variant | seq/s | s/step, median | minimum | GFLOP/s | "
        "matmul GFLOP/s before / during / after | fraction |\n"
        "|---|---|---|---|---|---|---|"
    )
    for name, runs in results.items():
        seconds = statistics.median(s for run in runs for s in run["seconds"])
        least = min(s for run in runs for s in run["seconds"])
        rates = " / ".join(
            f"{median(runs, lambda run, w=when: rate(run, w)) / 1e9:,.0f}"
            for when in ("before", "during", "after")
        )
        flops = runs[0]["flops"] / seconds / 1e9
        whole = runs[0]["part"] in ("step", "given_samples", "no_optimizer")
        print(
            f"| {name} | {batch_size / seconds:,.1f} | {seconds:.4g} | "
            f"{least:.4g} | {f'{flops:,.0f}' if whole else ''} | {rates} | "
            f"{f'{median(runs, fraction):.2f}' if whole else ''} |"
        )
    print(
        "\n| variant | start, s | first step, s | memory before it, GB | "
        "peak in it | after it | peak in later steps | XLA's buffers |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    keys = ("memory_start", "peak_first", "memory_first", "peak_steps")
    for name, runs in results.items():
        cells = [
            f"{median(runs, lambda run, k=key: run[k]):.1f}"
            for key in ("start_s", "first_s")
        ]
        cells += [f"{median(runs, lambda r, k=k: r[k]) / 1e9:.2f}" for k in keys]
        buffers = runs[0].get("xla_buffers")
        cells.append(f"{buffers / 1e9:.2f}" if buffers else "")
        print(f"| {name} | {' | '.join(cells)} |")
        if "gpu_peak_steps" in runs[0]:
            first, later = runs[0]["gpu_peak_first"], runs[0]["gpu_peak_steps"]
            print(
                f"| {name}, on the device | | | | {first / 1e9:.2f} | | "
                f"{later / 1e9:.2f} | |"
            )


def print_ratios(results: dict[str, list[dict]]) -> None:
    """The fastest whole step of each precision, here and in PyTorch."""

    def best(**wanted):
        return min(
            (statistics.median(s for run in runs for s in run["seconds"]), name)
            for name, runs in results.items()
            if wanted.items() <= runs[0].items()
        )

    torch = [run for run, *_ in results.values() if run["framework"] == "torch"]
    for precision in dict.fromkeys(run["precision"] for run in torch):
        wanted = {"precision": precision, "part": "step"}
        theirs = best(framework="torch", **wanted)
        wanted["dropout"] = results[theirs[1]][0]["dropout"]
        ours = best(framework="tensorflow", **wanted)
        print(
            f"\n{precision}: {theirs[0] / ours[0]:.2f} times as fast as PyTorch "
            f"({ours[1]}: {ours[0]:.4g} s; {theirs[1]}: {theirs[0]:.4g} s)"
        )
