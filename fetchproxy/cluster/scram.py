"""kafka-python's SCRAM, which takes any number of iterations, with the least that is taken."""

from __future__ import annotations

from kafka.net.sasl.scram import SaslMechanismScram, ScramClient

# Kafka's least (RFC 7677 too). Whoever poses as a broker and asks for one gets a proof from which
# the password is guessed as fast as hashes are computed.
ITERATIONS_MIN = 4_096


class TooFewIterations(Exception):
    """Nothing that was made of the password has been sent."""


class _Client(ScramClient):  # type: ignore[misc]  # kafka-python has no types
    def create_salted_password(self, salt: bytes, iterations: int) -> None:
        if iterations < ITERATIONS_MIN:
            raise TooFewIterations(
                f"the broker asks for {iterations} iterations of SCRAM: expected at least "
                f"{ITERATIONS_MIN}; set the user's credentials anew with more of them"
            )
        super().create_salted_password(salt, iterations)


class Scram(SaslMechanismScram):  # type: ignore[misc]  # kafka-python has no types
    """`receive` raises TooFewIterations."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        super().__init__(
            sasl_mechanism=mechanism, sasl_plain_username=username, sasl_plain_password=password
        )
        self._scram_client = _Client(username, password, mechanism)
