"""AWS credentials that may be replaced while the process runs.

boto renews credentials that have an end (roles, web identity, containers, instances) by itself. It
reads the credentials of a file or a profile once. Here they are read again after a refusal.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import structlog
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, NoCredentialsError

from fetchproxy.runtime.folders import WatchedFile, stamp_of
from fetchproxy.runtime.single_flight import SingleFlight

log = structlog.get_logger(__name__)

# A service that denies every request makes the process look for other credentials this often.
_LOOK_INTERVAL_S = 2.0


async def trusted_file(session: AioSession) -> WatchedFile:
    """The file of trusted certificates that AWS_CA_BUNDLE or boto's configuration names."""
    await read_files(session)
    name = session.get_config_variable("ca_bundle")
    file = Path(name) if name else None
    return WatchedFile(file, None if file is None else await asyncio.to_thread(stamp_of, file))


async def read_files(session: AioSession) -> None:
    """Read boto's configuration and credentials on a thread, because their disk may hang. What boto
    reads again on the loop, to find credentials, it reads a moment later.
    """
    await asyncio.to_thread(lambda: session.full_config)


class AwsCredentials:
    """The credentials of `session`, in the place of boto's own object: all clients of the session
    sign each request with the current ones.
    """

    def __init__(self, session: AioSession, current: Any, profile: str | None) -> None:
        self._current = current  # boto's, which has no types; None: there are none
        self._profile = profile
        self._read_at = float("-inf")
        self._looks = SingleFlight[None]()
        self.generation = 0  # grows when others were found
        session._credentials = self  # where boto keeps them

    @classmethod
    async def of(cls, session: AioSession, profile: str | None) -> AwsCredentials:
        """Call it before the session makes a client. Raises BotoCoreError."""
        return cls(session, await session.get_credentials(), profile)

    async def get_frozen_credentials(self) -> Any:
        """boto calls it for each request. Raises BotoCoreError."""
        if self._current is None:
            await self._looks.run("look", self._look)
        if self._current is None:
            raise NoCredentialsError
        return await self._current.get_frozen_credentials()

    def get_deferred_property(self, name: str) -> Any:
        async def value() -> Any:
            return getattr(await self.get_frozen_credentials(), name, None)

        return value

    async def get_account_id(self) -> Any:
        return getattr(await self.get_frozen_credentials(), "account_id", None)

    async def renewed_since(self, generation: int) -> bool:
        """Whether there are others than in this generation, which were refused. Looks for them
        where boto found them at the start, at most every LOOK_INTERVAL_S.
        """
        if self.generation == generation:
            await self._looks.run("look", self._look)
        return self.generation != generation

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._read_at < _LOOK_INTERVAL_S:
            return
        self._read_at = now
        try:
            before = self._current and await self._current.get_frozen_credentials()
            session = AioSession(profile=self._profile)
            await read_files(session)
            credentials = await session.get_credentials()
            if credentials is None or await credentials.get_frozen_credentials() == before:
                return
        except (BotoCoreError, OSError, ValueError) as error:
            log.warning(
                "aws_credentials_not_found",
                error=str(error),
                hint="correct the source of the credentials; it is read again without a restart",
            )
            return
        self._current = credentials
        self.generation += 1
        log.info("aws_credentials_changed", method=credentials.method)
