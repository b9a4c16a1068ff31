"""Values of the configuration with a special form: parsing and error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from socket import inet_aton
from typing import Annotated, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr

from fetchproxy.errors import ConfigError
from fetchproxy.model import is_topic_name

T = TypeVar("T")
# host:port texts of the configuration, parsed in the same way everywhere. Resolves no names.

# A label of a host name, as resolvers accept it. Names of containers may contain `_`.
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NAME_CHARS_MAX = 253
_WITH_UNIT = re.compile(r"(?P<number>[0-9]{1,18}) ?(?P<unit>[A-Za-z]+)")
_HOST_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(\.(?!-)[a-z0-9-]{1,63})*", re.IGNORECASE)
MASK = "•••"
# Plain "key" is not in the list: Kafka's `api_key` is a number on the wire and no secret.
_SECRET_WORDS = (
    "password|passwd|passphrase|secret|token|authorization|credential|cookie"
    "|access_?key|private_?key|sasl_?auth_?bytes|jaas"
)
_SECRET_NAME = re.compile(_SECRET_WORDS, re.IGNORECASE)
# The repeats are bounded: these run over everything that is logged, and unbounded repeats would
# take quadratic time.
_ASSIGNED = re.compile(
    rf"(?P<name>(?:{_SECRET_WORDS})[\w.-]{{0,40}})(?P<sign>\"?'?\s{{0,4}}[=:]\s{{0,4}})"
    r"(?P<value>(?:(?:Bearer|Basic)\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s&,;\"']+))",
    re.IGNORECASE,
)
_USERINFO = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,20}://)(?P<userinfo>[^/\s@]+)@", re.IGNORECASE
)
# Controls, marks that change the direction of writing, and halves of surrogate pairs. A terminal
# obeys the first, a reader is misled by the second, and no encoding writes the third.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class HostPort:
    """`host` is without the brackets of an IPv6 address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str) -> HostPort:
    """`host:port` or `[IPv6]:port`; port 0 means any free one. Raises ValueError."""
    host, separator, port = text.strip().rpartition(":")
    host, has_brackets = _without_brackets(host)
    if not separator or not host or any(c.isspace() or c in "[]/@" for c in host):
        raise ValueError("expected host:port")
    if ":" in host and not has_brackets:
        raise ValueError("expected [IPv6 address]:port")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("expected a port from 0 to 65535 after the last colon")
    return HostPort(host, int(port))


def parse_host(text: str) -> str:
    """A host that clients can dial: a name or an address; IPv6 with or without brackets.

    Raises ValueError, also for an address that means all addresses (0.0.0.0, ::).
    """
    host, has_brackets = _without_brackets(text.strip())
    if not host or any(c.isspace() or c in "[]/@," for c in host):
        raise ValueError("expected a host")
    if ":" in host or has_brackets:
        try:
            IPv6Address(host)
        except ValueError:
            raise ValueError("expected a host without a port") from None
    elif not _is_name(host):
        raise ValueError("expected a host name or an IP address")
    if is_any_address(host):
        raise ValueError("expected a host that clients can dial")
    return host


def _without_brackets(host: str) -> tuple[str, bool]:
    """(host, whether it had brackets)."""
    has_brackets = host.startswith("[") and host.endswith("]")
    return (host[1:-1] if has_brackets else host), has_brackets


def _is_name(host: str) -> bool:
    """Whether a resolver accepts the host. Clients give no reason if they cannot resolve a name.

    A name that ends in a number has to be an IPv4 address.
    """
    labels = host.removesuffix(".").split(".")
    if len(host) > _NAME_CHARS_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        return False
    return not labels[-1].isdigit() or _is_ipv4(host)


def _is_ipv4(host: str) -> bool:
    try:
        inet_aton(host)
    except OSError:
        return False
    return True


