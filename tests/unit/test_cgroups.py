"""The limits of control groups, in both versions."""

from __future__ import annotations

from pathlib import Path

from tasks import cgroups


def test_limits_of_control_groups(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    group = root / "a" / "b"
    group.mkdir(parents=True)
    own.write_text("0::/a/b\n")
    assert cgroups.core_limit(root, own) is cgroups.memory_limit(root, own) is None
    (group / "cpu.max").write_text("max 100000\n")
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    (group / "memory.max").write_text("max\n")
    (root / "a" / "memory.max").write_text("1000\n")
    assert (cgroups.core_limit(root, own), cgroups.memory_limit(root, own)) == (1.5, 1000)
    for controller, files in {
        "cpu": {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
        "memory": {"memory.limit_in_bytes": "2000"},
    }.items():
        (root / controller).mkdir()
        for name, text in files.items():
            (root / controller / name).write_text(text)
    own.write_text("3:cpu,cpuacct:/of/the/host\n2:memory:/of/the/host\n")
    assert (cgroups.core_limit(root, own), cgroups.memory_limit(root, own)) == (3.0, 2000)
    (root / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    (root / "memory" / "memory.limit_in_bytes").write_text(str((1 << 63) - 4096))
    assert cgroups.core_limit(root, own) is cgroups.memory_limit(root, own) is None
