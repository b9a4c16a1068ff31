"""docker-compose.yml and Dockerfile as values, as far as tests look into them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]


def environment(service: str) -> dict[str, str]:
    """What the service's process finds, as compose turns every value into text."""
    return {key: str(value) for key, value in SERVICES[service].get("environment", {}).items()}


def command(service: str) -> list[str]:
    """`$$` is compose's way to write a dollar sign that is not its own."""
    return [str(word).replace("$$", "$") for word in SERVICES[service]["command"]]


def own_services() -> list[str]:
    """Those that run this project's image."""
    return [name for name, service in SERVICES.items() if service.get("build") == "."]


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, arguments), with continued lines joined and comments left out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.split("\n"))]


def image_environment() -> dict[str, str]:
    """The ENV of the Dockerfile's last stage."""
    pairs = [rest for word, rest in dockerfile() if word == "ENV"]
    return dict(pair.split("=", 1) for pair in " ".join(pairs).split())
