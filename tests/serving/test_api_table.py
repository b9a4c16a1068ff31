"""The table of APIs, the modules behind it, and the page generated from it."""

from __future__ import annotations

import importlib
import itertools
import tomllib
from pathlib import Path

import pytest
from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey, offered_versions
from fetchproxy_protocol.headers import RequestHead
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.serving.gateway.apis.table import (
    BEHAVIOURS,
    RELAYED_WHY,
    SPECIAL,
)
from fetchproxy.serving.gateway.session import (
    FETCH_TREATMENT,
    REFUSED_TREATMENT,
    RELAY,
    Buffered,
    Passes,
    Treatment,
    handling_of,
)
from lab.compatibility import api_name, document, module_name

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "reference" / "compatibility"


def handling(key: int, version: int) -> Passes | Buffered:
    return handling_of(BEHAVIOURS, RequestHead(key, version, 1, 10, 10, 10))


@pytest.mark.parametrize("key", sorted(SPECIAL), ids=lambda key: key.name.lower())
def test_an_api_has_one_module_that_explains_it(key: ApiKey) -> None:
    module = importlib.import_module(f"fetchproxy.serving.gateway.apis.{module_name(key)}")
    if key == ApiKey.FETCH:
        assert hasattr(module, "FetchHandler")
    else:
        assert SPECIAL[key] in (module.APIS if hasattr(module, "APIS") else [module.API])
        assert module.__doc__ is not None
        assert f"{api_name(key)} (v" in module.__doc__


@pytest.mark.parametrize("key", sorted(PROXIED_VERSIONS))
def test_what_is_offered_is_served_and_what_cannot_be_read_is_not(key: int) -> None:
    first, last = PROXIED_VERSIONS[key]
    for version in range(first, last + 1):
        assert handling(key, version) is not REFUSED_TREATMENT
    assert handling(key, -1) is REFUSED_TREATMENT
    responded_anyway = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}
    if key not in responded_anyway:
        assert handling(key, last + 1) is REFUSED_TREATMENT
        assert first == 0 or handling(key, first - 1) is REFUSED_TREATMENT


def test_behaviours_do_not_overlap_and_say_why() -> None:
    for key, behaviours in BEHAVIOURS.items():
        for before, after in itertools.pairwise(behaviours):
            assert before.last < after.first
        for behaviour in behaviours:
            assert behaviour.first <= behaviour.last
            assert (behaviour.treatment is Treatment.RELAYED) or behaviour.why
            assert behaviour.why or key not in SPECIAL


def test_special_requests_have_their_own_treatment() -> None:
    assert handling(ApiKey.FETCH, 12) is FETCH_TREATMENT
    assert handling(ApiKey.HEARTBEAT, 4) is RELAY
    assert handling(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0) is RELAY
    assert handling(ApiKey.SASL_HANDSHAKE, 1) is RELAY
    assert isinstance(handling(ApiKey.SASL_HANDSHAKE, 0), Buffered)
    assert isinstance(handling(ApiKey.API_VERSIONS, 99), Buffered)
    assert isinstance(handling(ApiKey.API_VERSIONS, 5), Passes)


@given(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**15), 2**15 - 1))
def test_unknown_keys_are_refused(key: int, version: int) -> None:
    if key not in set(ApiKey):
        assert handling(key, version) is REFUSED_TREATMENT
        assert offered_versions(key, 0, 10) is None


def test_reasons_are_for_apis_that_are_relayed() -> None:
    assert not set(RELAYED_WHY) & set(SPECIAL)


def test_the_page_on_disk_is_what_the_code_says() -> None:
    written = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    assert written == document(DATA), "run python -m lab.compatibility"


def test_the_page_shows_every_api_and_every_point() -> None:
    page = document(DATA)
    for key in ApiKey:
        assert f"| {int(key)} |" in page
    lists = tomllib.loads((DATA / "checklist.toml").read_text(encoding="utf-8"))
    assert (len(lists["proxy"]), len(lists["tiered"])) == (25, 16)
    for entry in (*lists["proxy"], *lists["tiered"]):
        assert entry["point"] in page
        assert entry.get("held_by") or entry.get("because")
        assert entry.get("held_by") is None or (ROOT / entry["held_by"]).is_file(), entry


def test_parts_without_data_are_left_out_and_cells_are_escaped(tmp_path: Path) -> None:
    bare = document(tmp_path)
    assert "Differences" not in bare
    (tmp_path / "differences.toml").write_text(
        '[[difference]]\nid = "x"\napi = "Fetch"\nversions = "all"\n'
        'kafka = "a|b"\nproxy = "c"\nwhy = "d"\nfound_by = "e"\n'
    )
    page = document(tmp_path)
    assert "| Fetch | all | a\\|b | c | d |" in page


def client_result(client: str, version: str, broker: str, **cases: str) -> str:
    place = {"client": client, "version": version, "broker": broker}
    lines = (f'{key} = "{value}"\n' for key, value in (place | cases).items())
    return "[[result]]\n" + "".join(lines)


def test_the_table_of_clients(tmp_path: Path) -> None:
    (tmp_path / "clients.toml").write_text(
        client_result("kcat", "1", "3.9.2", assign="pass", times="pass")
        + client_result("kcat", "1", "4.1.1", assign="pass", group="fail", times="not run")
        + client_result("kcat", "", "4.10.0", assign="not run", times="not run")
        + client_result("kafkajs", "2", "3.9.2", assign="it has none", times="pass")
        + client_result("new", "", "3.9.2", assign="not run", times="not run")
    )
    page = document(tmp_path)
    assert (
        "| client | Kafka 3.9.2 | Kafka 4.1.1 | Kafka 4.10.0 |\n| --- | --- | --- | --- |" in page
    )
    assert "| kcat 1 | pass | pass; fail: group; not run: times | not run |" in page
    assert "| kafkajs 2 | pass (1) | not run | not run |" in page
    assert "| new | not run | not run | not run |" in page
    assert "\n1. assign: it has none\n" in page
