# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine, and processes that end with their parent process."""

import os
import re
import threading
import time

# Environment variable: the process with which this one ends.
ENDS_WITH_PARENT = "ELECTRA_TF_ENDS_WITH"


def gpus() -> list[str]:
    """The visible GPUs, by their names in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name and name != "-1"]
    names = os.listdir("/dev") if os.path.isdir("/dev") else []
    count = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in names)
    # CUDA counts from 0, whatever the numbers of the device files.
    return [str(number) for number in range(count)]


def end_with_parent() -> None:
    """Ends this process when the parent named by its environment has ended."""
    parent = os.environ.pop(ENDS_WITH_PARENT, None)  # Children do not inherit it.
    if parent:
        threading.Thread(target=_end_without, args=(int(parent),), daemon=True).start()


def _end_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
