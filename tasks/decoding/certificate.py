"""What a pair folder says the large model accepts: its certificate, and the draft length at which another engine should draft.

Other engines draft a fixed number of tokens and verify them losslessly, so only the records of `speculative` with the small
model are compared with them. The report stage writes the records; see `measured.accepted` in docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.decoding.pair_folder import PairManifest
from tasks.decoding.settings import SpeculativeSettings

_METHOD, _DRAFTER = "speculative", "small"


def engine_draft_length(manifest: PairManifest) -> int:
    """Return how many tokens an engine should draft at a time.

    That is the operating point's number where the small model drafts a fixed number. Otherwise it is the certified number
    next to the default, or the default where nothing is certified.
    """
    settings = manifest.point.settings
    own = getattr(settings, "draft_length", None)
    if own is not None and getattr(settings, "drafter", _DRAFTER) == _DRAFTER:
        return int(own)
    default = SpeculativeSettings().draft_length
    certified = [int(record["settings"]["draft_length"]) for record in _speculative(manifest)]
    return min(certified, key=lambda length: (abs(length - default), length), default=default)


def certified(manifest: PairManifest, draft_length: int) -> dict[str, Any] | None:
    """Return the record of greedy speculative decoding at a draft length; None where the folder has none."""
    return next((record for record in _speculative(manifest) if record["settings"]["draft_length"] == draft_length), None)


def _speculative(manifest: PairManifest) -> Iterator[dict[str, Any]]:
    for record in manifest.measured.get("accepted", ()):
        if record["method"] == _METHOD and record["settings"].get("drafter", _DRAFTER) == _DRAFTER:
            yield record
