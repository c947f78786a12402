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
        "if not _is_running(held):", "if held.data.metrics:",
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
    Break(
        "timings-share-the-machine", "tasks.locks", "timing_lock",
        "lock.acquire_write", "lock.acquire_read",
        (f"{_UNIT}/test_locks.py::test_nothing_works_beside_a_timing",),
    ),
    Break(
        "partial-file-left-behind", "tasks.errors", "writing",
        "partial.unlink(missing_ok=True)", "pass",
        (f"{_UNIT}/training/test_best_weights.py",),
    ),
    Break(
        "upper-bounds-ignored", "tasks.settings", "_BROKEN",
        "value > bound", "False",
        (f"{_UNIT}/test_settings.py",),
    ),
    Break(
        "unknown-settings-taken", "tasks.settings", "settings",
        '"forbid"', '"ignore"',
        (f"{_UNIT}/test_config.py::test_a_mistake_is_named_in_one_line",),
    ),
    Break(
        "children-outlive-the-command", "tasks.supervisor", "main",
        "    os.killpg(0, signal.SIGTERM)  # a finished", "    pass  # a finished",
        (f"{_UNIT}/test_supervisor.py::test_a_finished_command_leaves_no_background_process",),
    ),
    Break(
        "second-holder-let-in", "flows.lockfile", "lock_file",
        "raise AlreadyLockedError(path.read_text(encoding=\"utf-8\")) from None", "pass",
        (f"{_UNIT}/flows/test_lockfile.py::test_a_second_holder_is_told_who_the_first_is",),
    ),
    Break(
        "file-written-in-place", "tasks.files", "atomic_path",
        "partial = partial_path(path)", "partial = path",
        (f"{_UNIT}/test_files.py",),
    ),
    Break(
        "old-folder-removed-first", "tasks.files", "atomic_folder",
        "    remove(partial)\n    partial.mkdir", "    remove(partial)\n    remove(folder)\n    partial.mkdir",
        (f"{_UNIT}/test_files.py",),
    ),
)  # fmt: skip
