"""Objects in a bucket of any S3 server, by aiobotocore and obstore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

import structlog
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession, get_session
from botocore.exceptions import ClientError
from botocore.handlers import add_expect_header
from obstore.store import S3Store

from fetchproxy.config.memory_plan import PART_BYTES
from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ObjectNotFound, RemoteStorageError, StorageDenied, too_large
from fetchproxy.model import ByteRange
from fetchproxy.runtime.folders import NO_FILE
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.segments.object_keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.stores.aws_credentials import AwsCredentials, trusted_file
from fetchproxy.storage.stores.client_sockets import ClientSockets
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    Content,
    Hazard,
    ObjectStore,
    StoredObject,
    http_date_ms,
    whole,
)
from fetchproxy.storage.stores.obstore_store import ObstoreObjectStore, make_clients, obstore_code
from fetchproxy.storage.stores.retries import retried
from fetchproxy.storage.stores.s3_hazards import NOT_SET, bucket_hazards
from fetchproxy.storage.stores.s3_pages import take_objects
from fetchproxy.storage.stores.s3_ranges import PartRequest, S3RangeReads, open_range_reads
from fetchproxy.storage.stores.s3_responses import (
    S3Response,
    error_code,
    listed_objects,
    next_page,
    object_length,
    range_length,
    translated_s3_error,
)

if TYPE_CHECKING:
    from obstore.store import S3Credential

_ABORT_MAX_S = 5.0  # the caller has failed or is cancelled, and should not wait for long
_ABORT_PAUSES_S = (0.0, 0.1, 0.5)
# Whole objects are first requested as this range, which is larger than metadata and most indexes.
# An absent, empty or larger object takes a second request.
SMALL_OBJECT = ByteRange(0, 256 * 1024)
PAGE_OBJECTS = 1000  # of a listing, at most
_REGION_OF_ALL = "us-east-1"
# Error codes of a server if a request names another region than the bucket's.
_ELSEWHERE = ("AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect")
# A CRC of zero, which the probe's body does not have.
_WRONG_CRC64 = "AAAAAAAAAAA="
_BAD_CHECKSUM = ("BadDigest", "XAmzContentChecksumMismatch")
T = TypeVar("T")
# The assumed lifetime of credentials from boto, which renews them earlier than this.
_CREDENTIALS_GOOD_FOR = timedelta(minutes=10)

log = structlog.get_logger(__name__)


# A failed upload is aborted, so that its parts do not stay stored (and billed). If the abort fails
# too, `S3ObjectStore.abort_stale_uploads` finds the upload later.


def s3_address(signed_url: str, bucket: str, region: str | None) -> tuple[str, bool, str]:
    """(endpoint, whether its host name contains the bucket, region) of a server. `signed_url`:
    presigned for the key `k`. `region`: the region as the client names it.
    """
    parts = urlsplit(signed_url)
    virtual = parts.path == "/k"
    base = "" if virtual else parts.path.removesuffix(f"/{bucket}/k")
    if region is None or region == "aws-global":
        region = _REGION_OF_ALL
    return f"{parts.scheme}://{parts.netloc}{base}", virtual, region


class _SameServer(AIOHTTPSession):  # type: ignore[misc]  # not typed
    """Does not follow redirects: the caller sees the 3xx. The library's own session follows them
    without the signature, and then reports the other server's response or that it is away.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        return SimpleNamespace(request=partial(session.request, allow_redirects=False))


def _without_retries(request_dict: dict[str, Any], response: Any, **_: Any) -> None:
    """When it is sent elsewhere, the client asks for the bucket's region by HeadBucket. If that is
    sent elsewhere too and the response names no region, it would ask again without end.
    """
    about = response[1].get("ResponseMetadata", {}) if response is not None else {}
    if "x-amz-bucket-region" not in about.get("HTTPHeaders", {}):
        request_dict["context"].setdefault("s3_redirect", {})["redirected"] = True


