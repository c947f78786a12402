"""The code of a registered pair: MLflow copies this file into the model and runs it where the model is opened.

`tracking.registry` puts the pair's folder and the code of `tasks` that decodes beside it. Nothing in it is a pickle.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import mlflow
import pandas as pd

COUNTS = ("tokens", "large_calls", "small_steps", "drafted", "accepted", "fallbacks", "rollbacks")
"""Columns of an answer, of the counts with the same names in `tasks.decoding.Counts`."""


class ServedPair(mlflow.pyfunc.PythonModel):  # type: ignore[misc]  # mypy sees no types of mlflow
    """A pair that decodes the texts of a table at its operating point, greedily."""

    def load_context(self, context: Any) -> None:
        """Open the pair. `context.model_config` has the arguments `device`, `dtype`, `runtime` and `threads` of `load_pair`."""
        from tasks.decoding import load_pair

        self._pair = load_pair(context.artifacts["pair"], **context.model_config)
        self._lock = threading.Lock()

    def predict(self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Decode each text of the column `text`, one after the other, as the operating point was measured.

        Args:
            model_input: A table with the column `text`.
            params: `max_new_tokens`, and `method`, with its default settings; None takes what the pair has.

        Returns:
            A table of as many rows: `text`, `method`, and the counts of `COUNTS`.

        Raises:
            MlflowException: A text, method or length is wrong; a server answers 400.
        """
        from tasks.errors import InputError

        chosen = dict(params or {})
        method, limit = chosen.get("method"), chosen.get("max_new_tokens")
        try:
            with self._lock:  # a server answers in several threads, and models hold caches
                texts = _texts(model_input)
                found = [self._pair.generate(text, method=method, max_new_tokens=limit)[0] for text in texts]
        except InputError as error:
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None
        name = method or self._pair.manifest.point.method
        rows = [{"text": one.text, "method": name, **{key: getattr(one.counts, key) for key in COUNTS}} for one in found]
        return pd.DataFrame(rows, columns=["text", "method", *COUNTS])


def _texts(table: pd.DataFrame) -> list[str]:
    """Return the texts of a table, whose only cell MLflow makes a list where it was called with `{"text": [...]}`."""
    from tasks.errors import InputError

    cells = list(table["text"])
    texts = cells[0] if len(cells) == 1 and isinstance(cells[0], list) else cells
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise InputError(f"the column text holds {wrong[0]!r}; give a text in each row")
    return texts


mlflow.models.set_model(ServedPair())
