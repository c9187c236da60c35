"""Settings: flags win over `WINDROW_*` variables, `windrow.toml` and defaults, in this order. Unknown names are errors.

Durations are text such as `10s`; `Settings` has them in microseconds.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_origin

from pydantic import Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from windrow.batching.rules import OnRepeat, Rules, SplitAt, WindowAnchor
from windrow.delta.locations import local_path, require_safe
from windrow.errors import SettingsError, UsageError
from windrow.formats.settings import FormatSettings
from windrow.model import durations
from windrow.model.section import ByteSize, Count, Duration, OptionalDuration, SettingsSection
from windrow.settings.bridges import KafkaSettings, MqttSettings
from windrow.settings.file import PREFIX, combine_errors, has_key, read_file, setting_in, with_location
from windrow.settings.memory import driver_messages
from windrow.settings.producer import ProducerOptions, ProducerSettings
from windrow.settings.start_from import StartFrom

FILE = "windrow.toml"
OPTIONS_SET: dict[str, str] = {}  # of object stores, in the environment of this process, by settings
MIN_RETENTION = durations.UNITS["h"]
BUFFERS_IN_MEMORY = 16  # parts of max_memory_bytes, one of which is the buffer of a producer; a guess


P = TypeVar("P", bound=SettingsSection)


class RulesSettings(SettingsSection):
    """`[rules]`: the rules of batching."""

    window: Duration = Field("10s", description="longest span of a batch")  # type: ignore[assignment]
    max_delay: Duration = Field("5s", description="how old a message may be when it arrives")  # type: ignore[assignment]
    max_lead: Duration = Field("1s", description="how far in the future it may claim to be")  # type: ignore[assignment]
    max_batch_bytes: ByteSize = Field(16_777_216, description="bytes of types and payloads in a batch; 0: no limit")
    window_anchor: WindowAnchor = Field("arrival", description="where a window begins: arrival, event_time or aligned")
    on_repeat: OnRepeat = Field(
        "split", description="what a second message of a type does to its window: split or keep"
    )
    split_at: SplitAt = Field("message", description="where it splits: at the later message, or at the midpoint")
    window_offset: Duration = Field("0s", description="aligned: windows begin at multiples of window, shifted by this")  # type: ignore[assignment]

    def build(self) -> Rules:
        """Return the rules. Raises RulesError."""
        return Rules(**self.model_dump())


class IngestSettings(SettingsSection):
    """`[ingest]`: how files become messages, or chunks of a raw depot."""

    columns: dict[str, str] = Field(default_factory=dict, description="message column = expression over the file")


class RunSettings(SettingsSection):
    """`[run]`: the loop."""

    trigger_interval: Duration = Field("10s", description="with run --interval: time between two polls of the depot")  # type: ignore[assignment]
    maintenance_interval: OptionalDuration = Field(
        "1h", description="with run --interval: how often tables are maintained, or never"
    )  # type: ignore[assignment]


class MaintainSettings(SettingsSection):
    """`[maintain]`: what `windrow maintain` looks after."""

    depot: Literal["own", "always", "never"] = Field(
        "own", description="which depots are maintained: own (created by Windrow), always or never"
    )
    other_ledgers: tuple[str, ...] = Field(
        (), description="other ledgers on this depot; files that they have yet to read are kept"
    )


class VerifySettings(SettingsSection):
    """`[verify]`: what `windrow verify` remembers."""

    record: str = Field("", description="file of what was verified, from which the next run continues; empty: none")


class LogSettings(SettingsSection):
    """`[log]`: what a run writes on standard error."""

    format: Literal["auto", "pretty", "json"] = Field("auto", description="auto: pretty on a terminal, else JSON lines")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="the lowest level to write")


class MetricsSettings(SettingsSection):
    """`[metrics]`: how a run is watched from outside."""

    prometheus_port: int = Field(0, ge=0, le=65_535, description="Prometheus metrics on this port of 127.0.0.1; 0: off")
    textfile: str = Field("", description="file for node exporter's textfile collector, *.prom; empty: off")
    opentelemetry: bool = Field(False, description="a span for each microbatch, to the SDK of the process")
    openlineage: bool = Field(False, description="an OpenLineage event for each microbatch, set up in the environment")


class Variables(EnvSettingsSource):
    """Reads variables: JSON, or for a list comma-separated text; other text is passed on, and refused as a value."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Return the value of a variable that is not text or a number."""
        try:
            decoded = json.loads(value)
        except ValueError:
            decoded = value
        listed = get_origin(field.annotation) in {list, tuple} and not value.lstrip().startswith(("[", "{"))
        return [item.strip() for item in value.split(",") if item.strip()] if listed else decoded


