"""Which `cluster.sasl_*` keys belong together, and that what they hold is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from fetchproxy.config.load import Setting, all_keys, load_config, parse_assignment
from fetchproxy.config.schema import Config
from fetchproxy.config.values import SecretFile
from fetchproxy.errors import ConfigError

SECRET = "hunter2"
URL = "https://idp.example/token"


def load(**cluster: object) -> Config:
    return load_config(None, {}, [Setting(f"cluster.{k}", v, "--set") for k, v in cluster.items()])


BY_PASSWORD = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
BY_TOKEN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
ENDPOINT = {
    **BY_TOKEN,
    "sasl_oauthbearer_token_endpoint_url": URL,
    "sasl_oauthbearer_client_id": "c",
}
GOOD: list[dict[str, object]] = [
    {**BY_PASSWORD, "sasl_password": SECRET},
    {**BY_PASSWORD, "sasl_mechanism": "SCRAM-SHA-256", "sasl_password": SECRET},
    {**BY_PASSWORD, "sasl_mechanism": "SCRAM-SHA-512", "sasl_password": {"file": "/p"}},
    {**BY_TOKEN, "sasl_oauthbearer_token_file": "/t"},
    {**ENDPOINT, "sasl_oauthbearer_client_secret": SECRET, "sasl_oauthbearer_scope": "s"},
    {**ENDPOINT, "sasl_oauthbearer_client_secret": {"file": "/s"}},
]


@pytest.mark.parametrize("keys", GOOD)
def test_whole_groups(keys: dict[str, object]) -> None:
    config = load(**keys)
    for key, value in keys.items():
        if isinstance(value, dict):
            assert getattr(config.cluster, key) == SecretFile.model_validate(value)
        elif key.endswith(("_password", "_secret")):
            assert getattr(config.cluster, key).get_secret_value() == value
        else:
            assert str(getattr(config.cluster, key)) == value
    assert SECRET not in repr(config) + str(config.model_dump())


def test_every_key_is_in_a_group() -> None:
    named = {key.name for key in all_keys().values() if key.name.startswith("sasl_")}
    assert named == {key for keys in GOOD for key in keys if key.startswith("sasl_")}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"sasl_mechanism": "PLAIN"}, "cluster.sasl_mechanism must not be set"),
        ({"sasl_password": SECRET}, "cluster.sasl_password must not be set"),
        ({**GOOD[0], "security_protocol": "SSL"}, "security_protocol = SSL has no SASL"),
        ({"security_protocol": "SASL_SSL"}, "cluster.sasl_mechanism has to be set"),
        ({**BY_PASSWORD}, "cluster.sasl_password has to be set"),
        ({**GOOD[0], "sasl_username": None}, "cluster.sasl_username has to be set"),
        ({**GOOD[0], "sasl_password": {"fil": "/p"}}, "cluster.sasl_password = •••"),
        ({**GOOD[0], "sasl_password": {"file": ""}, "sasl_username": None}, "sasl_username has"),
        ({**GOOD[0], "sasl_oauthbearer_scope": "s"}, "sasl_oauthbearer_scope must not be set"),
        ({**BY_TOKEN}, "sasl_oauthbearer_token_endpoint_url has to be set"),
        ({**GOOD[3], "sasl_username": "u"}, "cluster.sasl_username must not be set"),
        ({**GOOD[3], "sasl_oauthbearer_client_id": "c"}, "must not be set with a token file"),
        ({**GOOD[4], "sasl_oauthbearer_token_file": "/t"}, "only one of cluster."),
        ({**ENDPOINT}, "sasl_oauthbearer_client_secret has to be set"),
        ({**GOOD[4], "sasl_oauthbearer_client_id": None}, "client_id has to be set"),
        ({**GOOD[0], "sasl_mechanism": "GSSAPI"}, "cluster.sasl_mechanism = 'GSSAPI'"),
        ({**GOOD[0], "sasl_password": 4711}, "cluster.sasl_password = •••"),
        (
            {**GOOD[4], "sasl_oauthbearer_token_endpoint_url": f"https://u:{SECRET}@h/"},
            "sasl_oauthbearer_token_endpoint_url = •••",
        ),
        (
            {**GOOD[4], "sasl_oauthbearer_token_endpoint_url": "ftp://h/"},
            "expected an http:// or https:// URL",
        ),
    ],
)
def test_broken_groups_are_refused_without_their_values(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(**{key: "" if value is None else value for key, value in keys.items()})
    assert says in str(error.value)
    assert SECRET not in str(error.value)
    assert "4711" not in str(error.value)


def test_a_password_in_the_environment(tmp_path: Path) -> None:
    environ = {f"FETCHPROXY_CLUSTER_{k}".upper(): str(v) for k, v in GOOD[0].items()}
    password = load_config(None, environ).cluster.sasl_password
    assert isinstance(password, SecretStr)
    assert password.get_secret_value() == SECRET


def test_the_file_of_a_secret_from_all_places(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    toml = "".join(f'{key} = "{value}"\n' for key, value in BY_PASSWORD.items())
    variables = {f"FETCHPROXY_CLUSTER_{k}".upper(): str(v) for k, v in BY_PASSWORD.items()}
    file.write_text(f'[cluster]\n{toml}sasl_password = {{ file = "/p" }}\n')
    sets = [Setting(f"cluster.{key}", value, "--set") for key, value in BY_PASSWORD.items()]
    for config in (
        load_config(file, {}),
        load_config(None, variables | {"FETCHPROXY_CLUSTER_SASL_PASSWORD_FILE": "/p"}),
        load_config(None, {}, [*sets, parse_assignment("cluster.sasl_password.file=/p")]),
    ):
        assert config.cluster.sasl_password == SecretFile(file=Path("/p"))


def test_a_later_place_wins_whether_it_has_the_secret_or_its_file(tmp_path: Path) -> None:
    file = tmp_path / "fetchproxy.toml"
    toml = "".join(f'{key} = "{value}"\n' for key, value in BY_PASSWORD.items())
    file.write_text(f'[cluster]\n{toml}sasl_password = "{SECRET}"\n')
    variable = {"FETCHPROXY_CLUSTER_SASL_PASSWORD_FILE": "/p"}
    config = load_config(file, variable)
    assert config.cluster.sasl_password == SecretFile(file=Path("/p"))
    config = load_config(file, variable, [parse_assignment("cluster.sasl_password=word")])
    assert isinstance(config.cluster.sasl_password, SecretStr)


def test_both_variables_of_a_secret_are_refused() -> None:
    environ = {f"FETCHPROXY_CLUSTER_{k}".upper(): str(v) for k, v in GOOD[0].items()}
    with pytest.raises(ConfigError, match="only one of them may be set") as error:
        load_config(None, environ | {"FETCHPROXY_CLUSTER_SASL_PASSWORD_FILE": "/p"})
    assert SECRET not in str(error.value)
