"""The next occurrence, held against cronsim at every change of every clock from 2000 to 2040, and against a walk by hand.

cronsim is the judge wherever it follows Debian's rules itself. Where it is known not to (`Change.misleads_cronsim_until`;
the last test holds its faults), the hour around the change is walked minute by minute instead. Around every change that
walk is compared besides, whether cronsim is right there or not.
"""

from __future__ import annotations

import io
import random
import re
import struct
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from itertools import cycle, pairwise
from zoneinfo import ZoneInfo

import pytest
import pytz
from cronsim import CronSim, CronSimError

from tests.cron_by_hand import MONTHS, WEEKDAYS, by_hand
from tickdown.schedule.cron import Cron
from tickdown.schedule.schedule import next_after, parse_schedule

SHARDS = 8  # so that several workers can share the work
# Comparisons, lest they silently become fewer: per shard an eighth.
AT_LEAST = {"cronsim": 20_000, "walked": 6_000, "anywhere": 5_000}
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BEGIN, END = datetime(2000, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
SCAN_STEP = 6 * 86400  # the two changes nearest to each other are 6 days and 23 hours apart (America/Boa_Vista, 2000)
LEFT_OUT_A_DAY_BEFORE_2000 = ["Pacific/Kwajalein", "Pacific/Kiritimati", "Pacific/Kanton"]


# --- the zones and their changes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    at: datetime
    before: timedelta  # the offset from UTC
    after: timedelta

    @property
    def shown_before(self) -> datetime:
        """What the clock would show at the change if it did not change."""
        return self.at.replace(tzinfo=None) + self.before

    @property
    def shown_after(self) -> datetime:
        return self.at.replace(tzinfo=None) + self.after

    @property
    def end(self) -> datetime:
        """From here on nothing reminds of the change: a repeated hour is over, and so is the one in which it came."""
        return self.at + max(self.before - self.after, HOUR)

    @cached_property
    def misleads_cronsim_until(self) -> datetime | None:
        """Searches that begin before this, and do not end before the change, go wrong in cronsim (None: they do not).

        Only with lines that follow elapsed time. cronsim looks for their hour in steps of one, after going back to `:00`
        on the clock, and for their day by building its midnight. The first fails unless the clock goes from one full
        hour to another; the second where a gap swallows midnight, or where the clock is put back past midnight.
        """
        if self.shown_before.minute or self.shown_after.minute:
            return self.end
        if self.after > self.before:
            return self.at if _midnight_at_or_after(self.shown_before) < self.shown_after else None
        return self.end if _midnight_at_or_after(self.shown_after + MINUTE) < self.shown_before else None


def _midnight_at_or_after(clock: datetime) -> datetime:
    midnight = clock.replace(hour=0, minute=0, second=0)
    return midnight if midnight == clock else midnight + DAY


@cache
def all_zones() -> dict[ZoneInfo, tuple[Change, ...]]:
    """Every zone of pytz's pinned copy of the IANA data, so that every machine compares the same; aliases once."""
    by_content: dict[bytes, str] = {}
    for name in [*pytz.common_timezones, *pytz.all_timezones]:
        with pytz.open_resource(name) as file:  # type: ignore[attr-defined]
            by_content.setdefault(file.read(), name)
    found = {}
    for content, name in sorted(by_content.items(), key=lambda item: item[1]):
        zone = ZoneInfo.from_file(io.BytesIO(content), key=name)
        found[zone] = find_changes(zone, BEGIN, END, listed_moments(content))
    return found


def listed_moments(content: bytes) -> tuple[int, ...]:
    """The moments that a zone's file names, one after the other, up to the one from which on it gives a rule (RFC 8536)."""
    (count,) = struct.unpack(">l", content[32:36])
    return struct.unpack(f">{count}l", content[44 : 44 + 4 * count])


def find_changes(zone: ZoneInfo, begin: datetime, end: datetime, listed: tuple[int, ...] = ()) -> tuple[Change, ...]:
    """As far as the changes are `listed`, nothing is searched."""

    def offset(second: int) -> timedelta:
        found = datetime.fromtimestamp(second, zone).utcoffset()
        assert found is not None
        return found

    changes = []
    second, last = int(begin.timestamp()), int(end.timestamp())
    for moment in listed:
        if second < moment <= last:
            before, after = offset(moment - 1), offset(moment)
            if after != before:
                changes.append(Change(datetime.fromtimestamp(moment, UTC), before, after))
            second = moment
    before = offset(second)
    while second < last:
        following = second + SCAN_STEP
        after = offset(following)
        if after != before:
            low, high = second, following
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == before else (low, middle)
            changes.append(Change(datetime.fromtimestamp(high, UTC), before, after))
        second, before = following, after
    return tuple(changes)


@cache
def changing_zones() -> dict[ZoneInfo, tuple[Change, ...]]:
    """The zones that change their clocks, and of those that do it at the same instants only one."""
    by_changes = {changes: zone for zone, changes in all_zones().items() if changes}
    found = {zone: changes for changes, zone in by_changes.items()}
    for zone in all_zones():
        if zone.key in LEFT_OUT_A_DAY_BEFORE_2000:
            found[zone] = find_changes(zone, datetime(1993, 1, 1, tzinfo=UTC), END)
    return found


# --- random lines and starting points --------------------------------------------------------------------------


def time_word(dice: random.Random, near: int, high: int) -> str:
    """A minute or hour field, of a shape that matches at or about `near` as often as not."""
    near = min(max(near, 0), high)
    other = dice.randint(0, high)
    low, top = sorted((near, other))
    step = dice.randint(1, high)
    return dice.choice(
        ["*", "*", f"*/{step}", f"*/{dice.randint(1, 12)}", f"*/{step},{near}"]
        + 5 * [str(near)]
        + [
            str(other),
            f"{near},{other}",
            f"{near:02},{dice.randint(0, high)},{other}",
            f"{low}-{top}",
            f"{near}-{near}",
        ]
        + [f"{low}-{top}/{dice.randint(1, 9)}", f"{near},*/{step}", f"0-{high}", f"{near}-{near}/{step}"]
    )


def day_word(dice: random.Random, near: int) -> str:
    low, top = sorted((near, dice.randint(1, 31)))
    return dice.choice(
        ["*"] * 12
        + [
            "L",
            f"{dice.randint(1, 28)},L",
            f"{near}",
            f"{near}",
            f"{low}-{top}",
            f"{low},{top}",
            f"{low}-{top}/2",
            "1-31",
        ]
        + [f"*/{dice.randint(1, 9)}", f"*/{dice.randint(2, 31)},{near}", f"{near}-{near}/3"]
    )


def month_word(dice: random.Random, near: int) -> str:
    low, top = sorted((near, dice.randint(1, 12)))
    name, low_name, top_name = (MONTHS[number - 1] for number in (near, low, top))
    return dice.choice(
        ["*"] * 12
        + [f"{near}", name, name.upper(), f"{low}-{top}", f"{low_name}-{top_name}", f"{low},{top_name}", f"1-12/{low}"]
        + [f"*/{dice.randint(1, 6)}"]
    )


def weekday_word(dice: random.Random, near: int) -> str:
    other = dice.randint(0, 6)
    low, top = sorted((near, other))
    name, low_name, top_name = (WEEKDAYS[number] for number in (near, low, top))
    nth = dice.randint(1, 5)
    return dice.choice(
        ["*"] * 12
        + [f"{near}", f"{near or 7}", name.title(), f"{low}-{top}", f"{low_name}-{top_name}", f"{low},{top_name}"]
        + [
            f"{near}#{nth}",
            f"{name}#{nth}",
            f"{name.upper()}#{nth},{other}",
            f"{low_name}#1,{top_name}#3",
            "5-7",
            "0-7",
        ]
        + [f"*/{dice.randint(1, 7)}", f"{low}-7/2", f"{other},*/3"]
    )


def random_line(dice: random.Random, near: datetime) -> str:
    return " ".join(
        [
            time_word(dice, near.minute, 59),
            time_word(dice, near.hour, 23),
            day_word(dice, near.day),
            month_word(dice, near.month),
            weekday_word(dice, near.isoweekday() % 7),
        ]
    )


def clock_time_near(dice: random.Random, change: Change) -> datetime:
    """Most often one that is skipped or repeated, or just outside of that."""
    low, high = sorted((change.shown_before, change.shown_after))
    if dice.random() < 0.3:
        return dice.choice([low, high, low - MINUTE, high - MINUTE, high + MINUTE])
    return low - 40 * MINUTE + dice.random() * (high - low + 80 * MINUTE)


def moment_near(dice: random.Random, change: Change) -> datetime:
    exact = timedelta(seconds=dice.choice([-3600, -61, -60, -59, -1, 0, 0, 1, 59, 60, 3599, 3600]))
    shift = abs(change.after - change.before)
    return change.at + dice.choice([exact, exact, dice.uniform(-1, 1) * shift, dice.uniform(-1.2, 1.2) * DAY])


def read(line: str, zone: ZoneInfo) -> Cron | None:
    """None for dates that never come; cronsim must find none either."""
    try:
        schedule = parse_schedule(line, "a", zone)
    except ValueError as error:
        assert "never happens" in str(error), line
        with pytest.raises((CronSimError, StopIteration)):
            next(CronSim(for_cronsim(line), datetime(2000, 1, 1)))
        return None
    assert isinstance(schedule, Cron)
    return schedule


def ask_ours(schedule: Cron, moment: datetime) -> datetime:
    found = next_after(schedule, moment)
    assert found is not None
    return found


# --- the judges ------------------------------------------------------------------------------------------------


def for_cronsim(line: str) -> str:
    """cronsim reads `a-a/n`, which is just `a`, as `a/n`."""
    return re.sub(r"\b(\w+)-\1/\d+", r"\1", line)


class LimitedCronSim(CronSim):
    """Ends its search at a limit, or when it turns in circles."""

    limit = datetime.max.replace(tzinfo=UTC)
    rounds = 0

    def advance_month(self) -> None:  # the first step of every round
        self.rounds += 1
        if self.rounds > 10_000 or self.dt.astimezone(UTC) >= self.limit:
            raise StopIteration
        super().advance_month()


def follows_elapsed_time(line: str) -> bool:
    return line.startswith("*") or line.split()[1].startswith("*")


def ask_cronsim(line: str, zone: ZoneInfo, moment: datetime, before: datetime | None = None) -> datetime | None:
    if before is None:
        search = CronSim(for_cronsim(line), moment.astimezone(zone))
    else:
        search = limited = LimitedCronSim(for_cronsim(line), moment.astimezone(zone))
        limited.limit = before
    for found in search:
        instant = found.astimezone(UTC)
        if before is not None and instant >= before:
            return None
        # In the second pass of a repeated hour cronsim goes on from the bare clock time, with fixed times of the first.
        if instant > moment or follows_elapsed_time(line):
            return instant
    return None


def judge(line: str, zone: ZoneInfo, changes: tuple[Change, ...], moment: datetime) -> tuple[datetime | None, str]:
    """The next occurrence, and who says so: cronsim, or the walk by hand past the changes that mislead cronsim."""
    who = "cronsim"
    if follows_elapsed_time(line):
        for change in changes:
            until = change.misleads_cronsim_until
            if until is None or moment >= until:
                continue
            # What comes before the change cronsim finds, and it does not matter what it makes of the change itself.
            if moment < change.at - MINUTE and (found := ask_cronsim(line, zone, moment, before=change.at)):
                return found, who
            if walked := by_hand(line, zone, max(moment, change.at - MINUTE), change.end):
                return walked[0], "by hand"
            moment, who = change.end, "by hand"
    return ask_cronsim(line, zone, moment), who


# --- the comparisons -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", range(SHARDS))
def test_around_every_change_of_a_clock_the_next_occurrence_is_what_cronsim_and_a_walk_by_hand_say(shard: int) -> None:
    judged: Counter[str] = Counter()
    by_length = sorted(changing_zones().items(), key=lambda item: len(item[1]))  # as much to do in each shard
    for zone, changes in by_length[shard::SHARDS]:
        dice = random.Random(zone.key)
        schedules: dict[str, Cron] = {}
        while len(schedules) < max(8, len(changes) // 2):
            line = random_line(dice, clock_time_near(dice, dice.choice(changes)))
            if schedule := read(line, zone):
                schedules[line] = schedule
        for change, lines in zip(changes, cycle((1, 2))):
            for number, line in enumerate(dice.sample(list(schedules), lines)):
                judged += compare_near(dice, line, schedules[line], zone, changes, change, walk=number == 0)
    assert judged["cronsim"] >= AT_LEAST["cronsim"] // SHARDS
    assert judged["walked"] >= AT_LEAST["walked"] // SHARDS


def compare_near(
    dice: random.Random,
    line: str,
    schedule: Cron,
    zone: ZoneInfo,
    changes: tuple[Change, ...],
    change: Change,
    *,
    walk: bool,
) -> Counter[str]:
    """Two starting points near the change, and for the first of them also the occurrence after the next; with `walk` the
    hours around the change are walked by hand as well."""
    judged: Counter[str] = Counter()
    begin, end = change.at - 2 * HOUR, change.at + max(change.after - change.before, timedelta(0)) + 3 * HOUR
    walked = by_hand(line, zone, begin, end) if walk else []
    first = moment_near(dice, change)
    for moment in (first, ask_ours(schedule, first), moment_near(dice, change)):
        found = ask_ours(schedule, moment)
        expected, who = judge(line, zone, changes, moment)
        assert found == expected, (who, line, zone.key, moment.isoformat())
        judged[who] += 1
        if walk and begin <= moment < end:
            by_walk = next((instant for instant in walked if instant > moment), end)
            assert min(found, end) == by_walk, ("walked", line, zone.key, moment.isoformat())
            judged["walked"] += 1
    return judged


@pytest.mark.parametrize("shard", range(SHARDS))
def test_anywhere_the_next_occurrences_are_what_cronsim_says(shard: int) -> None:
    dice = random.Random(shard)
    zones = list(all_zones().items())
    judged: Counter[str] = Counter()
    for _ in range(200):
        zone, changes = dice.choice(zones)
        moment = BEGIN + dice.random() * (END - BEGIN)
        line = random_line(dice, datetime(2000, 1, 1) + dice.random() * 366 * DAY)
        schedule = read(line, zone)
        for _ in range(4 if schedule else 0):
            assert schedule is not None
            found = ask_ours(schedule, moment)
            expected, who = judge(line, zone, changes, moment)
            assert found == expected, (who, line, zone.key, moment.isoformat())
            judged[who] += 1
            moment = found
    assert judged["cronsim"] >= AT_LEAST["anywhere"] // SHARDS


@pytest.mark.parametrize("month", range(1, 13))
def test_dates_that_never_come_are_those_for_which_cronsim_finds_none(month: int) -> None:
    moment = datetime(2001, 1, 1, tzinfo=UTC)
    for day in (28, 29, 30, 31):
        for weekday in ("*", "*/3", "4", "sun#5", "fri#1"):
            for day_word in (f"{day}", f"*/{day}", f"{day}-31"):
                line = f"0 0 {day_word} {month} {weekday}"
                if schedule := read(line, ZoneInfo("UTC")):
                    assert ask_ours(schedule, moment) == ask_cronsim(line, ZoneInfo("UTC"), moment), line


def test_the_changes_compared_are_all_there_are_from_2000_to_2040() -> None:
    changes = [change for found in changing_zones().values() for change in found]
    assert len(changing_zones()) >= 160 and len(changes) >= 6300
    assert {change.at.year for change in changes} >= set(range(2000, 2041))
    jumps = Counter((change.after - change.before) // MINUTE for change in changes)
    assert {60, -60, 30, -30, 120, -120, 180, -180, DAY // MINUTE} <= set(jumps)
    assert jumps[DAY // MINUTE] >= 5  # Samoa and Tokelau in 2011; Kwajalein and Kiribati before
    # Nothing in the walk by hand and in the scan for changes is finer than this.
    assert all(change.at.second == 0 and change.before % MINUTE == timedelta(0) for change in changes)
    assert all(min(change.after - change.before, -HOUR) >= -3 * HOUR for change in changes)
    for found in changing_zones().values():
        assert all(later.at - earlier.at > timedelta(seconds=SCAN_STEP) for earlier, later in pairwise(found))


# --- what cronsim gets wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "zone", "moment", "right"),
    [
        # The clock does not go from one full hour to another: a gap of half an hour, ...
        ("30 * * * *", "Australia/Lord_Howe", "2033-10-01 15:06", "2033-10-01 15:30"),
        ("*/10 */3 6 * *", "Australia/Lord_Howe", "2030-10-05 15:30", "2030-10-05 16:00"),
        # ... half an hour twice, an answer from before the starting point, ...
        ("* 2 * * 5-7", "Australia/Lord_Howe", "2018-03-31 14:59", "2018-03-31 15:30"),
        ("* 3 * * *", "Pacific/Chatham", "2016-04-02 14:01", "2016-04-02 14:15"),
        # ... from 00:01 to 01:01, and back again, where the search never ends.
        ("* 1 * apr *", "America/Goose_Bay", "2006-04-02 03:01", "2006-04-02 04:01"),
        ("23 * */3 * *", "America/St_Johns", "2010-11-07 02:31", "2010-11-07 03:53"),
        # The gap swallows midnight, or all of a day.
        ("*/29 1 * * 7", "Atlantic/Azores", "2039-03-27 00:00", "2039-03-27 01:00"),
        ("* 1,8 6 * *", "America/Asuncion", "2019-10-06 03:59", "2019-10-06 04:00"),
        ("0 */12 30 * *", "Pacific/Apia", "2011-12-29 23:00", "2012-01-29 10:00"),
        # The clock is put back past midnight.
        ("34 */21 5,25 * *", "Antarctica/Casey", "2010-03-04 15:00", "2010-03-04 16:34"),
        # `a-a/n` is not `a/n`.
        ("5-5/20 3 * * *", "UTC", "2024-01-01 03:05", "2024-01-02 03:05"),
    ],
)
def test_cronsim_is_still_wrong_where_it_is_not_asked(line: str, zone: str, moment: str, right: str) -> None:
    """One of these failing after an update of cronsim means: an exception here can go."""
    start, expected = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (moment, right))
    info = ZoneInfo(zone)
    assert by_hand(line, info, start, expected) == [expected]
    schedule = read(line, info)
    assert schedule is not None and ask_ours(schedule, start) == expected
    cronsim = next(LimitedCronSim(line, start.astimezone(info)), None)
    assert cronsim is None or cronsim.astimezone(UTC) != expected
