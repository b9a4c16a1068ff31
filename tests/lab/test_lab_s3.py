"""The S3 server checks signatures, keeps objects over a crash and comes back on its port."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from lab.s3 import MotoServer, S3Server

pytestmark = pytest.mark.s3


def test_objects_survive_a_kill(own_s3_server: S3Server) -> None:
    bucket = own_s3_server.create_bucket("kept")
    client = own_s3_server.client()
    client.put_object(Bucket=bucket, Key="a/b", Body=b"0123456789")
    endpoint = own_s3_server.endpoint_url
    own_s3_server.kill()
    with pytest.raises(EndpointConnectionError):
        client.head_bucket(Bucket=bucket)
    own_s3_server.start()
    assert own_s3_server.endpoint_url == endpoint
    found = client.get_object(Bucket=bucket, Key="a/b", Range="bytes=2-4")["Body"].read()
    client.close()
    assert found == b"234"


def test_wrong_signatures_are_refused(s3_server: S3Server, s3_bucket: str) -> None:
    stranger = S3Server.__new__(S3Server)
    stranger.__dict__.update(s3_server.__dict__)
    stranger.secret_key = "wrong"
    client = stranger.client()
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client.list_objects_v2(Bucket=s3_bucket)
    client.close()


def test_moto_has_the_same_interface() -> None:
    with MotoServer() as server:
        bucket = server.create_bucket("bucket")
        client = server.client()
        client.put_object(Bucket=bucket, Key="k", Body=b"value")
        assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"value"
        client.close()
