"""The hub by its own client, against a stand-in on loopback: the lock of a revision, copies kept here, and no network."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import pyarrow as pa
import pytest
from pyarrow import parquet

from tasks.corpora.data_sets import PARQUET
from tasks.corpora.example import SPLITS
from tasks.corpora.hub import read
from tasks.corpora.settings import HubSettings
from tasks.errors import InputError
from tests.hub import Commit, Hub, serving

LOCK = Path("hub.lock.yaml")
TINY: dict[str, Any] = {"name": "toys/tiny", "source_field": "document", "reference_fields": ["summary"]}


def files(word: str, folder: str = "") -> Commit:
    return {f"{folder}{split}.jsonl": rows(f"{word} {split}") for split in SPLITS}


def rows(*sources: str) -> bytes:
    return "".join(json.dumps({"document": one, "summary": f"{one}, in short"}) + "\n" for one in sources).encode()


def sources(settings: HubSettings) -> list[str]:
    return [example.source for example in read(settings, LOCK)["train"]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one data set, and caches of its own."""
    hub = Hub()
    hub.add("toys/tiny", files("first"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with serving(hub) as address:
        use(address, monkeypatch)
        yield hub


def use(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what `HF_ENDPOINT` does in a new process."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
    monkeypatch.setattr(datasets.config, "HUB_DATASETS_URL", f"{address}/datasets/{{repo_id}}/resolve/{{revision}}/{{path}}")
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def test_the_commit_of_the_first_fetch_is_locked(hub: Hub) -> None:
    LOCK.write_text("# locks\n", encoding="utf-8")
    assert sources(HubSettings(**TINY)) == ["first train"]
    first = hub.commit("toys/tiny", "main")
    hub.add("toys/tiny", files("second"))
    requests = len(hub.requests)
    assert sources(HubSettings(**TINY)) == ["first train"]
    assert len(hub.requests) == requests, "what is kept here needs no network"
    assert first is not None
    assert LOCK.read_text(encoding="utf-8").splitlines()[0] == "# locks"
    assert LOCK.read_text(encoding="utf-8").count("\n") == 2
    # Somebody else's machine has no copy, but the lock.
    datasets.config.HF_DATASETS_CACHE = Path("elsewhere")
    assert sources(HubSettings(**TINY)) == ["first train"]


def test_without_its_line_a_data_set_is_fetched_anew(hub: Hub) -> None:
    read(HubSettings(**TINY), LOCK)
    hub.add("toys/tiny", files("second"))
    LOCK.unlink()
    assert sources(HubSettings(**TINY)) == ["second train"]


def test_a_commit_as_revision_needs_no_lock(hub: Hub) -> None:
    first = hub.add("toys/tiny", files("chosen"))
    hub.add("toys/tiny", files("newest"))
    assert sources(HubSettings(**TINY, revision=first)) == ["chosen train"]
    assert not LOCK.exists()


def test_a_configuration_on_the_branch_of_parquet_files_is_a_folder(hub: Hub) -> None:
    # That branch has a folder for each configuration, in it one for each split, and an index beside the data.
    branch: Commit = {".gitattributes": b"*.parquet filter=lfs\n", "en-de/train/index.duckdb": b"\0"}
    for configuration in ("de-en", "en-de"):
        for split in SPLITS:
            file = Path(f"{configuration}-{split}.parquet")
            table = pa.table({"document": [f"{configuration} {split}"], "summary": ["short"]})
            parquet.write_table(table, file)
            branch[f"{configuration}/{split}/0000.parquet"] = file.read_bytes()
    hub.add("toys/script", branch)
    hub.branches[PARQUET] = "main"
    settings = HubSettings(**{**TINY, "name": "toys/script"}, configuration="en-de", revision=PARQUET)
    assert sources(settings) == ["en-de train"]
    assert f'"toys/script@{PARQUET}": ' in LOCK.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "toys/none"}, r"no data set toys/none at revision main on http.*: there is none of that name"),
        ({"revision": "v9"}, r"no data set toys/tiny at revision v9 .*no such revision; correct corpus.hub.revision"),
        ({"revision": "b" * 40}, r"no data set toys/tiny on the hub at commit bbbb"),
        ({"configuration": "de"}, r"toys/tiny \(configuration de\) .*'de' not found. Available: \['default'\]; correct"),
        ({"name": "toys/script"}, rf"it is a script, which is not run; set corpus.hub.revision to {PARQUET}"),
    ],
)
def test_no_such_data_set_is_one_line(given: dict[str, str], message: str, hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    hub.add("toys/script", {"script.py": b"raise SystemExit(7)"})
    with pytest.raises(InputError, match=message):
        read(HubSettings(**{**TINY, **given}), LOCK)
    assert capfd.readouterr().err == ""
    assert not LOCK.exists(), "only what was fetched is locked"


def test_without_a_network_a_copy_is_read_and_the_rest_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    read(HubSettings(**TINY), LOCK)
    with serving(Hub()) as gone:
        pass
    use(gone, monkeypatch)
    assert sources(HubSettings(**TINY)) == ["first train"]
    begun = time.monotonic()
    message = rf"no data set toys/tiny \(configuration de, revision [0-9a-f]{{40}}\): {gone} does not answer .* has no copy; "
    with pytest.raises(InputError, match=message + r"run this once with a network, .*hf download toys/tiny .*under active"):
        read(HubSettings(**TINY, configuration="de"), LOCK)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("revision", ["main", "a" * 40])
def test_a_connection_that_breaks_off_is_one_line(revision: str, hub: Hub) -> None:
    hub.breaks_off = True
    with pytest.raises(InputError, match=r"no data set toys/tiny .*: Server disconnected without sending a response; try"):
        read(HubSettings(**TINY, revision=revision), LOCK)
    assert list(Path("datasets").rglob("*.arrow")) == []


@pytest.mark.parametrize("content", ["- a list\n", '"toys/tiny@main": main\n', "{", '"toys/tiny@main": 12\n'])
def test_a_damaged_lock_file_is_one_line(content: str, hub: Hub) -> None:
    LOCK.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"hub.lock.yaml.*; restore it from git, or remove it"):
        read(HubSettings(**TINY), LOCK)
    assert hub.requests == []


def test_a_flipped_byte_of_a_kept_copy_is_named_and_the_data_set_read_anew(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    read(HubSettings(**TINY), LOCK)
    [file] = Path("datasets").rglob("train/*.arrow")
    content = bytearray(file.read_bytes())
    content[content.index(b"first train")] ^= 1
    file.write_bytes(content)
    assert sources(HubSettings(**TINY)) == ["first train"]
    assert "is damaged (train/data-00000-of-00001.arrow is not as it was written); it is made again" in caplog.text
    assert file.read_bytes() != content
