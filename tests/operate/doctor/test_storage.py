from pathlib import Path

import pytest

from windrow.operate.doctor import storage
from windrow.operate.doctor.storage import check_storage, file_system_type

MOUNTS = """\
/dev/vda / ext4 rw 0 0
nas:/export /srv nfs4 rw 0 0
/dev/vdb /srv/local\\040disk xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/data", "nfs4"),
        ("/srvdata", "ext4"),
        ("/srv/local disk/ledger", "xfs"),
    ],
)
def test_mounted(path: str, kind: str) -> None:
    """A path is on the file system that is mounted nearest above it; without a table of mounts it is unknown."""
    assert file_system_type(Path(path), MOUNTS) == kind
    assert file_system_type(Path(path), "") is None


@pytest.mark.parametrize(
    ("mount", "level"),
    [
        ("ext4", "ok"),
        ("nfs4", "warning"),
        ("cifs", "warning"),
        ("fuse.s3fs", "warning"),
        ("fuseblk", "ok"),
        ("tmpfs", "warning"),
    ],
)
def test_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, level: str) -> None:
    """A network file system, or one in memory, is a warning."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"device {tmp_path} {mount} rw 0 0\n")
    monkeypatch.setattr(storage, "MOUNTS", mounts)
    assert next(check_storage("depot", str(tmp_path / "depot"))).level == level


@pytest.mark.parametrize(
    ("location", "level"),
    [
        ("s3a://bucket/depot", "ok"),
        ("abfss://box@account/depot", "ok"),
        ("gs://bucket/depot", "ok"),
        ("hdfs://name/depot", "ok"),
        ("ftp://host/depot", "warning"),
        ("main.plant.depot", "ok"),
    ],
)
def test_elsewhere(location: str, level: str) -> None:
    """A remote store whose guarantees are unknown is a warning."""
    assert [finding.level for finding in check_storage("depot", location)] == [level]


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be written is an error, and a disk that is nearly full a warning."""
    monkeypatch.setattr(storage.os, "access", lambda *_: False)
    monkeypatch.setattr(storage, "MIN_FREE_BYTES", 1 << 60)
    levels = {finding.code: finding.level for finding in check_storage("ledger", str(tmp_path / "ledger"))}
    assert (levels["storage-access"], levels["storage-space"]) == ("error", "warning")
