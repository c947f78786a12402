"""Energy from a folder that stands for the kernel's counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.evaluation.energy import EnergyMeter


def zone(folder: Path, number: str, name: str, energy: int, limit: int = 1_000_000) -> Path:
    made = folder / f"intel-rapl:{number}"
    made.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", energy), ("max_energy_range_uj", limit)):
        (made / file).write_text(f"{text}\n")
    return made / "energy_uj"


def test_the_energy_of_all_packages_is_added_without_their_parts(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "0", "package-0", 100), zone(tmp_path, "1", "package-1", 500)
    others = [zone(tmp_path, "0:0", "core", 0), zone(tmp_path, "2", "psys", 0)]
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    first.write_text("300100\n")
    second.write_text("200500\n")
    for other in others:
        other.write_text("7000000\n")
    assert meter.joules(before, meter.read()) == pytest.approx(0.5)


def test_a_counter_that_begins_again_goes_on(tmp_path: Path) -> None:
    energy = zone(tmp_path, "0", "package-0", 900_000)
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    energy.write_text("150000\n")
    assert meter.joules(before, meter.read()) == pytest.approx(0.25)


def test_a_machine_without_readable_counters_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = EnergyMeter(tmp_path / "missing")
    assert nothing.read() is None and nothing.joules(None, None) is None
    zone(tmp_path, "0", "package-0", 1)
    zone(tmp_path, "1", "package-1", 1)
    meter = EnergyMeter(tmp_path)
    before, read = meter.read(), Path.read_text

    def forbidden(path: Path, *about: str) -> str:
        if path.parent.name.endswith("1") and path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *about)

    assert before == [1, 1]
    monkeypatch.setattr(Path, "read_text", forbidden)
    assert meter.read() is None and meter.joules(before, meter.read()) is None
    assert EnergyMeter(tmp_path).read() is None, "one package alone would be too little"
