"""Names beside marks: on the preferred side where it is free, else on one where they cover nothing."""

from __future__ import annotations

from tasks.evaluation.report.figures.labels import sides

FIRST = {"aligned": "above left", "unaligned": "below right"}


def placed(*places: tuple[float, float], series: str = "aligned", name: str = "A") -> list[str]:
    """The sides of marks at these places of a panel from 0 to 1 in both directions."""
    records = [{"x": x, "y": y, "name": name, "series": series} for x, y in places]
    return sides(records, (0.0, 1.0), (0.0, 1.0), FIRST)


def test_the_preferred_side_is_taken_where_nothing_lies_there() -> None:
    assert placed((0.2, 0.2), (0.8, 0.8)) == ["above left", "above left"]
    assert placed((0.2, 0.2), series="unaligned") == ["below right"]


def test_a_name_covers_neither_a_mark_nor_another_name() -> None:
    # The second mark lies above and left of the first one, by 13 pixels.
    assert placed((0.5, 0.5), (0.47, 0.536))[0] != "above left"
    # Two marks beside each other: long names would run into each other.
    one, other = placed((0.5, 0.5), (0.56, 0.5), name="A contradicted")
    assert one != other


def test_where_every_side_covers_something_the_preferred_one_is_kept() -> None:
    around = [(0.5 + dx, 0.5 + dy) for dx in (-0.03, 0.03) for dy in (-0.03, 0.03)]
    assert placed((0.5, 0.5), *around)[0] == "above left"
