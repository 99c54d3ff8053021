# SPDX-License-Identifier: Apache-2.0
"""Many clients at one server, some of them with malformed requests.

    python benchmarks/serving_load.py
    python benchmarks/serving_load.py --data-dir D --model-name M --clients 50
    python benchmarks/serving_load.py ... --address http://localhost:8501

Without --address, examples/serving/server.py is started with a detector: of the run, or
of a model that is made up. Another server must serve that detector already. Requests
have texts of all lengths, one to eight of them. Every good one must get what the model
itself says, every malformed one 400 or 413 with a sentence; otherwise this ends with an
error. A client that is told to come back later (503) does; its time counts from its
first attempt.
"""

import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

from absl import flags
from measurement import ROOT, print_table, save
from serving import read_texts, stored_model

from electra_tf import cli, startup
from electra_tf.errors import EXIT_DAMAGED, UserError

FLAGS = flags.FLAGS
flags.DEFINE_string("address", None, "Of a server that serves this model.")
flags.DEFINE_integer("clients", 50, "That ask at the same time.")
flags.DEFINE_integer("requests_per_client", 20, "One after the other.")
flags.DEFINE_float("malformed", 0.1, "Share of requests that make no sense.")
flags.DEFINE_integer("seed", 1, "Decides who asks what.")

PATH = "/v1/models/detector:predict"
PATIENCE = 120  # seconds until a request counts as not answered
TOLERANCE = 1e-5
DEEP = "[" * 500 + '"a"' + "]" * 500
MALFORMED = [
    b"no JSON",
    b"\xff\xfe",
    b"[1, 2]",
    b'{"instances": "a text"}',
    b'{"instances": [1, 2]}',
    b'{"instances": [["a"], ["b", "c"]]}',
    b'{"instances": [{"other": "a"}]}',
    b'{"instances": [{"b64": "?"}]}',
    b'{"instances": ["a"], "signature_name": "other"}',
    b'{"instances": ["a"], "signature_name": ["serving_default"]}',
    b'{"inputs": {"text": ["a"], "more": ["b"]}}',
    b'{"instances": ["a"',
    f'{{"instances": {DEEP}}}'.encode(),
    json.dumps({"instances": ["too long " * 20_000]}).encode(),
]


def main(_):
    texts = mixed_texts(read_texts())
    startup.import_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        export, expected = answers_to(texts, Path(folder))
        if FLAGS.address:
            found = attack(FLAGS.address, texts, expected)
        else:
            with served(export) as server:
                found = attack(server, texts, expected)
    report(found)
    return 0


def mixed_texts(lines: list[str]) -> list[str]:
    """Words, sentences, paragraphs, pages, and none."""
    words = lines[0].split()[:20]
    pages = [" ".join(lines[i : i + 6]) for i in range(0, len(lines), 6)]
    return [*words, *lines, *pages, "", "\u00e9\u4e2d \U0001f680"]


def answers_to(texts: list[str], folder: Path) -> tuple[Path, dict[str, dict]]:
    """(a detector's directory of versions, what it says to each text)."""
    import tensorflow as tf

    from electra_tf.export import saved_models

    source = saved_models.source_of(stored_model(folder))
    path = saved_models.write_part(source, "detector", folder / "exports")
    detect = tf.saved_model.load(str(path)).signatures["serving_default"]
    found = {}
    for text in texts:
        outputs = {k: v.numpy()[0] for k, v in detect(tf.constant([text])).items()}
        found[text] = {
            "tokens": [token.decode() for token in outputs["tokens"]],
            "probabilities": outputs["probabilities"].tolist(),
        }
    return path.parent, found


class served:
    """The example server in a process of its own; its address."""

    def __init__(self, export: Path):
        program = ROOT / "examples" / "serving" / "server.py"
        command = [sys.executable, program, f"--model=detector={export}", "--port=0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise UserError("the server did not start; its error stands above.")
        return line.split()[-1]

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)


# Clients.


