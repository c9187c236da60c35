"""The jar of the log store for S3 is what `make log-store` makes of the source beside it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from tests.bundle import ROOT
from windrow.engine.spark.stores import JAR

pytestmark = pytest.mark.ci


def has_jdk_17() -> bool:
    """Whether the compiler is the one that the jar was made with."""
    javac = shutil.which("javac")
    return javac is not None and b" 17." in subprocess.check_output([javac, "-version"])


@pytest.fixture
def libraries(request: pytest.FixtureRequest) -> list[Path]:
    """The jars that the source is compiled against; a Spark session downloads that of Delta if it is missing."""
    [hadoop] = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    storage = sorted(Path.home().glob(".ivy2*/jars/io.delta_delta-storage-*.jar"))
    if not storage:
        request.getfixturevalue("spark")
        storage = sorted(Path.home().glob(".ivy2*/jars/io.delta_delta-storage-*.jar"))
    return [storage[-1], hadoop]


@pytest.mark.skipif(not has_jdk_17(), reason="needs a JDK of Java 17")
@pytest.mark.xdist_group("spark")
def test_jar_is_made_of_its_source(libraries: list[Path], tmp_path: Path) -> None:
    """Compiled again, the jar has the same bytes."""
    jar = tmp_path / "log_store.jar"
    command = ["make", "log-store", f"LOG_STORE={jar}", f"JARS={' '.join(map(str, libraries))}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert jar.read_bytes() == JAR.read_bytes()
