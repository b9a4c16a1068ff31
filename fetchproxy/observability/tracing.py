"""OpenTelemetry traces of archived fetches and of copies, if `tracing.enabled` is set.

    archived fetch         from the request for archived records to their response
      remote read          one partition of it; other fetches of the same records share it
        remote load        a chunk of records or an index, with its tries
          store read       one request, with its repetitions
    copy segment           an archiver's copy, with `store write` and `store list` below it

Where spans go, and how many, is set by OpenTelemetry's own variables, such as
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER. Spans are sent by a
thread of the SDK, from a queue of OTEL_BSP_MAX_QUEUE_SIZE (2,048) spans: if the collector is away,
spans are dropped, and nothing waits. Without `tracing.enabled`, a span costs one comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING

from fetchproxy.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

# For spans that wait to be sent when the process ends. The SDK has a time limit for each request
# alone: with a collector that does not respond, it would hold up the end for most of a minute.
_FLUSH_MAX_S = 2.0

# None: nothing is recorded.
tracer: Tracer | None = None


@asynccontextmanager
async def tracing(enabled: bool, exporter: SpanExporter | None = None) -> AsyncIterator[None]:
    """Record spans inside the block, and send those that are left at its end. `exporter`: instead
    of OTLP over HTTP. Raises ConfigError if the extra is not installed.
    """
    global tracer
    if not enabled:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "tracing.enabled needs the extra `tracing`; "
            "in a clone of the project: pip install '.[tracing]'"
        ) from error
    # OTEL_SERVICE_NAME, or OTEL_RESOURCE_ATTRIBUTES, may give it another name.
    service_name = OTELResourceDetector().detect().attributes.get(SERVICE_NAME, "fetchproxy")
    resource = Resource.create({SERVICE_NAME: service_name})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
    tracer = provider.get_tracer("fetchproxy")
    try:
        yield
    finally:
        tracer = None
        await _end(provider.shutdown)


async def _end(shut_down: Callable[[], None]) -> None:
    """Send what is left, for a while; the thread ends with the process."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        shut_down()
        with suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(ended.set)

    Thread(target=run, name="tracing", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(_FLUSH_MAX_S):
            await ended.wait()


class OpenSpan:
    """A span that begins in one step of the loop and ends in another. Does nothing while there are
    no traces.
    """

    __slots__ = ("_span",)

    def __init__(self, span: Span | None = None) -> None:
        self._span = span

    @contextmanager
    def as_parent(self) -> Iterator[None]:
        """Spans that begin in the block, and in tasks that the block creates, are below this
        one.
        """
        if self._span is None:
            yield
            return
        from opentelemetry.trace import use_span

        with use_span(self._span):
            yield

    def end(self, **attributes: str | int) -> None:
        if self._span is not None:
            self._span.set_attributes(attributes)
            self._span.end()


NO_SPAN = OpenSpan()


def begin_span(name: str, **attributes: str | int) -> OpenSpan:
    """The caller ends it."""
    if tracer is None:
        return NO_SPAN
    return OpenSpan(tracer.start_span(name, attributes=attributes))


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """An error that leaves the block is the span's, too."""
    if tracer is None:
        yield
        return
    with tracer.start_as_current_span(name, attributes=attributes):
        yield
