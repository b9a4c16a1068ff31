"""The limit of open files, and the clients that fit below it."""

from __future__ import annotations

import resource

import structlog

log = structlog.get_logger(__name__)

_FILES_A_CLIENT = 2  # its own connection, and the one to its broker
# What stays open for all else, while clients take what they get: requests to the store and brokers,
# the console, the spool. If the limit is low, they get half of it.
_FILES_OF_OUR_OWN = 768


def clients_that_fit(open_files_max: int, connections_max: int) -> int:
    """How many clients may connect, so that none of the process's other parts runs out of files."""
    if open_files_max == resource.RLIM_INFINITY:
        return connections_max
    reserved = min(_FILES_OF_OUR_OWN, open_files_max // 2)
    return max(1, min(connections_max, (open_files_max - reserved) // _FILES_A_CLIENT))


def open_files_for(connections_max: int) -> int:
    """The limit of open files below which so many clients may connect."""
    return _FILES_A_CLIENT * connections_max + _FILES_OF_OUR_OWN


def raise_open_files_max(connections_max: int) -> int:
    """Raise the soft limit, often 1,024, to the hard limit, as the JVM and Go do. Returns the limit
    that applies now.

    Logs how many clients fit, if fewer than `connections_max`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS may refuse a limit as high as the hard one
        log.info("open_files_max_not_raised", open_files_max=soft, error=str(error))
        return soft
    if (room := clients_that_fit(hard, connections_max)) < connections_max:
        log.info("open_files_max_holds_fewer_clients", open_files_max=hard, clients=room)
    return hard
