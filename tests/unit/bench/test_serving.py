"""The benchmark of servers: ratios of neighbours, and answers checked against offline texts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks import console
from tasks.bench import serving
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding import load_pair
from tasks.errors import InputError
from tests.calibration import SOURCES
from tests.pair_folders import POINT, tiny_pair


def result(seconds: float, text: str = "", method: str = "vanilla_large", lost: int = 0) -> serving.LoadResult:
    """Four answers."""
    choice = {"text": text, "draftline": {"method": method}}
    return serving.LoadResult(seconds, [seconds / 4] * 4, [(SOURCES[0], choice)] * 4, lost)


def visits(ours: float = 1.0, vanilla: float = 2.0, **rest: Any) -> serving.Visits:
    seconds = {serving.OURS: ours, serving.VANILLA: vanilla, serving.AGAIN: vanilla, serving.TRANSFORMERS: 8.0}
    return {
        name: {clients: [result(clients * one, **rest) for _ in range(3)] for clients in serving.CLIENTS}
        for name, one in seconds.items()
    }


def test_ratios_are_of_the_same_round() -> None:
    """Noise that slows a whole round down leaves the ratio alone."""
    found = visits()
    for of_server in found.values():
        of_server[1][2].seconds *= 5
    expected = {"mean": pytest.approx(2.0), "interval": pytest.approx([2.0, 2.0]), "starts": [2.0, 2.0]}
    assert serving.ratio([found, found], serving.OURS, [serving.VANILLA], 1) == expected


def test_two_equal_servers_are_the_control() -> None:
    """We are compared with the mean of both, and the control with the first alone, in whichever order is the lower."""
    found = visits()
    for one in found[serving.AGAIN][4]:
        one.seconds /= 1.5
    starts = [found, found]
    rows = serving.by_clients(starts)
    assert rows["4"]["over"][serving.VANILLA]["mean"] == pytest.approx(2 / 1.25)
    assert rows["4"]["null"]["mean"] == pytest.approx(1.5)
    assert serving.summary(rows, starts, 0)["null_worst"] == pytest.approx(1 / 1.5)
    assert serving.AGAIN not in rows["4"]["over"]


def test_every_server_has_its_goodput_and_latency() -> None:
    row = serving.by_clients([visits(), visits()])["2"]
    assert row[serving.OURS]["texts_per_second"] == 2.0
    assert row[serving.OURS]["latency_ms_p50"] == pytest.approx(500.0)
    assert row["drafted_share"] == 0.0
    assert row["over"][serving.TRANSFORMERS]["mean"] == pytest.approx(8.0)
    drafted = visits(method="bild x=1")
    assert serving.by_clients([drafted, drafted])["2"]["drafted_share"] == 1.0


def test_the_last_line_has_the_worst_number_of_clients() -> None:
    found = visits(lost=1)
    for one in found[serving.OURS][16]:
        one.seconds *= 2.5
    starts = [found, found]
    line = serving.summary(serving.by_clients(starts), starts, 3)
    assert line["served_over_vanilla_worst"] == pytest.approx(0.8)
    assert (line["lost"], line["wrong"]) == (2 * 4 * 3 * len(serving.CLIENTS), 3)
    assert line["served_over_transformers_8"] == pytest.approx(8.0)


def test_answers_are_compared_with_the_method_that_ran(tmp_path: Path) -> None:
    pair = load_pair(tiny_pair(tmp_path))
    [vanilla], [drafted] = pair.generate(SOURCES[0], method="vanilla_large"), pair.generate(SOURCES[0])
    assert serving.wrong_answers([visits(text=vanilla.text)], pair) == 0
    assert serving.wrong_answers([visits(text=drafted.text, method=str(POINT))], pair) == 0
    assert serving.wrong_answers([visits(text=vanilla.text + "x")] * 2, pair) == 2 * 3 * 3 * 4 * len(serving.CLIENTS)


def test_bad_input_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="results/toy/pair is missing; make it with dvc repro report@toy"):
        serving.main(["--task", "toy"])


@pytest.mark.slow
def test_all_servers_answer_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serving, "CLIENTS", (1, 4))
    tiny_pair(Path("results/toy"))
    Path("data/toy/corpus").mkdir(parents=True)
    write_jsonl([Example(source, (source,)) for source in SOURCES], Path("data/toy/corpus/validation.jsonl"))
    console.set_up()
    capsys.readouterr()  # transformers imports DeepSpeed to save a model, and DeepSpeed prints its choice of accelerator
    serving.main(["--quick", "--task", "toy"])
    printed = capsys.readouterr()
    line = json.loads(printed.out)
    assert (line["lost"], line["wrong"]) == (0, 0)
    assert set(line["clients"]["4"]["over"]) == {"vanilla", "transformers", "ctranslate2"}
