"""The command `windrow replay`."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from windrow.cli.progress import steps
from windrow.cli.shared_options import (
    CommandContext,
    Keys,
    Sources,
    TopologyArgument,
    command,
    print_line,
    print_markup,
    refuse,
)
from windrow.errors import SettingsError
from windrow.model.durations import microseconds, to_toml
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from windrow.batching.rules import Rules
    from windrow.replaying import ReplayRange
    from windrow.replaying.report import Comparison, Move, Outcome, Replay, ReplayChange
    from windrow.topology.replay import TopologyReplay

SHOWN = 20
Ticks = Literal["reuse", "fresh", "merged"]  # repeated here, because loading `replaying` takes long
COLOURS = {"changed": "yellow", "moved": "cyan", "removed": "red", "added": "green"}


@command(
    "config depot ledger engine",
    example="windrow replay --max-delay 1m --into data/other   or   windrow replay words:topology",
)
def replay(
    call: CommandContext,
    topology: TopologyArgument = None,
    into: Annotated[str | None, "Path at which to keep the new ledger. Default: discard it."] = None,
    rules: Annotated[
        list[str] | None, "A windrow.toml whose [rules] replace the recorded ones. Repeat it to compare several."
    ] = None,
    window: Annotated[str | None, "Another window, such as 30s."] = None,
    max_delay: Annotated[str | None, "Another max_delay, such as 1m."] = None,
    ticks: Annotated[
        Ticks,
        "reuse: with the recorded ticks and flushes; fresh: without. A topology fires its events as recorded "
        "(reuse), whenever they are due (fresh), or recorded ones as recorded and new ones when due (merged).",
    ] = "reuse",
    from_: Annotated[str | None, "From this depot version, or this commit time, on."] = None,
    to: Annotated[str | None, "Up to this depot version, or before this commit time."] = None,
    key: Keys = None,
    source: Sources = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum changes and moves to print.")] = SHOWN,
    continue_: Annotated[bool, "For a topology, with --into: then keep processing newer rows."] = False,
) -> int:
    """Replay the recorded log into a new ledger, and compare.

    It only reads the original ledger. Under the same rules the two must be equal; exit status 1 if they differ. With
    other rules, or without the recorded ticks, the comparison shows which batches would appear, disappear or change,
    and where their messages would go. The functions of a topology see the recorded rows, times and events again.
    """
    if topology is not None:
        partial = (rules, window, max_delay, from_, to, key, source) != (None,) * 7
        alone = continue_ and into is None
        refuse(
            (partial, "a topology is always replayed whole", "Only --into, --ticks and --continue apply to it."),
            (alone, "--continue needs --into", "Name a directory for the new tables: --into DIRECTORY."),
        )
        from windrow.topology.replay import replay_topology

        clock = WallClock() if continue_ else None
        with steps("microbatches", quiet=call.json) as progress:
            again = replay_topology(*call.topology(topology), into, ticks, clock, progress=progress)
        return _answer(call, again, lambda: _tell_topology(again, continue_))
    if continue_ or ticks == "merged":
        needs = "--continue and --ticks merged need a topology"
        raise SettingsError(needs, "To continue from a new ledger, use `windrow run`.")
    from windrow.replaying import ReplayRange
    from windrow.replaying import replay as play

    flags = {"window": window, "max_delay": max_delay}
    portion = ReplayRange(from_, to, key or (), source or ())
    with call.replayable_settings() as chosen:
        if rules is not None and len(rules) > 1:
            refuse((into is not None, "--into is for one rule set", "Compare them first, then keep one."))
            return _compare(call, {file: _rules(file, chosen, flags) for file in rules}, chosen, ticks, portion)
        others = _rules(rules[0] if rules else None, chosen, flags)
        with steps("messages", quiet=call.json) as progress:
            result = play(chosen, into, others, ticks, portion, limit, progress=progress)
    return _answer(call, result, lambda: _print(result))


def _compare(
    call: CommandContext, sets: dict[str, Rules | None], chosen: Settings, ticks: Ticks, portion: ReplayRange
) -> int:
    from windrow.replaying import replay as play

    results = {}
    for file, others in sets.items():
        with steps(file, quiet=call.json) as progress:
            results[file] = play(chosen, None, others, ticks, portion, 0, progress=progress)  # type: ignore[arg-type]
    documents = [{"file": file, **result.to_dict()} for file, result in results.items()]
    call.answer(documents, tell=lambda: _print_sets(results))
    return 0


def _print_sets(results: dict[str, Replay]) -> None:
    recorded = next(iter(results.values())).recorded
    width = max(map(len, ["as recorded", *results]))
    print_line(f"{'':{width}}  {'batches':>10}  {'rejected':>10}  {'the same':>10}  {'messages elsewhere':>18}")
    for name, side, comparison in [
        ("as recorded", recorded, None),
        *((file, result.replayed, result.comparison) for file, result in results.items()),
    ]:
        same = side.batch_count if comparison is None else comparison.unchanged
        elsewhere = 0 if comparison is None else comparison.moved_message_count
        rejected = sum(side.rejected_by_reason.values())
        print_line(f"{name:{width}}  {side.batch_count:>10,}  {rejected:>10,}  {same:>10,}  {elsewhere:>18,}")


def _answer(call: CommandContext, outcome: Outcome, tell: Callable[[], None]) -> int:
    call.answer(outcome.to_dict(), tell=tell)
    return 0 if outcome.ok else 1


def _tell_topology(result: TopologyReplay, continue_: bool) -> None:
    for difference in result.differences:
        keys = pluralize(difference.key_count, "key")
        print_markup(f"[yellow]{escape(difference.state)}[/yellow]  {keys} with different rows")
        for example in difference.examples:
            print_line(f"   recorded {example['recorded']}\n   replayed {example['replayed']}")
    states = ", ".join(f"{name} {pluralize(rows, 'row')}" for name, rows in result.row_counts.items())
    outcome = "the states differ" if result.differences else "the states are equal"
    print_line(
        f"{pluralize(result.microbatch_count, 'microbatch')} of {result.topology} replayed: {outcome} ({states})."
    )
    if continue_:
        print_line(f"Then {pluralize(result.live_microbatch_count, 'microbatch')} of newer rows.")


def _rules(file: str | None, chosen: Settings, flags: dict[str, str | None]) -> Rules | None:
    """Return the rules of a file, or else of the settings, with the flags applied on top."""
    from windrow.batching.rules import Rules

    values = {name: value for name, value in flags.items() if value is not None}
    if file is None and not values:
        return None
    base = chosen if file is None else Settings.load(file)
    changed = {name: microseconds(value, "--" + name.replace("_", "-")) for name, value in values.items()}
    return Rules(**(base.rules.model_dump() | changed))


def _print(result: Replay) -> None:
    recorded, replayed = result.recorded, result.replayed
    versions = f"depot versions {result.first_depot_version} to {result.last_depot_version}"
    print_line(f"{pluralize(result.message_count, 'message')} of {versions}, {_how(result)}")
    for name, side in (("ledger", recorded), ("replay", replayed)):
        has = f"{pluralize(side.batch_count, 'batch')}, {sum(side.rejected_by_reason.values()):,} rejected"
        print_line(f"{name}  {has}, in {pluralize(side.microbatch_count, 'microbatch')}; digest {side.digest}")
    if result.comparison is None:
        print_markup("[green]equal[/green], to the last byte")
    else:
        _differ(result, result.comparison)
    if result.into is not None:
        print_line(f"The new ledger is {result.into}; pass it as --ledger to inspect it or to continue from it.")


def _how(result: Replay) -> str:
    rules = "the recorded rules"
    if result.rules is not None:
        rules = ", ".join(f"{name} {value}" for name, value in to_toml(result.rules).items())
    named = {"key": result.keys, "source": result.sources}
    streams = [f"only {name} {', '.join(map(repr, values))}" for name, values in named.items() if values]
    ticks = f"{'with' if result.ticks == 'reuse' else 'without'} the recorded ticks and flushes"
    return ", ".join([f"under {rules}", ticks, *streams])


def _differ(result: Replay, comparison: Comparison) -> None:
    """Print the changes and moves, or the first difference in words if there should be none."""
    if result.ok:
        print_line(f"different: {_counts(comparison)}")
    else:
        at = comparison.first_microbatch
        where = "" if at is None else f"; the first microbatch with another result is {at}"
        print_markup(f"[red]different[/red], and must be equal: {_counts(comparison)}{where}")
    for change in comparison.changes:
        _print_change(change)
    _more(sum(comparison.counts.values()) - len(comparison.changes), "change")
    for move in comparison.moves:
        print_line(f"  {_describe_move(move)}")
    _more(comparison.moved_message_count - sum(move.message_count for move in comparison.moves), "message")
    if not result.ok:
        print_line("The depot or the ledger has changed, or an older Windrow wrote it: `windrow verify` says which.")


def _counts(comparison: Comparison) -> str:
    words = {"moved": "the same messages in another window", "removed": "disappear", "added": "appear"}
    parts = [f"{number:,} {words.get(kind, kind)}" for kind, number in comparison.counts.items() if number]
    elsewhere = f"{pluralize(comparison.moved_message_count, 'message')} elsewhere"
    return ", ".join([f"{comparison.unchanged:,} the same", *parts, elsewhere])


def _print_change(change: ReplayChange) -> None:
    colour = COLOURS[change.kind]
    before, after = change.message_counts
    size = {"removed": f"{before:,}", "added": f"{after:,}"}.get(change.kind, f"{before:,} -> {after:,}")
    becomes = f" -> {change.new_id}" if change.new_id else ""
    print_markup(f"  [{colour}]{change.kind}[/{colour}]  {escape(change.id + becomes)}  messages {size}")
    for name, (old, new) in change.columns.items():
        print_line(f"      {name}: {_value(old)} -> {_value(new)}")


def _describe_move(move: Move) -> str:
    places = [place or "nowhere" for place in (move.before, move.after)]
    example = move.example
    first = f"{example['source'] or repr('')} {example['key']} {example['type']} {example['event_time']}"
    return f"{pluralize(move.message_count, 'message')}: {places[0]} -> {places[1]}, first {first}"


def _more(number: int, noun: str) -> None:
    if number > 0:
        print_line(f"  and {pluralize(number, noun)} more (--limit)")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json_text.dumps(value, default=str)
