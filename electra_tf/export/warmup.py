# SPDX-License-Identifier: Apache-2.0
"""The file of requests that TensorFlow Serving plays when it loads a model.

`assets.extra/tf_serving_warmup_requests` is a TFRecord file of PredictionLog messages.
Their definitions come with tensorflow-serving-api only, so the few fields that are
needed are encoded here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from electra_tf.data.tfrecord import varint

PATH = os.path.join("assets.extra", "tf_serving_warmup_requests")

# Field numbers of tensorflow_serving/apis/{prediction_log,predict,model}.proto.
_PREDICTION_LOG_PREDICT_LOG = 6
_PREDICT_LOG_REQUEST = 1
_REQUEST_MODEL_SPEC, _REQUEST_INPUTS = 1, 2
_SPEC_NAME, _SPEC_SIGNATURE_NAME = 1, 3
_ENTRY_KEY, _ENTRY_VALUE = 1, 2


def write_warmup_requests(
    directory: str,
    model_name: str,
    requests: Iterable[tuple[str, Mapping[str, np.ndarray]]],
) -> None:
    """Writes the warm-up file of a SavedModel.

    Args:
      directory: the SavedModel.
      model_name: the name that it is served under.
      requests: pairs of a signature's name and its inputs.
    """
    path = os.path.join(directory, PATH)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(model_name, signature, inputs))


def prediction_log(
    model_name: str, signature: str, inputs: Mapping[str, np.ndarray]
) -> bytes:
    """A PredictionLog of one request, encoded."""
    spec = _field(_SPEC_NAME, model_name.encode())
    spec += _field(_SPEC_SIGNATURE_NAME, signature.encode())
    request = _field(_REQUEST_MODEL_SPEC, spec)
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        entry = _field(_ENTRY_KEY, name.encode()) + _field(_ENTRY_VALUE, tensor)
        request += _field(_REQUEST_INPUTS, entry)
    log = _field(_PREDICT_LOG_REQUEST, request)
    return _field(_PREDICTION_LOG_PREDICT_LOG, log)


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload
