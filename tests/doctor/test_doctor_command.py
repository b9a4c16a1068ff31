"""The command: output, exit codes, waiting, what hangs, what is secret, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.error
from pathlib import Path

import pytest
from fetchproxy_command import Ended, fetchproxy
from hypothesis import given
from hypothesis import strategies as st
from proxy_process import ProxyProcess, wait_for
from set_up import SetUp, a_server, findings, new_set_up

from fetchproxy.config.document import masked_values
from fetchproxy.config.load import Setting, load
from fetchproxy.config.values import MASK
from fetchproxy.doctor.catalogue import CHECKS, Category
from fetchproxy.doctor.installation import NotChecked
from fetchproxy.doctor.report import examination_text
from fetchproxy.doctor.runner import CHECK_FUNCTIONS, unusable
from fetchproxy.doctor.running_process import settings_in_force
from fetchproxy.errors import ConfigError
from fetchproxy.runtime.open_files import clients_that_fit
from fetchproxy.workers.shares import config_of_worker
from lab.limited import options as as_options
from lab.mock_cluster import MockCluster
from lab.process import free_port

SECRET = "5ecret-of-this-test"
OTHERS: dict[str, object] = {
    "archive.topics": 'a"b|c\\.d',
    "archive.retention_overrides": '{"orders": {"remote_log_retention_ms": 5}}',
    "archive.spool_dir": "/var/tmp/x y",
    "archive.segment_bytes_max": "3MiB",
    "gateway.node_map": "1=9301,2=kafka.example:9302",
    "gateway.pace_by_appetite": False,
    "process.memory_bytes_max": "4GiB",
    "prices.egress_usd_per_gb": 0.09,
    "store.timeout_ms": 1_234,
}


SHARED = [
    Setting("process.memory_bytes_max", "1GiB", ""),
    Setting("gateway.connections_max", 1_001, ""),
    Setting("metadata.cache_dir", "/var/cache/x", ""),
]


def is_ready(proxy: ProxyProcess) -> bool:
    try:
        proxy.get("/readyz")
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


def doctor(setup: SetUp, *arguments: str, **environment: str) -> Ended:
    values = {key: value for key, value in setup.values.items() if value is not None}
    variables = {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", **environment}
    return fetchproxy("doctor", *as_options(values), *arguments, environment=variables)


def test_a_sound_set_up_ends_with_0(plain: SetUp) -> None:
    result = doctor(plain, "--before", "--skip", "FP0501", "--skip", "FP0502")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "√ FP0101 a bootstrap address accepts connections\n" in result.stdout
    assert "\nbrokers and topics\n------------------\n" in result.stdout
    assert "exit code 0" in result.stdout
    assert "FP0402" not in result.stdout  # there is no TLS with the brokers


def test_a_warning_ends_with_1_and_says_what_to_do(plain: SetUp) -> None:
    setup = plain.having({"archive.topics": "nothing-of-this-name"})
    result = doctor(setup, "--before", "--skip", "machine")
    assert result.returncode == 1, result.stdout
    lines = result.stdout.splitlines()
    at = lines.index("‼ FP0112 `archive.topics` matches topics")
    assert "nothing-of-this-name" in lines[at + 1]
    assert lines[at + 2].startswith("    -> correct `archive.topics` (`kafka-topics.sh")
    assert lines[at + 3] == "    see docs/operate/doctor.md#fp0112"


def test_what_is_fatal_ends_with_2_and_ends_its_category(plain: SetUp) -> None:
    setup = plain.having({"cluster.bootstrap": f"127.0.0.1:{free_port()}"})
    result = doctor(setup, "--before", "--plain")
    assert result.returncode == 2
    assert "XX FP0101" in result.stdout
    assert "FP0102" not in result.stdout
    assert result.stdout.isascii()
    assert "FP0503" in result.stdout  # other categories go on


def test_a_terminal_without_utf_8_gets_ascii(plain: SetUp) -> None:
    result = doctor(plain, "--before", "--skip", "store", PYTHONIOENCODING="ascii")
    assert result.stdout.isascii()
    assert "ok FP0101" in result.stdout


def test_as_json(plain: SetUp) -> None:
    setup = plain.having({"cluster.bootstrap": f"127.0.0.1:{free_port()}"})
    result = doctor(setup, "--before", "--json")
    document = json.loads(result.stdout)
    assert document["exit_code"] == result.returncode == 2
    [fatal_check] = [check for check in document["checks"] if check["state"] == "fatal"]
    assert (fatal_check["id"], fatal_check["category"]) == ("FP0101", "brokers and topics")
    [finding] = fatal_check["findings"]
    assert finding["reason"].endswith(": Connection refused")
    assert finding["see"] == "docs/operate/doctor.md#fp0101"


def test_settings_that_cannot_be_used_are_findings_too(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[gateway]\nlistn = "x"\n[store]\ntimeout_ms = "soon"\n')
    result = fetchproxy("doctor", "--config", str(file), "--plain")
    assert result.returncode == 2
    assert f"unknown key gateway.listn ({file}:2)" in result.stdout
    assert f"({file}:4): expected a duration" in result.stdout
    assert "fetchproxy config --check" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--skip", "FP9999"), "expected the id of a check"), (("--wait", "soon"), "a duration")],
)
def test_a_wrong_command_line_ends_with_2(arguments: tuple[str, ...], says: str) -> None:
    result = fetchproxy("doctor", *arguments)
    assert result.returncode == 2
    assert says in result.stderr


def test_wait_goes_on_until_nothing_is_fatal(tmp_path: Path) -> None:
    """The store's folder appears while doctor waits."""
    import subprocess
    import sys

    with MockCluster() as cluster:
        setup = new_set_up(tmp_path, cluster.bootstrap)
        store = tmp_path / "store"
        store.rename(tmp_path / "later")
        values = {**setup.values, "archive.topics": None}
        options = as_options({k: v for k, v in values.items() if v is not None})
        command = [sys.executable, "-m", "fetchproxy", "doctor", *options, "--before"]
        command += ["--wait", "10m", "--skip", "machine"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
            assert waiting.stderr is not None
            assert waiting.stdout is not None
            assert b"fatal: FP0201; trying again" in waiting.stderr.readline()
            (tmp_path / "later").rename(store)
            output = waiting.stdout.read().decode()
        assert waiting.returncode == 1, output  # FP0203: there is no archive yet
        assert "FP0203" in output


async def test_nothing_hangs(plain: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers, store, key service and proxy take connections and say nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    async with a_server(None) as port, a_server(None) as other:
        endpoint = f"http%3A%2F%2F127.0.0.1%3A{port}"
        setup = plain.having(
            {
                "cluster.bootstrap": f"127.0.0.1:{port}",
                "store.url": f"s3://bucket/a?endpoint_url={endpoint}&region=us-east-1",
                "store.encryption_keys": f"aws-kms://eu-central-1/k?endpoint_url={endpoint}",
                "gateway.listen": f"localhost:{other}",
                "console.listen": f"127.0.0.1:{port}",
            },
            before=False,
            check_max_s=5.0,
        )
        begun = time.process_time()
        async with asyncio.timeout(60):
            examination = await setup.examined()
    ids = set(findings(examination))
    assert ids >= {"FP0104", "FP0201", "FP0408"}
    # The proxy is not blamed before it is known that the brokers answer.
    assert ids - {"FP0104", "FP0201", "FP0408"} in ({"FP0305"}, {"FP0307"})
    assert "no response within 5 s" in findings(examination)["FP0201"]
    assert time.process_time() - begun < 10


def test_a_disk_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A file that is a pipe: who opens it waits for a writer."""
    pipe = tmp_path / "certificate.pem"
    os.mkfifo(pipe)
    code = (
        "import fetchproxy.doctor.runner as runner; runner.examine.__defaults__ = ((), 1.0)\n"
        "import sys; from fetchproxy.cli.main import main\n"
        "sys.argv = ['fetchproxy', *sys.argv[1:]]; main()"
    )
    import subprocess
    import sys

    arguments = ["doctor", "--before", "--store", tmp_path.as_uri(), "--skip", "brokers and topics"]
    arguments += ["--set", f"gateway.tls_certificate_file={pipe}"]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2, result.stderr
    assert "FP0401" in result.stdout
    assert "no response within 1 s" in result.stdout


async def test_secrets_never_show(plain: SetUp) -> None:
    async with a_server(lambda heard: b"HTTP/1.1 400 no\r\n\r\n") as port:
        setup = plain.having(
            {
                "cluster.bootstrap": f"127.0.0.1:{port}",
                "cluster.security_protocol": "SASL_PLAINTEXT",
                "cluster.sasl_mechanism": "PLAIN",
                "cluster.sasl_username": "proxy",
                "cluster.sasl_password": SECRET,
                "gateway.tls_certificate_file": str(plain.folder / "nothing.pem"),
                "gateway.tls_key_password": SECRET,
            }
        )
        now = setup.having({"cluster.sasl_password": f"old-{SECRET}"}).loaded()
        examination = await setup.having(present=now).examined()
    text = examination_text(examination)
    assert SECRET not in text
    assert f"cluster.sasl_password: {MASK} becomes {MASK}" in text
    assert "FP0104" in findings(examination)
    with pytest.raises(ConfigError) as refused:
        plain.having({"cluster.sasl_password": SECRET}).loaded()
    assert SECRET not in examination_text(unusable(refused.value))


async def test_nothing_is_left_behind(plain: SetUp) -> None:
    await plain.examined()
    assert not list((plain.folder / "store").rglob("*"))
    assert not list((plain.folder / "spool").iterdir())


async def test_a_store_that_the_first_archiver_makes_is_not_made(plain: SetUp) -> None:
    store = plain.folder / "new" / "store"
    examination = await plain.having({"store.url": store.as_uri()}).examined()
    assert findings(examination) == {}
    assert not store.exists()


async def test_a_change_says_what_it_would_do(plain: SetUp) -> None:
    changes = {"archive.topics": "orders-2", "gateway.connections_max": 500}
    changed = plain.having(changes, present=plain.having({"archive.topics": "orders-1"}).loaded())
    examination = await changed.examined()
    change = examination.change
    assert change is not None
    assert (change.gained, change.lost) == (["orders-2"], ["orders-1"])
    assert ("archive.topics", "orders-1", "orders-2") in change.settings
    assert change.memory_bytes[0] > change.memory_bytes[1]
    assert set(findings(examination)) == {"FP0601"}
    text = examination_text(examination)
    assert "gateway.connections_max: 20000 becomes 500\n" in text
    assert "topics gained: orders-2\ntopics lost: orders-1\n" in text


def test_the_present_file_is_that_of_the_environment(plain: SetUp, tmp_path: Path) -> None:
    now, then = tmp_path / "now.toml", tmp_path / "then.toml"
    for file, topics in ((now, "orders-1"), (then, "orders-.*")):
        file.write_text(f'[archive]\ntopics = "{topics}"\n')
    setup = plain.having({"archive.topics": None})
    arguments = ("--before", "--config", str(then), "--skip", "machine")
    result = doctor(setup, *arguments, FETCHPROXY_CONFIG=str(now))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "archive.topics: orders-1 becomes orders-.*\n" in result.stdout
    assert "topics gained: orders-2\ntopics lost: none\n" in result.stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_runs_tells_what_is_in_force(
    plain: SetUp, tmp_path: Path, workers: int
) -> None:
    """Its file has changed since its start, and only what it tells is true."""
    file, then = tmp_path / "now.toml", tmp_path / "then.toml"
    common = f'cluster.bootstrap = "{plain.values["cluster.bootstrap"]}"\n'
    file.write_text(common + 'archive.topics = "orders-1"\nprices.get_usd_per_1000 = 0.5\n')
    store = str(plain.values["store.url"])
    common += f"process.workers = {workers}\n"
    with ProxyProcess(
        str(plain.values["cluster.bootstrap"]),
        store,
        tmp_path,
        config=file,
        settings={"process.workers": workers},
    ) as proxy:
        wait_for("the console", lambda: is_ready(proxy))
        file.write_text(common + 'archive.topics = "of-another-time"\n')
        addresses = f'gateway.listen = "{proxy.bootstrap}"\nstore.url = "{store}"\n'
        addresses += f'console.listen = "127.0.0.1:{proxy.console_port}"\n'
        then.write_text(common + addresses + 'archive.topics = "orders-.*"\nlog.level = "debug"\n')
        command = ("doctor", "--config", str(then), "--present", str(file), "--skip", "machine")
        result = fetchproxy(*command)
        then.write_text(then.read_text() + 'gateway.permit_ttl_ms = "5s"\n')
        with_more = json.loads(fetchproxy(*command, "--json").stdout)
    assert "archive.topics: orders-1 becomes orders-.*\n" in result.stdout, (
        result.stdout + result.stderr
    )
    assert "prices.get_usd_per_1000: 0.5 becomes 0.0\n" in result.stdout
    assert "SIGHUP is enough" in result.stdout
    assert "topics gained: orders-2\ntopics lost: none\n" in result.stdout
    assert with_more["change"]["needs_restart"] == ["gateway.permit_ttl_ms"]
    keys = {one["key"] for one in with_more["change"]["settings"]}
    changed = {"archive.topics", "prices.get_usd_per_1000", "log.level", "gateway.permit_ttl_ms"}
    assert keys == changed
    result = fetchproxy(*command)  # it runs no more
    assert "of-another-time becomes orders-.*" in result.stdout
    assert "Connection refused" in result.stderr


def test_settings_of_several_workers_are_not_taken_for_those_of_all(plain: SetUp) -> None:
    with pytest.raises(NotChecked, match="several workers"):
        settings_in_force([{"settings": []}, {"settings": []}], plain.loaded())


def test_settings_of_all_workers_are_in_force() -> None:
    config = load(None, {}, [Setting("process.workers", 2, ""), *SHARED]).config
    share = config_of_worker(config, 1, 9092)
    row = {"settings": list(masked_values(share)), "settings_of_all": list(masked_values(config))}
    limits = {"limits": {"ulimit open files": "unlimited, at most unlimited"}}
    assert settings_in_force([row | limits] * 2, load(None, {})).config == config


@given(changes=st.sets(st.sampled_from(sorted(OTHERS))))
def test_what_a_process_tells_is_what_is_in_force(changes: set[str]) -> None:
    settings = [Setting(name, OTHERS[name], "") for name in changes]
    config = load(None, {}, settings).config
    limits = {"ulimit open files": "unlimited, at most unlimited"}
    row = {"settings": list(masked_values(config)), "limits": limits}
    in_force = settings_in_force([row], load(None, {}))
    assert in_force.config == config


def test_a_limit_of_open_files_is_no_other_setting() -> None:
    def limit_named(in_force: int, files: str) -> int:
        config = load(None, {}, [Setting("gateway.connections_max", in_force, "")]).config
        row = {"settings": list(masked_values(config)), "limits": {"ulimit open files": files}}
        return settings_in_force([row], load(None, {})).config.gateway.connections_max

    room = clients_that_fit(1_024, 20_000)
    assert limit_named(room, "1024, at most 1024") == 20_000
    assert limit_named(room, "65536, at most 65536") == room
    assert limit_named(300, "1024, at most 1024") == 300


def test_each_check_has_its_function() -> None:
    assert list(CHECK_FUNCTIONS) == list(CHECKS)
    digits = {category: {id[2:4] for id in CHECKS if CHECKS[id].category is category}
              for category in Category}  # fmt: skip
    assert all(len(numbers) == 1 for numbers in digits.values())
