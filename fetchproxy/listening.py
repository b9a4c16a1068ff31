"""A server's listener is opened, or the configuration is at fault."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from fetchproxy.errors import ConfigError

Server = TypeVar("Server", bound=AbstractAsyncContextManager[object])


@asynccontextmanager
async def listening(listen: str, server: Server) -> AsyncIterator[Server]:
    """`listen`: where `server` does. Raises ConfigError where it cannot."""
    async with AsyncExitStack() as opened:
        try:
            await opened.enter_async_context(server)
        except OSError as error:
            raise ConfigError(
                f"gateway.listen = {listen}: cannot listen there: {error.strerror}"
            ) from error
        yield server
