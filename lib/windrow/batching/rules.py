"""The rules of batching, checked once. `kernel` applies them to messages."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Literal, get_args

from windrow.errors import RulesError
from windrow.model.durations import format_duration, microseconds

WindowAnchor = Literal["arrival", "event_time", "aligned"]
OnRepeat = Literal["split", "keep"]
SplitAt = Literal["message", "midpoint"]
CHOICES = {"window_anchor": get_args(WindowAnchor), "on_repeat": get_args(OnRepeat), "split_at": get_args(SplitAt)}

CALENDAR = 'window_anchor = "aligned" with on_repeat = "keep"'  # suits a long delay


class ShortWindowWarning(UserWarning):
    """A window no longer than `max_delay + max_lead`: some windows start at their first message's event time."""


@dataclass(frozen=True, slots=True, init=False)
class Rules:
    """Rules for which messages of a stream belong to one batch. All durations are in microseconds.

    `window` is the longest span of a batch, `max_delay` how old a message may be when it arrives, `max_lead` how
    far in the future it may claim to be, `max_batch_bytes` the maximum number of bytes of types and payloads in a
    batch (0: no limit), and `window_anchor` where a new window begins: `arrival` at processing time - `max_delay`,
    `event_time` at the message's own time, `aligned` at a multiple of `window`, counted from 1970-01-01 in UTC plus
    `window_offset`. `on_repeat` says what a second message of a type does: `split` the window, or
    `keep` both. `split_at` says where it splits: at the later `message`, or at the `midpoint` between the two.
    """

    window: int
    max_delay: int
    max_lead: int
    max_batch_bytes: int
    window_anchor: WindowAnchor
    on_repeat: OnRepeat
    split_at: SplitAt
    window_offset: int

    def __init__(
        self,
        window: str | int | timedelta = "10s",
        max_delay: str | int | timedelta = "5s",
        max_lead: str | int | timedelta = "1s",
        max_batch_bytes: int | None = 16_777_216,
        window_anchor: WindowAnchor = "arrival",
        on_repeat: OnRepeat = "split",
        split_at: SplitAt = "message",
        window_offset: str | int | timedelta = 0,
    ) -> None:
        """Accept durations as text (`10s`), `timedelta` or whole microseconds.

        Raises:
            RulesError: The rules contradict each other.
            SettingsError: A text is not a duration.

        Example:
            >>> windrow.Rules(window="1m", max_delay="5s").window
            60000000
        """
        put = object.__setattr__
        put(self, "window", microseconds(window, "window"))
        put(self, "max_delay", microseconds(max_delay, "max_delay"))
        put(self, "max_lead", microseconds(max_lead, "max_lead"))
        put(self, "max_batch_bytes", max_batch_bytes or 0)
        put(self, "window_anchor", window_anchor)
        put(self, "on_repeat", on_repeat)
        put(self, "split_at", split_at)
        put(self, "window_offset", microseconds(window_offset, "window_offset"))
        self._check()

    def _check(self) -> None:
        if self.window == 0:
            raise RulesError("window is 0", "A window needs a length, for example 10s.")
        if isinstance(self.max_batch_bytes, bool) or not isinstance(self.max_batch_bytes, int):
            raise RulesError("max_batch_bytes is not a whole number", "Give bytes, or 0 for no limit.")
        if self.max_batch_bytes < 0:
            raise RulesError("max_batch_bytes is negative", "Give bytes, or 0 for no limit.")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise RulesError(
                    f"{name} is {getattr(self, name)!r}", f"Choose {', '.join(choices[:-1])} or {choices[-1]}."
                )
        if self.window_offset and self.window_anchor != "aligned":
            hint = 'Set window_anchor = "aligned", or leave window_offset out.'
            raise RulesError(f"window_offset moves no window with window_anchor = {self.window_anchor!r}", hint)
        if self.window_offset >= self.window:
            offset, window = format_duration(self.window_offset), format_duration(self.window)
            hint = f"The windows are the same with {format_duration(self.window_offset % self.window)}."
            raise RulesError(f"window_offset ({offset}) is not shorter than window ({window})", hint)
        if self.window_anchor == "arrival" and self.window <= self.max_delay + self.max_lead:
            warnings.warn(
                f"window ({format_duration(self.window)}) is not longer than max_delay + max_lead "
                f"({format_duration(self.max_delay + self.max_lead)}): messages far from the clock start windows of "
                "their own",
                ShortWindowWarning,
                stacklevel=3,
            )

    def to_json(self) -> str:
        """Return the rules as the ledger records them: JSON with durations in microseconds."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, recorded: str) -> Rules:
        """Read what `to_json` wrote."""
        return cls(**json.loads(recorded))
