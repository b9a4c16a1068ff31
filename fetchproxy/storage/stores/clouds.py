"""Buckets of Google Cloud Storage and containers of Azure Blob Storage. Each vendor's environment
sets their address and credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore

from fetchproxy.config.memory_plan import PART_BYTES
from fetchproxy.config.schema import StoreConfig
from fetchproxy.config.values import mask_text, secret_from
from fetchproxy.errors import ConfigError
from fetchproxy.runtime.folders import NO_FILE, WatchedFile, stamp_of
from fetchproxy.storage.stores.locations import CloudLocation
from fetchproxy.storage.stores.obstore_store import (
    Clients,
    ObstoreObjectStore,
    Renewal,
    make_clients,
)

_PAGE_OBJECTS = {"gs": 1000, "az": 5000}  # per response: the vendors' limits
_OF_CONNECTION_STRING = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"
# A process's environment stays as it is, so keys and signatures that are replaced are in a file.
_CONNECTION_FILE = f"{_CONNECTION_STRING}_FILE"
# Variables of Azure's command line, for which the library uses other names.
_OF_COMMAND_LINE = {"AZURE_STORAGE_ACCOUNT": "account_name", "AZURE_STORAGE_KEY": "account_key"}


def open_cloud_store(
    location: CloudLocation, config: StoreConfig, *, part_bytes: int = PART_BYTES
) -> ObstoreObjectStore:
    """Raises ConfigError if the environment lacks a value, or names an unusable file."""
    is_azure = location.scheme == "az"

    def remake() -> Clients:
        settings = azure_settings(os.environ) if is_azure else gcs_settings(os.environ)
        endpoint = settings.get("endpoint" if is_azure else "base_url", "")
        make = partial(AzureStore if is_azure else GCSStore, location.bucket, **settings)
        return make_clients(make, config, plain_http=endpoint.startswith("http:"))

    # Azure's library reads the token file of a federated identity each time.
    key_file = os.environ.get(_CONNECTION_FILE if is_azure else "GOOGLE_APPLICATION_CREDENTIALS")
    watched = WatchedFile(Path(key_file), stamp_of(Path(key_file))) if key_file else NO_FILE
    renewal = Renewal(watched, remake)
    try:
        clients = remake()
    except (BaseError, OSError, ValueError) as error:
        text = str(error).partition("Debug source")[0].strip()
        raise ConfigError(
            f"store {location.scheme}://{location.bucket}: {mask_text(text)}"
        ) from error
    return ObstoreObjectStore(
        clients,
        page_objects=_PAGE_OBJECTS[location.scheme],
        config=config,
        part_bytes=part_bytes,
        renewal=renewal,
    )


def gcs_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings that the library does not take from the environment. Pure.

    The library itself reads `GOOGLE_APPLICATION_CREDENTIALS`, `GOOGLE_SERVICE_ACCOUNT_KEY` and the
    rest of `GOOGLE_…`, gcloud's own file, and a machine's service account.
    """
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if not emulator:
        return {}
    if "://" not in emulator:
        emulator = f"http://{emulator}"
    # The library requires a token for writes; an emulator ignores it.
    token = environment.get("GOOGLE_BEARER_TOKEN", "emulator")
    return {"base_url": emulator.rstrip("/"), "bearer_token": token}


def azure_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """As `gcs_settings`. A connection string overrides all else. Raises ConfigError.

    The library itself reads `AZURE_STORAGE_ACCOUNT_NAME`, `…_ACCOUNT_KEY`, `…_SAS_TOKEN`,
    `AZURE_CLIENT_ID`, `AZURE_TENANT_ID`, `AZURE_CLIENT_SECRET`, `AZURE_FEDERATED_TOKEN_FILE`, and a
    machine's managed identity.
    """
    settings: dict[str, Any] = {
        setting: environment[name]
        for name, setting in _OF_COMMAND_LINE.items()
        if environment.get(name)
    }
    endpoint = environment.get("AZURE_STORAGE_ENDPOINT") or environment.get("AZURE_ENDPOINT")
    if endpoint:
        settings["endpoint"] = endpoint
    if text := environment.get(_CONNECTION_STRING):
        settings |= _connection_string(text, _CONNECTION_STRING)
    file = environment.get(_CONNECTION_FILE)
    if file and (text := secret_from(Path(file), _CONNECTION_FILE)):
        settings |= _connection_string(text, f"the file of {_CONNECTION_FILE}")
    return settings


def _connection_string(text: str, where: str) -> dict[str, str]:
    words: dict[str, str] = {}
    for part in filter(None, text.strip().split(";")):
        name, equals, value = part.partition("=")
        if not equals:
            # The error does not quote the string, which contains a secret.
            raise ConfigError(f"{where}: expected name=value;name=value")
        words[name.strip().lower()] = value.strip()
    settings = {
        setting: words[name] for name, setting in _OF_CONNECTION_STRING.items() if name in words
    }
    if "endpoint" not in settings and "endpointsuffix" in words and "account_name" in settings:
        scheme = words.get("defaultendpointsprotocol", "https")
        settings["endpoint"] = (
            f"{scheme}://{settings['account_name']}.blob.{words['endpointsuffix']}"
        )
    if "sas_key" in settings:
        settings["sas_key"] = settings["sas_key"].lstrip("?")
    return settings
