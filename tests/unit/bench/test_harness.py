"""Interleaved timing, ratios with their intervals, and what a step takes of the machine."""

import json
from pathlib import Path

import pytest
import torch

from tasks import console
from tasks.bench import __main__ as command
from tasks.bench import harness
from tasks.decoding.decoder import REFERENCE
from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tests.toys import toy_t5

SOURCE = [3, 4, 5, 1]


def test_work_is_timed_by_the_given_clock_on_the_given_threads() -> None:
    before, readings, seen = torch.get_num_threads(), iter((10.0, 12.5)), list[int]()
    timed = harness.timed_by(lambda _: seen.append(torch.get_num_threads()), lambda: next(readings), before + 1)
    assert timed(7) == 2.5
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


def test_all_contenders_do_each_round_in_changing_order_and_the_first_is_not_counted() -> None:
    log: list[tuple[str, int]] = []

    def contender(name: str, seconds: float) -> harness.TimedWork:
        def timed(index: int) -> float:
            log.append((name, index))
            return 100.0 if index == 0 else seconds + index

        return timed

    taken = harness.time_interleaved({"a": contender("a", 0.0), "b": contender("b", 10.0)}, 20)
    assert taken == {"a": [float(index) for index in range(1, 21)], "b": [10.0 + index for index in range(1, 21)]}
    orders = {tuple(name for name, index in log if index == one) for one in range(21)}
    assert [index for _name, index in log] == [index for index in range(21) for _ in range(2)]
    assert orders == {("a", "b"), ("b", "a")}


def test_the_ratio_is_the_median_of_the_rounds_not_of_the_times() -> None:
    ours, theirs = [1.0, 2.0, 10.0], [3.0, 4.0, 50.0]
    assert harness.median_ratio(ours, theirs) == {"ratio": 3.0, "interval": None}  # of 3, 2 and 5; medians are 2 and 4
    assert harness.median_ratio(theirs, ours)["ratio"] == 0.333
    # 6 rounds: all of them cover the median in 1 − 2/64 of the cases; 9 rounds: the second to the eighth in 0.961.
    six, nine = ([float(one) for one in range(1, count + 1)] for count in (6, 9))
    assert harness.median_ratio([1.0] * 6, six)["interval"] == [1.0, 6.0]
    assert harness.median_ratio([1.0] * 9, nine)["interval"] == [2.0, 8.0]
    assert harness.fastest({"lucky once": [0.1, 5.0, 5.0], "steady": [2.0, 2.0, 2.0], "slow": [3.0, 3.0, 3.0]}) == "steady"


def test_thread_counts_are_the_requested_one_and_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(4)), raising=False)
    assert [harness.thread_counts(one) for one in (1, 4, 2)] == [[1, 4], [4], [2, 4]]


@pytest.mark.skipif(compiled.library() is None, reason="needs a C++ compiler")
def test_a_step_is_measured() -> None:
    found = harness.step_limits(open_decoder(toy_t5(0, 1, 2), "large"), SOURCE)
    assert found["step_ms"] > 0 and found["bandwidth_share"] > 0 and found["check_over_step"] > 0


def test_of_a_runtime_that_declares_nothing_no_step_is_measured() -> None:
    assert harness.step_limits(open_decoder(toy_t5(0, 1, 2), "large", runtime=REFERENCE), SOURCE) == {}
    assert list(harness.step_lines("float32", {})) == []


def test_a_share_under_a_half_is_a_warning() -> None:
    found = {"step_ms": 1.0, "check_over_step": 1.1, "read_mib": 8.0}
    assert not any("warning" in line for line in harness.step_lines("int8", found | {"bandwidth_share": 0.51}))
    [_, warning] = harness.step_lines("int8", found | {"bandwidth_share": 0.49})
    assert "warning" in warning and "int8" in warning


def test_the_last_line_is_json_and_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = harness.hardware() | {"ratio": 1.5}
    harness.finish(found, tmp_path / "found.json")
    printed = capsys.readouterr().out
    assert json.loads(printed) == json.loads((tmp_path / "found.json").read_text()) == found
    assert int(found["hardware"]["cores"]) >= 1
    assert {"python", "torch", "transformers"} <= set(found["versions"])


@pytest.mark.parametrize(
    "given",
    [["decoding", "--rounds", "0"], ["gpu", "--rounds", "0"]],
    ids=lambda given: given[0],
)
def test_counts_below_one_are_refused(given: list[str]) -> None:
    with pytest.raises(InputError, match="is 0; it must be at least 1"):
        command.main(given)


def test_unequal_tokens_are_exit_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def unequal(_given: object) -> None:
        raise harness.UnequalError("tokens differ")

    console.set_up()
    monkeypatch.setattr("tasks.bench.decoding.main", unequal)
    assert command.main(["decoding"]) == 1
    assert capsys.readouterr().err == "error: tokens differ\n"
    with pytest.raises(SystemExit, match="2"):
        command.main(["nothing"])