def attack(address: str, texts: list[str], expected: dict[str, dict]) -> dict:
    """Lets all clients loose at once; returns what came of it."""
    clients = [Client(address, texts, expected, n) for n in range(FLAGS.clients)]
    clients[0].ask(json.dumps({"instances": texts[:8]}).encode())  # builds its graphs
    begin = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    seconds = time.perf_counter() - begin
    merged = {
        name: [x for client in clients for x in getattr(client, name)]
        for name in ("good", "refused", "faults")
    }
    return merged | {"seconds": seconds, "later": sum(c.later for c in clients)}


class Client(threading.Thread):
    """Asks one request after the other over one connection.

    Attributes:
      good, refused: seconds of the requests that were answered as they should be.
      faults: what was answered otherwise.
      later: how often it was told to come back.
    """

    def __init__(self, address, texts, expected, number):
        super().__init__(daemon=True)
        self.place = urllib.parse.urlsplit(address).netloc
        self.texts, self.expected = texts, expected
        self.random = random.Random(f"{FLAGS.seed} {number}")
        self.connection = http.client.HTTPConnection(self.place, timeout=PATIENCE)
        self.good, self.refused, self.faults, self.later = [], [], [], 0

    def run(self):
        for _ in range(FLAGS.requests_per_client):
            begin = time.perf_counter()
            if self.random.random() < FLAGS.malformed:
                body = self.random.choice(MALFORMED)
                fault, times = self.fault_of_malformed(body), self.refused
            else:
                count = self.random.choice([1, 1, 1, 2, 4, 8])
                texts = self.random.sample(self.texts, count)
                fault, times = self.fault_of(texts), self.good
            if fault:
                self.faults.append(fault)
            else:
                times.append(time.perf_counter() - begin)

    def ask(self, body: bytes) -> tuple[int, dict]:
        """(status, content); comes back when told to."""
        end = time.perf_counter() + PATIENCE
        while True:
            try:
                self.connection.request("POST", PATH, body)
                answer = self.connection.getresponse()
                status, content = answer.status, json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.connection.close()
                return 0, {"error": f"{type(error).__name__}: {error}"}
            if status != 503 or time.perf_counter() > end:
                return status, content
            self.later += 1
            # Full for the moment; all at once, clients would come again as a crowd.
            time.sleep(self.random.uniform(0.01, 0.1))

    def fault_of(self, texts: list[str]) -> str | None:
        """What is wrong with the answer to a good request."""
        status, content = self.ask(json.dumps({"instances": texts}).encode())
        rows = content.get("predictions")
        if status != 200 or not isinstance(rows, list) or len(rows) != len(texts):
            return f"{len(texts)} texts: {status} {str(content)[:200]}"
        for text, row in zip(texts, rows, strict=True):
            right = self.expected[text]
            count = len(right["tokens"])
            gaps = [
                abs(ours - theirs)
                for ours, theirs in zip(
                    right["probabilities"], row["probabilities"], strict=False
                )
            ]
            if row["tokens"][:count] != right["tokens"] or row["num_tokens"] != count:
                return f"other tokens for {text[:50]!r}"
            if max(gaps, default=0.0) > TOLERANCE:
                return f"{text[:50]!r}: {max(gaps):.1e} off"
        return None

    def fault_of_malformed(self, body: bytes) -> str | None:
        """What is wrong with the answer to a malformed request."""
        status, content = self.ask(body)
        sentence = content.get("error") if isinstance(content, dict) else None
        if status in (400, 413) and isinstance(sentence, str) and " " in sentence:
            return None
        return f"{body[:50]!r}: {status} {str(content)[:200]}"


def report(found: dict) -> None:
    """A table; `UserError` (65) if an answer was not what it should be."""
    if times := sorted(found["good"]):
        row = {
            "clients": FLAGS.clients,
            "right answers": len(times),
            "malformed, refused": len(found["refused"]),
            "came back later": found["later"],
            "p50 ms": round(1e3 * statistics.median(times)),
            "p99 ms": round(1e3 * times[int(0.99 * (len(times) - 1))]),
            "right answers/s": round(len(times) / found["seconds"]),
        }
        print_table([(row,)], {name: lambda r, n=name: str(r[n]) for name in row})
        save(FLAGS.json, row)
    if faults := found["faults"]:
        raise UserError(
            f"{len(faults)} requests were not answered as they should be, the first: "
            f"{faults[0]}",
            EXIT_DAMAGED,
        )


if __name__ == "__main__":
    cli.run(main)
