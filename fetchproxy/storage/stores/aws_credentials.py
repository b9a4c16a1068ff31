"""AWS credentials that may be replaced while the process runs.

boto renews credentials that have an end (roles, web identity, containers, instances) by itself. It
reads the credentials of a file or a profile once. Here they are read again after a refusal.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, NoCredentialsError

from fetchproxy.runtime.flights import SingleFlight

log = structlog.get_logger(__name__)

# A service that denies every request makes the process look for other credentials this often.
LOOK_INTERVAL_S = 2.0


class AwsCredentials:
    """boto's credentials of `session`, in the place of boto's own object. Clients of this session
    sign each request with the current ones. `None` for boto's methods: Any, as boto has no types.
    """

    def __init__(self, session: AioSession, current: Any, profile: str | None) -> None:
        self._current = current
        self._profile = profile
        self._looked_at = float("-inf")
        self._looks = SingleFlight[bool]()
        session._credentials = self  # where boto keeps them

    @classmethod
    async def of(cls, session: AioSession, profile: str | None) -> AwsCredentials:
        """Call it before the session makes a client. Raises NoCredentialsError, BotoCoreError."""
        found = await session.get_credentials()
        if found is None:
            raise NoCredentialsError
        return cls(session, found, profile)

    async def get_frozen_credentials(self) -> Any:
        """Called by boto for each request."""
        return await self._current.get_frozen_credentials()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current, name)

    async def renewed_since(self, used: Any) -> bool:
        """Whether there are other credentials than `used`, which were refused. Looks for them where
        boto found them at the start, at most every LOOK_INTERVAL_S.
        """
        return await self._looks.run("look", self._look) or (
            await self.get_frozen_credentials() != used
        )

    async def _look(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < LOOK_INTERVAL_S:
            return False
        self._looked_at = now
        try:
            before = await self._current.get_frozen_credentials()
            found = await AioSession(profile=self._profile).get_credentials()
            if found is None or await found.get_frozen_credentials() == before:
                return False
        except (BotoCoreError, OSError, ValueError) as error:
            log.warning("aws_credentials_not_found", error=str(error))
            return False
        self._current = found
        log.info("aws_credentials_changed", method=found.method)
        return True
