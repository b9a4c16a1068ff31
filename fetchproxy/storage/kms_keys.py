"""A key ring whose keys never leave AWS KMS, which encrypts and decrypts the data keys.

Credentials are found as boto3 finds them. A process that only reads needs only kms:Decrypt; an
archiver also needs kms:Encrypt and kms:DescribeKey.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError

from fetchproxy.config.values import KeyRingPlace
from fetchproxy.errors import (
    KeyServiceDenied,
    KeyServiceError,
    KeyServiceThrottled,
    KeyServiceUnavailable,
    RemoteStorageError,
    SegmentLocked,
    StorageDenied,
)
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.metrics import KEY_SERVICE_UP
from fetchproxy.runtime.folders import NO_FILE
from fetchproxy.segments.packing import WrappedKey
from fetchproxy.storage.ciphers import KEY_BYTES, check_aes
from fetchproxy.storage.key_rings import KeyContext, KeyRing
from fetchproxy.storage.stores.aws_credentials import AwsCredentials, trusted_file

CONNECT_MAX_S = 3
RESPONSE_MAX_S = 5
REQUEST_MAX_S = 8.0  # both, and a second try with other credentials
REQUESTS_AT_ONCE = 16
# A silent service is asked by one request at a time after this pause; all others fail at once.
ASKED_AGAIN_AFTER_S = 2.0
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
        self._trusted = NO_FILE
        self._client: Any = None  # aiobotocore has no types
        self._opening = asyncio.Lock()
        self._active = ""
        self._credentials: AwsCredentials | None = None
        self._places = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._circuit_open_until = 0.0  # loop s; 0: it is closed
        self._failed_request: tuple[str, dict[str, Any]] | None = (
            None  # the last request without a key
        )
        self.service = f"AWS KMS in {place.region}"
        self.health = Health()

    @property
    def writes(self) -> bool:
        return bool(self._place.key)

    def may_have(self, key_id: str) -> bool:
        """True for KMS ARNs of its region. The service names a ciphertext's key by its ARN."""
        parts = key_id.split(":")
        return len(parts) > 3 and (parts[0], parts[2], parts[3]) == (
            "arn",
            "kms",
            self._place.region,
        )

    def asks_service(self, key_id: str) -> bool:
        return self.may_have(key_id)

    async def active_key_id(self) -> str:
        """The key's ARN, even if the setting has an alias. KMS is asked once."""
        if not self._active and self.writes:
            response = await self._ask("describe_key", KeyId=self._place.key)
            self._active = str(response["KeyMetadata"]["Arn"])
        return self._active

    async def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        response = await self._ask(
            "encrypt",
            KeyId=self._place.key,
            Plaintext=data_key,
            EncryptionContext=dict(context),
        )
        return WrappedKey(response["KeyId"], response["CiphertextBlob"])

    async def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        response = await self._ask(
            "decrypt",
            KeyId=wrapped.key_id,
            CiphertextBlob=wrapped.wrapped,
            EncryptionContext=dict(context),
        )
        data_key: bytes = response["Plaintext"]
        if len(data_key) != KEY_BYTES:
            raise SegmentLocked(f"the key {wrapped.key_id!r} opens no data key")
        return data_key

    async def close(self) -> None:
        self._client = None
        await self._opened.aclose()

    # --- health ---
    async def run(self) -> None:
        """While the service fails, ask it from time to time, so that its own response ends that."""
        while True:
            await asyncio.sleep(ASKED_AGAIN_AFTER_S)
            failed_request = self._failed_request
            if failed_request is None:
                continue
            with suppress(RemoteStorageError):
                await self._ask(failed_request[0], **failed_request[1])

    def _note(self, error: Exception | None) -> None:
        """`error`: why the service gave no key; None: it answered."""
        kind, service = Kind.KEY_SERVICE_FAILING, self.service
        KEY_SERVICE_UP.labels(service).set(error is None)
        if error is None:
            self.health.clear(kind, service)
        else:
            message = f"The key service returns no keys: {error}"
            self.health.report(Condition(kind, message, service), error=str(error))

    # --- requests ---
    async def _ask(self, operation: str, **request: Any) -> dict[str, Any]:
        """Raises KeyServiceError, at once while its circuit is open, and SegmentLocked."""
        async with self._places:
            clock = asyncio.get_running_loop().time
            if clock() < self._circuit_open_until:
                raise KeyServiceUnavailable(f"{self.service} did not respond a moment ago")
            if self._circuit_open_until > 0:  # one request tries, others fail meanwhile
                self._circuit_open_until = clock() + REQUEST_MAX_S
            try:
                response = await self._call(operation, request)
            except KeyServiceError as error:
                if isinstance(error, KeyServiceUnavailable):
                    self._circuit_open_until = clock() + ASKED_AGAIN_AFTER_S
                else:
                    self._circuit_open_until = 0.0
                self._failed_request = operation, request
                self._note(error)
                raise
            except RemoteStorageError:  # a response about this key
                self._responded()
                raise
            self._responded()
            return response

    def _responded(self) -> None:
        self._circuit_open_until, self._failed_request = 0.0, None
        self._note(None)

    async def _call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(REQUEST_MAX_S):
                client = await self._open()
                assert self._credentials is not None
                used = self._credentials.generation
                try:
                    response = await getattr(client, operation)(**request)
                except ClientError as error:
                    refused = _translated(error, request["KeyId"])
                    if not isinstance(refused, StorageDenied):
                        raise
                    if not await self._credentials.renewed_since(used):
                        raise
                    response = await getattr(client, operation)(**request)
        except ClientError as error:
            raise _translated(error, request["KeyId"]) from error
        except (BotoCoreError, OSError) as error:  # a TimeoutError is an OSError
            raise KeyServiceUnavailable(f"{self.service} does not respond: {error!r}") from error
        document: dict[str, Any] = response
        return document

    async def _open(self) -> Any:
        async with self._opening:
            if await self._trusted.changed():
                self._client = None  # the old one is closed at the end
            if self._client is None:
                session = AioSession()
                self._trusted = await trusted_file(session)
                self._credentials = await AwsCredentials.of(session, None)
                config = AioConfig(
                    connect_timeout=CONNECT_MAX_S,
                    read_timeout=RESPONSE_MAX_S,
                    max_pool_connections=REQUESTS_AT_ONCE,
                    retries={"total_max_attempts": 1},  # the caller retries, and logs it
                    warm_up_loader_caches=True,  # the service description is read on a thread
                )
                self._client = await self._opened.enter_async_context(
                    session.create_client(
                        "kms",
                        region_name=self._place.region,
                        endpoint_url=self._place.endpoint_url,
                        config=config,
                    )
                )
        return self._client


def _translated(error: ClientError, key_id: str) -> RemoteStorageError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = f"AWS KMS, key {key_id!r}: {error}"
    if code in _LOCKED:
        return SegmentLocked(message)
    if code in _DENIED:
        return KeyServiceDenied(message)
    if code in _THROTTLED:
        return KeyServiceThrottled(message)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return KeyServiceUnavailable(message) if status >= 500 else RemoteStorageError(message)
