"""`python -m demo` tells the whole story once.

Exit status 0: every check held. 1: a check failed, and it is named. 2: a part that the story needs
cannot be set up. 130, 143: interrupted.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException

from demo.archive_store import STORES, open_archive_store
from demo.checks import CheckFailed
from demo.narration import Narrator, quote
from demo.readers import CLIENT_LOG
from demo.story import Story
from demo.upstream import open_upstream
from lab.errors import PartFailed, PartMissing

_LOG_LINES_SHOWN = 15


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--upstream", choices=("mock", "kafka"), default="mock")
    parser.add_argument("--store", choices=STORES, default="file")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with the logs and a file store"
    )
    options = parser.parse_args(arguments)
    received = _signals_unwind()
    folder = Path(tempfile.mkdtemp(prefix="fetchproxy-demo-"))
    _log_clients_to(folder / "clients.log")
    tell = Narrator()
    try:
        return _tell(options.upstream, options.store, folder, tell)
    except BaseException:
        # Any exception: a signal within a callback of confluent-kafka arrives as a SystemError.
        if not received:
            raise
        tell.bad("Interrupted; everything that was started has been stopped.")
        return 128 + received[0]
    finally:
        logging.shutdown()
        if options.keep:
            tell.say(f"Kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _tell(upstream_kind: str, store_kind: str, folder: Path, tell: Narrator) -> int:
    begun_at = time.perf_counter()
    tell.act("Start a Kafka cluster, a store and fetchproxy")
    try:
        upstream, store = open_upstream(upstream_kind), open_archive_store(store_kind, folder)
        with ExitStack() as running:
            for part in (upstream, store):
                with tell.waiting(f"Starting {part.name}"):
                    running.enter_context(part)
            Story(upstream, store, folder, tell).play()
    except CheckFailed as failed:
        tell.bad(f"FAILED: {quote(failed.check)}")
        tell.say(quote(failed.detail))
        _show_log(folder / "fetchproxy.log", tell)
        return 1
    except KafkaException as error:
        tell.bad(f"FAILED: a client's request: {quote(str(error))}")
        _show_log(folder / "fetchproxy.log", tell)
        return 1
    except (PartMissing, PartFailed) as error:
        tell.bad(quote(str(error)))
        return 2
    tell.good(f"Every check held, in {time.perf_counter() - begun_at:.0f} s.")
    return 0


def _show_log(log: Path, tell: Narrator) -> None:
    if not log.exists():
        return
    tell.say("The end of fetchproxy's log (python -m demo --keep keeps it all):")
    for line in log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]:
        tell.say(f"[dim]{quote(line)}[/]")


def _log_clients_to(log: Path) -> None:
    """Keeps the clients' log off the screen: retries during the outage would break the bars."""
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for logger in (CLIENT_LOG, logging.getLogger("kafka")):
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _signals_unwind() -> list[int]:
    """Makes SIGINT and SIGTERM end the story in order, so that everything started is stopped.

    Returns a list to which a received signal is added. A second signal ends the process at once.
    """
    received: list[int] = []

    def unwind(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, unwind)
    return received


if __name__ == "__main__":
    sys.exit(main())
