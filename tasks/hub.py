"""Whether the Hugging Face Hub can be reached, so that a missing network is reported at once and in one line."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request


def hub_answers() -> bool:
    """Whether the hub answers at all. Its own client would retry for half a minute without a network."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")  # noqa: S310 (the hub, or what HF_ENDPOINT names)
    try:
        urllib.request.urlopen(request, timeout=5).close()  # noqa: S310 (as above)
    except (urllib.error.HTTPError, http.client.HTTPException):
        return True
    except OSError as error:
        # The hub's own client may accept a certificate that this one does not know.
        return isinstance(getattr(error, "reason", error), ssl.SSLError)
    return True


def is_connection_error(error: BaseException) -> bool:
    """Whether a request to the hub broke off: its client passes on errors of httpx or, by version, httpx2."""
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.partition(".")[0] in ("httpx", "httpx2")
