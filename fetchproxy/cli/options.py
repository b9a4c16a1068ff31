"""The options that commands share, and how they become a Config. Each has help and a variable.

The decorator `shares` adds options that the command's own code does not use. They are read from
click's context.

An option that names a configuration key sets that key on the command line. The option and the key
share one environment variable. `load` reads that variable, so `--set` takes precedence over it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from fetchproxy.app import LIMITS, Limits
from fetchproxy.archive import store_url
from fetchproxy.config.load import Loaded, Setting, load, parse_assignment, variable_of
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.observability.logs import configure_logging
from fetchproxy.reloads import Reloads

NAMED_KEYS = {
    "bootstrap": "cluster.bootstrap",
    "store": "store.url",
    "source": "store.url",
    "listen": "gateway.listen",
    "advertise": "gateway.advertise_host",
    "archive": "archive.topics",
    "console": "console.listen",
    "archive_only": "archive_only.enabled",
    "workers": "process.workers",
}
Topic = Annotated[
    str | None,
    typer.Option(
        envvar="FETCHPROXY_TOPIC", metavar="TOPIC", help="Only this topic (the whole name)."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        envvar="FETCHPROXY_DRY_RUN",
        help="Print what would be done without changing anything.",
    ),
]
Create = Annotated[
    bool,
    typer.Option(
        "--create",
        help="Create a new archive if the expected archive is not there. Use it once, by hand.",
    ),
]
Command = Callable[..., None]


def _of_key(key_name: str, metavar: str, meaning: str, *flags: str) -> Any:
    """A text option that sets its key in `NAMED_KEYS`. By default, the flag is --name."""
    variable = variable_of(NAMED_KEYS[key_name])
    option = typer.Option(*flags, envvar=variable, metavar=metavar, help=meaning)
    return Annotated[str | None, option]


# The options that `shares` adds to a command.
SHARED: dict[str, Any] = {
    "bootstrap": _of_key("bootstrap", "HOST:PORT[,…]", "Bootstrap brokers of the cluster."),
    "store": _of_key(
        "store",
        "URL",
        "URL of the archive: file:///path, s3://bucket/prefix?region=…, gs://bucket/prefix, "
        "az://container/prefix, hdfs://nameservice/path or webhdfs://host:port/path.",
    ),
    "source": _of_key("source", "URL", "URL of the archive, in the form of --store.", "--from"),
    "listen": _of_key("listen", "HOST:PORT", "Address for clients: their bootstrap.servers."),
    "advertise": _of_key(
        "advertise",
        "HOST",
        "Host name that clients connect to, without a port. Default: the host of --listen.",
    ),
    "archive": _of_key(
        *("archive", "REGEX", "Topics to copy to the store: a regular expression for whole names."),
        *("--archive", "--topics"),
    ),
    "console": _of_key(
        "console", "HOST:PORT", "Address of the web page, /metrics, /healthz and /readyz."
    ),
    "workers": _of_key(
        "workers",
        "N",
        "How many processes serve clients, one for each core; the first one archives.",
    ),
    "archive_only": Annotated[
        bool,
        typer.Option(
            "--archive-only",
            envvar="FETCHPROXY_ARCHIVE_ONLY_ENABLED",
            help="Serve clients only from the archive, without brokers, for example when the "
            "cluster is lost.",
        ),
    ],
    "spark": Annotated[
        bool,
        typer.Option(
            "--spark",
            envvar="FETCHPROXY_SPARK",
            help="Run the job on Spark. Install it first; in a clone: pip install -e '.\\[spark]'.",
        ),
    ],
    "master": Annotated[
        str | None,
        typer.Option(
            envvar="FETCHPROXY_SPARK_MASTER",
            metavar="URL",
            help="With --spark: Spark's master. Default: the master given to spark-submit; "
            "otherwise this process, with all cores.",
        ),
    ],
    "spark_settings": Annotated[
        list[str] | None,
        typer.Option(
            "--conf",
            envvar="FETCHPROXY_SPARK_CONF",
            metavar="KEY=VALUE",
            help="With --spark: a Spark setting; may be repeated.",
        ),
    ],
    "config_file": Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="FETCHPROXY_CONFIG",
            metavar="FILE",
            help="TOML configuration file, with one table for each section.",
        ),
    ],
    "assignments": Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            envvar="FETCHPROXY_SET",
            metavar="SECTION.KEY=VALUE",
            help="Set any configuration key; may be repeated. In FETCHPROXY_SET, separate "
            "several settings with spaces.",
        ),
    ],
}


def shares(*named_keys: str, spark: bool = False) -> Callable[[Command], Command]:
    """Add the options `named_keys` before the command's own ones, --config and --set after them."""
    behind = (
        *(("spark", "master", "spark_settings") if spark else ()),
        "config_file",
        "assignments",
    )

    def with_options(command: Command) -> Command:
        context, *parameters = signature(command, eval_str=True).parameters.values()
        names = {parameter.name for parameter in (context, *parameters)}

        @wraps(command)
        def called(**values: object) -> None:
            command(**{name: value for name, value in values.items() if name in names})

        every = (context, *map(_shared, named_keys), *parameters, *map(_shared, behind))
        keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in every]
        called.__signature__ = signature(command).replace(parameters=keywords)  # type: ignore[attr-defined]
        return called

    return with_options


