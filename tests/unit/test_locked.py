"""The lock files: whole, with hashes, of one version of torch, and small enough to read."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("requirements.lock", "requirements-cuda.lock")}
ENTRIES = [entry for text in FILES.values() for entry in re.split(r"\n(?=\S)", text.strip())]
LOCKED = dict(re.findall(r"^(\S+)==(\S+)", "".join(FILES.values()), re.MULTILINE))


def test_every_package_has_hashes_and_no_file_names_an_index() -> None:
    entry = re.compile(r"[a-z0-9.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+")
    assert [one for one in ENTRIES if not entry.fullmatch(one)] == []
    assert len(LOCKED) == len(ENTRIES), "a package is locked twice"
    assert all(len(text) < 1_000_000 for text in FILES.values())


def test_what_the_project_declares_is_locked_in_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    for wanted in map(Requirement, declared):
        assert wanted.specifier.contains(LOCKED[canonicalize_name(wanted.name)], prereleases=True), f"run make lock: {wanted}"


def test_torch_has_one_version_and_its_cuda_packages_lie_apart() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"torch==(\S+)\+cpu --hash=sha256:[0-9a-f]{64}$", makefile, re.MULTILINE) == [LOCKED["torch"]]
    assert not re.search(r"^(torch|triton|nvidia|cuda)\b", FILES["requirements.lock"], re.MULTILINE)