def parse_bootstrap(text: str) -> list[HostPort]:
    """`host:port[,host:port…]`, at least one, none with port 0. Raises ValueError."""
    addresses = [parse_host_port(part) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("expected host:port[,host:port…]")
    if any(address.port == 0 for address in addresses):
        raise ValueError("expected a port from 1 to 65535 for each broker")
    return addresses


def is_loopback(host: str) -> bool:
    """Whether only this machine can dial the host. Names other than `localhost`, and the empty
    host, count as reachable by others.
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_any_address(host: str) -> bool:
    """Whether the host means all addresses of a machine. A server can listen on it, but no client
    on another machine can dial it.
    """
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        pass
    return _is_ipv4(host) and inet_aton(host) == bytes(4)  # as the resolver reads `0`


# `attach.archives`: the topic and the archive for each served name. Text only.


@dataclass(frozen=True, slots=True)
class Attachment:
    """The proxy serves `topic` of the archive at `store_url` as `name`."""

    name: str
    store_url: str
    topic: str


def parse_attachments(text: str) -> list[Attachment]:
    """`NAME=STORE_URL#TOPIC`, separated by white space. Raises ValueError, also for a repeated
    name.

    A store URL contains neither `#` nor a space.
    """
    attachments: dict[str, Attachment] = {}
    for part in text.split():
        name, separator, url_text = part.partition("=")
        url, hash_sign, topic = url_text.partition("#")
        if not (separator and hash_sign and "://" in url):
            raise ValueError(f"expected NAME=STORE_URL#TOPIC, not {part!r}")
        if not is_topic_name(name) or not is_topic_name(topic):
            raise ValueError(f"{part!r}: not a valid topic name")
        if name in attachments:
            raise ValueError(f"{name} is given twice")
        attachments[name] = Attachment(name, url, topic)
    return list(attachments.values())


# `store.encryption_keys`: where the key ring is. Text only.


@dataclass(frozen=True, slots=True)
class KeyRingPlace:
    """`path` of a file, or `region`, `key` and `endpoint_url` of a key service.

    `key` "": the ring only decrypts. `required`: segments that are not encrypted are refused.
    """

    path: Path | None = None
    region: str = ""
    key: str = ""
    endpoint_url: str | None = None
    required: bool = False


def parse_key_ring(text: str) -> KeyRingPlace:
    """`/path`, `file:///path` or `aws-kms://REGION/KEY?endpoint_url=…`; all take `required=true`.

    Raises ValueError.
    """
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    required_text = query.pop("required", "false")
    if required_text not in ("true", "false"):
        raise ValueError("expected required=true or required=false")
    path = unquote(parts.path)
    if parts.scheme == "aws-kms" and parts.netloc:
        endpoint_url = query.pop("endpoint_url", None)
        if endpoint_url is not None:
            _parse_http_url(endpoint_url)
        place = KeyRingPlace(None, parts.netloc, path[1:], endpoint_url, required_text == "true")
    elif parts.scheme in ("", "file") and not parts.netloc and path.startswith("/"):
        place = KeyRingPlace(Path(path), required=required_text == "true")
    else:
        raise ValueError("expected the absolute path of a file, or aws-kms://REGION/KEY")
    if query or parts.fragment:
        raise ValueError("has unknown parameters")
    return place


def parse_key_rings(text: str) -> tuple[KeyRingPlace, ...]:
    """One, or several separated by commas: the first one encrypts. Raises ValueError."""
    places = tuple(parse_key_ring(part.strip()) for part in text.split(","))
    if len({replace(place, required=False) for place in places}) < len(places):
        raise ValueError("a key ring is given twice")
    return places


# `gateway.node_map`: the port for each broker, and the address that clients are told. Text only.


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The port on which the proxy listens for a node, and the host and port that clients are told.

    `host` None: the gateway's advertised host.
    """

    listen_port: int
    host: str | None
    port: int


def parse_node_map(text: str) -> dict[int, NodePlace]:
    """`NODE=PORT`, `NODE=HOST:PORT` or `NODE=PORT/HOST:PORT`, separated by commas.

    Raises ValueError, also if a node, a listening port or an advertised address comes twice.
    """
    places: dict[int, NodePlace] = {}
    for part in text.split(",") if text.strip() else ():
        node, separator, address = part.strip().partition("=")
        if not separator or not (node.isascii() and node.isdigit()):
            raise ValueError(f"expected NODE=PORT or NODE=HOST:PORT, not {part.strip()!r}")
        if int(node) in places:
            raise ValueError(f"node {node} is given twice")
        places[int(node)] = _parse_place(address)
    if len({address.listen_port for address in places.values()}) < len(places):
        raise ValueError("two nodes have the same listening port")
    if len({(address.host, address.port) for address in places.values()}) < len(places):
        raise ValueError("two nodes have the same advertised address")
    return places


def _parse_place(text: str) -> NodePlace:
    listen, separator, advertised_text = text.partition("/")
    if not separator:
        advertised_text = text
        listen = text.rpartition(":")[2]
    if advertised_text.isascii() and advertised_text.isdigit():
        advertised_host, advertised_port = None, _port(advertised_text)
    else:
        address = parse_host_port(advertised_text)
        advertised_host, advertised_port = parse_host(address.host), _port(str(address.port))
    return NodePlace(_port(listen), advertised_host, advertised_port)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 65535):
        raise ValueError(f"expected a port from 1 to 65535, not {text!r}")
    return int(text)


