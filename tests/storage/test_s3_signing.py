"""URLs that are signed as the S3 client signs them, compared with the client's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from fetchproxy.storage.stores.aws_credentials import AwsCredentials
from fetchproxy.storage.stores.s3_signing import EXAMPLE_KEY, UrlSigner

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
KEYS = (
    "k",
    "t-AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000000-BBBBBBBBBBBBBBBBBBBBBB.log",
    "archive/of_all!/a=b+c@d.e-f/0",
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@asynccontextmanager
async def client(config: AioConfig | None = None, **options: Any) -> AsyncIterator[Any]:
    session = AioSession()
    await AwsCredentials.of(session, None)
    async with session.create_client("s3", config=config, **options) as made:
        made.meta.events.register_first(
            "choose-signer.s3.GetObject", lambda **_: "s3v4-query" if config is None else None
        )
        yield made


async def url(made: Any, bucket: str, key: str) -> str:
    signed: str = await made.generate_presigned_url(
        "get_object", {"Bucket": bucket, "Key": key}, ExpiresIn=600
    )
    return signed


def parts_of(signed_url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlsplit(signed_url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}", parse_qs(parts.query)


@pytest.mark.parametrize("token", ["", "a/session+token=="])
@pytest.mark.parametrize("bucket", ["plain", "with.dots"])
@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9000", "https://s3.example:443"])
async def test_signs_what_the_client_signs(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, bucket: str, token: str
) -> None:
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    async with client(region_name="eu-central-1", endpoint_url=endpoint) as made:
        for key in KEYS:
            while True:  # both in one second
                example, by_client = (
                    await url(made, bucket, EXAMPLE_KEY),
                    await url(made, bucket, key),
                )
                dates = {parts_of(one)[1]["X-Amz-Date"][0] for one in (example, by_client)}
                if len(dates) == 1:
                    break
            signer = UrlSigner.like(example, SECRET)
            assert signer is not None
            assert parts_of(signer.signed(key)) == parts_of(by_client)


@pytest.mark.parametrize("bucket", ["plain", "with.dots"])
@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9000", "https://s3.example:443"])
async def test_signs_a_page_as_the_client_does(endpoint: str | None, bucket: str) -> None:
    parameters = {
        "list-type": "2",
        "encoding-type": "url",
        "prefix": "a b/é+~",
        "start-after": "a b/é=",
        "delimiter": "/",
        "continuation-token": "t/+=",
    }
    async with client(region_name="eu-central-1", endpoint_url=endpoint) as made:
        made.meta.events.register_first("choose-signer.s3.ListObjectsV2", lambda **_: "s3v4-query")
        while True:  # both in one second
            example = await url(made, bucket, EXAMPLE_KEY)
            by_client = await made.generate_presigned_url(
                "list_objects_v2",
                {
                    "Bucket": bucket,
                    "EncodingType": "url",
                    "Prefix": parameters["prefix"],
                    "StartAfter": parameters["start-after"],
                    "Delimiter": "/",
                    "ContinuationToken": parameters["continuation-token"],
                },
                ExpiresIn=600,
            )
            if parts_of(example)[1]["X-Amz-Date"] == parts_of(by_client)[1]["X-Amz-Date"]:
                break
    signer = UrlSigner.like(example, SECRET)
    assert signer is not None
    assert parts_of(signer.signed_listing(parameters)) == parts_of(by_client)


async def test_another_way_of_signing_is_not_followed() -> None:
    async with client(region_name="eu-central-1") as made:
        example = await url(made, "plain", EXAMPLE_KEY)
        assert UrlSigner.like(example, SECRET) is not None
        assert UrlSigner.like(example, "another secret") is None
        assert UrlSigner.like(example.replace("=host", "=host%3Bx"), SECRET) is None
        assert UrlSigner.like(await url(made, "plain", "another"), SECRET) is None
    async with client(AioConfig(signature_version="s3"), region_name="us-east-1") as made:
        assert UrlSigner.like(await url(made, "plain", EXAMPLE_KEY), SECRET) is None
