"""HTTP Negotiate with Kerberos (RFC 4559), with the package gssapi of the extra `kerberos`.

libkrb5's own variables and files set the credentials and the KDC: KRB5CCNAME,
KRB5_CLIENT_KTNAME, KRB5_CONFIG. A ticket is never forwarded to the server.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from fetchproxy.errors import StorageDenied, StorageUnavailable

T = TypeVar("T")

_SCHEME = "negotiate"
_SPNEGO = "1.3.6.1.5.5.2"
# Codes of krb5.h for "no KDC answered". All other errors last until an operator acts.
_NO_KDC = frozenset(
    {
        -1765328355,  # KRB5KDC_ERR_SVC_UNAVAILABLE
        -1765328230,  # KRB5_REALM_UNKNOWN: no KDC is configured, or no DNS server names it
        -1765328228,  # KRB5_KDC_UNREACH
        -1765328164,  # KRB5_REALM_CANT_RESOLVE
    }
)


def offered(challenges: Sequence[str]) -> bool:
    """Whether these values of WWW-Authenticate ask for Negotiate."""
    return any(challenge.lower().split()[:1] == [_SCHEME] for challenge in challenges)


class Negotiation:
    """One exchange with the server. Its methods may wait for a KDC, which blocks the thread."""

    def __init__(self, host: str) -> None:
        """Raises StorageDenied, or StorageUnavailable if no KDC answers."""
        try:
            import gssapi  # also loads the system's libgssapi_krb5
        except ImportError as error:
            raise StorageDenied(
                f"{host} wants Kerberos, but the package gssapi cannot be loaded ({error}): "
                "in a clone of the project: pip install '.[kerberos]'"
            ) from None
        self._host = host
        name = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
        with self._explained():
            # The first step uses Kerberos alone. It gets the ticket, and only its errors have codes
            # that show the cause. Within SPNEGO the codes differ from process to process.
            kerberos = gssapi.MechType.kerberos
            gssapi.SecurityContext(name=name, mech=kerberos, usage="initiate").step()
            self._context = gssapi.SecurityContext(
                name=name,
                mech=gssapi.OID.from_int_seq(_SPNEGO),
                flags=gssapi.RequirementFlag.mutual_authentication,
                usage="initiate",
            )
            self._first: bytes = self._context.step()

    @property
    def authorization(self) -> str:
        return f"Negotiate {base64.b64encode(self._first).decode()}"

    def check_server(self, responses: Sequence[str]) -> None:
        """`responses`: values of WWW-Authenticate. Raises StorageDenied if none proves the
        server.
        """
        from gssapi.exceptions import GSSError

        unproven = f"{self._host} does not prove that it is HTTP/{self._host}"
        try:
            for response in responses:
                scheme, _, proof = response.partition(" ")
                if scheme.lower() == _SCHEME and proof:
                    self._context.step(base64.b64decode(proof, validate=True))
            proven = self._context.complete  # also raises a deferred error of a step
        except (GSSError, binascii.Error) as error:
            raise StorageDenied(f"{unproven}: {error}") from None
        if not proven:
            raise StorageDenied(unproven)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from gssapi.exceptions import GSSError, MissingCredentialsError

        try:
            yield
        except GSSError as error:
            code = error.min_code - 2**32 if error.min_code >= 2**31 else error.min_code
            # The mechanism's own texts are the exact ones.
            exact = [status for status in error.get_all_statuses(error.min_code, False) if status]
            status = f"Kerberos for HTTP/{self._host}: {'; '.join(exact or [str(error)])}"
            if code in _NO_KDC:
                raise StorageUnavailable(status) from None
            if isinstance(error, MissingCredentialsError):
                status += " (credentials come from KRB5CCNAME or KRB5_CLIENT_KTNAME)"
            raise StorageDenied(status) from None


class Kerberos:
    """Runs negotiations on a thread of its own. Use it on one loop."""

    def __init__(self, wait_max_s: float) -> None:
        # libkrb5 waits half a minute for a silent KDC, and cannot be interrupted.
        self._wait_max_s = wait_max_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kerberos")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T], about: str) -> T:
        try:
            async with asyncio.timeout(self._wait_max_s):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError:
            raise StorageUnavailable(
                f"Kerberos for {about}: no response from a KDC within {self._wait_max_s:g} s"
            ) from None
