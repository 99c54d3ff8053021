# SPDX-License-Identifier: Apache-2.0
"""Runs of several workers on this machine: each a process, joined by TF_CONFIG."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.helpers.forked_runs import Finished, Run, pretrain
from tests.helpers.ports import free_port


def tf_configs(count: int) -> list[str]:
    """The TF_CONFIG of each of `count` workers, at ports that are free now."""
    places = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    return [
        json.dumps(
            {"cluster": {"worker": places}, "task": {"type": "worker", "index": index}}
        )
        for index in range(count)
    ]


class Cluster:
    """`count` workers of one run of run_pretraining.py; a context manager.

    Args:
      flags, before, hparams, data, models: by worker, what it has of its own.
      absent: workers that are not started (`start` does it later).
    """

    def __init__(
        self,
        data: Path,
        model: str,
        hparams: dict,
        count: int = 2,
        *,
        flags: Mapping[int, Sequence[str]] | None = None,
        before: Mapping | None = None,
        own_hparams: Mapping[int, dict] | None = None,
        own_data: Mapping[int, Path] | None = None,
        absent: Sequence[int] = (),
    ):
        self.directory = data / "models" / model
        self._configs = tf_configs(count)
        self.places = json.loads(self._configs[0])["cluster"]["worker"]
        self._arguments = [
            (
                (own_data or {}).get(i, data),
                model,
                hparams | (own_hparams or {}).get(i, {}),
                *(flags or {}).get(i, ()),
            )
            for i in range(count)
        ]
        self._before = before or {}
        self.runs: dict[int, Run] = {}
        for index in range(count):
            if index not in absent:
                self.start(index)

    def start(self, index: int) -> None:
        """Starts worker `index`."""
        self.runs[index] = pretrain(
            *self._arguments[index],
            env={"TF_CONFIG": self._configs[index]},
            before=self._before.get(index),
        )

    def wait(self, seconds: float = 300) -> list[Finished]:
        """How each worker ended, in order; all of them within `seconds`."""
        end = time.monotonic() + seconds
        for run in self.runs.values():
            run.process.join(max(0.0, end - time.monotonic()))
        hanging = [i for i, run in self.runs.items() if run.process.is_alive()]
        self.kill()
        ended = [self.runs[i].wait(10) for i in sorted(self.runs)]
        assert not hanging, (hanging, ended)
        return ended

    def kill(self) -> None:
        """kill -9 of all that still run."""
        for run in self.runs.values():
            if run.process.is_alive():
                run.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.kill()


def train(*args, seconds: float = 300, **kwargs) -> list[Finished]:
    """Runs a cluster to its end."""
    with Cluster(*args, **kwargs) as cluster:
        return cluster.wait(seconds)
