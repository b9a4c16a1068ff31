"""A Kafka broker that authenticates its clients: SASL listeners, users and ACLs.

The lab's own PLAINTEXT listener stays, for administrators: its clients are `User:ANONYMOUS`, the
only super user. On the SASL listeners, every operation needs an ACL (`allow`).
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import PartFailed
from lab.kafka import KafkaServer
from lab.process import free_port

if TYPE_CHECKING:
    from confluent_kafka.admin import AclBinding, AclBindingFilter, AdminClient

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_SECURITY = "org.apache.kafka.common.security"
# The lifetime of a session on the listener of `short_sessions`.
SESSION_MS = 3_000


def unsecured_token(user: str, lifetime_s: float = 3600.0) -> str:
    """An unsigned JWT, which Kafka's default OAUTHBEARER validator accepts (KIP-255).

    The broker's clock has milliseconds: it would refuse a token of this very millisecond as one
    from its future. So the token is issued at the last whole second.
    """
    now = time.time()

    def part(content: Mapping[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    claims = {"sub": user, "iat": int(now), "exp": now + lifetime_s}
    return f"{part({'alg': 'none'})}.{part(claims)}."


class SecuredKafka(KafkaServer):
    """`users`: name -> password, for PLAIN and both SCRAMs. OAUTHBEARER accepts any name.

    `keystore`: certificate and key in one PEM file, for the `sasl_ssl` listener.
    """

    def __init__(
        self,
        users: Mapping[str, str],
        properties: Mapping[str, str] | None = None,
        heap: str = "384m",
        keystore: Path | None = None,
    ) -> None:
        self.users = dict(users)
        self._sasl_port, self._short_port, self._tls_port = free_port(), free_port(), free_port()
        self._keystore = keystore
        super().__init__({**self._security(), **(properties or {})}, heap=heap)

    @property
    def sasl(self) -> str:
        """`host:port` of the SASL_PLAINTEXT listener, which has all of MECHANISMS."""
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def short_sessions(self) -> str:
        """The same with connections.max.reauth.ms = SESSION_MS (KIP-368)."""
        return f"127.0.0.1:{self._short_port}"

    @property
    def sasl_ssl(self) -> str:
        """`host:port` of the SASL_SSL listener, which exists only with a keystore."""
        return f"127.0.0.1:{self._tls_port}"

    def start(self) -> None:
        super().start()
        self._add_scram_users()

    def allow(self, user: str, topic: str, *operations: str, resource: str = "TOPIC") -> None:
        """`allow("alice", "orders", "READ")`. `*` is every resource of the kind.

        When this or `revoke` returns, the broker has applied the change.
        """
        from confluent_kafka.admin import AdminClient

        bindings = [self._binding(user, topic, operation, resource) for operation in operations]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_acls(bindings, request_timeout=30).values():
            future.result(timeout=30)
        for operation in operations:
            self._wait_for_acl(admin, self._filter(user, topic, operation, resource), there=True)

    def revoke(self, user: str, topic: str, *operations: str, resource: str = "TOPIC") -> None:
        from confluent_kafka.admin import AdminClient

        filters = [self._filter(user, topic, operation, resource) for operation in operations]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_acls(filters, request_timeout=30).values():
            future.result(timeout=30)
        for one in filters:
            self._wait_for_acl(admin, one, there=False)

    @staticmethod
    def _wait_for_acl(admin: AdminClient, one: AclBindingFilter, *, there: bool) -> None:
        """Waits until the broker has followed: the controller answers a change before that."""
        deadline = time.monotonic() + 30
        while bool(admin.describe_acls(one, request_timeout=30).result(timeout=30)) != there:
            if time.monotonic() > deadline:
                raise PartFailed(f"the broker has not followed a change of ACLs: {one}")
            time.sleep(0.02)

    def _binding(self, user: str, name: str, operation: str, resource: str) -> AclBinding:
        from confluent_kafka.admin import (
            AclBinding,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        kind, pattern = ResourceType[resource], ResourcePatternType.LITERAL
        what, who = AclOperation[operation], f"User:{user}"
        return AclBinding(kind, name, pattern, who, "*", what, AclPermissionType.ALLOW)

    def _filter(self, user: str, name: str, operation: str, resource: str) -> AclBindingFilter:
        from confluent_kafka.admin import AclBindingFilter

        one = self._binding(user, name, operation, resource)
        return AclBindingFilter(
            one.restype,
            one.name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )

    def _add_scram_users(self) -> None:
        from confluent_kafka.admin import (
            AdminClient,
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialUpsertion,
        )

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        # One request for each mechanism: a user may be in a request only once.
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            changes = [
                UserScramCredentialUpsertion(
                    user, ScramCredentialInfo(mechanism, 4096), password.encode()
                )
                for user, password in self.users.items()
            ]
            for future in admin.alter_user_scram_credentials(changes, request_timeout=30).values():
                future.result(timeout=30)

    def _security(self) -> dict[str, str]:
        logins = "".join(f' user_{user}="{password}"' for user, password in self.users.items())
        jaas = {
            "plain": f"{_SECURITY}.plain.PlainLoginModule required{logins};",
            "scram-sha-256": f"{_SECURITY}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{_SECURITY}.scram.ScramLoginModule required;",
            "oauthbearer": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
        }
        tls_listener, tls_protocol = "", ""
        tls: dict[str, str] = {}
        if self._keystore is not None:
            tls_listener, tls_protocol = f",TLS://127.0.0.1:{self._tls_port}", ",TLS:SASL_SSL"
            tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self._keystore)}
        return {
            "listeners": "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},"
            f"CLIENTS://127.0.0.1:{self._sasl_port},SHORT://127.0.0.1:{self._short_port}"
            f"{tls_listener}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            f"CLIENTS:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT{tls_protocol}",
            **tls,
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            **{
                f"listener.name.{listener}.{mechanism}.sasl.jaas.config": line
                for listener in ("clients", "short", "tls")
                for mechanism, line in jaas.items()
            },
            "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
