"""Empty databases of MLflow and Prefect, whose tables take seconds to make: the first test run keeps them for later ones."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock


def kept_database(package: str, make: Callable[[Path], object]) -> Path:
    """Return the SQLite database that `make` has made with this version of a package."""
    database = Path(__file__).parents[1] / ".cache" / "tests" / f"{package}-{version(package)}.db"
    made = database.with_suffix(".new")
    database.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{database}.lock"):
        if not database.exists():
            made.unlink(missing_ok=True)
            make(made)
            made.rename(database)
    return database
