"""The options that commands share, and how they become a Config. Each has help and a variable.

Those that a command does not look at itself it has by `shares`; they are read from its context.

An option that names a configuration key counts as that key set on the command line. Its variable is
the key's own, so it is left to `load`, where the environment yields to `--set`.
"""

from __future__ import annotations

import os
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

NAMED_KEYS = {
    "bootstrap": "cluster.bootstrap",
    "store": "store.url",
    "source": "store.url",
    "listen": "gateway.listen",
    "advertise": "gateway.advertise_host",
    "archive": "archive.topics",
    "console": "console.listen",
    "archive_only": "archive_only.enabled",
}


def _of_key(name: str, metavar: str, meaning: str, *flags: str) -> Any:
    """A text that sets the key of `NAMED_KEYS`; without `flags` the option has the same name."""
    variable = variable_of(NAMED_KEYS[name])
    option = typer.Option(*flags, envvar=variable, metavar=metavar, help=meaning)
    return Annotated[str | None, option]


# Those that `shares` gives to a command.
SHARED: dict[str, Any] = {
    "bootstrap": _of_key("bootstrap", "HOST:PORT[,…]", "Brokers of the cluster."),
    "store": _of_key(
        "store",
        "URL",
        "The archive: file:///path, s3://bucket/prefix?endpoint_url=…&region=… or "
        "webhdfs://host:port/path.",
    ),
    "source": _of_key("source", "URL", "The archive; as --store of other commands.", "--from"),
    "listen": _of_key("listen", "HOST:PORT", "Where clients connect: their bootstrap.servers."),
    "advertise": _of_key(
        "advertise",
        "HOST",
        "Host that clients are told, without a port; by default the listener's.",
    ),
    "archive": _of_key(
        *("archive", "REGEX", "Topics to copy to the store; whole names match."),
        *("--archive", "--topics"),
    ),
    "console": _of_key("console", "HOST:PORT", "Web page, /metrics, /healthz and /readyz."),
    "archive_only": Annotated[
        bool,
        typer.Option(
            "--archive-only",
            envvar="FETCHPROXY_ARCHIVE_ONLY_ENABLED",
            help="No broker at all: every client reads the archive, for a cluster that is gone.",
        ),
    ],
    "spark": Annotated[
        bool,
        typer.Option(
            "--spark",
            envvar="FETCHPROXY_SPARK",
            help="Have the work done on Spark; needs, in a clone: pip install -e '.\\[spark]'.",
        ),
    ],
    "master": Annotated[
        str | None,
        typer.Option(
            envvar="FETCHPROXY_SPARK_MASTER",
            metavar="URL",
            help="With --spark: Spark's master; without it this process is Spark, with all cores. "
            "Under spark-submit: what that was given.",
        ),
    ],
    "spark_settings": Annotated[
        list[str] | None,
        typer.Option(
            "--conf",
            envvar="FETCHPROXY_SPARK_CONF",
            metavar="KEY=VALUE",
            help="With --spark: a setting of Spark's; may be repeated.",
        ),
    ],
    "config_file": Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="FETCHPROXY_CONFIG",
            metavar="FILE",
            help="TOML file; its tables are the sections.",
        ),
    ],
    "assignments": Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            envvar="FETCHPROXY_SET",
            metavar="SECTION.KEY=VALUE",
            help="Any configuration key; may be repeated (in the variable: separated by spaces).",
        ),
    ],
}

Topic = Annotated[
    str | None,
    typer.Option(
        envvar="FETCHPROXY_TOPIC", metavar="TOPIC", help="Only this topic, by its whole name."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        envvar="FETCHPROXY_DRY_RUN",
        help="Say what would be done, and change nothing.",
    ),
]
Create = Annotated[
    bool,
    typer.Option(
        "--create",
        help="Begin a new archive where one is expected and there is none: a person's word, once.",
    ),
]

Command = Callable[..., None]


def shares(*named_keys: str, spark: bool = False) -> Callable[[Command], Command]:
    """These of `NAMED_KEYS` before the command's own options; behind them --config and --set."""
    behind = (
        *(("spark", "master", "spark_settings") if spark else ()),
        "config_file",
        "assignments",
    )

    def with_options(command: Command) -> Command:
        context, *own = signature(command, eval_str=True).parameters.values()
        names = {parameter.name for parameter in (context, *own)}

        @wraps(command)
        def called(**given: object) -> None:
            command(**{name: value for name, value in given.items() if name in names})

        every = (context, *map(_shared, named_keys), *own, *map(_shared, behind))
        keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in every]
        called.__signature__ = signature(command).replace(parameters=keywords)  # type: ignore[attr-defined]
        return called

    return with_options


def _shared(name: str) -> Parameter:
    default = False if SHARED[name].__origin__ is bool else None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=SHARED[name])


def read_config(context: typer.Context) -> Config:
    """The configuration with this command line on top. Raises ConfigError."""
    return read_settings(context, context.params.get("config_file")).config


def read_logged(context: typer.Context) -> Config:
    """As `read_config`, where the store is named; the log is as it says from now on."""
    config = read_config(context)
    store_url(config)
    configure_logging(config.log, sys.stderr)
    return config


def read_settings(context: typer.Context, file: Path | None) -> Loaded:
    """As `read_config`, of `file`, with where each value is from."""
    place = "FETCHPROXY_SET" if _source(context, "assignments") == "ENVIRONMENT" else "--set"
    given = context.params.get("assignments") or ()
    overrides = [parse_assignment(text, place) for text in given]
    for parameter, key in NAMED_KEYS.items():
        if parameter in context.params and is_given(context, parameter):
            option = "--from" if parameter == "source" else "--" + parameter.replace("_", "-")
            overrides.append(Setting(key, context.params[parameter], option))
    return load(file, os.environ, overrides)


def limits(context: typer.Context) -> Limits:
    """What the caller of the command line has passed as click's `obj`; `fetchproxy` passes none."""
    return context.obj if isinstance(context.obj, Limits) else LIMITS


def spark_settings(context: typer.Context) -> dict[str, str]:
    """Of `--conf`. Raises ConfigError, also where there are options of Spark's without Spark."""
    for parameter, option in (("master", "--master"), ("spark_settings", "--conf")):
        if not context.params["spark"] and is_given(context, parameter):
            raise ConfigError(f"{option} is an option of Spark's; give --spark as well")
    found: dict[str, str] = {}
    for text in context.params["spark_settings"] or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--conf {text!r}: expected KEY=VALUE")
        found[key] = value
    return found


def nothing_there(config: Config, topic: str | None) -> ConfigError:
    """A wrong prefix or topic must not pass for a sound archive."""
    of_topic = "" if topic is None else f" of topic {topic}"
    return ConfigError(f"there is nothing{of_topic} in the archive at {store_url(config)}")


def is_given(context: typer.Context, parameter: str) -> bool:
    """On the command line itself."""
    return _source(context, parameter) == "COMMANDLINE"


def _source(context: typer.Context, parameter: str) -> str:
    source = context.get_parameter_source(parameter)
    return "" if source is None else source.name
