# SPDX-License-Identifier: Apache-2.0
"""On which devices benchmarks make their steps."""

import preparation
import pytest
import tensorflow as tf

from electra_tf.train import distribution


class Reached(Exception):
    """The devices are set up now."""


def test_a_step_is_made_on_one_gpu(monkeypatch):
    """Several would share the batch, and its time would be no GPU's."""
    seen = []

    def configure(config):
        raise Reached

    gpus = ["first", "second"]
    monkeypatch.setattr(tf.config, "list_physical_devices", {"GPU": gpus}.get)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *a: seen.append(a))
    monkeypatch.setattr(distribution, "configure_devices", configure)
    with pytest.raises(Reached):
        preparation.place(None, None, None)
    assert seen == [(["first"], "GPU")]
