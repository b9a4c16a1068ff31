"""SCRAM against the example of RFC 7677, credentials against Kafka's form, patterns of names."""

from __future__ import annotations

from base64 import b64decode

import pytest

from fetchproxy.cli.user import user_lines
from fetchproxy.errors import ConfigError
from fetchproxy.serving.archive_only.logins import (
    HASHES,
    ITERATIONS_MIN,
    Challenge,
    LoginRefused,
    Names,
    credential_for,
    credential_of,
    has_password,
    parse_credential,
    parse_users,
    read_first,
    server_final,
)

SHA_256 = "SCRAM-SHA-256"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
PENCIL = credential_of(SHA_256, b"pencil", SALT, 4096)


def test_the_example_of_rfc_7677() -> None:
    challenge = Challenge(SHA_256, read_first(FIRST), PENCIL, NONCE)
    assert challenge.message == (
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    proof = server_final(challenge, FINAL)
    assert proof == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    other = credential_of(SHA_256, b"pencils", SALT, 4096)
    assert server_final(Challenge(SHA_256, read_first(FIRST), other, NONCE), FINAL) is None


@pytest.mark.parametrize(
    "token",
    [
        b"", b"n,,", b"n,,n=user", b"n,,n=user,r=", b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc", b"n,,n=us=er,r=abc", b"n,,n=user,r=a\x7fc", b"\xff",
        b"n,,n=user,r=abc,tokenauth=true", b"n,,m=ext,n=user,r=abc",
    ],
)  # fmt: skip
def test_what_is_no_first_message_is_refused(token: bytes) -> None:
    with pytest.raises(LoginRefused):
        read_first(token)


def test_names_are_read_as_they_are_escaped() -> None:
    assert read_first(b"y,a=a=2Cb=3D,n=a=2Cb=3D,r=abc").name == "a,b="


@pytest.mark.parametrize(
    "token",
    [
        b"", FINAL.replace(b"biws", b"eSws"), FINAL.replace(b"k0,p", b"k1,p"),
        FINAL.replace(b"ndVQ=", b"ndVQ"), FINAL[:-8], b"\xff" + FINAL,
        FINAL.partition(b",p=")[0] + b",p=",
    ],
)  # fmt: skip
def test_what_is_no_final_message_is_refused(token: bytes) -> None:
    challenge = Challenge(SHA_256, read_first(FIRST), PENCIL, NONCE)
    with pytest.raises(LoginRefused):
        server_final(challenge, token)


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_password_fits_its_credential_alone(mechanism: str) -> None:
    made = credential_of(mechanism, "pässword".encode(), b"12345678", ITERATIONS_MIN)
    assert parse_credential(mechanism, made.text()) == made
    assert has_password(made, mechanism, "pässword".encode())
    assert not has_password(made, mechanism, b"password")


@pytest.mark.parametrize(
    "change",
    [
        ("iterations=4096", "iterations=4095"), ("iterations=4096", "iterations=many"),
        ("salt=", "salz="), ("salt=", "salt=!"), (",iterations=4096", ""),
        ("iterations=4096", "iterations=4096,more=1"), ("salt=W22ZaJ0SNY7soEsUEjb6gQ==", "salt="),
    ],
)  # fmt: skip
def test_credentials_that_are_none_are_refused(change: tuple[str, str]) -> None:
    parse_credential(SHA_256, PENCIL.text())
    text = PENCIL.text().replace(*change)
    with pytest.raises(ValueError, match="expected") as refusal:
        parse_credential(SHA_256, text)
    assert "6gQ" not in str(refusal.value)
    with pytest.raises(ValueError, match="64 bytes"):
        parse_credential("SCRAM-SHA-512", PENCIL.text())


def test_a_star_at_the_end_of_a_name_stands_for_any_rest() -> None:
    names = Names.of(["orders", "pay-*"])
    assert [n in names for n in ("orders", "orders-2", "pay-", "pay-1", "pay", "", "*")] == [
        True, False, True, True, False, False, False,
    ]  # fmt: skip
    assert "anything" in Names.of("*")
    assert "anything" not in Names.of(())
    for wrong in ("*x", "a*b", "a**", ""):
        with pytest.raises(ValueError, match="expected"):
            Names.of([wrong])


def test_lines_of_users_are_read_as_they_were_meant() -> None:
    text = "".join(
        user_lines(name, "secret", ["orders", "pay-*"], ["g*"]) for name in ("alice", 'b"o b.ö\\')
    )
    users = parse_users(text)
    assert list(users) == ["alice", 'b"o b.ö\\']
    assert "pay-1" in users["alice"].topics
    assert list(users["alice"].credentials) == list(HASHES)
    for mechanism, credential in users["alice"].credentials.items():
        assert has_password(credential, mechanism, b"secret")
    assert "secret" not in text
    for name, password, topic in (("", "x", "t"), ("a", "", "t"), ("a", "x", "*t")):
        with pytest.raises(ConfigError):
            user_lines(name, password, [topic], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no user"), ("x", "TOML"), ("alice = 1", "alice"), ("[alice]\ntopics = []", "SCRAM"),
        ("[alice]\ntopic = []", "alice: topic:"), ('[alice]\nSCRAM-SHA-256 = "password"', "salt="),
        (f'[alice]\nSCRAM-SHA-256 = "{PENCIL.text()}"\ntopics = "orders"', "alice, topics"),
        (f'[alice]\nSCRAM-SHA-256 = "{PENCIL.text()}"\ntopics = ["a*b"]', "alice, topics"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        parse_users(text)
    assert "password" not in str(refusal.value)


def test_an_unknown_user_looks_like_any_other() -> None:
    users = parse_users(user_lines("alice", "x", [], []))
    known, is_true = credential_for(users, "alice", SHA_256, b"s" * 32)
    assert is_true
    unknown, is_true = credential_for(users, "mallory", SHA_256, b"s" * 32)
    assert not is_true
    assert unknown == credential_for(users, "mallory", SHA_256, b"s" * 32)[0]
    assert unknown.salt != credential_for(users, "mallet", SHA_256, b"s" * 32)[0].salt
    assert (len(unknown.salt), unknown.iterations) == (len(known.salt), known.iterations)
