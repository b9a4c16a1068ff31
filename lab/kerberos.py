"""A Kerberos KDC on loopback, MIT's own, and the locked version of the Python package gssapi.

Debian's packages provide the KDC's programs and the headers for building gssapi. They are unpacked
into the cache; nothing is installed on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

from lab import cache, debian
from lab.errors import PartFailed, PartMissing
from lab.process import OneProcess, ServerProcess, free_port, port_responses

KERBEROS_ENTRY = f"kerberos-debian-py{sys.version_info.major}{sys.version_info.minor}"
_HOW = "It needs Debian's packages (apt-get download), a C compiler and pip."
_LOCK = Path(__file__).parents[1] / "requirements" / "kerberos.txt"
_PACKAGES = [
    *("krb5-kdc", "krb5-admin-server", "krb5-user", "libss2", "libcom-err2"),
    *("libkdb5-10", "libkadm5srv-mit12", "libkadm5clnt-mit12", "libgssrpc4"),
    *("libverto1", "libverto-libev1", "libev4"),
    *("libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0", "libkeyutils1"),
    *("libkrb5-dev", "krb5-multidev", "comerr-dev"),
]


def kerberos_parts() -> Path:
    """The folder with `tree` (Debian's files) and `python` (gssapi). Raises PartMissing."""
    return cache.build_once(KERBEROS_ENTRY, _build)


def gssapi_folder() -> Path:
    """A folder for the path of a Python that needs gssapi. Raises PartMissing."""
    return kerberos_parts() / "python"


def _build(folder: Path) -> None:
    if shutil.which("cc") is None:
        raise PartMissing("kerberos", "cc is not on PATH", _HOW)
    tree = debian.unpack("kerberos", _PACKAGES, folder)
    cache.say("kerberos: building gssapi (about a minute)")
    libraries = _library_folder(tree)
    environment = {
        "GSSAPI_COMPILER_ARGS": f"-I{tree}/usr/include -DHAS_GSSAPI_EXT_H",
        "GSSAPI_LINKER_ARGS": f"-L{libraries} -lgssapi_krb5",
        "GSSAPI_MAIN_LIB": f"{libraries}/libgssapi_krb5.so.2",
        "LD_LIBRARY_PATH": str(libraries),
    }
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-deps"]
    install += ["--require-hashes", "-r", str(_LOCK), "--target", str(folder / "python")]
    _run(install, folder, environment)
    _run([sys.executable, "-c", "import gssapi"], folder, {"PYTHONPATH": str(folder / "python")})


def _library_folder(tree: Path) -> Path:
    [library] = tree.glob("usr/lib/*/libgssapi_krb5.so.2")
    return library.parent


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()[-300:]
        raise PartMissing("kerberos", f"`{' '.join(command[:4])} …` failed ({output})", _HOW)


class Kdc(OneProcess):
    """`with Kdc() as kdc: kdc.keytab("me", "me")`. Its principals survive `kill()`.

    Host names are used as given (`HTTP/localhost`), without a DNS look-up.
    """

    REALM = "LAB.TEST"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lab-kdc-"))
        self._port = free_port()
        self._numbers = count()
        self.config = self.folder / "krb5.conf"

    @property
    def _tree(self) -> Path:
        return kerberos_parts() / "tree"

    def client(self, keytab: Path) -> dict[str, str]:
        """The environment of a client without tickets, whose libkrb5 gets them by `keytab`."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_CLIENT_KTNAME": str(keytab),
            "KRB5CCNAME": f"MEMORY:{self.folder}/{next(self._numbers)}",
        }

    def start(self) -> None:
        """Raises PartMissing and PartFailed."""
        if self._process is None:
            self._write_configuration()
            self._tool("usr/sbin/kdb5_util", "create", "-s", "-P", "of the lab alone")
            command = [str(self._tree / "usr/sbin/krb5kdc"), "-n"]
            log = self.folder / "server.log"
            self._process = ServerProcess("KDC", command, log, env=self._server_environment())
        self._process.start()
        self._process.wait_until(lambda: port_responses(self._port), 30.0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def keytab(self, name: str, *principals: str, ticket_max_s: int = 36_000) -> Path:
        """A new file with new keys of the principals, which are created if they do not exist."""
        path = self.folder / f"{name}.keytab"
        for principal in principals:
            life = f'-maxlife "{ticket_max_s} seconds"'
            self._admin(f"addprinc {life} -randkey {principal}")
            self._admin(f"ktadd -k {path} {principal}")
        return path

    def remove(self, principal: str) -> None:
        self._admin(f"delprinc -force {principal}")

    def kinit(self, keytab: Path, principal: str, cache_name: str = "") -> Path:
        """Creates a ticket cache, as a user or cron does."""
        path = self.folder / (cache_name or f"{principal}.ccache")
        self._tool("usr/bin/kinit", "-c", str(path), "-k", "-t", str(keytab), principal)
        return path

    def _admin(self, query: str) -> None:
        # kadmin.local exits with 0 even if the query failed; its output has the error.
        output = self._tool("usr/sbin/kadmin.local", "-r", self.REALM, "-q", query)
        if "while" in output and "already exists" not in output:
            raise PartFailed(f"kadmin.local {query}: {output}")

    def _tool(self, program: str, *arguments: str) -> str:
        result = subprocess.run(
            [str(self._tree / program), *arguments],
            env={**os.environ, **self._server_environment()},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if result.returncode != 0:
            raise PartFailed(f"{program}: {(result.stdout + result.stderr).strip()[-500:]}")
        return result.stderr

    def _server_environment(self) -> dict[str, str]:
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "LD_LIBRARY_PATH": str(_library_folder(self._tree)),
        }

    def _write_configuration(self) -> None:
        address = f"127.0.0.1:{self._port}"
        plugins = _library_folder(self._tree) / "krb5/plugins/kdb"
        self.config.write_text(
            "[libdefaults]\n"
            f"default_realm = {self.REALM}\n"
            "dns_lookup_kdc = false\ndns_lookup_realm = false\n"
            "dns_canonicalize_hostname = false\nrdns = false\n"
            "udp_preference_limit = 1\n"  # over TCP, a stopped KDC refuses at once
            f"[realms]\n{self.REALM} = {{\nkdc = {address}\n}}\n"
            f"[dbmodules]\ndb_module_dir = {plugins}\n"
        )
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\nkdc_listen = {address}\nkdc_tcp_listen = {address}\n"
            f"[realms]\n{self.REALM} = {{\n"
            f"database_name = {self.folder}/principal\n"
            f"key_stash_file = {self.folder}/stash\n"
            f"acl_file = {self.folder}/acl\n"
            "max_life = 10h\n}\n"
            f"[logging]\nkdc = FILE:{self.folder}/kdc.log\n"
        )
