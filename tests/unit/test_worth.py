"""Forecasts of drafting: against the theorem, against what a simulated clock times, and the command on tiny models."""

import dataclasses
import json
from pathlib import Path

import pytest

from tasks import worth
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.speculative import expected_speedup
from tasks.evaluation.results.pair import AcceptanceRate
from tasks.worth import FREE, DrafterCost, Forecast, Group, Timed, forecast, measure, middle, table, verdict
from tests.commands import Run, runner
from tests.pair_folders import LETTERS, agreeing_pair
from tests.ticking import LARGE, LIMIT, SMALL, Clock, costs_of, ticking_pair
from tests.toys import toy_sources

FLAT = Group(costs_of(0.0, 0.0, 1.0, {1: 10.0, 16: 10.0}), tokens=20.0)
"""Nothing to read, and a check costs a step: what the theorem assumes."""
READING = Group(costs_of(3.0, 50.0, 1.0, {1: 10.0, 16: 25.0}), tokens=20.0)
"""A fifth of a text is reading it, and a check of 11 positions costs 2 steps."""


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("length", [1, 4, 10])
def test_without_a_prompt_the_forecast_is_the_theorem(agreement: float, length: int) -> None:
    assert FLAT.speedup(agreement, length, DrafterCost(0.1, 0.1)) == pytest.approx(expected_speedup(agreement, length, 0.1))


def test_the_prompt_and_the_check_bound_what_a_perfect_drafter_brings() -> None:
    assert READING.fixed == pytest.approx(50 / 250)
    # 11 tokens for a check of 2 steps; the prompt stays.
    assert READING.speedup(1.0, 10, FREE) == pytest.approx(250 / (50 + 200 * 2 / 11))
    assert READING.speedup(1.0, 10, DrafterCost(0.0, 0.5)) == pytest.approx(250 / (75 + 200 * 2 / 11))
    assert READING.best(1.0, FREE) == (READING.speedup(1.0, 10, FREE), 10)


def test_the_needed_agreement_is_the_least_that_is_faster() -> None:
    drafter = DrafterCost(0.1, 0.1)
    for speedup in (1.0, 1.5, 2.0):
        needed = READING.needed(speedup, drafter)
        assert needed is not None
        assert READING.best(needed, drafter)[0] > speedup >= READING.best(needed - 0.01, drafter)[0]
    assert READING.needed(6.0, FREE) is None  # above 250 / 50, which no drafter reaches
    assert READING.best(0.05, DrafterCost(0.4, 0.4)) == (1.0, 0)
    assert "never" in table(READING)[-1]
    assert table(READING)[2].split()[-1] == "-"


def test_a_slow_group_widens_the_interval_and_leaves_the_ratios() -> None:
    slow = dataclasses.replace(READING, costs=costs_of(6.0, 100.0, 2.0, {1: 20.0, 16: 50.0}))
    worse = dataclasses.replace(READING, costs=costs_of(3.0, 50.0, 2.0, {1: 10.0, 16: 25.0}))
    rate = AcceptanceRate(rate=0.8, interval=(0.7, 0.9), tokens=100)
    alone, doubled, wider = (
        forecast(groups, rate) for groups in ([READING] * 3, [READING, slow, slow], [READING, READING, worse])
    )
    assert doubled.speedup == pytest.approx(alone.speedup)
    assert doubled.interval == pytest.approx(alone.interval)
    assert alone.interval == pytest.approx(
        tuple(READING.speedup(one, alone.draft_length, READING.drafter) for one in (0.7, 0.9))
    )
    assert wider.interval[0] < alone.interval[0] < alone.speedup < alone.interval[1] == wider.interval[1]


def test_a_drafter_that_never_agrees_is_forecast_to_bring_nothing() -> None:
    found = forecast([READING], AcceptanceRate(rate=0.0, interval=(0.0, 0.0), tokens=100))
    assert (found.speedup, found.interval, found.draft_length) == (1.0, (1.0, 1.0), 0)


@pytest.fixture(scope="module")
def on_the_clock() -> tuple[Pair, Clock, list[Group]]:
    clock = Clock()
    pair = ticking_pair(clock)
    return pair, clock, measure(pair, toy_sources(30), Request(LIMIT), clock)


def test_the_parts_are_measured(on_the_clock: tuple[Pair, Clock, list[Group]]) -> None:
    whole = middle(on_the_clock[2])
    assert len(on_the_clock[2]) == 5
    assert whole.drafter == pytest.approx((SMALL.step / LARGE.step, SMALL.encode / LARGE.encode))
    assert whole.check(5) == pytest.approx((LARGE.step + 4 * LARGE.position) / LARGE.step)
    assert whole.fixed == pytest.approx(LARGE.encode / (LARGE.encode + whole.tokens * LARGE.step))


