"""`fetchproxy serve`: the proxy, with an archiver if `archive.topics` is set."""

from __future__ import annotations

import typer

from fetchproxy.app import Leaving, load_console, run_archive_only, run_server
from fetchproxy.cli import options
from fetchproxy.cli.running import run, users_errors
from fetchproxy.config.reloading import own_copy
from fetchproxy.config.schema import Config
from fetchproxy.runtime.open_files import clients_that_fit, raise_open_files_max


@options.shares(
    *("bootstrap", "store", "listen", "advertise", "archive", "console", "archive_only", "workers")
)
def serve(
    context: typer.Context,
    create: options.Create = False,
) -> None:
    """Serve clients: relay requests to the brokers, and serve deleted records from the archive.

    With --archive, this process also copies topics to the store. With --archive-only, it needs no
    broker. On SIGINT or SIGTERM it disconnects its clients between two responses and then exits; on
    a second signal it exits at once. On SIGHUP it reads its settings again.
    """
    with users_errors():
        config = own_copy(options.read_logged(context))
    reload_reader = options.reload_reader(context, config)
    limits = options.limits(context)
    if config.process.workers > 1:
        # Loaded only here: it brings an HTTP client.
        from fetchproxy.workers.parent import Workers

        workers = Workers(config, create=create, limits=limits, next_reload=reload_reader.next)
        run(workers.run(), workers.ask, reload_reader.ask)
        return
    config = with_clients_that_fit(config)
    load_console(config)
    leaving = Leaving()
    run(
        run_archive_only(config, limits=limits, leaving=leaving, next_reload=reload_reader.next)
        if config.archive_only.enabled
        else run_server(
            config, create=create, limits=limits, leaving=leaving, next_reload=reload_reader.next
        ),
        leaving.ask,
        reload_reader.ask,
    )


def with_clients_that_fit(config: Config) -> Config:
    """Raises this process's limit of open files, and lowers that of its clients if need be."""
    open_files_max = raise_open_files_max(config.gateway.connections_max)
    clients_max = clients_that_fit(open_files_max, config.gateway.connections_max)
    gateway = config.gateway.model_copy(update={"connections_max": clients_max})
    return config.model_copy(update={"gateway": gateway})