class Settings(BaseSettings):
    """All settings. Raises SettingsError, with the nearest known name, for an unknown one."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        validate_default=True,
        frozen=True,
    )

    depot: str = Field("data/depot", min_length=1, description="Delta table of messages: a path or a catalog name")
    depot_columns: dict[str, str] = Field(
        default_factory=dict, description="for a depot of your own: message column = expression over its columns"
    )
    payload_type: str = Field(
        "", description="type of payloads, such as DOUBLE; empty: BINARY stays BINARY, all else becomes text"
    )
    ledger: str = Field("data/ledger", min_length=1, description="Delta table of batches, rejections and history")
    views_schema: str = Field("", description="schema of the views over a catalog ledger; empty: the ledger's own")
    checkpoint_location: str = Field("", description="directory for Spark's disposable checkpoints; empty: Spark's own")
    engine: Literal["auto", "spark", "embedded"] = Field(
        "auto", description="auto: spark if a session is given or pyspark and Java are installed, else embedded"
    )
    start_from: str = Field("beginning", description="where a new ledger begins in the depot; see docs/settings.md")
    max_messages: Count = Field(1_000_000, description="messages per microbatch, in whole depot versions")
    max_driver_messages: int = Field(
        default_factory=driver_messages,
        ge=0,
        description="new plus a quarter of open messages; above this, executors process; lower below 4 GB of memory",
    )
    max_memory_bytes: int = Field(
        1_000_000_000,
        ge=1_000_000,
        description="a larger depot version (embedded engine) or ledger (when read) is processed in parts",
    )
    idle_timeout: OptionalDuration = Field(
        "10s", description="how long a silent source keeps overdue batches open, or never"
    )  # type: ignore[assignment]
    max_clock_skew: Duration = Field("5m", description="a stamp this far ahead of the wall clock is rejected")  # type: ignore[assignment]
    on_depot_change: Literal["error", "ignore"] = Field("error", description="when the depot loses or changes rows")
    retention: str = Field("90d", description="how far back replay and verify reach")
    fsync: bool = Field(True, description="a commit counts only when a local disk keeps it through a power cut")
    single_writer: bool = Field(
        False, description="on S3: nobody else writes to the tables, so Spark's commits need not exclude others"
    )
    commit: Literal["merge", "files"] = Field(
        "merge", description="how Spark commits: merge, or files for a ledger with a path, which tasks write themselves"
    )
    fold_commits: Count = Field(32, description="commits after which a ledger drops obsolete versions")
    fold_rows: Count = Field(
        10_000, description="above this many obsolete versions, fold as soon as they outnumber the rows that count"
    )
    max_retries: int = Field(5, ge=0, description="how often a failing microbatch is retried")
    storage_options: dict[str, SecretStr] = Field(
        default_factory=dict, description="for object stores: what the environment lacks, e.g. AWS_REGION"
    )
    table_properties: dict[str, str] = Field(
        default_factory=dict, description="Delta properties of tables that Spark creates; they override Windrow's own"
    )
    rules: RulesSettings = RulesSettings()
    ingest: IngestSettings = IngestSettings()
    format: FormatSettings = FormatSettings()
    run: RunSettings = RunSettings()
    maintain: MaintainSettings = MaintainSettings()
    producer: ProducerSettings = ProducerSettings()
    mqtt: MqttSettings = MqttSettings()
    kafka: KafkaSettings = KafkaSettings()
    verify: VerifySettings = VerifySettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    file_content: ClassVar[Mapping[str, Any]] = {}
    file_path: ClassVar[Path | None] = None

    @property
    def producer_options(self) -> ProducerOptions:
        """Return the options of the producers that commands open: waiting messages get a part of the memory."""
        room = max(self.max_memory_bytes // BUFFERS_IN_MEMORY, self.producer.max_message_bytes)
        return ProducerOptions(**self.producer.model_dump(), fsync=self.fsync, max_buffer_bytes=room)

    @property
    def max_cached_bytes(self) -> int:
        """Return how many bytes may stay in memory between microbatches: half of what a reader may use."""
        return self.max_memory_bytes // 2

    def __init__(self, **values: Any) -> None:
        """Take values over environment and defaults; see `load` for the file."""
        errors: list[UsageError] = [*_unknown_variables(os.environ), *_unknown_names(self.file_content)]
        try:
            super().__init__(**values)
        except ValidationError as error:
            named = {error.setting for error in errors if isinstance(error, SettingsError)}
            described = [_settings_error(detail) for detail in error.errors()]
            # An unknown name is reported once, not again as an error in its table.
            errors += [new for new in described if all(name[: len(new.setting)] != new.setting for name in named)]
        else:
            errors += self._contradictions()
        if errors:
            raise combine_errors([self._locate_error(error, values) for error in errors]) from None

    def _contradictions(self) -> Iterator[UsageError]:
        checks: Mapping[tuple[str, ...], Callable[[], object]] = {
            ("rules",): self.rules.build,
            ("storage_options",): lambda: _require_storage(self.storage_options),
            (): lambda: _require_places(self.depot, self.ledger),
            ("retention",): lambda: _require_retention(self.retention),
            ("start_from",): lambda: StartFrom.parse(self.start_from),
            ("payload_type",): lambda: self.payload_type and _parse_type(self.payload_type),
        }
        for part, check in checks.items():
            try:
                check()
            except UsageError as error:
                known = {("rules",): RulesSettings.model_fields, (): type(self).model_fields}.get(part, {})
                error.setting = (*part, *setting_in(error.message, known, ""))
                yield error

    def _locate_error(self, error: UsageError, values: Mapping[str, Any]) -> UsageError:
        """Add the variable, or the file and line, that an error is about, unless the value was given to the class."""
        return error if has_key(values, error.setting[:1] or ("",)) else with_location(error, self.file_path)

    @classmethod
    def load(cls, file: str | Path | None = None, **flags: Any) -> Settings:
        """Read the settings of a file, the environment and flags; later ones win.

        Args:
            file: The file; by default `windrow.toml` here, if there is one.
            flags: Settings by name; those in a section as a dictionary.

        Returns:
            The settings.

        Raises:
            SettingsError: A name is unknown or a value wrong; all mistakes are reported at once.

        Example:
            >>> windrow.Settings.load(depot="data/depot", rules={"window": "1m"}).rules.window
            60000000
        """
        path = Path(file or FILE)
        if file is None and not path.exists():
            return cls(**flags).with_storage()
        content = read_file(path)
        kind: type[Settings] = type("FileSettings", (cls,), {"file_content": content, "file_path": path})
        return kind(**flags).with_storage()

    def with_storage(self) -> Self:
        """Put `storage_options` into the environment of this process, for delta-rs; existing variables stay.

        Raises SettingsError if other settings have put a different value there.
        """
        for name, secret in self.storage_options.items():
            variable, value = name.upper(), secret.get_secret_value()
            # guard: one-store-a-process
            if OPTIONS_SET.get(variable, value) != value:
                raise SettingsError(
                    f"[storage_options] {variable} differs from that of other settings in this process",
                    "A process has one set of options for object stores: use a process for each.",
                )
            if variable not in os.environ:
                os.environ[variable] = OPTIONS_SET[variable] = value
        return self

    @contextmanager
    def locating_errors(self, table: str, named: str) -> Iterator[None]:
        """Add file and line to a SettingsError about a table of settings, or a key of its inner table `named`."""
        try:
            yield
        except SettingsError as error:
            known = type(getattr(self, table)).model_fields
            setting = (table, *setting_in(error.message, known, named))
            located = _error(setting, f"[{table}] {error.message.removeprefix(f'[{table}] ')}", error.hint)
            raise with_location(located, self.file_path) from None

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **sources: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flags, environment, file."""
        file = InitSettingsSource(settings_cls, dict(cls.file_content))
        return sources["init_settings"], Variables(settings_cls), file


