"""The energy that the processor takes, read from Linux' counters of running average power limits (RAPL).

The counters are those of whole processor packages, everything that runs on them included, and advance about once in a
millisecond. Kernels since 5.10 let only root read them. See https://docs.kernel.org/power/powercap/powercap.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ZONES = "intel-rapl:*"
"""Also the name of the folders on AMD processors. A zone of a zone has a second colon: its energy is in its parent's."""

Reading = list[int]
"""Microjoules of each package."""


@dataclass(frozen=True)
class _Counter:
    energy: Path
    range: int
    """Microjoules at which the counter begins again."""


class EnergyMeter:
    """Reads the counters of all processor packages; a machine without readable ones reads None."""

    def __init__(self, folder: Path = Path("/sys/class/powercap")) -> None:
        """Find the counters below `folder`."""
        self._counters: list[_Counter] = []
        for zone in sorted(folder.glob(_ZONES)):
            try:
                if not (zone / "name").read_text().startswith("package"):
                    continue
                counter = _Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
                int(counter.energy.read_text())
            except (OSError, ValueError):
                self._counters = []
                return
            self._counters.append(counter)

    def read(self) -> Reading | None:
        """The counters now; None where they cannot be read."""
        try:
            return [int(one.energy.read_text()) for one in self._counters] or None
        except (OSError, ValueError):
            return None

    def joules(self, before: Reading | None, after: Reading | None) -> float | None:
        """The energy between two readings, of which a counter may have begun again once; None without both."""
        if before is None or after is None:
            return None
        pairs = zip(self._counters, before, after, strict=True)
        return sum((late - early) % one.range for one, early, late in pairs) / 1e6
