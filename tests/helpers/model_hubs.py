# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for Kaggle Models and the Hugging Face Hub that keep what they are sent."""

import base64
import contextlib
import json
import socket
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Kaggle:
    """The part of Kaggle's API that an upload of a model goes through.

    Attributes:
      variations: "owner/model/variation" -> its versions, each {path: content}.
      authorizations: the Authorization headers that came.
    """

    def __init__(self):
        self.address = None
        self.models, self.variations, self.blobs = set(), {}, {}
        self.authorizations = set()

    async def call(self, request):
        content = await request.json()
        self.authorizations.add(request.headers.get("authorization"))
        return getattr(self, request.path_params["method"])(content)

    async def put(self, request):
        self.blobs[request.path_params["token"]]["content"] = await request.body()
        return Response()

    def GetModel(self, content):
        name = f"{content['ownerSlug']}/{content['modelSlug']}"
        if name not in self.models:
            return JSONResponse({"code": 404, "message": "Not found"}, 404)
        return JSONResponse({"slug": content["modelSlug"]})

    def CreateModel(self, content):
        self.models.add(f"{content['ownerSlug']}/{content['slug']}")
        return JSONResponse({"id": 1})

    def StartBlobUpload(self, content):
        token = f"blob{len(self.blobs)}"
        self.blobs[token] = {"name": content["name"]}
        url = f"{self.address}/blobs/{token}"
        return JSONResponse({"token": token, "createUrl": url})

    def CreateModelInstance(self, content):
        body = content["body"]
        slug = body["instanceSlug"]
        name = f"{content['ownerSlug']}/{content['modelSlug']}/{slug}"
        if name in self.variations:
            # With status 200, as Kaggle does it.
            return JSONResponse({"id": 0, "error": "exists", "errorCode": 409})
        self.variations[name] = [self.files_of(body)]
        self.licence = body.get("licenseName")
        return JSONResponse({"id": 2})

    def CreateModelInstanceVersion(self, content):
        slug = content["instanceSlug"]
        name = f"{content['ownerSlug']}/{content['modelSlug']}/{slug}"
        self.variations[name].append(self.files_of(content["body"]))
        return JSONResponse({"id": 3})

    def files_of(self, directory, prefix=""):
        found = {}
        for file in directory.get("files") or []:
            blob = self.blobs[file["token"]]
            found[prefix + blob["name"]] = blob["content"]
        for inner in directory.get("directories") or []:
            found |= self.files_of(inner, f"{prefix}{inner['name']}/")
        return found

    def app(self):
        return Starlette(
            routes=[
                Route("/api/v1/{service}/{method}", self.call, methods=["POST"]),
                Route("/blobs/{token}", self.put, methods=["PUT"]),
            ]
        )


class HuggingFace:
    """The part of the Hub's API that a commit goes through.

    Attributes:
      files: {path: content} of the repository after all commits.
    """

    def __init__(self):
        self.address = None
        self.repositories, self.files, self.authorizations = [], {}, set()
        self.private = {}  # repository -> whether it is

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
def running(hub, port=0):
    """Serves a stand-in on this machine while the block runs."""
    listener = socket.create_server(("127.0.0.1", port))
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
