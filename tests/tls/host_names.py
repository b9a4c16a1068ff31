"""Names that only a test knows, for clients in other processes and for this one."""

from __future__ import annotations

import functools
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.errors import PartMissing

# With a file in the place of /etc/hosts that only this process sees, run the rest.
_PRIVATE_HOSTS = ["unshare", "--mount", "sh", "-ec", 'mount --bind "$0" /etc/hosts; exec "$@"']


def with_names(folder: Path, names: Sequence[str], command: Sequence[str]) -> list[str]:
    """`command`, for which the names are 127.0.0.1. Raises PartMissing."""
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost " + " ".join(names) + "\n")
    if not _can_have_private_hosts(hosts):
        raise PartMissing("names", "/etc/hosts cannot be replaced", "run the test as root on Linux")
    return [*_PRIVATE_HOSTS, str(hosts), *command]


@functools.cache
def _can_have_private_hosts(hosts: Path) -> bool:
    command = [*_PRIVATE_HOSTS, str(hosts), "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def names_here(names: Sequence[str]) -> Iterator[None]:
    """Within this process, for clients that ask Python for an address."""
    real: Callable[..., Any] = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **more: Any) -> Any:
        return real("127.0.0.1" if host in names else host, *arguments, **more)

    socket.getaddrinfo = resolve  # type: ignore[assignment]
    try:
        yield
    finally:
        socket.getaddrinfo = real
