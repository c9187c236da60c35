"""Explain in a sentence why an object store or HDFS does not answer, given the error of delta-rs or Spark."""

from __future__ import annotations

import re

from windrow.delta.locations import local_path

# The first match counts. delta-rs and Spark word the same fault differently; the codes are those of S3 and Azure.
CAUSES = (
    (
        r"RequestTimeTooSkewed|difference between the request time",
        "the clock of this machine is wrong, so the store refuses its requests",
        "Correct the clock, or synchronise it (NTP).",
    ),
    (
        r"No FileSystem for scheme|ClassNotFoundException: Class org\.apache\.hadoop\.fs|UNSUPPORTED_FILE_SYSTEM",
        "the Spark session has no jars for {scheme}",
        "Start the session with them: docs/howto/storage.md names them.",
    ),
    (
        (
            r"NoSuchBucket|UnknownStoreException|BucketNotFound|ContainerNotFound|FilesystemNotFound"
            r"|list request.*404 Not Found"
        ),
        "there is no bucket or container {bucket}",
        "Check the address, or create the bucket.",
    ),
    (
        r"Unable to load (AWS )?credentials|NoAuthWithAWSException|NoAwsCredentials|no providers in chain",
        "there are no credentials for the store",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the variables that docs/howto/storage.md names.",
    ),
    (
        (
            r"lacked the necessary privileges|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied"
            r"|AuthenticationFailed|AuthorizationFailure|40[13] (Forbidden|Unauthorized)|[Ss]tatus [Cc]ode: 40[13]"
        ),
        "the store refuses the credentials, or they lack the permissions",
        "Check the key, its secret and its permissions for the bucket.",
    ),
    (
        r"URL scheme is not allowed",
        "the endpoint is http, which is not allowed",
        "Use https, or set AWS_ALLOW_HTTP = true for a store in your own network.",
    ),
    (
        r"SlowDown|ServiceUnavailable|ServerBusy|TooManyRequests|\b(429|503)\b",
        "the store is throttling requests",
        "Run again later: earlier commits count once. Fewer drivers send fewer requests.",
    ),
    (
        r"\bInternalError\b|500 Internal Server Error|error reading a body|connection (closed|reset)|Connection reset",
        "the store failed, or the connection to it broke",
        "Run again: earlier commits count once. If this happens again, check the network.",
    ),
    (
        r"Connection refused|client error \(Connect\)|dns error|UnknownHostException|ConnectException|timed out",
        "the store cannot be reached",
        "Check the endpoint (AWS_ENDPOINT_URL, spark.hadoop.fs.s3a.endpoint), the network and whether the store runs.",
    ),
)


# Method names and line numbers are not what a store says.
JAVA_FRAME = re.compile(r"^\s+at \S+\(.*\)$", re.MULTILINE)


def explain_store_error(error: BaseException, location: str) -> tuple[str, str] | None:
    """Return why a store does not answer and what to do, None for local tables and other errors."""
    if local_path(location) is not None:
        return None
    scheme, _, rest = location.partition("://")
    text = JAVA_FRAME.sub("", str(error))
    cause = next((cause for cause in CAUSES if re.search(cause[0], text, re.DOTALL)), None)
    return None if cause is None else (cause[1].format(scheme=scheme, bucket=rest.partition("/")[0]), cause[2])
