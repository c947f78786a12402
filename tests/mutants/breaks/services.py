"""Breaks of what surrounds the work: fingerprints, errors, tracking, flows."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_KILLED = (f"{_UNIT}/tracking/test_upload.py::test_an_upload_killed_at_any_request_neither_loses_nor_doubles",)
_INSERTED = (
    "tests/integration/tracking/test_bulk_insertion.py::test_points_are_inserted_at_once_as_the_client_would_send_them",
)
_UNANSWERED = (f"{_UNIT}/tracking/test_upload.py::test_an_answer_lost_after_the_work_neither_loses_nor_doubles",)
_REGISTERED = f"{_UNIT}/tracking/test_registration.py"
_CHAMPION = f"{_UNIT}/tracking/test_champion.py"
_PROMOTION = f"{_UNIT}/evaluation/test_promotion.py"
_NULL = (f"{_PROMOTION}::test_at_most_five_of_a_hundred_null_trials_promote",)
_DOCTOR = f"{_UNIT}/doctor/test_doctor.py"
_EXPERIMENTS = f"{_UNIT}/flows/test_experiment_queue.py"

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
        "results-in-the-order-of-time", "tasks.process_pool", "map_units",
        "[board.results[number] for number in range(len(units))]", "list(board.results.values())",
        (f"{_UNIT}/test_process_pool.py",),
    ),
    Break(
        "unit-of-a-dead-process-taken-for-done", "tasks.process_pool", "_feed",
        "board.give_back(number)", "board.finish(number, None)",
        (f"{_UNIT}/test_process_pool.py",),
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
        "finished-experiment-run-again", "flows.experiments.queue", "ExperimentQueue._claim",
        "if self._refs.waits(one):", "if one:",
        (f"{_EXPERIMENTS}::test_an_experiment_that_ended_since_it_was_listed_is_not_taken",),
    ),
    Break(
        "experiment-moved-by-half-runs-again", "flows.experiments.refs", "ExperimentRefs.read",
        "for one in self._all()}", "for one in reversed([*self._all()])}",
        (f"{_EXPERIMENTS}::test_a_kill_in_the_middle_of_a_move_counts_as_moved",),
    ),
    Break(
        "unfinished-worktree-taken-for-whole", "flows.experiments.worktree", "open_worktree",
        "if not (folder / _READY).exists():", "if not place.exists():",
        (f"{_EXPERIMENTS}::test_a_killed_process_loses_nothing_and_leaves_nothing",),
    ),
    Break(
        "experiments-differ-by-what-runs-write", "flows.experiments.queue", "ExperimentQueue.add",
        "inputs = without_runs(self.root, tree, stages)", "inputs = tree",
        (f"{_EXPERIMENTS}::test_equal_work_is_recognised_in_every_state",),
    ),
    Break(
        "experiment-of-the-commit-alone", "flows.experiments.snapshot", "take_snapshot",
        'git(root, "add", "--update", index=index)', "pass",
        (f"{_EXPERIMENTS}::test_an_experiment_is_the_working_folder_with_its_settings",),
    ),
    Break(
        "grid-keeps-earlier-changes", "flows.experiments.changes", "ParameterFile.changed",
        "copy.deepcopy(self._content)", "self._content",
        (f"{_UNIT}/flows/test_experiment_changes.py",),
    ),
    Break(
        "timings-share-the-machine", "tasks.locks", "timing_lock",
        "lock.acquire_write", "lock.acquire_read",
        (f"{_UNIT}/test_locks.py::test_nothing_runs_during_a_timing",),
    ),
    Break(
        "shares-beyond-the-memory", "tasks.locks", "Share.fits",
        "and self.memory <= room.memory", "",
        (f"{_UNIT}/test_locks.py::test_shares_that_fit_are_held_side_by_side",),
    ),
    Break(
        "watch-repeats-what-failed", "flows.watch", "_given_up",
        "not in _GIVEN_UP", "in _GIVEN_UP",
        (f"{_UNIT}/flows/test_watch.py",),
    ),
    Break(
        "cancelled-run-goes-on", "flows.pipeline", "_wait",
        "runner.close()\n                raise RunCancelledError", "raise RunCancelledError",
        (f"{_UNIT}/flows/test_pipeline.py::test_a_run_that_is_cancelled_on_the_server_closes_its_stages",),
    ),
    Break(
        "strange-server-taken-for-ones-own", "flows.server", "_comes_up",
        "_listens(process, port) and ", "",
        (f"{_UNIT}/flows/test_server.py::test_a_port_that_is_taken_before_the_server_listens_is_given_up",),
    ),
    Break(
        "usual-port-shared", "flows.server", "_free_port",
        "stack.enter_context(lock_file(_port_lock()))", "pass",
        (f"{_UNIT}/flows/test_server.py::test_the_usual_port_belongs_to_one_server_also_while_it_does_not_listen",),
    ),
    Break(
        "outputs-taken-for-sources", "flows.sources", "_sources",
        "if stage.cmd is not None for out", "if stage.cmd is None for out",
        (f"{_UNIT}/flows/test_sources.py",),
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
        "inserted-points-sent-again", "tasks.tracking.upload", "Upload._send_missing",
        "if child.key not in inserted", "if True",
        _INSERTED,
    ),
    Break(
        "inserted-infinity-lost", "tasks.tracking.bulk", "_metric_row",
        "store.sanitize_metric_value(metric.value)", "False, metric.value",
        _INSERTED,
    ),
    Break(
        "inserted-point-without-its-parent", "tasks.tracking.upload", "Upload._insert_children",
        ", PARENT_TAG: parent", "",
        _INSERTED,
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
    Break(
        "faster-at-any-loss", "tasks.evaluation.promotion.rule", "decide",
        "found.quality_interval[0] > -margin", "found.quality_interval[1] > -margin",
        (f"{_PROMOTION}::test_a_faster_candidate_that_loses_the_margin_is_not_promoted",),
    ),
    Break(
        "faster-within-noise", "tasks.evaluation.promotion.rule", "decide",
        "found.speed_interval[0] > 1, ", "found.speed_ratio > 1, ",
        _NULL,
    ),
    Break(
        "better-within-noise", "tasks.evaluation.promotion.rule", "decide",
        "found.quality_interval[0] > 0", "found.quality_difference > 0",
        _NULL,
    ),
    Break(
        "each-way-has-the-whole-level", "tasks.evaluation.promotion.rule", "_TAIL",
        "0.025", "0.1",
        (_PROMOTION,),
    ),
    Break(
        "roll-back-to-the-first", "tasks.tracking.champion", "ChampionRegistry.roll_back",
        "CHAMPION, before[-1])", "CHAMPION, before[0])",
        (f"{_CHAMPION}::test_champions_follow_one_another_and_roll_back_in_turn",),
    ),
    Break(
        "champion-replaced-unseen", "tasks.tracking.champion", "ChampionRegistry.promote",
        "if (current and current.number) != (champion and champion.number):", "if False:",
        (f"{_CHAMPION}::test_a_champion_that_changes_during_the_comparison_is_kept",),
    ),
    Break(
        "changed-files-fetched", "tasks.tracking.champion", "ChampionRegistry.fetch",
        " or folder_checksum(folder) != version.content", "",
        (f"{_CHAMPION}::test_a_pair_is_fetched_as_it_was_registered_or_not_at_all",),
    ),
    Break(
        "rolled-back-version-comes-back", "tasks.tracking.champion", "ChampionRegistry.roll_back",
        "self._client.set_model_version_tag(self.name, current.number, ROLLED_BACK_TAG, moment)", "pass",
        (f"{_CHAMPION}::test_champions_follow_one_another_and_roll_back_in_turn",),
    ),
    Break(
        "data-set-without-its-size", "tasks.lineage", "datasets",
        'out.get("size")', "None",
        (f"{_UNIT}/test_lineage.py::test_data_sets_have_dvcs_hash_and_size",),
    ),
    Break(
        "trained-model-logged-twice", "tasks.tracking.contents", "Contents._send_trained",
        "found[0] if found else ", "",
        _KILLED,
    ),
    Break(
        "table-entered-twice", "tasks.tracking.contents", "Contents._send_table",
        "if entry not in known:", "if True:",
        _KILLED,
    ),
    Break(
        "every-point-of-a-large-grid-a-run", "tasks.evaluation.record", "SweepRecord.point",
        "if measured and not timed and not self._every_point:", "if False:",
        (f"{_UNIT}/evaluation/test_record.py",),
    ),
)  # fmt: skip
