# SPDX-License-Identifier: Apache-2.0
"""Programs that XLA has compiled for this CPU, kept for the next start of the same run.

TensorFlow can write compiled programs into a directory and take them from there. It
compares the whole HLO, but trusts the files: a damaged one, or a full disk, ends the
step that needs it, and a program for another CPU may end the process. So a process
gives TensorFlow a directory of its own, and copies into it what is known to be intact
and made for this CPU, this TensorFlow and these hparams.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from electra_tf import startup
from electra_tf.errors import UserError
from electra_tf.paths import programs_root
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import installed_versions

# What TensorFlow must be able to write; the program of ELECTRA-Small takes 30 MB.
_ROOM = 2**30
# What was not used for so long is removed: programs, and directories of processes.
_KEPT_SECONDS = 30 * 24 * 3600
_PROCESS_SECONDS = 24 * 3600

# Read by XLA or TensorFlow, and not part of the HLO.
_VARIABLES = ("XLA_FLAGS", "TF_XLA_FLAGS", "TF_NUM_INTRAOP_THREADS")
# A function's name has the next number of a counter in it, and the HLO that name. A run
# that is resumed has counted other things until then.
_FUNCTION_NUMBERS = 500_000

_own: Path | None = None  # this process's directory, once `use` has made one


def use(config) -> None:
    """Makes TensorFlow keep programs; to be called before it is imported.

    Without effect where XLA is not asked for, where TF_XLA_FLAGS has a cache already,
    and where the cache's directory cannot be written or is short of room.
    """
    global _own
    given = os.environ.get("TF_XLA_FLAGS", "")
    if not config.compilation_cache or config.jit_compile is False or config.use_tpu:
        return
    if given[:2] not in ("", "--") or "persistent_cache" in given:
        return  # a file's name, or a cache already
    programs = Path(programs_root(), _key(config))
    if "'" in str(programs):
        return  # The variable has no way to write it.
    try:
        _remove_old()
        programs.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix="process-", dir=programs))
        atexit.register(_keep, own)
        if shutil.disk_usage(own).free < _ROOM:
            return
        for kept in programs.glob("*.program"):
            _copy(kept, own)
    except OSError:
        return
    _own = own
    flags = {"directory": f"'{own}'", "device_types": "CPU"}
    flags = [f"--tf_xla_persistent_cache_{name}={flag}" for name, flag in flags.items()]
    os.environ["TF_XLA_FLAGS"] = " ".join([given, *flags]).strip()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Encloses the first call of what is compiled; keeps what is new after it."""
    if _own is None:
        yield
        return
    _count_on()
    # TensorFlow reads a program as text at first, and reports that it is none.
    with startup.filtered_stderr():
        yield
    _keep(_own)


def _keep(own: Path) -> None:
    """Keeps what is new in a process's directory, and removes it.

    TensorFlow makes it again for what it compiles later.
    """
    with contextlib.suppress(OSError, UserError):
        for made in own.iterdir():
            content = made.read_bytes()
            name = f"{hashlib.sha256(content).hexdigest()}.{made.name}.program"
            if not (own.parent / name).exists():
                atomic_write(own.parent / name, content)
        shutil.rmtree(own)


def _key(config) -> str:
    """The name of all that a program depends on beside its HLO, and of its run's."""
    facts = [
        config.identity() | config.settings(),
        installed_versions("tensorflow", "tensorflow-cpu", "keras"),
        [os.environ.get(name) for name in _VARIABLES],
        _processor(),
    ]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _processor() -> list:
    """What XLA compiles for: the CPU with its instructions, and the cores to use."""
    cores = os.cpu_count()
    with contextlib.suppress(AttributeError):  # Linux only
        cores = len(os.sched_getaffinity(0))
    lines = []
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        first = text.split("\n\n")[0].splitlines()
        names = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
        lines = [line for line in first if line.split("\t")[0].strip() in names]
    return [platform.machine(), platform.processor(), cores, lines]


def _copy(kept: Path, own: Path) -> None:
    """Copies an intact program into a process's directory; removes a damaged one."""
    content = kept.read_bytes()
    digest, _, name = kept.name.removesuffix(".program").partition(".")
    if hashlib.sha256(content).hexdigest() != digest:
        kept.unlink(missing_ok=True)
        return
    os.utime(kept)
    (own / name).write_bytes(content)


def _remove_old() -> None:
    """Removes what was not used for long, and what killed processes have left."""
    for path in Path(programs_root()).glob("*/*"):
        with contextlib.suppress(OSError):
            age = time.time() - path.stat().st_mtime
            if path.name.startswith("process-") and age > _PROCESS_SECONDS:
                shutil.rmtree(path)
            elif path.suffix in (".program", ".partial") and age > _KEPT_SECONDS:
                path.unlink()
    for place in Path(programs_root()).glob("*"):
        with contextlib.suppress(OSError):  # It is not empty.
            place.rmdir()


def _count_on() -> None:
    """Gives the next function that is traced a number that all starts give it."""
    with contextlib.suppress(ImportError, AttributeError):  # not a public function
        from tensorflow.python.framework import ops

        while ops.uid() % _FUNCTION_NUMBERS:
            pass
