"""A key ring whose keys never leave AWS KMS, which encrypts and decrypts the data keys.

Credentials are found as boto3 finds them. A process that only reads needs only kms:Decrypt; an
archiver also needs kms:Encrypt and kms:DescribeKey.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

from fetchproxy.config.values import KeyRingPlace
from fetchproxy.errors import (
    RemoteStorageError,
    SegmentLocked,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.segments.packing import WrappedKey
from fetchproxy.storage.ciphers import KEY_BYTES, check_aes
from fetchproxy.storage.key_rings import KeyContext, KeyRing

CONNECT_MAX_S = 3
ANSWER_MAX_S = 10
_LOCKED = frozenset(
    {
        "NotFoundException",  # deleted, or in another account or region
        "DisabledException",
        "InvalidCiphertextException",
        "IncorrectKeyException",
        "KMSInvalidStateException",  # the key is pending deletion
        "KeyUnavailableException",
        "InvalidKeyUsageException",
    }
)
_DENIED = frozenset(
    {
        "AccessDeniedException",
        "AccessDenied",
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "ExpiredTokenException",
        "InvalidClientTokenId",
    }
)
_THROTTLED = frozenset({"ThrottlingException", "LimitExceededException", "RequestLimitExceeded"})


class KmsKeyRing(KeyRing):
    """The first request opens the client; `async with` of the store closes it."""

    def __init__(self, place: KeyRingPlace) -> None:
        """Raises ConfigError if the package for AES is missing."""
        check_aes()
        self._place = place
        self._opened = AsyncExitStack()
        self._client: Any = None  # aiobotocore has no types
        self._opening = asyncio.Lock()
        self._active = ""

    @property
    def writes(self) -> bool:
        return bool(self._place.key)

    def names(self, key_id: str) -> bool:
        """True for KMS ARNs of its region. The service names a ciphertext's key by its ARN."""
        parts = key_id.split(":")
        return len(parts) > 3 and (parts[0], parts[2], parts[3]) == (
            "arn",
            "kms",
            self._place.region,
        )

    async def active_key_id(self) -> str:
        """The key's ARN, even if the setting has an alias. KMS is asked once."""
        if not self._active and self.writes:
            answer = await self._ask("describe_key", KeyId=self._place.key)
            self._active = str(answer["KeyMetadata"]["Arn"])
        return self._active

    async def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        answer = await self._ask(
            "encrypt",
            KeyId=self._place.key,
            Plaintext=data_key,
            EncryptionContext=dict(context),
        )
        return WrappedKey(answer["KeyId"], answer["CiphertextBlob"])

    async def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        answer = await self._ask(
            "decrypt",
            KeyId=wrapped.key_id,
            CiphertextBlob=wrapped.wrapped,
            EncryptionContext=dict(context),
        )
        data_key: bytes = answer["Plaintext"]
        if len(data_key) != KEY_BYTES:
            raise SegmentLocked(f"the key {wrapped.key_id!r} opens no data key")
        return data_key

    async def close(self) -> None:
        self._client = None
        await self._opened.aclose()

    async def _ask(self, operation: str, **request: Any) -> dict[str, Any]:
        try:
            client = await self._open()
            answer: dict[str, Any] = await getattr(client, operation)(**request)
            return answer
        except ClientError as error:
            raise _translated(error, request["KeyId"]) from error
        except (BotoCoreError, OSError) as error:  # a TimeoutError is an OSError
            raise StorageUnavailable(f"AWS KMS does not answer: {error!r}") from error

    async def _open(self) -> Any:
        async with self._opening:
            if self._client is None:
                config = AioConfig(
                    connect_timeout=CONNECT_MAX_S,
                    read_timeout=ANSWER_MAX_S,
                    retries={"total_max_attempts": 1},  # the caller retries, and logs it
                )
                self._client = await self._opened.enter_async_context(
                    get_session().create_client(
                        "kms",
                        region_name=self._place.region,
                        endpoint_url=self._place.endpoint_url,
                        config=config,
                    )
                )
        return self._client


def _translated(error: ClientError, key_id: str) -> RemoteStorageError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    what = f"AWS KMS, key {key_id!r}: {error}"
    if code in _LOCKED:
        return SegmentLocked(what)
    if code in _DENIED:
        return StorageDenied(what)
    if code in _THROTTLED:
        return StorageThrottled(what)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return StorageUnavailable(what) if status >= 500 else RemoteStorageError(what)
