"""Opens connections to an API server with the credentials of a service account or of a kubeconfig.

The package kubernetes_asyncio knows all the ways to prove who one is, and brings the transport. Credentials and
certificates are read anew for each connection, so that a rotated token or authority needs no restart.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ext_proc.config import Config, KubernetesConfig
from ext_proc.core.errors import ConfigError

if TYPE_CHECKING:
    import aiohttp

_HOST = "KUBERNETES_SERVICE_HOST"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

CREDENTIALS_S = 30.0
"""How long a program that makes credentials may take."""


class CredentialsError(Exception):
    """The credentials or certificates cannot be read or used."""


class Session(Protocol):
    """A connection to an API server."""

    async def get(self, path: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:  # noqa: ASYNC109  of the client
        """Ask for a path; the answer is to be closed."""


class Access(Protocol):
    """Opens sessions."""

    def open(self) -> Any:
        """Return an async context manager whose value is a Session; raises CredentialsError."""


class ClusterAccess:
    """Opens sessions as the settings say.

    Args:
        config: the settings.
        environ: where a pod finds the address of its API server.
        account: where a pod finds its token and the authority.
    """

    def __init__(
        self, config: KubernetesConfig, environ: Mapping[str, str] = os.environ, account: Path = _ACCOUNT
    ) -> None:
        self._config = config
        self._environ = environ
        self._account = account

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Session]:
        """Read the credentials and make a client of them.

        Raises CredentialsError if they cannot be read or used.
        """
        client = await self._client()
        try:
            yield _ClientSession(client)
        finally:
            await client.close()

    async def _client(self) -> Any:
        # Imported in a thread: it takes a quarter of a second, and requests must not wait for it.
        package = await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.config")
        api = importlib.import_module("kubernetes_asyncio.client")
        settings = api.Configuration()
        try:
            async with asyncio.timeout(CREDENTIALS_S):
                await self._load(package, settings)
            client = api.ApiClient(settings)
        except Exception as error:  # the package raises many kinds, AssertionError among them
            raise CredentialsError(f"{type(error).__name__}: {error}") from error
        client.user_agent = "kvpicker"
        return client

    async def _load(self, package: Any, settings: Any) -> None:
        if self._config.kubeconfig is not None:
            await package.load_kube_config(self._config.kubeconfig, self._config.context, settings)
            return
        package.load_incluster_config(
            settings,
            token_filename=str(self._account / "token"),
            cert_filename=str(self._account / "ca.crt"),
            environ=self._environ,
        )


class _ClientSession:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def get(self, path: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:  # noqa: ASYNC109  of the client
        answer: aiohttp.ClientResponse = await self._client.call_api(
            path,
            "GET",
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=timeout,
        )
        return answer


def is_used(config: Config) -> bool:
    """Tell whether some pool's endpoints come from a cluster."""
    return any(pool.kubernetes is not None for pool in config.pools.values())


def check_installed(config: Config) -> None:
    """Refuse a configuration that asks for what is not installed.

    Raises:
        ConfigError: that is so.
    """
    for name, pool in config.pools.items():
        if pool.kubernetes is not None and find_spec("kubernetes_asyncio") is None:
            raise ConfigError(
                "needs a package that is missing: pip install 'kvpicker[kubernetes]'", path=f"pools.{name}.kubernetes"
            )


def check_reachable(config: Config, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a configuration that names no cluster where there is none around.

    Raises:
        ConfigError: that is so.
    """
    path = config.kubernetes.kubeconfig
    if not is_used(config):
        return
    if path is None and not environ.get(_HOST):
        raise ConfigError(
            "kvpicker does not run in a cluster; write the path of a kubeconfig into the configuration file, as in"
            " `kubernetes: {kubeconfig: /home/me/.kube/config}`",
            path="kubernetes.kubeconfig",
        )
    if path is not None and not Path(path).is_file():
        raise ConfigError("there is no such file", path="kubernetes.kubeconfig")
