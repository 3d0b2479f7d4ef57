"""Ray's actors at work: each takes one task after another, and one that dies is replaced and its task dealt again."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from lightning_idc.utils.errors import ConfigError, DataError


class Worker(Protocol):
    """What an actor does, in a process of its own; it is built without anything that takes long or may fail."""

    def prepare(self) -> None:
        """Load what all tasks need."""

    def work(self, task: Any) -> Any:
        """Do one task."""


def connected(address: str | None) -> Any:
    """Ray, connected to a cluster, or to one on this machine that ends with this process.

    Args:
        address: of the cluster; None for the one that this process is connected to, or a new one on this machine.

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
        try:
            ray.init(address=address, runtime_env={"env_vars": {"PYTHONPATH": paths}}, **options)
        except Exception as error:  # Ray raises that class itself where it does not start in time
            raise ConfigError(
                f"Ray cannot be started or reached ({' '.join(str(error).split())}); check the load and the disk of "
                "this machine, or the address of the cluster"
            ) from error
    return ray


class ActorPool:
    """Actors of one kind and the tasks that they are at.

    Args:
        ray: connected.
        create: starts an actor that is a `Worker`.
        size: actors at once.
        retries: of a task whose actor died.
        what: a task is, for messages.
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
        self.tasks: deque[int] = deque()
        self.died: Counter[int | None] = Counter()
        self.idle: list[Any] = []
        self.starting: dict[Any, Any] = {}  # by what Ray answers with
        self.at_work: dict[Any, tuple[Any, int]] = {}

    def deal(self, tasks: Iterable[int] = ()) -> None:
        """Give tasks to idle actors, and start actors where there are more tasks than those can take."""
        self.tasks.extend(tasks)
        while self.tasks and self.idle:
            actor, task = self.idle.pop(), self.tasks.popleft()
            self.at_work[actor.work.remote(self.content(task))] = actor, task
        wanted = min(self.size - len(self.at_work), len(self.tasks))
        while len(self.starting) < wanted:
            actor = self.create()
            self.starting[actor.prepare.remote()] = actor

    @property
    def busy(self) -> bool:
        """Whether a task is not done."""
        return bool(self.tasks or self.at_work)

    def refs(self) -> list[Any]:
        """What Ray is to wait for."""
        return [*self.starting, *self.at_work]

    def take(self, ref: Any) -> tuple[int, Any] | None:
        """Task and result of what Ray says is done; None where it was not a task, or where its actor died.

        Args:
            ref: one of `refs`.

        Raises:
            DataError: the actors of one task keep dying.
            Exception: whatever the actor raised.
        """
        errors = self.ray.exceptions
        actor, task = (self.starting.pop(ref), None) if ref in self.starting else self.at_work.pop(ref)
        try:
            result = self.ray.get(ref)
        except (errors.RayActorError, errors.OutOfMemoryError) as error:
            self.died[task] += 1
            at = "its start" if task is None else f"{self.what} {task}"
            if self.died[task] > self.retries:
                raise DataError(f"workers died {self.died[task]} times at {at} ({error})") from error
            print(f"a worker died at {at}; another one takes over", file=sys.stderr, flush=True)
            if task is not None:
                self.tasks.appendleft(task)
            return None
        except errors.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        self.idle.append(actor)
        return None if task is None else (task, result)

    def results(self, tasks: Iterable[int]) -> Iterator[Any]:
        """Results of tasks as they are done; the actors are ended after the last one.

        Args:
            tasks: numbers.
        """
        self.tasks.extend(tasks)
        try:
            while self.busy:
                self.deal()
                for ref in self.ray.wait(self.refs(), num_returns=1)[0]:
                    done = self.take(ref)
                    if done is not None:
                        yield done[1]
        finally:
            self.close()

    def release(self) -> None:
        """End the actors that have nothing to do, so that others get what they hold."""
        for actor in [*self.idle, *(self.starting.values() if not self.tasks else ())]:
            self.ray.kill(actor)
        self.idle = []
        if not self.tasks:
            self.starting = {}

    def close(self) -> None:
        """End all actors."""
        for actor in [*self.idle, *self.starting.values(), *(actor for actor, _ in self.at_work.values())]:
            self.ray.kill(actor)
        self.idle, self.starting, self.at_work = [], {}, {}
