"""Breaks of what surrounds the work: fingerprints, errors, tracking, flows."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_TRACKING = (f"{_UNIT}/test_tracking.py::test_a_shipper_killed_at_any_call_neither_loses_nor_doubles",)

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
        "run-created-twice", "tasks.tracking.delivery", "Delivery._create",
        "if repeated else None", "if False else None",
        _TRACKING,
    ),
    Break(
        "sent-lines-lost", "tasks.tracking.spool", "read_from",
        "offset += len(line) + 1", "offset += len(line) + 2",
        _TRACKING,
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
