"""Names of models on the Hugging Face Hub: whether they can be found, and similar names for those that cannot."""

from __future__ import annotations

import os
import socket
from difflib import get_close_matches
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from .._util.files import expanded, reason
from ..errors import Error
from .bundled import BUNDLED_MODELS

CONNECTION_SECONDS = 1.5
"""How long to wait for a connection to the hub."""

_PORTS = {"http": 80, "https": 443}


def hub_source(name: str, given: str) -> str:
    """Return what to load a model on the hub from: its name, or its folder in the hub's cache if that is all there is.

    Raises an `Error` at once if there is neither, instead of the retries of huggingface_hub, which take a minute.

    Parameters
    ----------
    name
        The name on the hub.
    given
        The model as the user gave it, such as "model='bert-base-uncased'".
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    suggestion = did_you_mean(name)
    bundled = f"The bundled models are {', '.join(map(repr, BUNDLED_MODELS))}."
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise Error(
            f"{given} does not exist, and is not a name on the Hugging Face Hub such as 'user/model'.{suggestion} "
            f"{bundled}"
        ) from None
    config = try_to_load_from_cache(name, "config.json")
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else unreachable(constants.ENDPOINT)
    if why is None:
        return name
    if not isinstance(config, str):
        raise Error(
            f"{given} is neither a folder nor a bundled model, it was not downloaded before, and it cannot be "
            f"downloaded now ({why}).{suggestion} {bundled}"
        )
    return name if constants.HF_HUB_OFFLINE else str(Path(config).parent)


def unreachable(endpoint: str) -> str | None:
    """Return why no connection to a URL, or to the proxy for it, can be made; None if one can."""
    found: list[str | None] = []

    def connect() -> None:
        try:
            socket.create_connection(_address(endpoint), timeout=CONNECTION_SECONDS).close()
        except (OSError, ValueError) as error:
            found.append(f"no connection to {endpoint}: {reason(error)}")
        else:
            found.append(None)

    thread = Thread(target=connect, daemon=True)  # looking up a host name has no timeout of its own
    thread.start()
    thread.join(CONNECTION_SECONDS)
    return found[0] if found else f"no answer from {endpoint} within {CONNECTION_SECONDS} s"


def _address(endpoint: str) -> tuple[str, int]:
    """Return host and port of a URL, or of the proxy for it."""
    url = urlsplit(endpoint)
    proxies = {} if proxy_bypass(url.hostname or "") else getproxies()
    if proxy := proxies.get(url.scheme) or proxies.get("all"):
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not url.hostname:
        raise ValueError("it is not a URL")
    return url.hostname, url.port or _PORTS.get(url.scheme, 443)


def did_you_mean(name: str) -> str:
    """Return " Did you mean ...?" with the most similar bundled model, folder or GGUF file; "" if none is similar."""
    path = Path(name)
    try:
        beside = [entry.name for entry in os.scandir(expanded(path).parent)]
    except (OSError, ValueError):
        beside = []
    found = [match for match in get_close_matches(path.name, beside, n=5) if _is_model(expanded(path).with_name(match))]
    bundled = BUNDLED_MODELS if path.name == name else ()  # their names have no owner or folder
    similar = get_close_matches(name, [*bundled, *(str(path.with_name(match)) for match in found)], n=1)
    return f" Did you mean {similar[0]!r}?" if similar else ""


def _is_model(path: Path) -> bool:
    return path.suffix == ".gguf" or os.path.isfile(path / "config.json")
