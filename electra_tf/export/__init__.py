# SPDX-License-Identifier: Apache-2.0
"""Models written for others: SavedModels, ONNX, hub folders, other libraries.

A folder appears when its files have been read again and compared. `ExportRequest` has
the flags of export_model.py, and the model they name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from electra_tf.config.run import run_directory
from electra_tf.interop import readers
from electra_tf.interop.cards import Publication
from electra_tf.interop.checkpoint import StoredModel
from electra_tf.pretrain import stored


class ExportRequest(NamedTuple):
    """The flags of export_model.py."""

    format: str  # a key of formats.FORMATS
    output_dir: str
    data_dir: str | None = None  # with model_name: a run
    model_name: str | None = None
    init_checkpoint: str | None = None  # instead of a run
    vocab_file: str | None = None
    hparams: Mapping[str, Any] | None = None
    what: str | None = None
    precision: str = "float32"
    allow_pytorch_bin: bool = False
    handle: str | None = None  # from here on: of publishing
    license: str | None = None
    language: str | None = None
    publish: str | None = None
    private: bool = False
    dry_run: bool = False

    @property
    def model_dir(self) -> str | None:
        """The run's directory."""
        if not self.model_name:
            return None
        return run_directory(self.data_dir, self.model_name)

    @property
    def names_model(self) -> bool:
        """Whether a model is named; without one an existing export is uploaded."""
        return any((self.data_dir, self.model_name, self.init_checkpoint))

    @property
    def publication(self) -> Publication:
        """What the publisher states of the model."""
        return Publication(self.license, self.language, self.handle)

    def read_model(self, slots: bool = False) -> StoredModel:
        """The pre-trained model with its weights.

        Args:
          slots: whether to read the optimizer's slots as well.
        """
        path = str(self.model_dir or self.init_checkpoint)
        found = readers.find(path, print, self.allow_pytorch_bin)
        return stored.read(found, self.vocab_file, self.hparams, slots=slots)
