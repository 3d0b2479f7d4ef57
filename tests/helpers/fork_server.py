"""Fork Python processes with torch and Lightning already imported, since the imports take longer than most scripts.

    python fork_server.py SOCKET MODULE ...  # imports the modules; fork_client.py requests processes

A forked process has the command line, environment, folder, signal mask and standard streams of its client, and the
initial ``sys.path`` of Python. It differs from a directly started process in its imported modules and its parent.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

OWN_FOLDERS = (str(Path(__file__).resolve().parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep))
"""Entries of ``sys.path`` that only this process needs."""


class Server:
    """Answers clients until its standard input is closed, which happens when the tests end.

    Args:
        address: path of the socket, in a folder that the server removes when it exits.
        executable: file that starts a client, which a forked process has as its ``sys.executable``.
    """

    def __init__(self, address: str, executable: str) -> None:
        self.folder, self.executable = Path(address).parent, executable
        self.path = [folder for folder in sys.path if folder not in OWN_FOLDERS]
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(f"{address}.new")
        self.listening.listen(64)
        os.rename(f"{address}.new", address)  # the path must not exist before the server answers
        self.clients: dict[int, socket.socket] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listening, selectors.EVENT_READ, self.accept)
        self.selector.register(sys.stdin, selectors.EVENT_READ, self.stop)
        self.wake, self.woken = socket.socketpair()
        for end in (self.wake, self.woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self.wake.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.selector.register(self.woken, selectors.EVENT_READ, self.reap)

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self.selector.select():
                key.data()

    def stop(self) -> NoReturn:
        for pid in self.clients:
            self.kill(pid)
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(0)

    def kill(self, pid: int) -> None:
        """Kill a process and its workers."""
        for end in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                end(pid, signal.SIGKILL)

    def accept(self) -> None:
        client, _ = self.listening.accept()
        size, streams, _, _ = socket.recv_fds(client, 8, 3)
        if len(size) < 8:
            client.close()
            return
        request = bytearray()
        while len(request) < int.from_bytes(size, "little"):
            part = client.recv(1 << 16)
            if not part:
                break
            request += part
        else:
            pid = os.fork()
            if not pid:
                client.close()
                self.close()
                run(json.loads(request), streams, self.executable, self.path)
            self.clients[pid] = client
            self.selector.register(client, selectors.EVENT_READ, partial(self.lost, pid))
            with suppress(OSError):  # the server outlives a client that stopped waiting; see lost
                client.sendall(f"{pid}\n".encode())
        for stream in streams:
            os.close(stream)

    def close(self) -> None:
        """Close the server's sockets in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        for end in (self.listening, self.wake, self.woken, *self.clients.values()):
            end.close()

    def lost(self, pid: int) -> None:
        """Kill the process of a client that was killed, unless the process has just ended."""
        if pid in self.clients:
            self.selector.unregister(self.clients[pid])
            self.kill(pid)

    def reap(self) -> None:
        with suppress(BlockingIOError):
            self.woken.recv(1 << 16)
        while self.clients:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            client = self.clients.pop(pid)
            with suppress(KeyError):
                self.selector.unregister(client)
            with suppress(OSError):
                client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            client.close()


def run(request: dict[str, Any], streams: array.array[int], executable: str, path: list[str]) -> NoReturn:
    """Run the command of a request in this forked process, and exit."""
    status = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, buffering=1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
        )
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.getppid = lambda: int(request["parent"])
        sys.executable = executable
        gc.callbacks.clear()  # callbacks of pytest plug-ins: a signal that arrives during one is lost
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if number in request["ignored"] else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
        folders = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = [*folders, *path]
        status = ended(request["command"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(command: list[str]) -> int:
    """Run a command as ``python`` does, and return its exit status."""
    try:
        execute(command)
        status: object = 0
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        # as the interpreter reports an uncaught exception
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if status is None or isinstance(status, int):
        return (status or 0) & 0xFF
    print(status, file=sys.stderr)
    return 1


def execute(command: list[str]) -> None:
    while command[0] == "-u":
        command = command[1:]
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        sys.path.insert(0, "")
        exec(compile(command[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        if command[0].startswith("-"):
            raise SystemExit(f"fork_server.py does not support the option {command[0]} of the interpreter")
        sys.argv = command
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    # listen before the imports, so that early clients wait and none is refused
    serving = Server(*sys.argv[1:3])
    for name in sys.argv[3:]:
        importlib.import_module(name)
    gc.freeze()  # garbage collection in forked processes skips the imports, which saves a second and memory
    serving.serve()
