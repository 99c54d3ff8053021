# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the Hugging Face Hub that keeps what it is sent."""

import base64
import contextlib
import json
import socket
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


class HuggingFace:
    """The part of the Hub's API that a commit goes through.

    Attributes:
      files: {path: content} of the repository after all commits.
    """

    def __init__(self):
        self.address = None
        self.repositories, self.files, self.authorizations = [], {}, set()
        self.private = {}  # repository -> bool

    async def create(self, request):
        content = await request.json()
        self.authorizations.add(request.headers.get("authorization"))
        name = f"{content['organization']}/{content['name']}"
        self.repositories.append(name)
        private = content.get("private") or content.get("visibility") == "private"
        self.private.setdefault(name, private)
        return JSONResponse({"url": f"{self.address}/{self.repositories[-1]}"})

    async def validate(self, request):
        return JSONResponse({"errors": [], "warnings": []})

    async def preupload(self, request):
        files = (await request.json())["files"]
        modes = [{"path": f["path"], "uploadMode": "regular"} for f in files]
        return JSONResponse({"files": [m | {"shouldIgnore": False} for m in modes]})

    async def commit(self, request):
        for line in (await request.body()).splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                value = entry["value"]
                self.files[value["path"]] = base64.b64decode(value["content"])
        url = f"{self.address}/me/tiny/commit/{'a' * 40}"
        return JSONResponse({"commitUrl": url, "commitOid": "a" * 40})

    async def info(self, request):
        name = "{owner}/{name}".format(**request.path_params)
        content = {"id": name, "sha": "a" * 40, "siblings": []}
        return JSONResponse(content | {"private": self.private.get(name, False)})

    def app(self):
        repository = "/api/models/{owner}/{name}"
        return Starlette(
            routes=[
                Route("/api/repos/create", self.create, methods=["POST"]),
                Route("/api/validate-yaml", self.validate, methods=["POST"]),
                Route(repository + "/preupload/main", self.preupload, methods=["POST"]),
                Route(repository + "/commit/main", self.commit, methods=["POST"]),
                Route(repository, self.info),
                Route(repository + "/revision/main", self.info),
            ]
        )


@contextlib.contextmanager
def running(hub):
    """Serves a stand-in on this machine while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    hub.address = f"http://localhost:{listener.getsockname()[1]}"
    config = uvicorn.Config(hub.app(), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield hub
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
