"""Actors of Ray: each takes one task after another; one that dies is replaced, and its task given to another."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from lightning_idc.utils.errors import ConfigError, DataError


class Worker(Protocol):
    """Work of an actor, in a process of its own; building one takes no time and cannot fail."""

    def prepare(self) -> None:
        """Load what all tasks need."""

    def work(self, task: Any) -> Any:
        """Do one task."""


def connected(address: str | None) -> Any:
    """Ray, connected to a cluster, or to one on this machine that ends with this process.

    Args:
        address: address of the cluster; None for the one that this process is connected to, or a new one on this
            machine.

    Raises:
        ConfigError: Ray is not installed, does not start, or is not at the address.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError("Ray is not installed: pip install 'lightning_idc[ray]'") from None
    if not ray.is_initialized():
        # workers find what this process can import
        paths = os.pathsep.join(path for path in sys.path if path)
        options: dict[str, Any] = {"include_dashboard": False, "logging_level": logging.WARNING}
        if address is None and "RAY_ADDRESS" not in os.environ:
            options["_node_ip_address"] = "127.0.0.1"  # or its ports are open to the network
        try:
            ray.init(address=address, runtime_env={"env_vars": {"PYTHONPATH": paths}}, **options)
        except Exception as error:  # Ray raises that class itself where it does not start in time
            raise ConfigError(
                f"Ray cannot be started or reached ({' '.join(str(error).split())}); check the load and the disk of "
                "this machine, or the address of the cluster"
            ) from error
    return ray


class ActorPool:
    """Actors of one kind, which share numbered tasks among them.

    Args:
        ray: Ray, connected.
        create: starts an actor that is a `Worker`.
        size: number of actors.
        retries: times that a task is tried again after its actor died.
        what: word for a task, for messages.
        content: what an actor is sent for the number of a task; the number itself when None.
    """

    def __init__(
        self,
        ray: Any,
        create: Callable[[], Any],
        size: int,
        retries: int,
        what: str,
        content: Callable[[int], Any] | None = None,
    ) -> None:
        self.ray, self.create, self.size, self.retries, self.what = ray, create, size, retries, what
        self.content = content or int
        self._tasks: deque[int] = deque()
        self._deaths: Counter[int | None] = Counter()
        self._idle: list[Any] = []
        self._at_work: dict[Any, tuple[Any, int | None]] = {}
        """Actor and task by what Ray answers with; the task of one that starts is None."""

    def results(self, tasks: Iterable[int]) -> Iterator[Any]:
        """Results of tasks as they are done; the actors are ended after the last one.

        Args:
            tasks: numbers of the tasks.

        Raises:
            DataError: the actors of one task keep dying.
            Exception: an error that an actor raised.
        """
        self._tasks.extend(tasks)
        try:
            while self._tasks or any(task is not None for _, task in self._at_work.values()):
                self._assign()
                for answer in self.ray.wait(list(self._at_work), num_returns=1)[0]:
                    yield from self._received(answer)
        finally:
            for actor in [*self._idle, *(actor for actor, _ in self._at_work.values())]:
                self.ray.kill(actor)
            self._idle, self._at_work = [], {}

    def _assign(self) -> None:
        """Give tasks to idle actors, and start actors where there are more tasks than those can take."""
        while self._tasks and self._idle:
            actor, task = self._idle.pop(), self._tasks.popleft()
            self._at_work[actor.work.remote(self.content(task))] = actor, task
        starting = sum(task is None for _, task in self._at_work.values())
        for _ in range(min(self.size - len(self._at_work), len(self._tasks) - starting)):
            actor = self.create()
            self._at_work[actor.prepare.remote()] = actor, None

    def _received(self, answer: Any) -> Iterator[Any]:
        """Result of a task, if the answer is one."""
        errors = self.ray.exceptions
        actor, task = self._at_work.pop(answer)
        try:
            result = self.ray.get(answer)
        except (errors.RayActorError, errors.OutOfMemoryError) as error:
            self._deaths[task] += 1
            at = "its start" if task is None else f"{self.what} {task}"
            if self._deaths[task] > self.retries:
                raise DataError(f"workers died {self._deaths[task]} times at {at} ({error})") from error
            print(f"a worker died at {at}; another one takes over", file=sys.stderr, flush=True)
            if task is not None:
                self._tasks.appendleft(task)
            return
        except errors.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        self._idle.append(actor)
        if task is not None:
            yield result
