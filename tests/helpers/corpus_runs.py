# SPDX-License-Identifier: Apache-2.0
"""Corpora, and run_inference.py writing shards of scores or answers."""

import gzip
import json
import random
from pathlib import Path

from tests.helpers.building import content
from tests.helpers.runs import run_script

ELECTRIC = {"electra_objective": False, "electric_objective": True}


def write_texts(folder: Path, lines: int = 100, files: int = 2) -> list[str]:
    """Files of lines and of records; returns their texts in order."""
    rng = random.Random(1)

    def line():
        return " ".join(f"w{rng.randrange(55)}" for _ in range(rng.randrange(50)))

    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    for i in range(files):
        own = [line() for _ in range(lines)]
        (folder / f"{i}.txt").write_text("\n".join(own))
        texts += own
    records = [f"{line()}\n\n{line()} w1" for _ in range(20)]
    objects = (json.dumps({"text": text}) + "\n" for text in records)
    (folder / "a.jsonl").write_text("".join(objects))
    packed = [line() for _ in range(20)]
    with gzip.open(folder / "z.txt.gz", "wt") as f:
        f.write("\n".join(packed))
    return [*texts, *records, *packed]


def infer(command, model, source, output, *flags):
    """Runs the command as a user does."""
    args = [f"--model={model}", f"--input={source}", f"--output-dir={output}"]
    return run_script("run_inference.py", command, *args, *map(str, flags))


def succeed(*args):
    """(name -> sha256 of what is in the folder, the result) of a run that goes well."""
    done = infer(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    return content(args[3]), done


def fail(*args):
    """The error, in at most three lines, and the exit code of one that does not."""
    done = infer(*args)
    error = f"\n{done.stderr}".rpartition("\nerror: ")[2]
    assert error and error.count("\n") <= 3, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return error, done.returncode


def rows_in(folder: Path) -> list[dict]:
    """All rows of all shards, in order."""
    paths = sorted(Path(folder).glob("part-*.jsonl"))
    lines = (line for path in paths for line in path.read_text().splitlines())
    return [json.loads(line) for line in lines]
