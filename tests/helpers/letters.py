# SPDX-License-Identifier: Apache-2.0
"""A job that writes letters; a script, too: FOLDER NUM_PROCESSES."""

import os
import sys
from pathlib import Path

from electra_tf import cli
from electra_tf.jobs import job
from electra_tf.jobs.job import Job, Runner

SETTINGS = {"seed": 1}
TASKS = [[number, 1000 * (number + 1)] for number in range(5)]


def write(task, folder):
    number, count = task
    Path(folder, f"{number}.txt").write_text(chr(ord("a") + number) * count)
    return {"counts": {"letters": count}}


def sleep(task, folder):
    import time

    os.write(1, b"%d\n" % os.getpid())  # in one piece, beside another worker's
    time.sleep(1000)


def build(path, runner=Runner(), work=write, settings=SETTINGS, tasks=TASKS):  # noqa: B008
    """Name -> content of what the job made."""
    with job.opened(str(path), settings) as folder:
        if not folder.is_finished:
            folder.begin()
            sizes = [1] * len(tasks)
            job.run(folder, Job("write", work, tasks, sizes), runner)
            records = list(folder.records("write", len(tasks)))
            files = [file for record in records for file in record["files"]]
            folder.finish({"settings": settings, "files": files})
        return folder.state


if __name__ == "__main__":
    from tests.helpers import letters

    runner = Runner(int(sys.argv.pop()))
    place = sys.argv.pop()
    cli.run(lambda _: letters.build(place, runner, letters.sleep) and None)