# Sizes and durations: a whole number with a unit, or a number of the unit in the key's name.


@dataclass(frozen=True, slots=True)
class LiveReload:
    """Metadata of a key that a running process takes over when it reads its settings again: whoever
    uses the key reads it at each use. `only_if_set`: only while it is set, before and after.
    """

    only_if_set: bool = False


Live = Annotated[T, LiveReload()]
LiveOnceSet = Annotated[T, LiveReload(only_if_set=True)]


@dataclass(frozen=True, slots=True)
class TextForm:
    """The form of a text, in words for messages and documentation."""

    expected: str


@dataclass(frozen=True, slots=True)
class UnitForm(TextForm):
    """A number with a unit. `units` are in descending order; the last one is the key's own."""

    units: tuple[tuple[str, int], ...]
    name: str

    def show(self, value: int) -> str:
        """In the largest unit that needs no fraction. 0 and -1 have no unit, as they have special
        meanings (no limit, never).
        """
        for unit, size in self.units:
            if value > 0 and value % size == 0:
                return f"{value // size}{unit}"
        return str(value)

    def read(self, raw_value: object) -> object:
        """A text with a unit as a number; anything else unchanged, for the next validator. Raises
        ValueError.
        """
        match = _WITH_UNIT.fullmatch(raw_value.strip()) if isinstance(raw_value, str) else None
        if match is None:
            return raw_value
        if (size := dict(self.units).get(match["unit"])) is None:
            raise ValueError(f"expected {self.expected}")
        return int(match["number"]) * size


SIZE = UnitForm(
    "a size: 8GiB, 64MiB, 512KiB or a number of bytes",
    # No MB: it may mean 1,000,000 or 1,048,576 bytes.
    (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)),
    "a size",
)
DURATION = UnitForm(
    "a duration: 7d, 2h, 10m, 5s, 500ms or a number of milliseconds",
    (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)),
    "a duration",
)

Size = Annotated[int, BeforeValidator(SIZE.read), SIZE]
Duration = Annotated[int, BeforeValidator(DURATION.read), DURATION]


# `archive.retention_overrides`: retention by topic pattern. Text only; decides nothing.


@dataclass(frozen=True, slots=True)
class RetentionOverride:
    """Retention of topics whose whole name matches `pattern`; None: not set by this override."""

    pattern: str
    remote_log_retention_ms: int | None = None
    remote_log_retention_bytes: int | None = None
    local_retention_ms: int | None = None
    local_retention_bytes: int | None = None

    def matches(self, topic: str) -> bool:
        return re.fullmatch(self.pattern, topic) is not None


_KEYS = [field.name for field in fields(RetentionOverride)][1:]


