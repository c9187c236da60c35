from pathlib import Path

import pytest

from windrow.operate.doctor import storage
from windrow.operate.doctor.finding import Finding
from windrow.operate.doctor.storage import check_storage, mounted

MOUNTS = """\
/dev/vda / ext4 rw 0 0
nas:/export /srv nfs4 rw 0 0
/dev/vdb /srv/local\\040disk xfs rw 0 0
tmpfs /tmp tmpfs rw 0 0
bucket /mnt/bucket fuse.s3fs rw 0 0
/dev/sda1 /mnt/usb fuseblk rw 0 0
//nas/share /mnt/share cifs rw 0 0
"""


def found(depot: str, ledger: str) -> list[Finding]:
    """Return the findings about the storage of two tables."""
    return [*check_storage("depot", depot), *check_storage("ledger", ledger)]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/data", "nfs4"),
        ("/srvdata", "ext4"),
        ("/srv/local disk/ledger", "xfs"),
        ("/tmp/x", "tmpfs"),  # noqa: S108 - a name in a table
        ("/mnt/bucket/depot", "fuse.s3fs"),
    ],
)
def test_mounted(path: str, kind: str) -> None:
    """A path is on the file system that is mounted nearest above it."""
    assert mounted(Path(path), MOUNTS) == kind


def test_nobody_says() -> None:
    """Without a table of mounts, the file system of a path is unknown."""
    assert mounted(Path("/data"), "") is None


@pytest.mark.parametrize(
    ("mount", "level", "says"),
    [
        ("ext4", "ok", "exclude each other by .depot.lock"),
        ("nfs4", "warning", "its locks may not work between machines"),
        ("cifs", "warning", "its locks may not work between machines"),
        ("fuse.s3fs", "warning", "its locks may not work between machines"),
        ("fuseblk", "ok", "a local disk"),
        ("tmpfs", "warning", "lost when the machine stops"),
    ],
)
def test_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, level: str, says: str) -> None:
    """The finding about a path depends on its file system."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"device {tmp_path} {mount} rw 0 0\n")
    monkeypatch.setattr(storage, "MOUNTS", mounts)
    first = found(str(tmp_path / "depot"), str(tmp_path / "ledger"))[0]
    assert (first.code, first.level) == ("storage", level)
    assert says in first.what


@pytest.mark.parametrize(
    ("location", "level", "says"),
    [
        ("s3://bucket/depot", "ok", "lets one of two commits win"),
        ("s3a://bucket/depot", "ok", "by Windrow's log store"),
        ("abfss://box@account/depot", "ok", "put-if-absent"),
        ("gs://bucket/depot", "ok", "put-if-absent"),
        ("hdfs://name/depot", "ok", "put-if-absent"),
        ("ftp://host/depot", "warning", "are unknown"),
        ("main.plant.depot", "ok", "the catalog says"),
    ],
)
def test_elsewhere(location: str, level: str, says: str) -> None:
    """A remote store is reported with its guarantees."""
    first = found(location, location + "_ledger")[0]
    assert (first.level, says in first.what) == (level, True)