def part(kind: type[P], values: Mapping[str, Any]) -> P:
    """Return one table of settings. Raises SettingsError, with the nearest known name, for an unknown key."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise combine_errors([_settings_error(detail, kind.model_fields) for detail in error.errors()]) from None


def _require_storage(storage: Mapping[str, SecretStr]) -> None:
    for name in storage:
        if not re.fullmatch(r"(AWS|AZURE|GOOGLE)_[A-Z0-9_]+", name.upper()):
            raise SettingsError(
                f"[storage_options] {name}: not an option of an object store",
                "Options are named like variables: AWS_REGION, AZURE_STORAGE_ACCOUNT_NAME, GOOGLE_SERVICE_ACCOUNT.",
            )


def _require_places(depot: str, ledger: str) -> None:
    """Refuse empty locations, and a table inside the other: a VACUUM of the outer table deletes the inner files."""
    for name, location in (("depot", depot), ("ledger", ledger)):
        if not location.strip() or "\0" in location:
            raise SettingsError(f"{name} = {location!r} is not a location", "Give a path or a catalog name.")
        require_safe(name, location)
    paths = [(location, local_path(location)) for location in (depot, ledger)]
    places = [str(path.resolve()) if path else location for location, path in paths]
    first, second = (f"{place.rstrip('/')}/" for place in places)
    if first.startswith(second) or second.startswith(first):
        raise SettingsError(f"depot {depot!r} and ledger {ledger!r} overlap", "Give each a separate directory.")


def _known_names() -> set[str]:
    return {".".join(variable.removeprefix(PREFIX).lower().split("__")) for variable in _known_variables()}


def _known_variables() -> set[str]:
    names = set()
    for name, field in Settings.model_fields.items():
        inner = field.annotation if isinstance(field.annotation, type) else None
        if inner and issubclass(inner, SettingsSection):
            names |= {f"{PREFIX}{name}__{part}".upper() for part in inner.model_fields}
        names.add(f"{PREFIX}{name}".upper())
    return names


def _require_retention(retention: str) -> None:
    if durations.microseconds(retention, "retention") < MIN_RETENTION:
        raise SettingsError(
            f"retention = {retention!r} is less than an hour", "Use at least 1h, because readers need old files."
        )


def _parse_type(text: str) -> object:
    from windrow.model.payload import parse  # it imports pyarrow, which other settings do not need

    return parse(text)


def _unknown_names(content: Mapping[str, Any]) -> Iterator[SettingsError]:
    """Yield an error for each unknown name in a file; pydantic accepts names in capitals too."""
    for name in content:
        if name not in Settings.model_fields:
            yield _error((name,), f"unknown setting {name!r}", _nearest(name, _known_names()))


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[SettingsError]:
    known = _known_variables()
    for name in environment:
        if not name.upper().startswith(PREFIX) or name.upper() in known:
            continue
        if not re.match(rf"{PREFIX}(INGEST__COLUMNS|DEPOT_COLUMNS|FORMAT__FIELDS|FORMAT__OPTIONS)__\w+$", name.upper()):
            setting = tuple(name.upper().removeprefix(PREFIX).lower().split("__"))
            yield _error(setting, "unknown variable", _nearest(name.upper(), known))


def _nearest(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1, cutoff=0.5)
    return f"Did you mean {near[0]}?" if near else f"Known are {', '.join(sorted(known))}."


def _settings_error(first: ErrorDetails, among: Iterable[str] | None = None) -> SettingsError:
    """Return an error for an invalid setting, one `among` a table's settings, or among all."""
    name, setting = ".".join(map(str, first["loc"])), tuple(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return _error(setting, f"unknown setting {name!r}", _nearest(name, set(among or _known_names())))
    message = first["msg"].removeprefix("Value error, ")
    place = first["loc"] or ("",)
    # The message must not show a secret, nor an address with one.
    secret = {"storage_options", "properties"} & set(place) or place[-1] in {"password", "mqtt", "kafka"}
    secret = secret or (place[-1] == "broker" and "@" in str(first["input"]))
    value = "" if secret or isinstance(first["input"], Mapping) else f" = {first['input']!r}"
    text = f"{name}{value}: {message}" if name else message
    return _error(setting, text, "See `windrow init` for an example with all settings.")


def _error(setting: tuple[str, ...], message: str, hint: str) -> SettingsError:
    error = SettingsError(message, hint)
    error.setting = setting
    return error