def overrides_text(value: object) -> object:
    """A TOML table as JSON, as in the environment; anything else unchanged."""
    return json.dumps(value) if isinstance(value, dict) else value


@lru_cache(maxsize=4)  # one configuration, parsed for every partition
def parse_retention_overrides(text: str) -> tuple[RetentionOverride, ...]:
    """In the order written. Raises ValueError, naming pattern and key."""
    table = json.loads(text) if text.strip() else {}
    if not isinstance(table, dict):
        raise ValueError("expected a table of patterns")
    return tuple(_override(pattern, settings) for pattern, settings in table.items())


def _override(pattern: str, settings: object) -> RetentionOverride:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    if not isinstance(settings, Mapping) or not settings:
        raise ValueError(f"{pattern!r}: expected one of {', '.join(_KEYS)}")
    limits = {}
    for key, text in settings.items():
        if key not in _KEYS:
            raise ValueError(f"{pattern!r}: expected one of {', '.join(_KEYS)}, not {key}")
        value = (DURATION if key.endswith("_ms") else SIZE).read(text)
        if not isinstance(value, int) or isinstance(value, bool) or value < -1:
            raise ValueError(f"{pattern!r}: {key} must be a number or have a unit, at least -1")
        limits[key] = value
    return RetentionOverride(pattern, **limits)


# Texts with a special form (addresses, patterns): their checks and descriptions.


def _checked_by(parse: Callable[[str], object]) -> AfterValidator:
    """Keeps the text if `parse` accepts it; None (not set) passes."""

    def check(text: str | None) -> str | None:
        if text is not None:
            parse(text)
        return text

    return AfterValidator(check)


def _parse_pattern(text: str) -> object:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error


def parse_paths(text: str) -> tuple[Path, ...]:
    """Comma-separated paths. Raises ValueError if a path is not absolute."""
    paths = tuple(Path(part.strip()) for part in text.split(","))
    if not all(path.is_absolute() for path in paths):
        raise ValueError("expected absolute paths")
    return paths


def parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Addresses and networks, separated by commas. Raises ValueError."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if text.strip())


def _parse_url(text: str) -> object:
    scheme, separator, remainder = text.partition("://")
    if not (separator and scheme and remainder):
        raise ValueError("expected a URL")
    return scheme


def _parse_http_url(text: str) -> object:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("expected a URL without credentials")
    return parts.port  # raises ValueError for an invalid port


def _parse_host_name(text: str) -> object:
    # TLS never sends an IPv4 address as server name (RFC 6066, 3).
    if len(text) > 253 or not _HOST_NAME.fullmatch(text) or text.replace(".", "").isdigit():
        raise ValueError("expected a host name")
    return text


def parse_node_names(text: str) -> tuple[str, int]:
    """`gateway.sni_node_pattern`: the pattern of names, and the port that clients are told; 0: the
    listener's port. Raises ValueError.
    """
    names, colon, port = text.partition(":")
    before, separator, after = names.partition("{node_id}")
    if not separator or "{node_id}" in after:
        raise ValueError("expected {node_id} once")
    _parse_host_name(f"{before}2147483647{after}")
    return names, _port(port) if colon else 0


def _read_host(text: str | None) -> str | None:
    return None if text is None else parse_host(text)


_HOST_PORT = (_checked_by(parse_host_port), TextForm("host:port or [IPv6]:port"))

