"""A node that starts before its store answers: it says so, and listens as soon as it can."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.error import HTTPError

import pytest
from archive_only_process import ArchiveOnlyProcess
from proxy_process import wait_for
from raw_fetch import RawConnection
from removable_store import folder_store
from topic_data import make_archive

from fetchproxy.observability.health import Kind
from lab.process import port_responses


@pytest.mark.remedy("gateway_not_listening")
def test_it_listens_when_the_store_answers(tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    make_archive(store.url)
    store.take_away()
    node = ArchiveOnlyProcess(store.url, tmp_path)

    def kinds() -> list[str]:
        return [one["kind"] for one in json.loads(node.get("/api/status"))["conditions"]]

    try:
        node._process.start()
        wait_for("the console", lambda: port_responses(node.console_port))
        wait_for("the condition", lambda: Kind.GATEWAY_NOT_LISTENING in kinds())
        assert not port_responses(node.port)
        with pytest.raises(HTTPError, match="503") as refused:
            node.get("/readyz")
        refused.value.close()
        store.bring_back()
        wait_for("the listener", lambda: port_responses(node.port))
        with RawConnection(node.bootstrap) as client:
            assert client.list_offset(6, "unknown", -1)[0] == 3
        wait_for("the end of the condition", lambda: kinds() == [])
        assert json.loads(node.get("/readyz"))["ready"]
    finally:
        node.stop()
