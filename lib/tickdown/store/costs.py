"""What agents have cost, from the attempts that they worked in."""

from __future__ import annotations

from datetime import datetime, tzinfo

from tickdown.base.records import record
from tickdown.store.database import Database
from tickdown.time.instants import from_store, to_store


@record(frozen=True)
class Cost:
    """Of one task on one day."""

    day: str
    task_id: str
    calls: int
    cost_usd: float
    input_tokens: int
    output_tokens: int
    over_budget: int = 0  # runs that have cost more than `budget_usd`; on the day of their first call


def spent(db: Database, since: datetime, task_id: str | None = None) -> float:
    where, values = ("", ()) if task_id is None else (" AND task_id = ?", (task_id,))
    row = db.one(
        "SELECT COALESCE(SUM(attempts.cost_usd), 0) AS cost FROM attempts JOIN task_runs USING (run_id)"
        f" WHERE attempts.started_at >= ? AND attempts.cost_usd IS NOT NULL{where}",
        to_store(since),
        *values,
    )
    return float(row["cost"]) if row is not None else 0.0


def by_task_and_day(db: Database, since: datetime, zone: tzinfo) -> list[Cost]:
    """Newest day first, the dearest task of a day first. Calls whose agent tells tokens but no price count as nothing."""
    rows = db.all(
        "SELECT run_id, task_id, attempts.started_at AS at, attempts.cost_usd, attempts.input_tokens, attempts.output_tokens,"
        " task_runs.over_budget FROM attempts JOIN task_runs USING (run_id) WHERE attempts.started_at >= ?"
        " AND (attempts.cost_usd IS NOT NULL OR attempts.input_tokens IS NOT NULL) ORDER BY attempts.started_at",
        to_store(since),
    )
    sums: dict[tuple[str, str], Cost] = {}
    counted: set[str] = set()
    for row in rows:
        key = (f"{from_store(row['at']).astimezone(zone):%Y-%m-%d}", row["task_id"])
        before = sums.get(key, Cost(*key, 0, 0.0, 0, 0))
        sums[key] = Cost(
            *key,
            before.calls + 1,
            before.cost_usd + (row["cost_usd"] or 0.0),
            before.input_tokens + (row["input_tokens"] or 0),
            before.output_tokens + (row["output_tokens"] or 0),
            before.over_budget + (bool(row["over_budget"]) and row["run_id"] not in counted),
        )
        counted.add(row["run_id"])
    dearest = sorted(sums.values(), key=lambda cost: (-cost.cost_usd, cost.task_id))
    return sorted(dearest, key=lambda cost: cost.day, reverse=True)
