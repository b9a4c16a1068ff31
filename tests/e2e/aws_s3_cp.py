"""`aws s3 cp SOURCE TARGET` by botocore, as the vendor's own program is not a part of the lab."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import botocore.session
from botocore.config import Config


def copy_object(source: str, target: str) -> None:
    """`aws s3 cp`: one of the two is an object of the lab's server."""
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=os.environ["LAB_S3_ENDPOINT"],
        config=Config(s3={"addressing_style": "path"}),
    )
    bucket, _, key = (source if source.startswith("s3:") else target)[5:].partition("/")
    if source.startswith("s3:"):
        Path(target).write_bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    else:
        client.put_object(Bucket=bucket, Key=key, Body=Path(source).read_bytes())


if __name__ == "__main__":
    assert sys.argv[1:3] == ["s3", "cp"]
    copy_object(*sys.argv[3:])
