"""Client of fork_server.py: replaces ``python`` where a test starts a process, and lets the server fork that process.

    python -IS fork_client.py SOCKET -m lightning_idc run quickstart --smoke

It hands over its command line, environment, folder, signal mask and standard streams, forwards signals, and exits with
the status of the forked process. When it is killed, the server kills the forked process. Interpreter options are not
supported.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    address, *command = sys.argv[1:]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    ignored = [number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    request = json.dumps(
        {
            "command": command,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "blocked": [int(number) for number in blocked],
            "ignored": [int(number) for number in ignored],
            "parent": os.getppid(),
        }
    ).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "little")], [0, 1, 2])
    server.sendall(request)
    for number in (0, 1, 2):
        os.close(number)  # readers of a pipe see its end as soon as the forked process exits
    # without the wakeup socket, a signal just before a blocking read would be handled only after the read
    wake, woken = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    received = bytearray()

    def answer() -> int:
        while b"\n" not in received:
            ready, _, _ = select.select([server, woken], [], [])
            if woken in ready:
                woken.recv(1 << 12)
            if server in ready:
                part = server.recv(1 << 12)
                if not part:
                    raise SystemExit("the server of forked processes has ended")
                received.extend(part)
        line, _, rest = received.partition(b"\n")
        received[:] = rest
        return int(line)

    pid = answer()

    def pass_on(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = answer()
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
