"""Messages go to standard error, results to standard output; progress is a bar on a terminal and lines elsewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks import console
from tasks.console import log, progress


@pytest.fixture(autouse=True)
def _default_level() -> Iterator[None]:
    console.set_up()
    yield
    console.set_up()


def say(*arguments: str) -> None:
    assert vars(console.command_parser("A command.").parse_args(arguments)) == {}
    log.debug("a detail")
    log.info("trained %s", "small")
    log.warning("few texts")
    log.error("no file")


def test_messages_are_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    say()
    assert capsys.readouterr() == ("", "trained small\nwarning: few texts\nerror: no file\n")


def test_quiet_keeps_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    say("--quiet")
    assert capsys.readouterr().err == "warning: few texts\nerror: no file\n"


def test_verbose_adds_details_with_time_and_module(capsys: pytest.CaptureFixture[str]) -> None:
    say("--verbose")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "test_console: a detail",
        "test_console: trained small",
        "test_console: warning: few texts",
        "test_console: error: no file",
    ]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no answer at http://user:planted@server:5000/api; start it", "no answer at http://server:5000/api; start it"),
        ("https://planted@hub/models?a=1", "https://hub/models?a=1"),
        ("'https://s3/x?X-Amz-Signature=planted&part=2' is gone", "'https://s3/x?X-Amz-Signature=***&part=2' is gone"),
        ("http://server?b=1&Access_Token=planted", "http://server?b=1&Access_Token=***"),
        ("mail to someone@example.org // and key=value", "mail to someone@example.org // and key=value"),
    ],
)
def test_secrets_of_urls_are_not_shown(said: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    log.error("%s", said)
    assert capsys.readouterr().err == f"error: {shown}\n"


def test_progress_in_a_file_is_a_line_each_tenth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress([1, 2], desc="sweep", unit="point")) == [1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "_SHORT", 0.0)
    assert len(list(progress(range(95), desc="sweep", unit="point", mininterval=0))) == 95
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("sweep: 95 of 95 points in 00:00, ")
    assert [int(line.split()[1]) for line in lines] == [10, 19, 29, 38, 48, 57, 67, 76, 86, 95]
    console.set_up(30)
    assert list(progress([1, 2], desc="sweep", unit="point")) == [1, 2]
    assert capsys.readouterr().err == ""


def test_every_command_reads_quiet_and_verbose() -> None:
    modules = [one for folder in ("tasks", "flows") for one in Path(folder).rglob("*.py")]
    made = [one for one in modules if re.search(r"ArgumentParser\(|\(argparse.ArgumentParser\)", one.read_text())]
    assert made == [Path("tasks/console.py")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: action"),
        (["--nope", "add"], "unrecognized arguments: --nope"),
        (["add", "--size", "one\ntwo"], "argument --size: invalid int value: 'one\\ntwo'"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = console.command_parser("Does something.")
    action = parser.add_subparsers(dest="action", required=True).add_parser("add")
    action.add_argument("--size", type=int)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(words)
    name = f"{parser.prog} add" if "--size" in words else parser.prog
    assert capsys.readouterr().err == f"error: {said}; {name} --help shows how\n"
