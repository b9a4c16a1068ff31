"""What `gateway.node_map` may say, and how it is refused."""

from __future__ import annotations

import pytest

from fetchproxy.config.load import load_config, parse_assignment
from fetchproxy.config.values import NodePlace, parse_node_map
from fetchproxy.errors import ConfigError


def test_all_three_forms_of_a_node_map_are_read() -> None:
    assert parse_node_map("1=9301, 2=kafka.example:9302,0=9303/[::1]:443") == {
        1: NodePlace(9301, None, 9301),
        2: NodePlace(9302, "kafka.example", 9302),
        0: NodePlace(9303, "::1", 443),
    }


@pytest.mark.parametrize(
    "text",
    [
        "9301",
        "1=",
        "1=0",
        "1=65536",
        "-1=9301",
        "a=9301",
        "1=:9301",
        "1=x:0",
        "1=9301/9302/x:1",
        "1=x/y:9301",
        "1=9301,",
        "1=9301,1=9302",
        "1=9301,2=9301",
        "1=9301/x:443,2=9302/x:443",
        "1=x y:9301",
        "1=0.0.0.0:9301",
        "1=9301/[::]:443",
    ],
)
def test_a_node_map_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway.node_map = .*expected NODE=PORT"):
        load_config(None, {}, [parse_assignment(f"gateway.node_map={text}")])


def test_the_bootstrap_listeners_port_is_refused() -> None:
    settings = ["gateway.listen=127.0.0.1:9300", "gateway.node_map=1=9300"]
    with pytest.raises(ConfigError, match="node 1 the port 9300"):
        load_config(None, {}, [parse_assignment(text) for text in settings])


def test_an_empty_text_is_no_map() -> None:
    assert load_config(None, {}, [parse_assignment("gateway.node_map=")]).gateway.node_map is None
