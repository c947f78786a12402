"""The point that decodes: recommended, within a bound, or named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tasks.errors import InputError
from tasks.generate.pair import Chosen, MethodChoice, choose, drafter_folder, own_point
from tasks.paths import TaskPaths
from tests.finished import finished, write


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task whose aligned points have 0.5 more quality; at its best, 60.5 points in 25 ms and 58.5 in 15."""
    monkeypatch.chdir(tmp_path)
    summary, rows = finished(better=0.5)
    summary["verdict"] = {"text": "", "changes": [], "point": 4}
    write(Path("results/toy"), summary, rows)
    return "toy"


def threshold(chosen: Chosen) -> tuple[str, float]:
    return chosen.arm, chosen.point.settings.fallback_threshold


def test_the_recommended_point_by_default(task: str) -> None:
    chosen = choose(task, MethodChoice())
    assert threshold(chosen) == ("aligned", 0.7)
    assert chosen.point.method == "bild"
    assert math.isinf(chosen.point.settings.rollback_threshold)
    assert "recommended" in chosen.why


@pytest.mark.parametrize(
    ("bound", "drafter", "expected"),
    [
        ("ms=100", None, ("aligned", 0.9)),
        ("ms=100", "unaligned", ("unaligned", 0.9)),
        ("ms=20", None, ("aligned", 0.7)),
        ("quality=60", None, ("aligned", 0.7)),
        ("quality=0", "unaligned", ("unaligned", 0.5)),
    ],
)
def test_the_best_timed_point_within_a_bound(task: str, bound: str, drafter: str | None, expected: tuple[str, float]) -> None:
    chosen = choose(task, MethodChoice(tune=bound, arm=drafter))
    assert threshold(chosen) == expected
    assert f"tuned to {bound}" in chosen.why


def test_vanilla_where_nothing_is_recommended(task: str) -> None:
    summary, rows = finished()
    write(Path("results/bare"), summary, rows)
    assert choose("bare", MethodChoice()).point.method == "vanilla_large"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            MethodChoice(tune="ms=1"),
            r"no timed point meets --tune ms=1: the nearest has 1\d.* ms a text .* on validation",
        ),
        (MethodChoice(tune="quality=99"), r"the nearest has .* ms a text and 60\.50 points on validation; loosen the bound"),
        (MethodChoice(tune="speed=3"), r"--tune is 'speed=3'; write ms=… .* or quality=…"),
        (MethodChoice(tune="ms=fast"), r"--tune is 'ms=fast'"),
        (MethodChoice(arm="unaligned"), r"the recommended point is of the aligned arm"),
        (MethodChoice(settings=["a=1"]), r"--set a=1 needs --method"),
    ],
)
def test_what_cannot_be_chosen(task: str, asked: MethodChoice, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(task, asked)


def test_without_a_result_it_says_what_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"results/toy/summary\.json is missing, .* dvc repro report@toy .* name a --method"):
        choose("toy", MethodChoice())
    assert choose("toy", MethodChoice(method="speculative")).point.method == "speculative"
    with pytest.raises(InputError, match=r"models/toy/unaligned/3 is missing; train it with dvc repro control@toy"):
        drafter_folder(TaskPaths("toy"), "unaligned", 3)


def test_settings_are_read_as_in_the_grid() -> None:
    point = own_point("bild", ["fallback_threshold=0.25", "rollback_threshold=inf", "large_first=true", "drafter=copy"])
    assert (point.settings.fallback_threshold, point.settings.drafter) == (0.25, "copy")
    assert math.isinf(point.settings.rollback_threshold)
    assert point.settings.large_first is True


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("bilt", [], r"--method is bilt; it must be one of "),
        ("bild", ["fallback_threshold"], r"--set is 'fallback_threshold'; write name=value"),
        ("bild", ["threshold=1"], r"--method bild: unknown setting threshold"),
        ("bild", ["fallback_threshold=2"], r"--method bild: fallback_threshold is 2\.0; it must be at most 1"),
        ("speculative", ["draft_length=[1, 2]"], r"--method speculative: draft_length"),
        ("speculative", ["draft_length={"], r"--method speculative: draft_length"),
    ],
)
def test_wrong_methods_and_settings(method: str, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        own_point(method, settings)
