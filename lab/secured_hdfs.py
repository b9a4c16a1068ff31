"""An HDFS that authenticates its clients: Kerberos for NameNode, DataNode and WebHDFS.

The superuser is `nn`. WebHDFS requires SPNEGO, or a delegation token obtained with SPNEGO.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from lab.hdfs import HdfsServer
from lab.kerberos import Kdc


class SecuredHdfs(HdfsServer):
    """`token_life_ms`: how long a delegation token is valid without renewal."""

    def __init__(self, kdc: Kdc, token_life_ms: int = 24 * 3600 * 1000) -> None:
        super().__init__()
        self.kdc = kdc
        self._token_life_ms = token_life_ms
        self._starts = 0

    @property
    def address(self) -> str:
        """Uses the host name in its principal."""
        return f"localhost:{self._port}"

    @property
    def user(self) -> str:
        return "nn"

    def store_url(self, folder: str, user: str = "") -> str:
        return f"webhdfs://{self.address}/{folder}"

    def start(self) -> None:
        if not (self._folder / "core-site.xml").exists():
            rows = "".join(
                f"<property><name>{name}</name><value>{escape(value)}</value></property>"
                for name, value in self._security().items()
            )
            # Both files are needed: Hadoop's own defaults override the files that come before them.
            for name in ("core-site.xml", "hdfs-site.xml"):
                (self._folder / name).write_text(f"<configuration>{rows}</configuration>")
        self._starts += 1
        super().start()

    def _is_ready(self) -> bool:
        """Reads the log, because the NameNode's pages also require a ticket."""
        log = (self._folder / "server.log").read_text(errors="replace")
        return log.count("Started MiniDFSCluster") == self._starts

    def _java_options(self) -> list[str]:
        return [f"-Djava.security.krb5.conf={self.kdc.config}"]

    def _security(self) -> dict[str, str]:
        # Both nodes have the same principal, because they are in one process, which has one login.
        node, web = f"nn/localhost@{Kdc.REALM}", f"HTTP/localhost@{Kdc.REALM}"
        keys: Path = self.kdc.keytab("hdfs", node, web)
        return {
            "hadoop.security.authentication": "kerberos",
            "dfs.namenode.kerberos.principal": node,
            "dfs.namenode.keytab.file": str(keys),
            "dfs.datanode.kerberos.principal": node,
            "dfs.datanode.keytab.file": str(keys),
            "dfs.web.authentication.kerberos.principal": web,
            "dfs.web.authentication.kerberos.keytab": str(keys),
            # Without these, WebHDFS accepts any `user.name`, even in an HDFS with Kerberos.
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": web,
            "hadoop.http.authentication.kerberos.keytab": str(keys),
            "dfs.block.access.token.enable": "true",
            "dfs.data.transfer.protection": "authentication",
            # A DataNode requires ports below 1024 or TLS, which the tests do not need.
            "ignore.secure.ports.for.testing": "true",
            "dfs.namenode.delegation.token.renew-interval": str(self._token_life_ms),
        }
