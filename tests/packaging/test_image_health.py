"""The image's HEALTHCHECK, run as it stands in the Dockerfile against a real process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from compose_file import dockerfile
from proxy_process import ProxyProcess

from lab.mock_cluster import MockCluster
from lab.process import free_port


def check(environment: dict[str, str]) -> tuple[int, str]:
    (arguments,) = (rest for word, rest in dockerfile() if word == "HEALTHCHECK")
    command = json.loads(re.sub(r"^.*?CMD ", "", arguments))
    assert command[0] == "python"
    result = subprocess.run(
        [sys.executable, *command[1:]],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr


def test_the_image_asks_its_own_console(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with (
        MockCluster() as cluster,
        ProxyProcess(cluster.bootstrap, (tmp_path / "store").as_uri(), tmp_path) as proxy,
    ):
        address = {"FETCHPROXY_CONSOLE_LISTEN": f"0.0.0.0:{proxy.console_port}"}
        code, output = check(address)
        assert code == 0, output
    code, output = check({"FETCHPROXY_CONSOLE_LISTEN": f"[::]:{free_port()}"})
    assert code != 0
    assert "refused" in output
    code, output = check({})
    assert (code, output.split(":")[0]) == (0, "not checked")
