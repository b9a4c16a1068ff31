"""A secret in each setting that can hold one, by the settings' own declarations: no bundle has any.

A setting of secrets that is added later is planted by itself. Settings that exclude each other are
planted in processes of their own. They are archive-only, because a process without brokers takes
all of them.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from certificates import Authority
from fetchproxy_command import PROJECT, fetchproxy
from test_secrets_never_shown import assert_clean

from fetchproxy.config.load import Key, Setting, all_keys, load
from fetchproxy.config.values import is_secret_name
from fetchproxy.errors import ConfigError
from fetchproxy.storage.key_rings import NO_KEYS, write_keys
from lab import limited
from lab.process import ServerProcess, free_port, port_responses

# Every setting whose value is a secret, or the place of a secret.
HOLDERS = [
    key
    for key in all_keys().values()
    if key.is_secret or is_secret_name(key.name) or key.dotted == "store.encryption_keys"
]
WAYS: Mapping[str, dict[str, object]] = {
    "plain": {"cluster.security_protocol": "SASL_SSL", "cluster.sasl_mechanism": "PLAIN",
              "cluster.sasl_username": "proxy"},
    "token endpoint": {"cluster.security_protocol": "SASL_SSL",
                       "cluster.sasl_mechanism": "OAUTHBEARER",
                       "cluster.sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:9/token",
                       "cluster.sasl_oauthbearer_client_id": "proxy"},
    "token file": {"cluster.security_protocol": "SASL_SSL",
                   "cluster.sasl_mechanism": "OAUTHBEARER"},
}  # fmt: skip
KEY_BYTES = b"pl4nted-key-of-32-bytes-in-ring!"


def secret_of(key: Key) -> str:
    return f"pl4nted-{key.dotted.replace('.', '-').replace('_', '-')}"


def planted(folder: Path, way: str, *, in_files: bool) -> dict[str, object]:
    """The settings of `way`, and all holders that its rules admit with a secret in each."""
    settings = {**common(folder), **WAYS[way]}
    for key in (*HOLDERS, *HOLDERS):  # the first ones may need a later one
        more = {**settings, **needs(folder, key), key.dotted: holder(folder, key)}
        if in_files and key.is_secret:
            file = folder / key.dotted
            file.write_text(secret_of(key))
            del more[key.dotted]
            more[f"{key.dotted}.file"] = file
        if is_valid(more):
            settings = more
    if not is_valid(settings):  # this way has to have one of them
        raise AssertionError(f"{way}: {settings}")
    return settings


def holder(folder: Path, key: Key) -> object:
    """What the setting has as its value."""
    if key.is_secret:
        return secret_of(key)
    file = folder / f"{key.section}-{key.name}"
    if key.dotted == "store.encryption_keys":
        if not file.exists():
            write_keys(file, NO_KEYS.with_new("k", KEY_BYTES), new=True)
    else:
        file.write_text(secret_of(key))
    return file


def needs(folder: Path, key: Key) -> dict[str, object]:
    """Certificates whose key the planted password opens."""
    if key.name != "tls_key_password":
        return {}
    authority = Authority(folder / f"{key.section}-ca")
    file = authority.issue("own", password=secret_of(key))
    return {f"{key.section}.tls_certificate_file": file}


def common(folder: Path) -> dict[str, object]:
    return {
        "archive_only.enabled": "true",
        "archive_only.open_to_anybody": "true",
        "log.level": "debug",
        "store.url": (folder / "store").as_uri(),
    }


def is_valid(settings: Mapping[str, object]) -> bool:
    setting_list = [Setting(key, str(value), "--set") for key, value in settings.items()]
    try:
        load(None, {}, setting_list)
    except ConfigError:
        return False
    return True


@pytest.fixture(
    params=[(way, in_files) for way in WAYS for in_files in (False, True)],
    ids=lambda param: f"{param[0]}, {'in files' if param[1] else 'as values'}",
)
def process(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, dict[str, object], Path]]:
    """(the console, the settings, the log)."""
    (tmp_path / "store").mkdir()
    way, in_files = request.param
    ports = {"gateway.listen": free_port(), "console.listen": free_port()}
    settings = planted(tmp_path, way, in_files=in_files)
    all_settings = {**settings, **{key: f"127.0.0.1:{port}" for key, port in ports.items()}}
    log = tmp_path / "log"
    command = [*limited.command(all_settings), "serve", *limited.options(all_settings)]
    server = ServerProcess("fetchproxy", command, log, cwd=PROJECT)
    server.start()
    try:
        server.wait_until(lambda: port_responses(ports["gateway.listen"]), 120.0)
        yield f"http://127.0.0.1:{ports['console.listen']}", settings, log
    finally:
        server.stop()


def test_all_that_can_hold_a_secret_is_planted(tmp_path: Path) -> None:
    keys_planted: set[str] = set()
    for way in WAYS:
        keys_planted |= planted(tmp_path, way, in_files=False).keys()
    assert {key.dotted for key in HOLDERS} - keys_planted == set()
    secrets = {key.dotted for key in all_keys().values() if key.is_secret}
    assert secrets < {key.dotted for key in HOLDERS}


def test_no_bundle_has_a_secret(
    process: tuple[str, dict[str, object], Path], tmp_path: Path
) -> None:
    console, settings, log = process
    out = tmp_path / "bundle.zip"
    token = str(settings["console.token_file"])
    result = fetchproxy(
        *("bundle", "--console", console, "--interval", "0"),
        *("--token-file", token, "--out", str(out)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    with zipfile.ZipFile(out) as zipped:
        parts = {name: zipped.read(name).decode() for name in zipped.namelist()}
    [row] = json.loads(parts["process.json"])
    names = {key.removesuffix(".file") for key in settings}
    secrets_set = {key.dotted for key in HOLDERS} & names
    printed = dict(text.split(" = ", 1) for text in row["settings"])
    assert all(printed[name] != "not set" for name in secrets_set)
    for text in (*parts.values(), result.stdout, result.stderr, log.read_text()):
        assert_clean(text, KEY_BYTES.decode(), *(secret_of(key) for key in HOLDERS))
        assert_clean(text, "pl4nted")
