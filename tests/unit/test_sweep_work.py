"""A machine that shares a sweep works on the same files, or not at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.errors import InputError
from tasks.loaded_pair import files_fingerprint, open_pair

NOTHING: Any = None


def test_a_machine_with_other_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"weights")
    pair: Any = "the pair"
    loaded: Any = SimpleNamespace(inputs=[model], described="native float32", pair=pair)
    monkeypatch.setattr("tasks.loaded_pair.load_pair", lambda *_: loaded)
    files = files_fingerprint(loaded)
    assert open_pair(NOTHING, NOTHING, NOTHING, model, [], files) is pair
    model.write_bytes(b"other weights")
    with pytest.raises(InputError, match="check out the same commit and run dvc pull"):
        open_pair(NOTHING, NOTHING, NOTHING, model, [], files)
