"""A task for a user's own files: the columns, sizes and lines that are proposed, and where they are written."""

import csv
import difflib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from dvc import cli  # here, since DVC logs to the standard error of its first import, which a test would close
from dvc.repo import Repo
from pyarrow import parquet

from tasks import command, config, init
from tasks.corpora.reading import read
from tasks.errors import InputError
from tasks.evaluation.settings import default_grid
from tests.commands import Run, runner

ROOT = Path(__file__).parents[2]
PARAMS = (ROOT / "params.yaml").read_text(encoding="utf-8")


def chats(count: int) -> list[tuple[str, ...]]:
    """Questions and answers with words of random letters."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnoprstuvw", k=rng.randrange(3, 8))) for _ in range(150)]
    return [(f"Where is {' '.join(rng.sample(words, 3))}?", f"In the {' '.join(rng.sample(words, 4))}.") for _ in range(count)]


def table(path: Path, header: list[str], rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in a folder with the project's own parameters."""
    (tmp_path / "params.yaml").write_text(PARAMS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init.Proposal, "step_seconds", lambda *_: 0.08)
    return runner(init.main, monkeypatch, capsys)


def test_a_table_of_two_columns_becomes_a_task_in_few_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chat").mkdir()
    table(tmp_path / "chat" / "chat.csv", ["message", "answer"], chats(300))
    ended = run("chat", "chat/chat.csv")
    assert ended.status == 0, ended.said
    assert "about 2 minutes here, 60.0 times through the texts" in ended.printed and "a pair to use" not in ended.printed
    assert ended.printed.endswith("Next: draftline run chat   (dvc repro report@chat)\n")
    text = (tmp_path / "params.yaml").read_text(encoding="utf-8")
    *changed, end = difflib.ndiff(PARAMS.splitlines(), text.splitlines())
    assert len([line for line in [*changed, end] if line.startswith("+ ")]) <= 15
    assert not any(line.startswith("- ") for line in changed)
    params = config.load(tmp_path / "params.yaml")
    task = params.task("chat")
    assert task.sweep.grid == default_grid() and task.corpus.files is not None
    assert (params.active["chat"], task.metric, task.corpus.files.source_field) == (Path("chat"), "bleu", "message")
    assert task.corpus.files.reference_fields == ["answer"]
    assert len(read(task.corpus.files, tmp_path / "chat")["train"]) > 200
    assert "has a task chat already; choose another name" in run("chat", "chat/chat.csv").said


