from __future__ import annotations

import pytest

from fetchproxy.config.values import MASK, is_secret_name, mask_text


@pytest.mark.parametrize(
    "name",
    ["password", "sasl_password", "Authorization", "aws_session_token", "AWS_SECRET_ACCESS_KEY",
     "client_secret", "private-key".replace("-", "_"), "credentials", "accessKey"],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["api_key", "topic", "key", "segment_id", "error", "partition"])
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("s3://me:pw@bucket/x", f"s3://{MASK}@bucket/x"),
        ("http://h/?secret_key=abc&region=eu", f"http://h/?secret_key={MASK}&region=eu"),
        ("Authorization: Bearer abc.def", f"Authorization: {MASK}"),
        ('{"password": "a b", "topic": "t"}', f'{{"password": {MASK}, "topic": "t"}}'),
        ("nothing to hide", "nothing to hide"),
        ("file:///a@b", "file:///a@b"),
    ],
)
def test_secrets_in_a_text_are_masked(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@pytest.mark.parametrize("piece", ["e", "token", "a.", "token=", "a://", 'token="', " ", "token "])
def test_long_texts_take_linear_time(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    assert mask_text(text) is not None  # with a quadratic pattern this takes hours
