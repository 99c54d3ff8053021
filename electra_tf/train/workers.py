# SPDX-License-Identifier: Apache-2.0
"""What the workers of a run tell each other: one state, one decision, one end.

Each worker is a process that runs the whole program. They stay one run only if all of
them make the same steps, so everything that a worker finds out by itself (a signal, a
clock, a full disk) becomes a decision of all, by an all-reduce between two loops. With
one worker nothing is exchanged.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from electra_tf.errors import EXIT_PEER_LOST, UserError
from electra_tf.train.cluster import Cluster


class Decision(NamedTuple):
    """What all workers do next.

    Attributes:
      reason: why the run ends now; None: it goes on.
      count: how many steps the next loop has.
      seconds: how long a loop and a save take on the slowest.
    """

    reason: str | None
    count: int
    seconds: float


class Workers:
    """The workers of a run; all of them call the same methods in the same order.

    Args:
      strategy: over the devices of all.
      cluster: who they are.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster):
        self.cluster = cluster
        self.count = max(1, len(self.cluster.places))
        self._strategy = strategy
        self._gather = tf.function(
            self._placed, input_signature=[tf.TensorSpec([None])], autograph=False
        )
        self._from_chief = tf.function(
            self._chiefs, autograph=False, reduce_retracing=True
        )

    def gather(self, numbers: Sequence[float]) -> np.ndarray:
        """Everybody's numbers, as many from each: float32 [workers, n]."""
        own = np.asarray(numbers, np.float32)
        if self.count == 1:
            return own[None]
        with self.cluster.patience():
            return self._gather(own).numpy()

    def _placed(self, own: tf.Tensor) -> tf.Tensor:
        local = self._strategy.num_replicas_in_sync // self.count

        def place(own):
            context = tf.distribute.get_replica_context()
            replica = context.replica_id_in_sync_group
            row = tf.where(replica == self.cluster.index * local, own, 0.0)
            rows = tf.one_hot(self.cluster.index, self.count)[:, None] * row
            return context.all_reduce("SUM", rows)

        rows = self._strategy.run(place, args=(own,))
        return self._strategy.experimental_local_results(rows)[0]

    def gather_texts(self, text: str) -> list[str]:
        """Everybody's text, in the order of the workers."""
        if self.count == 1:
            return [text]
        letters = text.encode()
        longest = int(self.gather([len(letters)]).max())
        rows = self.gather([*letters, *[0] * (longest - len(letters))])
        return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode() for row in rows]

    def copy_from_chief(self, variables: Mapping[str, tf.Variable]) -> None:
        """Gives all workers the chief's values of the variables, to the bit."""
        if self.count == 1:
            return
        with self.cluster.patience():
            for name in sorted(variables):
                variable = variables[name]
                flat = tf.reshape(tf.convert_to_tensor(variable), [-1])
                variable.assign(tf.reshape(self._from_chief(flat), variable.shape))

    def _chiefs(self, value: tf.Tensor) -> tf.Tensor:
        def offer(value):
            context = tf.distribute.get_replica_context()
            # x + -0.0 is x, for x = -0.0 as well.
            nothing = tf.fill(tf.shape(value), -tf.zeros([], value.dtype))
            own = tf.where(context.replica_id_in_sync_group == 0, value, nothing)
            return context.all_reduce("SUM", own)

        values = self._strategy.run(offer, args=(value,))
        return self._strategy.experimental_local_results(values)[0]

    def decide(
        self,
        failure: UserError | None = None,
        reason: str | None = None,
        count: int = 0,
        seconds: float = 0.0,
    ) -> Decision:
        """Makes of what each worker knows one decision for all.

        Args:
          failure: what this worker cannot go on with.
          reason: why this worker wants the run to end.
          count: steps of the next loop; the chief's holds.
          seconds: that a loop and a save take.

        Raises `UserError`: at all workers the failure of the first that has one.
        """
        code = failure.exit_code if failure else 0
        rows = self.gather([code, reason is not None, count, seconds])
        texts = [""] * self.count
        if rows[:, :2].any():
            texts = self.gather_texts(str(failure) if failure else reason or "")
        for index in np.flatnonzero(rows[:, 0]).tolist():
            if failure and index == self.cluster.index:
                raise failure
            text = f"{self.cluster.name(index)}: {texts[index]}"
            raise UserError(text, int(rows[index, 0]))
        reason = None
        for index in np.flatnonzero(rows[:, 1])[:1].tolist():
            at = f" at {self.cluster.name(index)}" if self.count > 1 else ""
            reason = texts[index] + at
        return Decision(reason, int(rows[0, 2]), float(rows[:, 3].max()))


# What TensorFlow raises when another worker is gone.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
_ABORTED = "Collective ops is aborted"
_TASK = re.compile(r"/job:(chief|worker)/(?:replica:\d+/)?task:(\d+)")


@contextlib.contextmanager
def peers_may_be_lost(cluster: Cluster) -> Iterator[None]:
    """Turns what TensorFlow raises for a lost worker into a `UserError` (69)."""
    try:
        yield
    except tf.errors.OpError as error:
        is_lost = isinstance(error, _LOST) or _ABORTED in error.message
        if not (cluster.has_peers and is_lost):
            raise
        named = (cluster.index_of(*task) for task in _TASK.findall(error.message))
        lost = next((i for i in named if i != cluster.index), None)
        who = "another worker" if lost is None else cluster.name(lost)
        raise UserError(
            f"{who} has ended or cannot be reached; its own output says why. Run the "
            "same commands again on all workers.",
            EXIT_PEER_LOST,
        ) from error