class S3ObjectStore(ObjectStore):
    """With an `endpoint_url` addresses are path-style by default, as most servers other than AWS
    require.

    Credentials, and a missing region, are found as boto3 finds them: in the `profile` if one is
    set, and then not in the environment. If requests are denied, it looks for other credentials in
    the same places.

    Two clients. aiobotocore is made at the first call or by `async with`, without contacting the
    server. It finds credentials, region and endpoint, and sends all requests except puts. obstore,
    made at the first put, sends contents (ADR 0055). The module `retries` tells who repeats a
    request. Bodies have a CRC-64/NVME if the server checks it; otherwise TLS or the SHA-256 in
    their signature protects them.
    """

    def __init__(
        self,
        location: S3Location,
        *,
        config: StoreConfig | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._part_bytes = part_bytes
        self._location = location
        self._bucket = location.bucket
        self._config = config or StoreConfig()
        self._client: Any = None  # aiobotocore makes its methods at run time
        self._ranges: S3RangeReads | None = None
        self._sockets = ClientSockets(self._config.write_max_ms)
        self._opening = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._retired: list[AsyncExitStack] = []  # of clients from before a change of certificates
        self._trusted = NO_FILE
        self._session: Any = None
        self._obstore: ObstoreObjectStore | None = None
        self._bucket_region: str | None = None  # as the server has named it
        # None: not known yet.
        self._checks_crc64: bool | None = False if location.checksum == "none" else None
        self._probing = SingleFlight[None]()
        self._credentials: AwsCredentials | None = None
        self._frozen: Any = None  # the last ones for a write
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def put(self, key: str, content: bytes) -> str | None:
        check_key(key)
        return await self._written(key, lambda writer: writer.put(key, content))

    async def put_new(self, key: str, content: bytes) -> bool:
        """Uses If-None-Match, or a read before the put if the server does not support that."""
        check_key(key)
        try:
            return await self._written(key, lambda writer: writer.put_new(key, content))
        except RemoteStorageError as error:
            if obstore_code(error.__cause__) != "NotImplemented":
                raise
        try:
            await self.get(key)
        except ObjectNotFound:
            await self.put(key, content)
            return True
        return False

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        """As `ObstoreObjectStore.put_file`, with its memory limit."""
        check_key(key)
        try:
            await self._written(key, lambda writer: writer.put_file(key, path))
        except (RemoteStorageError, asyncio.CancelledError):
            await self._abort_uploads_to(key)
            raise

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        return await self._allowed(partial(self._get, key, bytes_max))

    async def _get(self, key: str, bytes_max: int) -> bytes:
        client = await self._opened()
        operation = f"get {check_key(key)}"
        with translated_s3_error(operation, may_be_absent=True):
            ranges = self._ranges
            if ranges is not None:
                small = await ranges.get(key, PartRequest(SMALL_OBJECT, to_end=True), operation)
                if small is not None:
                    if len(small) > bytes_max:
                        raise too_large(key, len(small), bytes_max)
                    return bytes(small)
            response: S3Response = await client.get_object(Bucket=self._bucket, Key=key)
            async with response["Body"] as body:  # an error ends the connection
                length = object_length(response, operation)
                if length > bytes_max:
                    raise too_large(key, length, bytes_max)
                content = whole(await body.read(), length, operation)
            if ranges is not None and 0 < length <= SMALL_OBJECT.length:
                ranges.note_needless_url_check(key)
            return content

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        return await self._allowed(partial(self._get_range, key, byte_range))

    async def _get_range(self, key: str, byte_range: ByteRange) -> Content:
        client = await self._opened()
        operation = f"get {check_key(key)} bytes {byte_range.start} to {byte_range.end}"
        with translated_s3_error(operation, may_be_absent=True):
            ranges = self._ranges
            if ranges is not None:
                part = await ranges.get(key, PartRequest(byte_range), operation)
                if part is not None:
                    return part
            response: S3Response = await client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={byte_range.start}-{byte_range.end - 1}"
            )
            async with response["Body"] as body:
                length = range_length(response, byte_range, operation)
                content = whole(await body.read(), length, operation)
            if ranges is not None and length == byte_range.length:
                ranges.note_needless_url_check(key)
            return content

    @property
    def page_objects(self) -> int:
        return PAGE_OBJECTS

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        last = start_after
        operation = f"list {check_prefix(prefix)}"
        async for page in self._pages(operation, Prefix=prefix, StartAfter=start_after):
            for stored in listed_objects(page, last, operation):
                last = stored.key
                yield stored

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        operation = f"list folders of {check_folder_prefix(prefix)}"
        async for page in self._pages(operation, Prefix=prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield str(entry["Prefix"])[len(prefix) : -1]

    async def delete(self, key: str) -> None:
        await self._allowed(partial(self._delete, key))

    async def _delete(self, key: str) -> None:
        client = await self._opened()
        with translated_s3_error(f"delete {check_key(key)}"):
            await client.delete_object(Bucket=self._bucket, Key=key)

    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        client = await self._opened()
        operation = f"list uploads to {check_prefix(prefix)}"
        stale = [
            upload
            for upload in await self._uploads(client, prefix, operation)
            if is_ours(upload["Key"])
            and upload["Initiated"].timestamp() * 1000 < older_than_epoch_ms
        ]
        for upload in stale:
            await self._abort(client, upload)
        return len(stale)

    async def clock_ms(self, prefix: str) -> int | None:
        client = await self._opened()
        with translated_s3_error(f"list {check_prefix(prefix)}"):
            response: S3Response = await client.list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, MaxKeys=1
            )
        return http_date_ms(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))

    async def hazards(self, prefix: str) -> Sequence[Hazard]:
        client = await self._opened()
        with translated_s3_error(f"read the settings of bucket {self._bucket}"):
            lifecycle = await self._setting(client.get_bucket_lifecycle_configuration)
            lock = await self._setting(client.get_object_lock_configuration)
            versioning = await self._setting(client.get_bucket_versioning)
        return bucket_hazards(self._bucket, prefix, lifecycle, lock, versioning)

    async def _setting(self, call: Callable[..., Awaitable[S3Response]]) -> S3Response:
        """{}: it is not set, or this server has no such setting."""
        try:
            return await call(Bucket=self._bucket)
        except ClientError as error:
            if error_code(error) not in NOT_SET:
                raise
            return {}

    async def close(self) -> None:
        self._closed = True
        self._client = None
        if self._obstore is not None:
            await self._obstore.close()
        for resources in (*self._retired, self._resources):
            await resources.aclose()
        await self._sockets.shut()

    async def _pages(self, operation: str, **request: str) -> AsyncIterator[S3Response]:
        arguments = {name: value for name, value in request.items() if value}

        async def one_page() -> tuple[S3Response, str | None]:
            page = await self._allowed(partial(self._page, operation, arguments))
            with translated_s3_error(operation):
                return page, next_page(page, operation)

        while True:
            page, token = await retried(operation, one_page)
            yield page
            if token is None:
                return
            arguments["ContinuationToken"] = token

    async def _page(self, operation: str, arguments: dict[str, str]) -> S3Response:
        client = await self._opened()
        with translated_s3_error(operation):
            ranges = self._ranges
            if ranges is not None:
                page = await ranges.list_page(arguments, operation)
                if page is not None:
                    return page
            by_client: S3Response = await client.list_objects_v2(Bucket=self._bucket, **arguments)
            if ranges is not None:
                ranges.note_needless_listing(arguments.get("Prefix", ""))
        return by_client

    async def _allowed(self, call: Callable[[], Awaitable[T]]) -> T:
        """`call`, and again if it was denied and there are other credentials now: an operator has
        replaced them, or a session has ended.
        """
        generation = 0 if self._credentials is None else self._credentials.generation
        try:
            return await call()
        except StorageDenied:
            if self._credentials is None or self._closed:
                raise
            if not await self._credentials.renewed_since(generation):
                raise
        # What was signed with the old ones is signed anew.
        self._obstore = None
        if self._ranges is not None:
            self._ranges.forget_urls()
        return await call()

    async def _opened(self) -> Any:
        if self._closed:
            raise RemoteStorageError("the store is closed")
        if self._client is not None and not self._trusted.is_due:
            return self._client
        async with self._opening:
            if self._client is not None and await self._trusted.changed():
                # New connections trust the new certificates. Requests in flight end on old ones.
                self._retired.append(self._resources)
                self._resources = AsyncExitStack()
                self._client = self._obstore = self._ranges = None
                log.info("s3_trusted_certificates_changed", bucket=self._bucket)
            if self._client is None:
                self._session = session = AioSession(profile=self._location.profile)
                session.register_component("data_loader", _service_descriptions())
                self._trusted = await trusted_file(session)
                with translated_s3_error(f"open bucket {self._bucket}"):
                    self._credentials = await AwsCredentials.of(session, self._location.profile)
                    client = await self._resources.enter_async_context(
                        session.create_client(
                            "s3",
                            endpoint_url=self._location.endpoint_url,
                            region_name=self._location.region,
                            config=self._client_config(),
                        )
                    )
                # With "Expect: 100-continue" the client waits forever for a server that never
                # sends 100: no time-out of the HTTP client covers this.
                client.meta.events.unregister("before-call.s3", add_expect_header)
                client.meta.events.register("before-parse.s3.ListObjectsV2", take_objects)
                client.meta.events.register_first("needs-retry.s3.HeadBucket", _without_retries)
                if self._location.requester_pays:
                    # Signed URLs would lack the RequestPayer header, so they are not used.
                    client.meta.events.register("before-parameter-build.s3", _requester_pays)
                else:
                    with translated_s3_error(f"open bucket {self._bucket}"):
                        self._ranges = await open_range_reads(
                            *(self._resources, session, client, self._bucket, self._config),
                            self._credentials,
                        )
                self._client = client
            return self._client

    def _client_config(self) -> Any:
        return AioConfig(
            connect_timeout=self._config.connect_max_ms / 1000,
            read_timeout=self._config.read_max_ms / 1000,
            max_pool_connections=self._config.connections_max,
            retries={"total_max_attempts": 1},
            connector_args={"socket_factory": self._sockets.new},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            http_session_cls=_SameServer,
            warm_up_loader_caches=True,  # the service description is read on a thread
            s3={
                "addressing_style": self._location.addressing
                or ("path" if self._location.endpoint_url else "auto"),
            },
        )

    async def _written(self, key: str, call: Callable[[ObstoreObjectStore], Awaitable[T]]) -> T:
        return await self._allowed(partial(self._written_once, key, call))

    async def _written_once(
        self, key: str, call: Callable[[ObstoreObjectStore], Awaitable[T]]
    ) -> T:
        """Call `call`, and again if the server says that the bucket is in another region."""
        if self._checks_crc64 is None:
            await self._probing.run("probe", lambda: self._probe_crc64(key))
        try:
            return await call(await self._writer())
        except RemoteStorageError as error:
            if obstore_code(error.__cause__) not in _ELSEWHERE:
                raise
            client = await self._opened()
            with translated_s3_error(f"look for bucket {self._bucket}"):
                response: S3Response = await client.head_bucket(Bucket=self._bucket)
            region = response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
            if region in (None, self._bucket_region):
                raise
            self._bucket_region, self._obstore = region, None
        return await call(await self._writer())

    async def _probe_crc64(self, key: str) -> None:
        """Find out before the first write whether the server refuses a part with a wrong
        CRC-64/NVME. Leaves no object.
        """
        client = await self._opened()
        bucket_and_key = {"Bucket": self._bucket, "Key": key}
        begun: S3Response | None = None
        code = ""
        try:
            with translated_s3_error(f"probe checksums with {key}"):
                begun = await client.create_multipart_upload(
                    **bucket_and_key, ChecksumAlgorithm="CRC64NVME"
                )
                await client.upload_part(
                    **bucket_and_key,
                    UploadId=begun["UploadId"],
                    PartNumber=1,
                    Body=b"probe",
                    ChecksumCRC64NVME=_WRONG_CRC64,
                )
        except RemoteStorageError as error:
            code = error_code(error.__cause__)
            trouble = error.retriable or isinstance(error, StorageDenied)
            if trouble and code not in (*_BAD_CHECKSUM, "NotImplemented"):
                raise
        finally:
            if begun is not None:
                try:
                    await self._abort(client, {**bucket_and_key, "UploadId": begun["UploadId"]})
                except RemoteStorageError as error:
                    log.warning("multipart_abort_failed", key=key, error=str(error))
        self._checks_crc64 = code in _BAD_CHECKSUM

    async def _writer(self) -> ObstoreObjectStore:
        """The client for writes, with current credentials. Raises RemoteStorageError."""
        client = await self._opened()
        with translated_s3_error(f"open bucket {self._bucket}"):
            assert self._credentials is not None
            self._frozen = await self._credentials.get_frozen_credentials()
            if self._obstore is None:
                # A URL signed by aiobotocore shows the address it would use. The region in the
                # signature would still be the client's, even for a bucket in another region.
                url = await client.generate_presigned_url(
                    "get_object", {"Bucket": self._bucket, "Key": "k"}, ExpiresIn=1
                )
                region = self._bucket_region or client.meta.region_name
                self._obstore = await self._open_obstore(*s3_address(url, self._bucket, region))
        return self._obstore

    async def _open_obstore(
        self, endpoint: str, virtual_host: bool, region: str
    ) -> ObstoreObjectStore:
        plain_http = endpoint.startswith("http:")
        options: dict[str, Any] = {
            "checksum_algorithm": "CRC64NVME" if self._checks_crc64 else None,
            "server_side_encryption": self._location.sse,
            "sse_kms_key_id": self._location.sse_kms_key_id,
            "request_payer": self._location.requester_pays or None,
        }
        make = partial(
            S3Store,
            self._bucket,
            # The SHA-256 of a signed payload takes a fifth of an archiver's CPU.
            unsigned_payload=not plain_http or bool(self._checks_crc64),
            # This key, because an environment variable of its name would override `endpoint`.
            aws_endpoint_url_s3=endpoint,
            region=region,
            virtual_hosted_style_request=virtual_host,
            credential_provider=self._credential,
            **{name: value for name, value in options.items() if value is not None},
        )
        bundle = self._session.get_config_variable("ca_bundle")
        trusted = await asyncio.to_thread(Path(bundle).read_bytes) if bundle else None
        clients = make_clients(make, self._config, plain_http=plain_http, trusted=trusted)
        storage_class = self._location.storage_class
        return ObstoreObjectStore(
            clients,
            page_objects=PAGE_OBJECTS,
            config=self._config,
            part_bytes=self._part_bytes,
            file_attributes={"Storage-Class": storage_class} if storage_class else None,
        )

    def _credential(self) -> S3Credential:
        """The library calls this on its own thread, shortly before its credentials expire."""
        return {
            "access_key_id": self._frozen.access_key,
            "secret_access_key": self._frozen.secret_key,
            "token": self._frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_GOOD_FOR,
        }

    async def _uploads(self, client: Any, prefix: str, operation: str) -> Sequence[S3Response]:
        responses: Sequence[S3Response] = []
        with translated_s3_error(operation):
            pages = client.get_paginator("list_multipart_uploads")
            async for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                responses = [*responses, *page.get("Uploads", ())]
        return responses

    async def _abort(self, client: Any, upload: S3Response) -> None:
        key, upload_id = upload["Key"], upload["UploadId"]
        with translated_s3_error(f"abort upload {key}"):
            try:
                await client.abort_multipart_upload(
                    Bucket=self._bucket, Key=key, UploadId=upload_id
                )
            except ClientError as error:
                if error_code(error) != "NoSuchUpload":
                    raise

    async def _abort_uploads_to(self, key: str) -> None:
        """Abort until none is left: the server may still process a part that was cancelled here.

        If so, the abort may fail, or the upload may reappear with that part (AWS, on
        AbortMultipartUpload: "it might be necessary to abort multiple times").
        """
        try:
            async with asyncio.timeout(_ABORT_MAX_S):
                for pause_s in _ABORT_PAUSES_S:
                    await asyncio.sleep(pause_s)
                    if not await self._abort_each_upload_to(key):
                        return
        except (RemoteStorageError, TimeoutError) as error:
            log.warning("multipart_abort_failed", key=key, error=str(error))

    async def _abort_each_upload_to(self, key: str) -> bool:
        client = await self._opened()
        pages = await self._uploads(client, key, f"list uploads to {key}")
        uploads = [upload for upload in pages if upload["Key"] == key]
        for upload in uploads:
            try:
                await self._abort(client, upload)
            except RemoteStorageError as error:
                if not error.retriable:
                    raise
        return bool(uploads)


def _requester_pays(params: dict[str, Any], model: Any, **_: Any) -> None:
    if "RequestPayer" in model.input_shape.members:
        params["RequestPayer"] = "requester"


@cache
def _service_descriptions() -> Any:
    """botocore's loader, which caches parsed descriptions: this saves 0.1 s of CPU per store."""
    return get_session().get_component("data_loader")