def _shared(name: str) -> Parameter:
    default = False if SHARED[name].__origin__ is bool else None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=SHARED[name])


def read_config(context: typer.Context) -> Config:
    """The configuration; options of this command line take precedence. Raises ConfigError."""
    return read_settings(context, context.params.get("config_file")).config


def read_logged(context: typer.Context) -> Config:
    """Like `read_config`; also requires store.url and configures logging. Raises ConfigError."""
    config = read_config(context)
    store_url(config)
    configure_logging(config.log, sys.stderr)
    return config


def reload_reader(context: typer.Context, config: Config) -> Reloads:
    """Reads the settings again when it is asked. `config`: as `read_config` has read it."""

    # Until the loop handles it: it would end the process, and systemd would call that a clean end.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def read() -> Loaded:
        loaded = read_settings(context, context.params.get("config_file"))
        if (console := loaded.config.console).listen is not None:
            from fetchproxy.console.server import token_of  # loaded only here: an HTTP server

            token_of(console)
        return loaded

    return Reloads(config, read)


def read_settings(context: typer.Context, file: Path | None) -> Loaded:
    """Like `read_config`, but reads `file` and also returns the source of each value."""
    source_name = "FETCHPROXY_SET" if _source(context, "assignments") == "ENVIRONMENT" else "--set"
    assignments = context.params.get("assignments") or ()
    overrides = [parse_assignment(text, source_name) for text in assignments]
    for parameter, key in NAMED_KEYS.items():
        if parameter in context.params and is_given(context, parameter):
            option = "--from" if parameter == "source" else "--" + parameter.replace("_", "-")
            overrides.append(Setting(key, context.params[parameter], option))
    return load(file, os.environ, overrides)


def limits(context: typer.Context) -> Limits:
    """The Limits that the caller passed as click's `obj`. `fetchproxy` itself passes none."""
    return context.obj if isinstance(context.obj, Limits) else LIMITS


def spark_settings(context: typer.Context) -> dict[str, str]:
    """The settings from `--conf`. Raises ConfigError, also for Spark options without --spark."""
    for parameter, option in (("master", "--master"), ("spark_settings", "--conf")):
        if not context.params["spark"] and is_given(context, parameter):
            raise ConfigError(f"{option} is for Spark; add --spark")
    settings: dict[str, str] = {}
    for text in context.params["spark_settings"] or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--conf {text!r}: expected KEY=VALUE")
        settings[key] = value
    return settings


def empty_archive_error(config: Config, topic: str | None) -> ConfigError:
    """The error for an empty archive: a wrong prefix or topic must not look like a sound one."""
    topic_words = "" if topic is None else f" of topic {topic}"
    return ConfigError(f"there is nothing{topic_words} in the archive at {store_url(config)}")


def is_given(context: typer.Context, parameter: str) -> bool:
    """True: the parameter is on the command line itself."""
    return _source(context, parameter) == "COMMANDLINE"


def _source(context: typer.Context, parameter: str) -> str:
    source = context.get_parameter_source(parameter)
    return "" if source is None else source.name
