# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of fine-tuned models."""

from pathlib import Path

from electra_tf.inference.predictor import read_trial
from electra_tf.interop import readers
from tests.helpers.tiny_trials import write_data, write_run


def test_the_vocabulary_beside_the_pretrained_model(tmp_path):
    """It is preferred to that of the data directory."""
    data = write_data(tmp_path)
    own, other = data / "models" / "m" / "vocab.txt", data / "vocab.txt"
    own.parent.mkdir(parents=True)
    own.write_text(other.read_text())
    other.write_text(own.read_text() + "more\n")
    config, _, _ = write_run(data, {"task_names": ["cola"]})
    assert (config.vocab_file, config.vocab_size) == (str(own), 60)
    folder = Path(config.trial_dir(1))
    assert readers.find(folder, print).vocab_file == str(own)
    assert read_trial(folder, "cola").vocab.path == str(own)
