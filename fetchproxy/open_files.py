"""As many open files as the system lets this process have: each client takes two, its own
connection and the one to its broker, and most systems give 1,024 to who does not ask for more."""

from __future__ import annotations

import resource

import structlog

log = structlog.get_logger(__name__)

_FILES_A_CLIENT = 2


def raise_open_files_max(connections_max: int) -> int:
    """The soft limit goes up to the hard one, as in the JVM and in Go; the limit from now on.

    Logs how many clients it has room for, where that is less than `connections_max`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS: the hard limit may be above what it allows
        log.info("open_files_max_not_raised", open_files_max=soft, error=str(error))
        return soft
    if hard != resource.RLIM_INFINITY and hard < _FILES_A_CLIENT * connections_max:
        room = hard // _FILES_A_CLIENT
        log.info("open_files_max_holds_fewer_clients", open_files_max=hard, clients=room)
    return hard
