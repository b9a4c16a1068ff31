"""Private names of libraries that the product uses: each in one place, with a reason, and there.

A new version of a library may rename them without a word. Here it fails before it fails a user.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import fetchproxy

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "fetchproxy").rglob("*.py"))

# By file: the library's module, its private names, and why nothing public would do.
USED = {
    "brokers/sasl.py": [
        ("kafka.net.sasl.scram", ["_scram_client"], "kafka-python normalizes no password")
    ],
    "cli/main.py": [("atexit", ["_run_exitfuncs"], "the process ends without freeing its objects")],
    "jobs/backfill_topic.py": [
        ("kafka.producer.kafka", ["_transaction_manager", "_sender"], "waits without end"),
        ("kafka.producer.transaction_manager", ["_last_error"], "why a transaction has failed"),
    ],
    "observability/metrics.py": [
        (
            "prometheus_client.metrics",
            ["_metrics", "_value"],
            "series and their values without a sample of each",
        )
    ],
    "remotelog/archive_then_live.py": [
        ("pyspark.sql.session", ["_jvm", "_jsc"], "Hadoop's file systems and Kafka's client")
    ],
    "runtime/timed_loop.py": [
        (
            "asyncio.selector_events",
            [
                *("_SelectorSocketTransport", "_call_connection_lost", "_read_ready_cb"),
                "_make_socket_transport",
            ],
            "one connection ends in a turn, and frees its memory",
        ),
        ("asyncio.selector_events", ["_process_events"], "callbacks of sockets run at once"),
        ("asyncio.events", ["_cancelled", "_run"], "callbacks of sockets run at once"),
        ("selectors", ["_selector", "_fd_to_key"], "few events from one poll"),
    ],
    "storage/stores/aws_credentials.py": [
        ("botocore.session", ["_credentials"], "all clients of a session sign with current keys")
    ],
    "storage/stores/s3.py": [
        ("aiobotocore.httpsession", ["_get_session"], "a redirect is a response")
    ],
    "tls/protocol.py": [
        (
            "asyncio.sslproto",
            [
                *("_app_protocol_buffer_updated", "_app_protocol_get_buffer", "_app_transport"),
                *("_app_protocol_is_buffer", "_app_reading_paused", "_do_write"),
                *("_get_write_buffer_size", "_incoming", "_outgoing", "_process_outgoing"),
                *("_set_read_buffer_limits", "_ssl_buffer_view", "_ssl_writing_paused", "_sslobj"),
                *("_state", "_transport", "_write_appdata", "_write_backlog"),
                "_write_buffer_size",
            ],
            "TLS in pieces, from a receive buffer that all connections share",
        )
    ],
}
# Documented, though they begin with an underscore: of named tuples, enumerations and `os`.
PUBLIC = {"_replace", "_asdict", "_fields", "_value_", "_exit"}
# What abc, typing and dataclasses put into classes.
OF_CLASSES = {"_abc_impl", "_is_protocol", "_is_runtime_protocol", "_fields", "_field_defaults"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and name not in PUBLIC


def names_in(tree: ast.Module) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def defined_in(tree: ast.Module) -> set[str]:
    """Names that the product gives to attributes of its own objects, functions and classes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Name):
            target = node.target if isinstance(node, ast.AnnAssign) else node
            names.add(target.id if isinstance(target, ast.Name) else "")
    return names


def test_no_other_private_name_is_used() -> None:
    trees = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
    own_names = set[str]().union(*map(defined_in, trees.values()))
    for path, tree in trees.items():
        named = {name for _, names, _ in USED.get(place(path), []) for name in names}
        foreign = {name for name in names_in(tree) - own_names if is_private(name)}
        assert foreign <= named, (place(path), foreign - named)


def test_no_other_private_method_is_overridden() -> None:
    """A class of ours that has a method of its library's base by chance breaks that base."""
    overridden_names: dict[str, set[str]] = defaultdict(set)
    for module in pkgutil.walk_packages(fetchproxy.__path__, "fetchproxy."):
        if module.name.endswith("__main__") or not may_be_imported(module.name):
            continue
        for made in vars(import_module(module.name)).values():
            if inspect.isclass(made) and made.__module__ == module.name:
                overridden_names[made.__module__] |= overridden(made)
    named = {
        place_of(file): {one for _, names, _ in of for one in names} for file, of in USED.items()
    }
    others = {
        module: names - named.get(module, set()) for module, names in overridden_names.items()
    }
    assert not {module: names for module, names in others.items() if names}


def overridden(made: type) -> set[str]:
    libraries = [base for base in made.__mro__ if not base.__module__.startswith("fetchproxy")]
    return {
        name
        for name in vars(made)
        if is_private(name) and name not in OF_CLASSES and not name.startswith("__")
        if any(name in vars(base) for base in libraries)
    }


def may_be_imported(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:  # PySpark, or another library of an extra, is not installed
        return False
    return True


@pytest.mark.parametrize(
    ("file", "library", "names"),
    [(file, library, names) for file, of in USED.items() for library, names, _ in of],
)
def test_each_is_used_and_the_library_still_has_it(
    file: str, library: str, names: list[str]
) -> None:
    source = (ROOT / "fetchproxy" / file).read_text("utf-8")
    assert not [name for name in names if name not in source], "take it out of the table"
    if find_spec(library.partition(".")[0]) is None:
        pytest.skip(f"{library} is not installed")
    module = import_module(library)
    library_source = " ".join(dir(module)) if is_built_in(library) else inspect.getsource(module)
    assert not [name for name in names if name not in library_source]


def is_built_in(library: str) -> bool:
    return library in sys.builtin_module_names


def place(path: Path) -> str:
    return str(path.relative_to(ROOT / "fetchproxy"))


def place_of(file: str) -> str:
    return "fetchproxy." + file.removesuffix(".py").replace("/", ".")
