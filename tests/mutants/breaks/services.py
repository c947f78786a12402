"""Breaks of what surrounds the work: fingerprints, errors, tracking, flows."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_KILLED = (f"{_UNIT}/test_tracking.py::test_an_upload_killed_at_any_request_neither_loses_nor_doubles",)
_UNANSWERED = (f"{_UNIT}/test_tracking.py::test_an_answer_lost_after_the_work_neither_loses_nor_doubles",)

BREAKS = (
    Break(
        "fingerprint-forgets-a-file", "tasks.fingerprint", "fingerprint",
        "for path in [*files, ", "for path in [*files[1:], ",
        (f"{_UNIT}/test_fingerprint.py",),
    ),
    Break(
        "fingerprint-forgets-code", "tasks.fingerprint", "fingerprint",
        "for name in code)", "for name in code[1:])",
        (f"{_UNIT}/test_fingerprint.py",),
    ),
    Break(
        "fingerprint-by-name-alone", "tasks.fingerprint", "fingerprint",
        ' + b"\\0" + file.read_bytes()', "",
        (f"{_UNIT}/test_fingerprint.py",),
    ),
    Break(
        "bad-input-status-1", "tasks.errors", "STATUS_BAD_INPUT",
        "2", "1",
        (f"{_UNIT}/test_errors.py::test_bad_input_is_one_line_and_status_2",),
    ),
    Break(
        "bad-input-on-several-lines", "tasks.errors", "_end",
        "{' '.join(line.split())}", "{line}",
        (f"{_UNIT}/test_errors.py",),
    ),
    Break(
        "run-created-twice", "tasks.tracking.upload", "Upload.open",
        "self._search(KEY_TAG, self.run.key).get(self.run.key) or ", "",
        _UNANSWERED,
    ),
    Break(
        "run-without-an-end", "tasks.tracking.upload", "Upload._send_missing",
        "if not _is_running(stored):", "if stored.data.metrics:",
        _KILLED,
    ),
    Break(
        "sent-lines-lost", "tasks.tracking.outbox", "read",
        "fields.get(name, []) + value", "value",
        _KILLED,
    ),
    Break(
        "stages-run-before-their-needs", "flows.graph", "_load",
        "list(graph.successors(node))", "list(graph.predecessors(node))",
        (f"{_UNIT}/flows/test_graph.py",),
    ),
    Break(
        "target-without-its-needs", "flows.graph", "read_graph",
        "for stage in reversed(stages):", "for stage in stages:",
        (f"{_UNIT}/flows/test_graph.py",),
    ),
)  # fmt: skip