@pytest.mark.parametrize(("milliseconds", "steps", "minutes"), [(50, 1600, 4), (250, 640, 8), (1000, 300, 15)])
def test_a_slower_machine_trains_for_fewer_steps(
    milliseconds: int, steps: int, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = init.Proposal({}, init.Look(20_000, 1000, (16, 16), 200_000, "bleu", 200))
    monkeypatch.setattr(proposal, "step_seconds", lambda _: milliseconds / 1000)
    assert (round(proposal.fit()), proposal.steps) == (minutes, steps)


def test_a_trial_says_what_a_pair_to_use_would_take() -> None:
    assert init._advice(2.5, 1000, 8)[1].endswith("4 times as many (4,000 of the large model) take some 32 minutes.")
    assert init._advice(10, 1000, 8) == []


def test_what_is_refused_leaves_no_copies(run: Run, tmp_path: Path) -> None:
    table(tmp_path / "head.csv", ["a", "b"], [])
    assert run("chat", "head.csv").said == "error: head.csv has no row; give a file with examples\n"
    table(
        tmp_path / "few.csv",
        ["a", "b"],
        [(" ".join(f"{number:09b}".replace("0", "x")), "1" * (number % 2 + 1) + "x") for number in range(300)],
    )
    assert "error: the texts have too few different" in run("chat", "few.csv").said
    table(tmp_path / "chat.csv", ["a", "b"], chats(300))
    assert run("my chat", "chat.csv").status == 2
    assert run("chat", "chat.csv", "--metric", "blue").status == 2
    assert not list((tmp_path / "data").iterdir())


def test_files_beside_others_are_copied_to_a_folder_of_their_own(run: Run, tmp_path: Path) -> None:
    file = table(tmp_path / "chat.csv", ["a", "b"], chats(300))
    said = json.loads(run("chat", "chat.csv", "--json").printed)
    assert (said["next"], said["training_minutes"], said["settings"]["metric"]) == ("draftline run chat", 2, "bleu")
    assert config.load(tmp_path / "params.yaml").active["chat"] == Path("data/chat-text")
    assert (tmp_path / "data/chat-text/chat.csv").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("names", "record", "found"),
    [
        (["id", "summary", "dialogue"], ("7", "short", "a long one"), ("dialogue", "summary")),
        (["de", "en"], ("eins", "one"), ("de", "en")),
        (["number", "Question", "x"], ("1.5", "who?", "me"), ("Question", "x")),
        (["one", "two", "three"], ("a", "b", "c"), None),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_columns_are_told_by_their_names_or_texts(
    names: list[str], record: tuple[str, ...], found: tuple[str, str] | None, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / f"file.{kind}"
    if kind == "csv":
        table(file, names, [record])
    elif kind == "jsonl":
        file.write_text(json.dumps(dict(zip(names, record, strict=True))) + "\n", encoding="utf-8")
    else:
        plain = [float(value) if value.replace(".", "").isdigit() else value for value in record]
        parquet.write_table(pa.table({name: [value] for name, value in zip(names, plain, strict=True)}), file)
    if found is None:
        with pytest.raises(InputError, match="has the columns one, two, three; say which by --source NAME and --target NAME"):
            init.file_settings([file], None, None)
        found = ("two", "one")
        settings = init.file_settings([file], *found)
    else:
        settings = init.file_settings([file], None, None)
    assert (settings["source_field"], settings["reference_fields"]) == (found[0], [found[1]])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["few.csv"],
            "few.csv: train has 3 examples, of which too few sources are different to hold out validation; give at least",
        ),
        (["some.csv"], "some.csv: validation has a single example; give at least 20, or name a file for it"),
        (
            ["all.csv", "valid.csv"],
            "all.csv, valid.csv: validation: 54 of 60 examples (90.0%) are in train as they are, which",
        ),
        (["hole.csv"], "hole.csv, line 2: reply is empty; fill it, or remove the line"),
        (["all.csv", "--source", "nope"], "all.csv: --source is nope, but its columns are message, reply; name one of them"),
        (["all.csv", "--source", "reply", "--target", "reply"], "--source and --target are both reply; name two columns"),
        (["one.txt"], "files.train names one.txt alone; parallel text needs a file of sources and one of references"),
        (["one.txt", "two.txt", "--target", "a"], "--source and --target name columns, which one.txt has not; leave them out"),
    ],
)
def test_bad_files_are_named_in_one_line_and_nothing_is_kept(words: list[str], said: str, run: Run, tmp_path: Path) -> None:
    rows = chats(60)
    for name, some in (("few", rows[:3]), ("some", rows[:12]), ("all", rows), ("valid", rows), ("hole", [("a", ""), *rows])):
        table(tmp_path / f"{name}.csv", ["message", "reply"], some)
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("a\n" * 40, encoding="utf-8")
    ended = run("chat", *words)
    assert ended.status == 2 and ended.said.startswith(f"error: {said}") and ended.said.count("\n") == 1
    assert not (tmp_path / "data/chat-text").exists() and (tmp_path / "params.yaml").read_text(encoding="utf-8") == PARAMS


def test_splits_are_told_by_the_names_of_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("train.de", "train.en", "val.de", "val.en", "test.de", "test.en")]
    for file in files:
        file.write_text("text\n", encoding="utf-8")
    splits = {one: [f"{word}.de", f"{word}.en"] for one, word in (("train", "train"), ("validation", "val"), ("test", "test"))}
    assert init.file_settings(files, None, None) == {"files": splits}
    with pytest.raises(InputError, match="is taken for a test file by its name; name a file to train on too"):
        init.file_settings(files[4:], None, None)
    for name, what in (("nothing", "not there"), ("", "a folder")):
        with pytest.raises(InputError, match=f" is {what}; name files of texts"):
            init.file_settings([tmp_path / name], None, None)


def test_classes_and_summaries_have_metrics_of_their_own() -> None:
    assert init._metric([5] * 10, ["yes", "no"] * 5) == "exact_match"
    assert init._metric([100] * 4, [f"a summary of {number} words" for number in range(4)]) == "rougeL"
    assert init._metric([5] * 4, [f"an answer of {number} words" for number in range(4)]) == "bleu"


def test_each_word_of_the_command_starts_a_module_that_is_there() -> None:
    from importlib.util import find_spec

    for name, one in command.COMMANDS.items():
        assert find_spec(one.module.split()[0]), name
        assert f"  {name} " in command.usage()
        assert one.examples and all(example.split()[0] == name for example in one.examples)
    assert command.command(["run", "chat", "--force", "align@chat"]) == ["repro", "report@chat", "--force", "align@chat"]
    assert command.command(["serve", "--port", "1"])[1:] == ["-m", "tasks.serve", "--port", "1"]


