"""Archive-only mode behind its listener: an archive, its groups and its users.

There is one node and one port: every address in a response is this listener's.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from uuid import NAMESPACE_URL, uuid5

import structlog

from fetchproxy.config.schema import Config
from fetchproxy.config.values import is_loopback, parse_node_map
from fetchproxy.errors import ConfigError
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.observability.health import Health
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import READ_WAIT_MIN_S
from fetchproxy.runtime.fair_room import FairRoom
from fetchproxy.serving.admission import admission_of
from fetchproxy.serving.archive_only.committed_offsets import CommittedOffsets
from fetchproxy.serving.archive_only.groups import GroupCoordinator, GroupMemory
from fetchproxy.serving.archive_only.handling import NODE_ID, ArchiveOnlyParts
from fetchproxy.serving.archive_only.kept_state import KeptState
from fetchproxy.serving.archive_only.logins import Logins
from fetchproxy.serving.archive_only.session import ArchiveOnlySession
from fetchproxy.serving.archive_only.topics import ArchiveWatch
from fetchproxy.serving.archived_reads import SkippedOffsets
from fetchproxy.serving.limits import ArchiveOnlyLimits
from fetchproxy.serving.listener import Listener
from fetchproxy.tls.reloading import ReloadingContext

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_archive_only(
    config: Config,
    rlmm: RemoteLogMetadataManager,
    descriptions: TopicDescriptions,
    purgatory: RemoteFetchPurgatory,
    new_member_id: Callable[[str], str],
    tls: ReloadingContext | None = None,
    limits: ArchiveOnlyLimits = ArchiveOnlyLimits(),  # noqa: B008 - frozen
    health: Health | None = None,
    kept_state: KeptState | None = None,
) -> AsyncIterator[Listener]:
    """The listener opens once the archive was listed.

    `new_member_id(prefix)` makes an id that was never used before. Raises ConfigError,
    RemoteStorageError if retrying cannot help.
    """
    section = config.archive_only
    memory = GroupMemory(section.groups_bytes_max)
    logins = None if section.users_file is None else Logins(section.users_file)
    async with (
        AsyncExitStack() as opened,
        CommittedOffsets(section.offsets_file, limits.offsets_max, memory) as offsets,
    ):
        if logins is not None:
            opened.callback(logins.close)
            await logins.load()
        archive = ArchiveWatch(rlmm, descriptions, section.refresh_interval_ms / 1000, kept_state)
        await archive.load()
        async with Listener(config.gateway, limits, tls, "archive_only", health=health) as listener:
            if health is not None and logins is not None:
                health.watch(logins.conditions)
            parts = ArchiveOnlyParts(
                limits=limits,
                cluster_id=cluster_id(config.store.url or ""),
                rlmm=rlmm,
                purgatory=purgatory,
                archive=archive,
                groups=GroupCoordinator(limits, memory, new_member_id),
                offsets=offsets,
                logins=logins,
                admission=admission_of(config, limits, listener.clock, purgatory.accounts),
                skipped=SkippedOffsets(),
                # The other half is for what arrives, waits and leaves.
                room=FairRoom(
                    limits.large_request_bytes,
                    config.gateway.connection_buffers_bytes_max // 2,
                    READ_WAIT_MIN_S,
                    listener.accumulated.reserve,
                ),
                clock=listener.clock,
            )
            listener.consumer_paces = parts.admission.consumer_paces
            listener.groups = parts.admission.groups
            listener.node_addresses = lambda: {NODE_ID: listener.advertised(listener.host)}
            async with AsyncExitStack() as listening:
                listening.enter_context(closing(parts.groups))
                await listener.open(lambda server_name: ArchiveOnlySession(listener, parts))
                await _listen_for_a_proxys_nodes(listener, parts, listening)
                rests = "what is archived or deleted later is not noticed"
                listener.keep("archive watch", archive.run, rests)
                if logins is not None:
                    listener.keep("users", logins.run, "the file of users is not read again")
                _say_open(listener, parts)
                yield listener


async def _listen_for_a_proxys_nodes(
    listener: Listener, parts: ArchiveOnlyParts, opened: AsyncExitStack
) -> None:
    """Clients that come from a proxy may know its nodes' ports alone. Raises ConfigError."""
    for node_id, place in parse_node_map(listener.config.node_map or "").items():
        try:
            server = await listener.listen(
                place.listen_port, lambda server_name: ArchiveOnlySession(listener, parts)
            )
        except OSError as error:
            raise ConfigError(
                f"gateway.node_map: cannot listen on port {place.listen_port} for node {node_id}: "
                f"{error.strerror}"
            ) from error
        opened.callback(server.close)


def _say_open(listener: Listener, parts: ArchiveOnlyParts) -> None:
    host, port = listener.host, listener.port
    certain = parts.logins is not None or listener.config.tls_client_auth == "required"
    if not is_loopback(host) and not certain:
        log.warning(
            "archive_open_to_anybody",
            host=host,
            port=port,
            hint="set archive_only.users_file to let in only users with a password, or "
            "gateway.tls_client_auth = required to let in only clients with a certificate",
        )
    topics = len(parts.archive.catalogue.by_name)
    log.info("archive_only_listening", host=host, port=port, topics=topics)


def cluster_id(store_url: str) -> str:
    """The same for the same archive, in the form of Kafka's own; reveals nothing of the URL."""
    address = store_url.partition("?")[0]
    return urlsafe_b64encode(uuid5(NAMESPACE_URL, address).bytes).decode().rstrip("=")
