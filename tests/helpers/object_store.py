# SPDX-License-Identifier: Apache-2.0
"""An S3 on this machine: moto's, behind a gate that can refuse, wait or count."""

import contextlib
import logging
import threading

import boto3
import fsspec
from werkzeug.serving import make_server

_DENIED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"""


class Gate:
    """What stands before the store.

    Attributes:
      is_read_only: whether writing is refused.
      stops_at: a part of a name; a write to such an object never ends.
      has_stopped: set when such a write has come.
      requests: "METHOD path" of all requests.
    """

    def __init__(self, application):
        self._application = application
        self.is_read_only = False
        self.stops_at = None
        self.has_stopped = threading.Event()
        self.requests = []

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append(f"{method} {path}")
        if self.is_read_only and method in ("PUT", "POST", "DELETE"):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [_DENIED]
        if method == "PUT" and self.stops_at and self.stops_at in path:
            self.has_stopped.set()
            threading.Event().wait(600)
        return self._application(environ, start_response)


class Store:
    """A running store with the bucket `bucket`.

    Attributes:
      env: what a process needs in its environment to use it.
      gate: see `Gate`.
      files: fsspec's file system.
    """

    def __init__(self, port, gate):
        self.gate = gate
        endpoint = f"http://127.0.0.1:{port}"
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        self.env = {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
        self.env |= keys
        self.files = fsspec.filesystem(
            "s3",
            endpoint_url=endpoint,
            key="test",
            secret="test",
            use_listings_cache=False,
        )
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        self._client.create_bucket(Bucket="bucket")

    def make_folder(self, key):
        """What "Create folder" of the S3 console makes: an empty object `key/`."""
        self._client.put_object(Bucket="bucket", Key=f"{key}/", Body=b"")

    def names(self, folder):
        """The names of all objects below a folder."""
        return sorted(n.removeprefix(f"{folder}/") for n in self.files.find(folder))


@contextlib.contextmanager
def object_store():
    """A `Store` that lives as long as the block."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    gate = Gate(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, gate, threaded=True)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Store(server.server_port, gate)
    finally:
        server.shutdown()
