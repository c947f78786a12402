"""Breaks of what surrounds the work: fingerprints, errors, tracking, flows."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_KILLED = (f"{_UNIT}/tracking/test_upload.py::test_an_upload_killed_at_any_request_neither_loses_nor_doubles",)
_UNANSWERED = (f"{_UNIT}/tracking/test_upload.py::test_an_answer_lost_after_the_work_neither_loses_nor_doubles",)
_REGISTERED = f"{_UNIT}/tracking/test_registration.py"
_DOCTOR = f"{_UNIT}/test_doctor.py"

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
        "same-pair-registered-twice", "tasks.tracking.registration", "register",
        "_version(client, model) or ", "",
        (f"{_REGISTERED}::test_the_same_pair_has_one_version_and_every_report_shows_it",),
    ),
    Break(
        "half-sent-model-taken-for-whole", "tasks.tracking.registration", "_logged_model",
        'if logged.status != "READY":', "if not found:",
        (f"{_REGISTERED}::test_a_registration_killed_at_any_request_neither_loses_nor_doubles",),
    ),
    Break(
        "late-report-takes-the-alias", "tasks.tracking.registration", "_point_alias",
        "> reported", "> 2 * reported",
        (f"{_REGISTERED}::test_an_older_report_that_arrives_late_does_not_take_the_alias",),
    ),
    Break(
        "version-in-use-removed", "tasks.tracking.registration", "_version",
        "if not client.get_model_version(model.name, double.version).aliases:", "if double:",
        (f"{_REGISTERED}::test_versions_made_twice_are_removed_unless_an_alias_names_them",),
    ),
    Break(
        "model-without-its-code", "tasks.tracking.model_files", "CODE",
        '"models", "settings.py"', '"models"',
        (f"{_UNIT}/test_graph.py::test_a_registered_model_carries_the_code_that_decodes",),
    ),
    Break(
        "waiting-pairs-copied", "tasks.tracking.recorder", "Recorder.log_model",
        '[*self.folder.parent.glob(f"*/{kept}")]', "[]",
        (f"{_REGISTERED}::test_waiting_runs_share_the_files_of_a_pair_that_is_written_anew",),
    ),
    Break(
        "checksum-without-names", "tasks.files", "folder_checksum",
        "{file.relative_to(folder).as_posix()}", "",
        (f"{_UNIT}/test_files.py",),
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
        (f"{_UNIT}/test_locks.py::test_nothing_runs_during_a_timing",),
    ),
    Break(
        "runs-sent-during-a-timing", "tasks.tracking.__main__", "main",
        "with host_lock() if any(", "with host_lock() if not any(",
        (f"{_UNIT}/tracking/test_recorder.py::test_the_command_sends_nothing_while_something_is_timed",),
    ),
    Break(
        "partial-file-left-behind", "tasks.errors", "writing",
        "remove(partial)", "pass",
        (f"{_UNIT}/training/test_checkpoints.py",),
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
        "children-outlive-the-command", "tasks.supervisor", "_supervise",
        "    os.killpg(0, signal.SIGTERM)  # a finished", "    pass  # a finished",
        (f"{_UNIT}/test_supervisor.py::test_a_finished_command_leaves_no_background_process",),
    ),
    Break(
        "second-holder-let-in", "flows.lockfile", "lock_file",
        "raise AlreadyLockedError(path.read_text(encoding=\"utf-8\")) from None", "pass",
        (f"{_UNIT}/flows/test_lockfile.py::test_a_second_owner_is_refused_with_the_note_of_the_first",),
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
    Break(
        "half-sent-child-taken-for-whole", "tasks.tracking.upload", "Upload._send_missing",
        " or _is_running(children[child.key])", "",
        _KILLED,
    ),
    Break(
        "doubled-runs-kept", "tasks.tracking.upload", "Upload._search",
        "self._client.delete_run(run.info.run_id)", "pass",
        (f"{_UNIT}/tracking/test_upload.py::test_runs_created_after_a_search_found_none_are_kept_once",),
    ),
    Break(
        "later-steps-of-a-metric-lost", "tasks.tracking.upload", "Upload.send_values",
        "if (metric[0], metric[2]) not in known", "if metric[0] not in dict(known)",
        (f"{_UNIT}/tracking/test_recorder.py::test_a_live_run_shows_its_metrics_and_lost_ones_arrive_once_at_its_end",),
    ),
    Break(
        "passwords-reach-other-hosts", "tasks.training.launchers", "run_with_deepspeed",
        'name not in _SECRETS and "@" not in value', "name",
        (f"{_UNIT}/training/test_launch.py",),
    ),
    Break(
        "refusal-of-a-host-is-a-failure", "tasks.training.launchers", "run_with_deepspeed",
        "if status == STATUS_BAD_INPUT:", "if False:",
        (f"{_UNIT}/training/test_launch.py",),
    ),
    Break(
        "refusal-of-a-rank-is-a-failure", "tasks.training.launchers", "_status_of",
        "return STATUS_BAD_INPUT", "return 1",
        (f"{_UNIT}/training/test_launch.py",),
    ),
    Break(
        "srun-ranks-of-one-node", "tasks.training.environment", "adopt",
        'RANK=environment["SLURM_PROCID"]', 'RANK=environment["SLURM_LOCALID"]',
        (f"{_UNIT}/training/test_environment.py",),
    ),
    Break(
        "doctor-ends-with-a-check", "tasks.doctor.finding", "run",
        "except Exception as error:", "except ImportError as error:",
        (f"{_DOCTOR}::test_a_check_that_fails_is_a_finding_and_the_others_are_run",),
    ),
    Break(
        "doctor-is-content-with-what-is-missing", "tasks.doctor.__main__", "main",
        "return 1 if any(one.state == MISSING", "return 1 if all(one.state == MISSING",
        (f"{_DOCTOR}::test_something_missing_is_status_1_and_json_is_one_line",),
    ),
    Break(
        "doctor-stops-at-a-package-that-crashes", "tasks.doctor.libraries", "import_failures",
        "while waiting:", "if waiting:",
        (f"{_DOCTOR}::test_a_broken_package_is_named_with_its_exception",),
    ),
    Break(
        "doctor-takes-another-build-for-another-version", "tasks.doctor.software", "versions",
        '.partition("+")[0]', "",
        (f"{_DOCTOR}::test_versions_that_differ_from_the_lock_are_named",),
    ),
    Break(
        "doctor-overlooks-a-listener", "tasks.doctor.ports", "taken",
        'return "another program listens on it"', 'return ""',
        (f"{_DOCTOR}::test_a_port_that_is_taken_and_one_that_is_free",),
    ),
)  # fmt: skip
