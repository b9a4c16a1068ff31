"""A secret of the configuration: given as a value, or as a file that holds it."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from fetchproxy.errors import ConfigError


def secret_from(value: SecretStr | None, file: Path | None, key: str) -> str | None:
    """The value, or the file's first line; None where neither is set. Blocks for the file.

    Raises ConfigError. It names the key and not the path, as somebody may have put the secret
    itself there.
    """
    if value is not None:
        return value.get_secret_value()
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"the file of {key} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the file of {key} is not UTF-8") from None
    if not lines or not lines[0].strip():
        raise ConfigError(f"the first line of the file of {key} is empty")
    return lines[0].strip()
