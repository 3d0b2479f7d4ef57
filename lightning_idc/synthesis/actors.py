"""Fault-tolerant pool of Ray actors: an actor that dies is replaced, and its task is assigned to another one."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from lightning_idc.utils.errors import ConfigError, DataError


class Worker(Protocol):
    """Protocol of an actor in a separate process; its constructor must be fast and must not fail."""

    def prepare(self) -> None:
        """Load models and other state shared by all tasks."""

    def work(self, task: Any) -> Any:
        """Process one task."""


def connect(address: str | None) -> Any:
    """Connect to a Ray cluster, or start a local one that ends with this process, and return the module ``ray``.

    Args:
        address: address of the cluster; None for the current connection, or a new local cluster.

    Raises:
        ConfigError: Ray is not installed, does not start, or cannot be reached.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError("Ray is not installed: pip install 'lightning_idc[ray]'") from None
    if not ray.is_initialized():
        # workers need the import paths of this process
        paths = os.pathsep.join(path for path in sys.path if path)
        options: dict[str, Any] = {"include_dashboard": False, "logging_level": logging.WARNING}
        if address is None and "RAY_ADDRESS" not in os.environ:
            options["_node_ip_address"] = "127.0.0.1"  # otherwise its ports are open to the network
        try:
            ray.init(address=address, runtime_env={"env_vars": {"PYTHONPATH": paths}}, **options)
        except Exception as error:  # Ray raises a bare Exception on a start timeout
            raise ConfigError(
                f"Ray cannot be started or reached ({' '.join(str(error).split())}); check the load and the disk of "
                "this machine, or the address of the cluster"
            ) from error
    return ray


class ActorPool:
    """Pool of actors of one type that process numbered tasks.

    Args:
        ray: module ``ray``, connected.
        create: function that starts an actor that implements `Worker`.
        size: number of actors.
        retries: number of retries for a task whose actor died.
        task_name: name of a task, for messages.
        task_argument: function from the number of a task to the argument sent to an actor; None to send the number.
    """

    def __init__(
        self,
        ray: Any,
        create: Callable[[], Any],
        size: int,
        retries: int,
        task_name: str,
        task_argument: Callable[[int], Any] | None = None,
    ) -> None:
        self.ray, self.create, self.size, self.retries, self.task_name = ray, create, size, retries, task_name
        self.task_argument = task_argument or int
        self._tasks: deque[int] = deque()
        self._deaths: Counter[int | None] = Counter()
        self._idle: list[Any] = []
        self._running: dict[Any, tuple[Any, int | None]] = {}
        """Actor and task by Ray's object reference; the task of a starting actor is None."""

    def results(self, tasks: Iterable[int]) -> Iterator[Any]:
        """Yield the results of tasks as they complete; the actors are stopped after the last one.

        Args:
            tasks: numbers of the tasks.

        Raises:
            DataError: the actors of one task died more often than ``retries``.
            Exception: an actor raised an error.
        """
        self._tasks.extend(tasks)
        try:
            while self._tasks or any(task is not None for _, task in self._running.values()):
                self._assign()
                for reference in self.ray.wait(list(self._running), num_returns=1)[0]:
                    yield from self._collect(reference)
        finally:
            for actor in [*self._idle, *(actor for actor, _ in self._running.values())]:
                self.ray.kill(actor)
            self._idle, self._running = [], {}

    def _assign(self) -> None:
        """Assign tasks to idle actors, and start actors if more tasks than starting actors remain."""
        while self._tasks and self._idle:
            actor, task = self._idle.pop(), self._tasks.popleft()
            self._running[actor.work.remote(self.task_argument(task))] = actor, task
        starting = sum(task is None for _, task in self._running.values())
        for _ in range(min(self.size - len(self._running), len(self._tasks) - starting)):
            actor = self.create()
            self._running[actor.prepare.remote()] = actor, None

    def _collect(self, reference: Any) -> Iterator[Any]:
        """Yield the result of a task; nothing if an actor has started or failed."""
        errors = self.ray.exceptions
        actor, task = self._running.pop(reference)
        try:
            result = self.ray.get(reference)
        except (errors.RayActorError, errors.OutOfMemoryError) as error:
            self._deaths[task] += 1
            where = "its start" if task is None else f"{self.task_name} {task}"
            if self._deaths[task] > self.retries:
                raise DataError(f"workers died {self._deaths[task]} times at {where} ({error})") from error
            print(f"a worker died at {where}; another worker takes over", file=sys.stderr, flush=True)
            if task is not None:
                self._tasks.appendleft(task)
            return
        except errors.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        self._idle.append(actor)
        if task is not None:
            yield result
