"""The alias of the champion in a registry in memory: promotions, refusals and roll-backs, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.errors import InputError
from tasks.files import folder_checksum
from tasks.tracking import champion
from tasks.tracking.champion import CHAMPIONS_TAG, REFUSED_TAG, ROLLED_BACK_TAG, WHY_TAG, ChampionRegistry
from tasks.tracking.client import Unavailable
from tasks.tracking.registration import CONTENT_TAG
from tests.memory_mlflow import MemoryMlflow

NAME = "draftline-toy"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChampionRegistry:
    """Five versions of pairs whose files lie on this machine."""
    store = MemoryMlflow()
    monkeypatch.setattr(champion, "connect", store.connect)
    store.create_registered_model(NAME)
    for number in range(1, 6):
        pair = tmp_path / str(number) / "artifacts/pair"
        pair.mkdir(parents=True)
        (pair / "pair.json").write_text(str(number), encoding="utf-8")
        tags = {CONTENT_TAG: folder_checksum(pair)}
        store.create_model_version(NAME, (tmp_path / str(number)).as_uri(), "run", tags, None, "", 0, "m")
    return ChampionRegistry("toy")


def store_of(registry: ChampionRegistry) -> MemoryMlflow:
    store: Any = registry._client
    assert isinstance(store, MemoryMlflow)
    return store


def promoted(registry: ChampionRegistry, *numbers: str) -> None:
    for number in numbers:
        registry.promote(registry.version(number), registry.champion(), f"why {number}")


def now(registry: ChampionRegistry) -> tuple[str | None, str]:
    """The champion, and the tag with all of them."""
    found = registry.champion()
    tag = store_of(registry).get_registered_model(NAME).tags.get(CHAMPIONS_TAG, "")
    return (found.number if found else None), tag


def test_champions_follow_one_another_and_roll_back_in_turn(registry: ChampionRegistry) -> None:
    assert now(registry) == (None, "")
    promoted(registry, "1", "3", "4")
    assert now(registry) == ("4", "1,3,4")
    assert registry.version("4").tags[WHY_TAG] == "why 4"
    assert registry.roll_back() == ("4", "3")
    assert now(registry) == ("3", "1,3")
    assert ROLLED_BACK_TAG in registry.version("4").tags
    promoted(registry, "5")
    assert registry.roll_back() == ("5", "3")
    assert registry.roll_back() == ("3", "1")
    with pytest.raises(InputError, match=f"{NAME} has no champion before version 1; promote another version first"):
        registry.roll_back()
    assert now(registry) == ("1", "1")


def test_a_version_that_is_champion_again_is_no_longer_refused(registry: ChampionRegistry) -> None:
    promoted(registry, "1", "2")
    registry.roll_back()
    registry.refuse(registry.version("2"), "champion 1, test abc", "slower")
    assert registry.version("2").tags[REFUSED_TAG] == "champion 1, test abc"
    promoted(registry, "2")
    assert not {REFUSED_TAG, ROLLED_BACK_TAG} & registry.version("2").tags.keys()
    assert now(registry) == ("2", "1,2")


def test_an_alias_moved_by_hand_counts(registry: ChampionRegistry) -> None:
    promoted(registry, "1", "2")
    store_of(registry).set_registered_model_alias(NAME, "champion", "5")
    promoted(registry, "3")
    assert now(registry) == ("3", "1,2,5,3")
    store_of(registry).set_registered_model_alias(NAME, "champion", "4")
    assert registry.roll_back() == ("4", "3")


def test_a_roll_back_passes_over_deleted_versions(registry: ChampionRegistry) -> None:
    promoted(registry, "1", "2", "3")
    store_of(registry).delete_model_version(NAME, "2")
    assert registry.roll_back() == ("3", "1")


def test_a_champion_that_changes_during_the_comparison_is_kept(registry: ChampionRegistry) -> None:
    promoted(registry, "1")
    before = registry.champion()
    promoted(registry, "2")
    with pytest.raises(InputError, match="is version 2 now: it changed during the comparison; run it again"):
        registry.promote(registry.version("3"), before, "why")
    assert now(registry) == ("2", "1,2")


@pytest.mark.parametrize("killed", range(1, 12))
def test_a_promotion_killed_at_any_request_can_be_repeated_and_rolled_back(registry: ChampionRegistry, killed: int) -> None:
    class Killed(BaseException): ...

    def fault(number: int, work: Any) -> None:
        if number >= first + killed:
            raise Killed
        work()

    promoted(registry, "1", "2")
    store = store_of(registry)
    first = len(store.requests)
    store.fault = fault
    try:
        promoted(registry, "3")
    except Killed:
        store.fault = lambda number, work: work()
        current, _ = now(registry)
        assert current in ("2", "3")
        if current == "2":
            promoted(registry, "3")
    store.fault = lambda number, work: work()
    assert registry.roll_back() == ("3", "2")
    assert registry.roll_back() == ("2", "1")


def test_a_pair_is_fetched_as_it_was_registered_or_not_at_all(registry: ChampionRegistry, tmp_path: Path) -> None:
    version = registry.version("2")
    folder = registry.fetch(version, tmp_path / "scratch")
    assert (folder / "pair.json").read_text(encoding="utf-8") == "2"
    assert registry.version_of(folder) == version
    (folder / "pair.json").write_text("changed", encoding="utf-8")
    with pytest.raises(InputError, match="version 2 of draftline-toy: its files in MLflow's store are not those"):
        registry.fetch(version, tmp_path / "scratch")
    with pytest.raises(InputError, match=r"has no version of .*; send what waits by python -m tasks\.tracking"):
        registry.version_of(folder)


def test_what_is_missing_is_one_line(registry: ChampionRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    for ask, line in (
        (registry.candidate, "no version with the alias candidate; report the pair again"),
        (lambda: registry.version("9"), "no version 9; it has 1, 2, 3, 4, 5"),
        (registry.roll_back, "no champion, so that nothing can be rolled back"),
    ):
        with pytest.raises(InputError, match=f"{NAME} has {line}"):
            ask()
    with pytest.raises(InputError, match=r"holds no model draftline-other; make one by python -m tasks\.report --task other"):
        ChampionRegistry("other")

    def closed(uri: str) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(champion, "connect", closed)
    with pytest.raises(InputError, match="MLflow does not open: no answer; start it, or set MLFLOW_TRACKING_URI"):
        ChampionRegistry("toy")
