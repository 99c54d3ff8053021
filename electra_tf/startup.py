# SPDX-License-Identifier: Apache-2.0
"""What is done around the import of TensorFlow, Keras and PyTorch.

TensorFlow comes without the notices that it prints whatever one does. Keras looks a
class up by its registered name and imports no module for it: a stand-in under each of
our names imports the module when a file needs it, so that `import electra_tf` alone
serves `keras.models.load_model` and stays quick.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

# Printed by C++ code on every start, before any log level applies.
_NOTICES = re.compile(
    rb"absl::InitializeLog|oneDNN custom operations are on|Could not find cuda drivers"
    rb"|optimized to use available CPU instructions|rebuild TensorFlow with"
    rb"|failed call to cuInit: (INTERNAL: .*)?UNKNOWN ERROR \(303\)"
)

_is_filtered = False
# Whether only a script uses this Keras; `cli.run` says so.
in_script = False

# Keras imports them where they are installed, for wrappers that no script uses. That
# would be a third of the time that the import of TensorFlow takes.
_FOR_WRAPPERS = ("matplotlib", "sklearn")


def import_tensorflow() -> None:
    """Imports tensorflow and finds its devices; passes on what is worth reading.

    What is known to say nothing is dropped: notices of how TensorFlow was built, and
    that a machine without a GPU driver has none.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with filtered_stderr(), absent(_FOR_WRAPPERS if in_script else ()):
        import tensorflow as tf

        tf.config.list_physical_devices()


class _OnImport(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, around: Callable[[Callable, types.ModuleType], None]):
        self._name, self._around = name, around

    def find_spec(self, fullname, path, target=None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)  # The others find it.
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)  # This may not be the import, but a question.
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                sys.meta_path.remove(self)
                self._around(execute, module)

            spec.loader.exec_module = exec_module
        return spec


def on_import(name: str, around: Callable[[Callable, types.ModuleType], None]) -> None:
    """Calls `around(execute, module)` in place of `execute(module)` of a module.

    It is executed at its first import, which is still to come, by any other module.
    """
    sys.meta_path.insert(0, _OnImport(name, around))


def filter_import() -> None:
    """Drops the notices of TensorFlow's import in a user's program, too.

    Devices are left for the program to choose, and so are log levels.
    """

    def filtered(execute: Callable, module: types.ModuleType) -> None:
        with filtered_stderr():
            execute(module)

    if "tensorflow" not in sys.modules:
        on_import("tensorflow", filtered)


# Module -> its classes that Keras's registry has.
CLASSES = {
    "finetune.model": "ClassificationHead FinetuningModel MultilabelHead "
    "QuestionAnsweringHead RegressionHead TaggingHead",
    "model.encoder": "DisentangledEmbeddings Embeddings Encoder TextEncoder",
    "model.transformer_layer": "Attention Intermediate LayerNorm Residual "
    "SelfAttention TransformerLayer _Dense",
    "pretrain.generators": "MaskedLMGenerator MixtureGenerator TiedGenerator "
    "TwoTowerGenerator UniformGenerator UnigramGenerator",
    "pretrain.heads": "DiscriminatorPredictions MaskedLMHead Transform",
    "pretrain.pretraining": "ElectraPretrainer",
    "train.optimization": "AdamWeightDecay InPhases LayerwiseDecay ScopedRate "
    "WarmupPolynomialDecay WarmupStableDecay",
}


class _StandIn(NamedTuple):
    """Stands in Keras's registry for a class whose module is not imported yet."""

    module: str
    name: str

    def from_config(self, config: dict, **options) -> Any:
        module = importlib.import_module(f"electra_tf.{self.module}")
        return getattr(module, self.name).from_config(config, **options)


def _register(keras: Any) -> None:
    registry = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names.split():
            registry.setdefault(f"electra_tf>{name}", _StandIn(module, name))


def register_classes() -> None:
    """Registers `CLASSES` with Keras, at once or when it is imported."""

    def execute_and_register(execute: Callable, keras: types.ModuleType) -> None:
        execute(keras)
        _register(keras)

    if sys.modules.get("keras"):
        _register(sys.modules["keras"])
    else:
        on_import("keras", execute_and_register)


def keep_triton_out() -> None:
    """To be called before torch or transformers is imported beside TensorFlow.

    torch's CUDA build brings triton, whose import ends a process that has TensorFlow:
    each has an LLVM of its own. torch does without it where it is not installed.
    """
    sys.modules.setdefault("triton", None)


@contextlib.contextmanager
def absent(modules: Iterable[str]) -> Iterator[None]:
    """Lets imports of modules fail in the block, as if they were not installed."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def filtered_stderr():
    """Sends file descriptor 2 through this file, run as a process of its own.

    The notices come before any log level applies, and that process outlives an abort of
    this one and passes on its message.
    """
    import subprocess

    global _is_filtered
    if _is_filtered:
        yield
        return
    _is_filtered = True
    sys.stderr.flush()
    # In a session of its own, Ctrl-C does not reach it.
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    kept = os.dup(2)
    os.dup2(child.stdin.fileno(), 2)
    child.stdin.close()
    try:
        yield
    finally:
        _is_filtered = False
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        child.wait()


def _filter() -> None:
    for line in sys.stdin.buffer:
        if not _NOTICES.search(line):
            sys.stderr.buffer.write(line.rstrip(b"\n") + b"\n")
            sys.stderr.buffer.flush()


if __name__ == "__main__":
    _filter()
