# SPDX-License-Identifier: Apache-2.0
"""Asks TensorFlow Serving over gRPC what a model says to texts.

pip install tensorflow-serving-api
python3 examples/serving/grpc_client.py localhost:8500 detector "The chef ate the meal."
"""

import json
import sys

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


def main(address: str, model: str, *texts: str) -> None:
    """Prints the outputs by name, a line each, as JSON."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "serving_default"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(list(texts), tf.string))
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        try:
            answer = stub.Predict(request, timeout=60)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")
    for name, value in sorted(answer.outputs.items()):
        array = tf.make_ndarray(value).tolist()
        print(name, json.dumps(array, default=bytes.decode))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