def test_what_is_timed_lies_in_the_forecast(on_the_clock: tuple[Pair, Clock, list[Group]]) -> None:
    pair, clock, groups = on_the_clock
    greedy, sampled = (forecast(groups, one) for one in worth.measure_agreement(pair, toy_sources(60), Request(LIMIT)))
    assert (greedy.temperature, sampled.temperature) == (0.0, 1.0)
    assert greedy.agreement == pytest.approx(0.85, abs=0.1)  # of the tables
    timed = worth.time_beside_vanilla(pair, toy_sources(60), Request(LIMIT), greedy.draft_length, clock)
    # Texts of 12 tokens end within a draft, which the theorem leaves out.
    assert 1 < timed.speedup < greedy.interval[1]
    assert timed.speedup == pytest.approx(greedy.speedup, rel=0.25)


@pytest.mark.parametrize(("interval", "said"), [((1.1, 1.3), "Worth it"), ((0.7, 0.9), "Not worth it"), ((0.9, 1.1), "Open")])
def test_the_verdict_follows_the_timing(interval: tuple[float, float], said: str) -> None:
    assert verdict(READING, Timed(3, sum(interval) / 2, interval)).startswith(f"{said}: ")


@pytest.fixture(scope="module", params=["t5", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    agreeing_pair(folder, request.param)
    (folder / "texts").write_text("\n".join(LETTERS) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(worth.main, monkeypatch, capsys)


def test_the_command_measures_a_pair(run: Run, folder: Path) -> None:
    words = ("--texts", folder / "texts", "--max-tokens", 12, "--threads", 1, "--figure", folder / "worth.svg")
    status, printed, _ = run(folder / "large", folder / "small", *words, "--drafter-dtype", "int8")
    assert status == 0
    assert "; drafts native, int8, " in printed
    for expected in ("one at a time", "ceiling: ", "agreement ", "at temperature 1: agreement ", "timed, greedy with draft "):
        assert expected in printed
    assert "Speed-up that a drafter would bring" in (folder / "worth.svg").read_text(encoding="utf-8")


def test_the_command_measures_a_large_model_alone(run: Run, folder: Path) -> None:
    status, printed, _ = run(folder / "large", "--texts", folder / "texts", "--max-tokens", 12, "--count", 5, "--json")
    found = json.loads(printed)
    assert (status, found["forecast"], found["timed"]) == (0, [], None)
    assert len(found["groups"]) == 5
    assert 0 < found["fixed_share"] < 1 < found["ceiling"]
    assert len(found["table"]) == len(worth.AGREEMENTS) * len(worth.COSTS)


def test_bad_input_gets_one_line(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "few").write_text("ab\ncd\n", encoding="utf-8")
    texts = folder / "texts"
    for words, named in (
        ((folder / "large", "--texts", tmp_path / "few"), "2 texts are too few; give 5 or more"),
        ((folder / "large", "--texts", texts, "--count", -3), "0 texts are too few"),
        ((folder / "large", "--texts", tmp_path / "none"), "cannot be read"),
        ((tmp_path / "nowhere", "--texts", texts), "nowhere"),
        ((folder / "large", folder / "nowhere", "--texts", texts), "nowhere"),
        (
            (folder / "small", folder / "large", "--texts", texts),
            "so that drafts could save nothing; draft by a smaller model, or for a larger one",
        ),
        ((folder / "large", "--texts", texts, "--figure", "worth.pdf"), "ends in .svg or .png"),
        ((tmp_path / "nowhere", "--texts", texts, "--figure", tmp_path / "none" / "worth.svg"), "none is no folder"),
        ((folder / "large", "--texts", texts, "--max-tokens", 1), "max_target_tokens"),
        ((folder / "large", "--texts", texts, "--threads", 100000), "threads"),
        ((folder / "large", "--texts", texts, "--drafter-dtype", "int8"), "--drafter-dtype is the number format of SMALL"),
    ):
        status, printed, said = run(*words)
        assert (status, printed) == (2, "")
        assert named in said
        assert len(said.strip().splitlines()) == 1, said


def test_a_forecast_is_plain_json() -> None:
    found = Forecast(0.0, 0.8, (0.7, 0.9), 1.4, (1.2, 1.6), 3)
    assert worth.as_json([READING], [found], None)["forecast"] == [dataclasses.asdict(found)]