def test_a_command_without_its_package_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    ended = runner(command.main, monkeypatch, capsys)("flow")
    assert (ended.status, ended.said.partition(";")[0]) == (2, "error: draftline flow needs prefect")


def test_an_unknown_command_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ended = runner(command.main, monkeypatch, capsys)("decode")
    assert ended.status == 2 and ended.said.startswith("error: there is no command 'decode'; there are init, check, run, ")


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["translation"], True), (["--dry"], False), (["sweep@translation"], False), ([], True), (["--glob", "*"], True)],
)
def test_a_run_ends_with_the_headline_of_each_report(
    words: list[str], shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "main", lambda words: int(words[0] != "repro"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS, encoding="utf-8")
    (tmp_path / "results/translation").mkdir(parents=True)
    (tmp_path / "results/translation/table.md").write_text("# Task\n\nDeploy BiLD: 1.4x.\n\n- more", encoding="utf-8")
    ended = runner(command.main, monkeypatch, capsys)("run", *words)
    said = "Deploy BiLD: 1.4x.\nThe whole report: results/translation/report.html"
    assert ended.status == 0 and ended.printed.strip() == (said if shown else "")
    ended = runner(command.main, monkeypatch, capsys)("run", *words, "--json")
    headline, _, report = said.partition("\nThe whole report: ")
    assert json.loads(ended.printed) == {"status": 0, "reports": [{"headline": headline, "report": report}] if shown else []}


def test_help_ends_with_examples(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run", "compare"):
        ended = runner(command.main, monkeypatch, capsys)(name, "--help")
        assert ended.status == 0 and ended.printed.startswith(f"usage: draftline {name} ")
        assert ended.printed.rstrip().endswith(f"  draftline {command.COMMANDS[name].examples[-1]}")


def test_a_run_of_no_active_task_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "main", lambda _: pytest.fail("DVC was started"))
    for word in ("chat", "multi30k", "sweep@multi30k"):
        ended = runner(command.main, monkeypatch, capsys)("run", word)
        name = word.rpartition("@")[2]
        assert ended.status == 2
        assert ended.said.startswith(
            f"error: {name} is no active task of params.yaml: translation; name one of them, or move its"
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["translation"], "a stage has refused it"),
        (
            ["needs@translation"],
            "dependency 'none' does not exist; put it there, or correct its path under active in params.yaml",
        ),
        (["nope@translation"], "Stage 'nope@translation' not found inside 'dvc.yaml' file; dvc stage list shows the stages"),
        (["--nope"], "unrecognized arguments: --nope; draftline run --help shows how"),
    ],
)
def test_bad_input_of_a_run_is_one_line_and_status_2(words: list[str], said: str, tmp_path: Path) -> None:
    Repo.init(str(tmp_path), no_scm=True).close()
    (tmp_path / "params.yaml").write_text(PARAMS, encoding="utf-8")
    refusing = "{foreach: {translation: x}, do: {cmd: 'echo error: a stage has refused it >&2; exit 2'}}"
    needing = "{foreach: {translation: x}, do: {cmd: 'true', deps: [none]}}"
    (tmp_path / "dvc.yaml").write_text(f"stages: {{report: {refusing}, needs: {needing}}}", encoding="utf-8")
    command, variables = [sys.executable, "-m", "tasks.command", "run", *words], {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (2, f"error: {said}\n")


def test_a_setting_that_dvc_lists_has_to_be_there(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DVC itself would miss it when the stage has run."""
    Path("dvc.yaml").write_text("stages: {sweep: {cmd: x, params: [machine.device, machine.drafter_dtype]}}", encoding="utf-8")
    older = [line for line in PARAMS.splitlines() if "drafter_dtype" not in line]
    Path("params.yaml").write_text("\n".join(older), encoding="utf-8")
    ended = runner(command.main, monkeypatch, capsys)("run", "translation")
    said = "params.yaml: machine has no drafter_dtype, which dvc.yaml lists; add drafter_dtype: same"
    assert (ended.status, ended.said.strip()) == (2, f"error: {said}")


def test_a_secret_is_refused_before_dvc_reads_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("active:\n  chat: https://me:PLANTED@host/text\n", encoding="utf-8")
    ended = runner(command.main, monkeypatch, capsys)("run", "chat")
    assert ended.status == 2 and ended.said.startswith("error: params.yaml, line 2: a URL holds a user, a password or a token")
    assert "PLANTED" not in ended.said
