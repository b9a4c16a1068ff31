"""Jobs before any Spark is started: what is missing or wrong is said in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_batches import Record, made_batch
from typer.testing import CliRunner
from written_archive import WrittenArchive

from fetchproxy.cli.backfill import source_options
from fetchproxy.cli.main import app
from fetchproxy.config.load import Setting, load_config
from fetchproxy.errors import ConfigError
from fetchproxy.remotelog import session
from fetchproxy.segments.object_keys import SegmentFile

JOBS = ["archive", "backfill", "merge", "reindex", "report", "restore", "verify"]
STORE = ["--store", "file:///nowhere"]


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.mark.parametrize("job", JOBS)
def test_help_says_what_to_install(cli: CliRunner, job: str) -> None:
    """Brackets are markup to what shows it."""
    assert "pip install -e '.[spark]'" in cli.invoke(app, [job, "--help"]).output


@pytest.mark.parametrize("job", JOBS)
def test_without_the_extra_it_is_named(
    cli: CliRunner, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    more = ["--topics", "orders"] if job == "backfill" else []
    result = cli.invoke(app, [job, "--spark", *STORE, *more])
    assert result.exit_code == 2
    assert "pip install -e '.[spark]'" in result.output


@pytest.mark.parametrize("job", ["report", "backfill"])
def test_what_writes_parquet_here_needs_the_extra_too(
    cli: CliRunner, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    more = ["--topics", "orders"] if job == "backfill" else []
    result = cli.invoke(app, [job, *STORE, *more])
    assert result.exit_code == 2
    assert "pyarrow is not installed" in result.output
    assert "pip install -e '.[spark]'" in result.output


@pytest.mark.parametrize("option", [["--master", "yarn"], ["--conf", "spark.x=1"]])
def test_options_of_spark_are_not_passed_over(cli: CliRunner, option: list[str]) -> None:
    result = cli.invoke(app, ["verify", *STORE, *option])
    assert result.exit_code == 2
    assert f"{option[0]} is for Spark; add --spark" in result.output


@pytest.fixture
def with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: name)


@pytest.mark.usefixtures("with_the_extra")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["verify"], "store.url is not set"),
        (["verify", *STORE, "--conf", "spark.x"], "expected KEY=VALUE"),
        (["backfill", *STORE, "--topics", "t"], "either --parquet or --to-topic"),
        (["backfill", *STORE, "--topics", "t", "--option", "x"], "expected NAME=VALUE"),
        (["archive", *STORE, "--dry-run"], "archive.topics is not set"),
    ],
)
def test_what_is_wrong_is_said_before_a_jvm_is_started(
    cli: CliRunner, arguments: list[str], says: str
) -> None:
    result = cli.invoke(app, [*arguments, "--spark"])
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.splitlines()) == 1


def test_the_source_of_a_backfill_is_the_configured_store() -> None:
    settings = [("store.url", "file:///a"), ("store.connections_max", "7")]
    config = load_config(None, {}, [Setting(key, value, "test") for key, value in settings])
    source = source_options(
        config, "orders,more", ["isolationlevel=read_uncommitted", "readMaxMs=5"]
    )
    assert source["store"] == "file:///a"
    assert source["store.connections_max"] == "7"
    assert source["isolationLevel"] == "read_uncommitted"
    assert (source["topics"], source["readMaxMs"]) == ("orders,more", "5")
    with pytest.raises(ConfigError, match="expected NAME=VALUE"):
        source_options(config, "orders", ["=x"])


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    made = WrittenArchive(tmp_path / "archive")
    made.add([made_batch(0, [Record()] * 10)])
    return made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "--out", "FILE"], "FILE"),
        (["backfill", "--topics", "orders", "--parquet", "FILE"], "the output FILE cannot be"),
        (
            [
                *("backfill", "--topics", "orders", "--parquet", "FOLDER"),
                *("--option", "startingTimestamp=5"),
            ],
            "failed: orders-0: ",
        ),
    ],
)
def test_a_job_that_cannot_read_or_write_ends_with_a_line(
    cli: CliRunner, archive: WrittenArchive, tmp_path: Path, arguments: list[str], message: str
) -> None:
    """A file where a folder has to be; a damaged index, of which a search by time has need."""
    file = tmp_path / "file"
    file.write_text("")
    if "FOLDER" in arguments:
        archive.path(archive.segments[0], SegmentFile.INDEX).write_bytes(b"damaged")
    places = {"FILE": str(file), "FOLDER": str(tmp_path / "out")}
    command_line = [places.get(argument, argument) for argument in arguments]
    result = cli.invoke(app, [*command_line, "--store", archive.url])
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert message.replace("FILE", str(file)) in result.stderr
    assert "Traceback" not in result.stderr


def test_a_batch_that_is_too_large_to_unpack_is_named_and_the_rest_is_written(
    cli: CliRunner, archive: WrittenArchive, tmp_path: Path
) -> None:
    archive.add([made_batch(10, [Record(value=bytes(9_000))], codec=4)])
    limit = ["--option", "maxUnpackedBytes=5000"]
    place = ["--store", archive.url, "--parquet", str(tmp_path / "out")]
    result = cli.invoke(app, ["backfill", "--topics", "orders", *place, *limit])
    assert result.exit_code == 2, result.output
    assert "10 records in 1 range written" in result.output
    [line] = [text for text in result.stderr.splitlines() if text.startswith("failed: ")]
    assert "offsets 10 to 10 of orders-0 are left out" in line
    assert "too large to unpack here" in line
    assert "--option maxUnpackedBytes=5000 " in line
