# SPDX-License-Identifier: Apache-2.0
"""Serves SavedModels over HTTP as TensorFlow Serving's REST API does.

python3 examples/serving/server.py --model detector=exports/detector --port 8501
curl -d '{"instances": ["The chef ate the meal."]}' \
    http://localhost:8501/v1/models/detector:predict

Needs tensorflow, tensorflow_text, starlette and uvicorn; not electra_tf.
"""

import argparse
import json
import socket
from pathlib import Path

import models
import tensorflow as tf
import uvicorn
from batching import Batcher, Overloaded
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MAX_BODY_BYTES = 16 * 2**20


def make_app(
    served: dict[str, models.ServedModel], max_batch_size: int = 32
) -> Starlette:
    """The ASGI application for models by name."""
    batchers = {
        name: Batcher(model.run, max_batch_size) for name, model in served.items()
    }

    def model_of(request: Request) -> models.ServedModel:
        name = request.path_params["name"]
        version = request.path_params.get("version")
        model = served.get(name)
        if model is None or version not in (None, model.version):
            wanted = f"{name} version {version}" if version else name
            raise HTTPException(404, f"Servable not found for request: {wanted}")
        return model

    async def predict(request: Request) -> Response:
        model = model_of(request)
        body = await limited_body(request)
        try:
            parsed = await run_in_threadpool(model.parse, body)
            batcher = batchers[model.name]
            outputs = await batcher.submit(parsed.signature, parsed.inputs)
        except models.BadRequest as error:
            raise HTTPException(400, str(error)) from None
        except Overloaded as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        return as_json(models.answer(parsed, outputs))

    async def status(request: Request) -> Response:
        model = model_of(request)
        state = {
            "version": model.version,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return as_json({"model_version_status": [state]})

    async def metadata(request: Request) -> Response:
        return as_json(model_of(request).metadata())

    routes = []
    for path in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):
        routes += [
            Route(path + ":predict", predict, methods=["POST"]),
            Route(path + "/metadata", metadata),
            Route(path, status),
        ]
    return Starlette(routes=routes, exception_handlers={HTTPException: as_error})


async def limited_body(request: Request) -> bytes:
    """The body of a request; HTTP 413 as soon as it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body exceeds {MAX_BODY_BYTES} bytes")
    return bytes(body)


def as_json(content: dict, status: int = 200, headers: dict | None = None) -> Response:
    """A JSON response; NaN is written as TensorFlow Serving writes it."""
    text = json.dumps(content, ensure_ascii=False)
    return Response(
        text.encode("utf-8", "replace"), status, headers, "application/json"
    )


async def as_error(request: Request, error: HTTPException) -> Response:
    """An error as TensorFlow Serving words it: {"error": ...}."""
    del request
    return as_json({"error": error.detail}, error.status_code, error.headers)


def main() -> None:
    """Loads the models and serves them until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME=DIRECTORY",
        help="a model: a SavedModel, or a directory of numbered versions; repeatable",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501, help="0 takes a free one")
    parser.add_argument("--max-batch-size", type=int, default=32, help="rows")
    parser.add_argument(
        "--intra-op-threads",
        type=int,
        default=0,
        help="that share one operation; 1 is best for single short texts; 0: all cores",
    )
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.intra_op_threads)
    served = {}
    for model in args.model:
        name, equals, directory = model.partition("=")
        if not equals:
            parser.error(f"--model {model}: write NAME=DIRECTORY")
        try:
            served[name] = models.load(name, Path(directory))
        except (OSError, ValueError) as error:
            parser.error(f"--model {model}: {error}")
    with socket.create_server((args.host, args.port)) as listener:
        port = listener.getsockname()[1]
        print(f"Serving {', '.join(served)} on http://{args.host}:{port}", flush=True)
        app = make_app(served, args.max_batch_size)
        config = uvicorn.Config(app, log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
