# SPDX-License-Identifier: Apache-2.0
"""Imports of TensorFlow, Keras and PyTorch.

TensorFlow's unconditional notices are dropped. Keras looks a class up by its registered
name: a stand-in under each name imports the module when a file needs it, so that a
quick `import electra_tf` is enough for `keras.models.load_model`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# Printed by C++ code at every start, before any log level applies.
_NOTICES = re.compile(
    rb"absl::InitializeLog|oneDNN custom operations are on|Could not find cuda drivers"
    rb"|optimized to use available CPU instructions|rebuild TensorFlow with"
    rb"|failed call to cuInit: (INTERNAL: .*)?UNKNOWN ERROR \(303\)"
)

in_script = False  # set by `cli.run`

# Keras imports these for wrappers that no script uses, in a third of the import time of
# TensorFlow.
_FOR_WRAPPERS = ("matplotlib", "sklearn")


def import_tensorflow() -> None:
    """Imports tensorflow and finds its devices, without its usual notices.

    Those are about how TensorFlow was built, and about a missing GPU driver.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    hidden = [name for name in _FOR_WRAPPERS if in_script and name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # Their import fails.
    try:
        with filtered_stderr():
            import tensorflow as tf

            tf.config.list_physical_devices()
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


class _OnImport(importlib.abc.MetaPathFinder):
    """Executes the first import of a module within a context."""

    def __init__(self, name: str, context: Callable[[], Any]):
        self._name, self._context = name, context

    def find_spec(self, fullname, path, target=None):
        if fullname != self._name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                sys.meta_path.remove(self)
                with self._context():
                    execute(module)

            spec.loader.exec_module = exec_module
        return spec


# Module -> its classes in Keras's registry.
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
    """Stand-in in Keras's registry for a class of a module not imported yet."""

    module: str
    name: str

    def from_config(self, config: dict, **options) -> Any:
        module = importlib.import_module(f"electra_tf.{self.module}")
        return getattr(module, self.name).from_config(config, **options)


@contextlib.contextmanager
def _registering() -> Iterator[None]:
    """Registers `CLASSES` after the block, which imports keras."""
    yield
    import keras

    registry = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names.split():
            registry.setdefault(f"electra_tf>{name}", _StandIn(module, name))


def register_classes() -> None:
    """Registers `CLASSES` with Keras, at once or when it is imported."""
    if sys.modules.get("keras"):
        with _registering():
            pass
    else:
        sys.meta_path.insert(0, _OnImport("keras", _registering))


def filter_import() -> None:
    """Drops the notices of TensorFlow's import in a user's own program, too.

    Its devices and log levels are left to the program.
    """
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _OnImport("tensorflow", filtered_stderr))


def keep_triton_out() -> None:
    """Call this before importing torch or transformers beside TensorFlow.

    torch's CUDA build imports triton, which crashes a process with TensorFlow: each has
    its own LLVM. torch works without it.
    """
    sys.modules.setdefault("triton", None)


@contextlib.contextmanager
def filtered_stderr():
    """Sends file descriptor 2 through this file in a process of its own.

    The notices come before any log level applies. The process outlives an abort of this
    one and passes on its message.
    """
    import subprocess

    sys.stderr.flush()
    # Ctrl-C does not reach another session.
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