HostPortText = Annotated[str, *_HOST_PORT]
OptionalHostPortText = Annotated[str | None, *_HOST_PORT]
BootstrapText = Annotated[
    str, _checked_by(parse_bootstrap), TextForm("host:port[,host:port…], ports from 1 to 65535")
]
OptionalAdvertisedHost = Annotated[
    str | None,
    AfterValidator(_read_host),
    TextForm(
        "a host name or an IP address that clients can reach (not 0.0.0.0 or ::), without a "
        "port: each broker has its own port (see gateway.node_map, or gateway.sni_node_pattern "
        "for TLS)"
    ),
]
OptionalNetworks = Annotated[
    str | None,
    _checked_by(parse_networks),
    TextForm("IP addresses or networks such as 10.0.0.0/24, separated by commas"),
]
OptionalNodeMap = Annotated[
    str | None,
    _checked_by(parse_node_map),
    TextForm(
        "NODE=PORT, NODE=HOST:PORT or NODE=PORT/HOST:PORT, separated by commas; each node, port "
        "and address once; a HOST that clients can reach (not 0.0.0.0 or ::)"
    ),
]
OptionalPattern = Annotated[
    str | None, _checked_by(_parse_pattern), TextForm("a regular expression")
]
OptionalPaths = Annotated[
    str | None, _checked_by(parse_paths), TextForm("absolute paths, separated by commas")
]
OptionalAttachments = Annotated[
    str | None,
    _checked_by(parse_attachments),
    TextForm("NAME=STORE_URL#TOPIC, separated by spaces; each name once"),
]
OptionalUrl = Annotated[
    str | None,
    _checked_by(_parse_url),
    TextForm("a URL such as file:///var/lib/archive or s3://bucket/prefix"),
]
OptionalKeyRing = Annotated[
    str | None,
    _checked_by(parse_key_rings),
    TextForm(
        "the absolute path of a file or aws-kms://REGION/KEY, each with ?required=true if wanted; "
        "several are separated by commas"
    ),
]
OptionalHttpUrl = Annotated[
    str | None,
    _checked_by(_parse_http_url),
    TextForm("an http:// or https:// URL without credentials"),
]
OptionalHostName = Annotated[
    str | None, _checked_by(_parse_host_name), TextForm("a host name, not an address")
]
OptionalNodeNames = Annotated[
    str | None,
    _checked_by(parse_node_names),
    TextForm("a host name that contains {node_id} once; :PORT may follow"),
]
OptionalRetentionOverrides = Annotated[
    str | None,
    BeforeValidator(overrides_text),
    _checked_by(parse_retention_overrides),
    TextForm(
        "a table (JSON outside of a TOML file) of patterns, each with values for any of "
        "remote_log_retention_ms, remote_log_retention_bytes, local_retention_ms and "
        "local_retention_bytes; a value is a number (-1 or more) or has a unit (7d, 64GiB)"
    ),
]


# A secret of the configuration: a value, or a file that contains it.


class SecretFile(BaseModel):
    """`{ file = PATH }` in place of a secret. The first line of the file is the secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    file: Path


OptionalSecret = Annotated[
    SecretStr | SecretFile | None,
    TextForm(
        'text (it is never shown), or the file that contains it: { file = "/path" }, a variable '
        "whose name ends in _FILE, or --set with .file"
    ),
]


def secret_file(secret: SecretStr | SecretFile | None) -> Path | None:
    return secret.file if isinstance(secret, SecretFile) else None


def secret_from(secret: SecretStr | SecretFile | Path | None, key: str) -> str | None:
    """The value, or the file's first line; None if neither is set. Blocks while it reads the file.

    Raises ConfigError. The error names the key and not the path, as the user may have put the
    secret itself in its place.
    """
    if secret is None or isinstance(secret, SecretStr):
        return None if secret is None else secret.get_secret_value()
    file = secret.file if isinstance(secret, SecretFile) else secret
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"the file of {key} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the file of {key} is not UTF-8") from None
    if not lines or not lines[0].strip():
        raise ConfigError(f"the first line of the file of {key} is empty")
    return lines[0].strip()


# Which names are secrets, and how secrets in texts are masked. Logs and errors use this.


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def harmless(text: str) -> str:
    """`text` from outside on one line, for terminals, pages and logs: what could do harm is shown
    as Python escapes it.
    """
    return _HARMFUL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def mask_text(text: str) -> str:
    """`text` with the user part of URLs and the values of `secret-like-name=value` masked."""
    text = _USERINFO.sub(rf"\g<scheme>{MASK}@", text)
    return _ASSIGNED.sub(rf"\g<name>\g<sign>{MASK}", text)
