"""The tables, as an ordered list of migrations. Never edit one that has been released: add the next."""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID;

    -- What is known of each task beyond its file. `schedule`, `timezone` and `enabled` are as last seen: a change of
    -- them re-arms the task, and a file that breaks later is still known to be due.
    CREATE TABLE tasks (
        id TEXT PRIMARY KEY COLLATE NOCASE,
        path TEXT NOT NULL,
        schedule TEXT NOT NULL,
        timezone TEXT NOT NULL,
        enabled INTEGER NOT NULL,
        gone INTEGER NOT NULL DEFAULT 0,
        first_seen TEXT NOT NULL,
        armed_at TEXT NOT NULL,
        anchored_at TEXT NOT NULL,
        last_occurrence TEXT,
        last_end TEXT,
        boot_id TEXT NOT NULL DEFAULT '',
        paused_until TEXT,
        closing TEXT CHECK (closing IN ('auto_suspended', 'completed', 'failed')),
        failures INTEGER NOT NULL DEFAULT 0,
        incident TEXT,
        incident_since TEXT,
        incident_alerted_at TEXT,
        deferred TEXT,
        retry_at TEXT,
        retry_follows TEXT,
        retries_used INTEGER NOT NULL DEFAULT 0
    );

    CREATE TABLE hints (
        task_id TEXT NOT NULL COLLATE NOCASE,
        kind TEXT NOT NULL CHECK (kind IN ('interval', 'one-shot')),
        every_s REAL CHECK ((kind = 'interval') = (every_s IS NOT NULL)),
        at TEXT CHECK ((kind = 'one-shot') = (at IS NOT NULL)),
        given_at TEXT NOT NULL,
        until TEXT,
        reason TEXT NOT NULL DEFAULT '',
        author TEXT NOT NULL,
        PRIMARY KEY (task_id, kind)
    ) WITHOUT ROWID;

    -- Who comes after whom, as the files say it, and which of those ends have come since the task last ran for them.
    CREATE TABLE chains (
        task_id TEXT NOT NULL COLLATE NOCASE,
        upstream TEXT NOT NULL COLLATE NOCASE,
        wants TEXT NOT NULL CHECK (wants IN ('success', 'failure', 'always')),
        ended_at TEXT,
        ended_run TEXT,
        PRIMARY KEY (task_id, upstream)
    ) WITHOUT ROWID;
    CREATE INDEX chains_by_upstream ON chains (upstream);

    CREATE TABLE task_runs (
        run_id TEXT PRIMARY KEY,
        task_id TEXT NOT NULL COLLATE NOCASE,
        key TEXT NOT NULL UNIQUE,
        status TEXT NOT NULL CHECK (status IN ('running', 'success', 'failed', 'timeout', 'killed', 'orphaned',
            'cancelled', 'skipped', 'missed')),
        source TEXT NOT NULL CHECK (source IN ('baseline-cron', 'baseline-interval', 'one-shot', 'ai-interval',
            'ai-oneshot', 'clamped-min', 'clamped-max', 'paused', 'catch-up', 'reboot', 'after', 'retry', 'manual')),
        reason TEXT,
        recorded_at TEXT NOT NULL,
        scheduled_for TEXT,
        last_scheduled_for TEXT,
        count INTEGER NOT NULL DEFAULT 1 CHECK (count > 0),
        started_at TEXT,
        finished_at TEXT,
        exit_code INTEGER,
        signal INTEGER,
        attempts INTEGER NOT NULL DEFAULT 0,
        concurrency_group TEXT,
        host TEXT NOT NULL,
        owner_pid INTEGER,
        owner_started INTEGER,
        owner_boot TEXT,
        heartbeat_at TEXT,
        trace_id TEXT,
        error TEXT,
        error_class TEXT CHECK (error_class IN ('error', 'timeout', 'missing_tool', 'auth', 'transient', 'budget')),
        log TEXT,
        summary TEXT,
        follows TEXT,
        interruptions INTEGER NOT NULL DEFAULT 0,
        end_as TEXT CHECK (end_as IN ('cancelled', 'killed')),
        CHECK ((status = 'running') = (finished_at IS NULL)),
        CHECK (status <> 'running' OR owner_pid IS NOT NULL)
    );
    CREATE INDEX runs_by_time ON task_runs (recorded_at);
    CREATE INDEX runs_by_task ON task_runs (task_id, recorded_at);
    CREATE INDEX runs_running ON task_runs (task_id) WHERE status = 'running';

    CREATE TABLE attempts (
        run_id TEXT NOT NULL REFERENCES task_runs (run_id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        rung TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('running', 'success', 'failed', 'timeout', 'killed', 'orphaned',
            'cancelled')),
        started_at TEXT NOT NULL,
        finished_at TEXT,
        exit_code INTEGER,
        signal INTEGER,
        error_class TEXT,
        error TEXT,
        log_start INTEGER,
        log_end INTEGER,
        input_tokens INTEGER,
        output_tokens INTEGER,
        cost_usd REAL,
        PRIMARY KEY (run_id, number)
    ) WITHOUT ROWID;

    CREATE TABLE alerts (
        id INTEGER PRIMARY KEY,
        created_at TEXT NOT NULL,
        kind TEXT NOT NULL,
        task_id TEXT COLLATE NOCASE,
        run_id TEXT,
        forced INTEGER NOT NULL,
        destination TEXT,
        title TEXT NOT NULL,
        body TEXT NOT NULL,
        output TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sent', 'failed')),
        held INTEGER NOT NULL DEFAULT 0,
        tries INTEGER NOT NULL DEFAULT 0,
        not_before TEXT,
        lease_until TEXT,
        sent_at TEXT,
        error TEXT
    );
    CREATE INDEX alerts_pending ON alerts (id) WHERE status = 'pending';
    CREATE INDEX alerts_by_kind ON alerts (kind, created_at);

    CREATE TABLE tickets (
        id INTEGER PRIMARY KEY,
        task_id TEXT NOT NULL DEFAULT '' COLLATE NOCASE,
        kind TEXT NOT NULL,
        run_id TEXT,
        title TEXT NOT NULL,
        body TEXT NOT NULL,
        opened_at TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        closed_at TEXT
    );
    CREATE UNIQUE INDEX tickets_open ON tickets (task_id, kind) WHERE closed_at IS NULL;

    CREATE TABLE ticket_notes (
        ticket_id INTEGER NOT NULL REFERENCES tickets (id) ON DELETE CASCADE,
        at TEXT NOT NULL,
        text TEXT NOT NULL
    );

    -- One alert per broken version of a file, not one a minute.
    CREATE TABLE broken_files (
        path TEXT PRIMARY KEY,
        digest TEXT NOT NULL,
        seen_at TEXT NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE heartbeats (
        at TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL
    );
    CREATE INDEX heartbeats_by_time ON heartbeats (at);

    CREATE TABLE snapshots (
        at TEXT NOT NULL,
        host TEXT NOT NULL,
        running INTEGER NOT NULL,
        due INTEGER NOT NULL,
        load1 REAL,
        memory_available_kib INTEGER
    );
    CREATE INDEX snapshots_by_time ON snapshots (at);
    """,
    """
    -- `closing` learns 'paused' (a comment says so first, then the file), and a healed task is on probation. A CHECK can't be
    -- changed, so the table is made anew.
    CREATE TABLE new_tasks (
        id TEXT PRIMARY KEY COLLATE NOCASE,
        path TEXT NOT NULL,
        schedule TEXT NOT NULL,
        timezone TEXT NOT NULL,
        enabled INTEGER NOT NULL,
        gone INTEGER NOT NULL DEFAULT 0,
        first_seen TEXT NOT NULL,
        armed_at TEXT NOT NULL,
        anchored_at TEXT NOT NULL,
        last_occurrence TEXT,
        last_end TEXT,
        boot_id TEXT NOT NULL DEFAULT '',
        paused_until TEXT,
        closing TEXT CHECK (closing IN ('auto_suspended', 'completed', 'failed', 'paused', 'retired')),
        failures INTEGER NOT NULL DEFAULT 0,
        incident TEXT,
        incident_since TEXT,
        incident_alerted_at TEXT,
        deferred TEXT,
        retry_at TEXT,
        retry_follows TEXT,
        retries_used INTEGER NOT NULL DEFAULT 0,
        missing_agent TEXT,
        probation_run TEXT,
        probation_left INTEGER,
        probation_until TEXT
    );
    INSERT INTO new_tasks SELECT *, NULL, NULL, NULL, NULL FROM tasks;
    DROP TABLE tasks;
    ALTER TABLE new_tasks RENAME TO tasks;

    -- What agents used, per attempt and for the whole run.
    ALTER TABLE attempts ADD COLUMN session_id TEXT;
    ALTER TABLE attempts ADD COLUMN note TEXT;
    CREATE INDEX attempts_running ON attempts (run_id) WHERE status = 'running';
    CREATE INDEX attempts_by_end ON attempts (finished_at);
    CREATE INDEX attempts_with_cost ON attempts (started_at) WHERE cost_usd IS NOT NULL;
    ALTER TABLE task_runs ADD COLUMN input_tokens INTEGER;
    ALTER TABLE task_runs ADD COLUMN output_tokens INTEGER;
    ALTER TABLE task_runs ADD COLUMN cost_usd REAL;
    ALTER TABLE task_runs ADD COLUMN session_id TEXT;
    ALTER TABLE task_runs ADD COLUMN result TEXT;
    ALTER TABLE task_runs ADD COLUMN modification TEXT;
    ALTER TABLE task_runs ADD COLUMN note TEXT;

    ALTER TABLE tickets ADD COLUMN error TEXT;
    ALTER TABLE tickets ADD COLUMN tried TEXT NOT NULL DEFAULT '';
    ALTER TABLE tickets ADD COLUMN command TEXT NOT NULL DEFAULT '';

    -- A row is written before the agent starts, so that it counts however the heal ends.
    CREATE TABLE heals (
        run_id TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        task_id TEXT NOT NULL COLLATE NOCASE,
        started_at TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('running', 'unproven', 'kept', 'restored', 'undone')),
        signature TEXT NOT NULL,
        verdict TEXT CHECK (verdict IN ('fixed', 'needs_human', 'gave_up')),
        cause TEXT,
        problem TEXT,
        files TEXT NOT NULL DEFAULT '[]',
        cost_usd REAL,
        PRIMARY KEY (run_id, attempt)
    ) WITHOUT ROWID;
    CREATE INDEX heals_by_time ON heals (started_at);

    -- Task files as this program left them: what a heal finds changed but is listed here was not the healer.
    CREATE TABLE own_edits (
        path TEXT NOT NULL,
        digest TEXT NOT NULL,
        at TEXT NOT NULL
    );

    CREATE TABLE comments (
        id INTEGER PRIMARY KEY,
        task_id TEXT NOT NULL COLLATE NOCASE,
        author TEXT NOT NULL,
        by_a_person INTEGER NOT NULL,
        text TEXT NOT NULL,
        at TEXT NOT NULL,
        read_at TEXT,
        answer TEXT
    );
    CREATE INDEX comments_unread ON comments (task_id) WHERE read_at IS NULL;
    CREATE INDEX comments_by_task ON comments (task_id, id);
    """,
    """
    -- Task files as they were last read: a file whose stamp is the same is not read again.
    CREATE TABLE files (
        path TEXT PRIMARY KEY,
        stamp TEXT NOT NULL,
        digest TEXT NOT NULL,
        task_id TEXT COLLATE NOCASE,
        task TEXT,
        problems TEXT NOT NULL,
        chained INTEGER NOT NULL,
        dated INTEGER NOT NULL
    );

    -- Nobody needs to look at a task before `look_at`: the empty text is before everything, NULL is never. Whatever the
    -- decision depends on empties it, here and not in each place that writes, so that none can forget to; `revision` tells
    -- whoever has just decided that something has changed meanwhile.
    ALTER TABLE tasks ADD COLUMN look_at TEXT DEFAULT '';
    ALTER TABLE tasks ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX tasks_to_look_at ON tasks (look_at);
    CREATE INDEX tasks_by_path ON tasks (path);
    CREATE TRIGGER tasks_changed AFTER UPDATE OF path, schedule, timezone, enabled, gone, armed_at, anchored_at,
        last_occurrence, last_end, boot_id, paused_until, closing, failures, deferred, retry_at, retry_follows, retries_used,
        missing_agent ON tasks WHEN NEW.revision = OLD.revision -- some do it themselves
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = NEW.id;
    END;
    -- Every other end is written to its task as well.
    CREATE TRIGGER run_ended AFTER UPDATE OF status ON task_runs WHEN OLD.status = 'running' AND NEW.source = 'manual'
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = NEW.task_id;
    END;
    CREATE TRIGGER hint_given AFTER INSERT ON hints
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = NEW.task_id;
    END;
    CREATE TRIGGER hint_gone AFTER DELETE ON hints
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = OLD.task_id;
    END;
    CREATE TRIGGER chain_made AFTER INSERT ON chains
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = NEW.task_id;
    END;
    CREATE TRIGGER chain_ended AFTER UPDATE ON chains
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = NEW.task_id;
    END;
    CREATE TRIGGER chain_gone AFTER DELETE ON chains
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = OLD.task_id;
    END;
    CREATE TRIGGER comment_made AFTER INSERT ON comments WHEN NEW.read_at IS NULL
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = NEW.task_id;
    END;
    """,
    """
    -- Retries because of trouble that passes by itself are counted apart from the plain ones.
    ALTER TABLE tasks ADD COLUMN transient_retries_used INTEGER NOT NULL DEFAULT 0;
    """,
    """
    -- A destination that takes no alerts has a ticket of its own; its name was only in the title.
    ALTER TABLE tickets ADD COLUMN destination TEXT NOT NULL DEFAULT '';
    UPDATE tickets SET destination = substr(title, length('alerts to ') + 1,
        length(title) - length('alerts to ') - length(' can''t be delivered')) WHERE kind = 'alert_failed';
    DROP INDEX tickets_open;
    CREATE UNIQUE INDEX tickets_open ON tickets (task_id, kind, destination) WHERE closed_at IS NULL;
    """,
    """
    -- Every attempt had to be written into these, twice, for a question that only the end of a heal asks.
    DROP INDEX attempts_running;
    DROP INDEX attempts_by_end;
    """,
    """
    -- A run without a heartbeat was claimed ahead and holds no slot yet; if it is given back, so is this to its task.
    ALTER TABLE task_runs ADD COLUMN previous_occurrence TEXT;
    """,
    """
    -- Occurrences of cron lines that are due, can't start yet, and have a row that says so, under this key. The row goes when the
    -- occurrence starts: each has one row at any moment.
    CREATE TABLE waiting (
        task_id TEXT NOT NULL COLLATE NOCASE,
        occurrence TEXT NOT NULL,
        source TEXT NOT NULL,
        key TEXT NOT NULL,
        PRIMARY KEY (task_id, occurrence)
    ) WITHOUT ROWID;

    -- When ticks came but could not work, or the clock jumped ahead: why what came up then was missed.
    CREATE TABLE stoppages (
        reason TEXT NOT NULL,
        since TEXT NOT NULL,
        until TEXT NOT NULL
    );
    CREATE INDEX stoppages_by_end ON stoppages (until);
    """,
    """
    -- It has cost more than its task's `budget_usd`, as far as its agent tells.
    ALTER TABLE task_runs ADD COLUMN over_budget INTEGER NOT NULL DEFAULT 0;
    """,
    """
    -- Who holds the lock of a task though no run of it is on record, since when that is known, and whether people are told.
    ALTER TABLE tasks ADD COLUMN held_by TEXT;
    ALTER TABLE tasks ADD COLUMN held_since TEXT;
    ALTER TABLE tasks ADD COLUMN held_told INTEGER NOT NULL DEFAULT 0;
    CREATE TRIGGER lock_changed AFTER UPDATE OF held_by, held_told ON tasks
    BEGIN
        UPDATE tasks SET look_at = '', revision = revision + 1 WHERE id = NEW.id;
    END;
    """,
    """
    -- Raised by whoever takes a run over, and named by every write that renews or ends it: an owner that was declared dead
    -- can't write over its successor.
    ALTER TABLE task_runs ADD COLUMN lease INTEGER NOT NULL DEFAULT 1;
    """,
    """
    -- Who has asked for what: a person by name, a task by its id, a program by the name of its token.
    CREATE TABLE actions (
        id INTEGER PRIMARY KEY,
        at TEXT NOT NULL,
        action TEXT NOT NULL,
        task_id TEXT COLLATE NOCASE,
        run_id TEXT,
        asked_by TEXT NOT NULL CHECK (asked_by IN ('person', 'task', 'agent', 'token')),
        asker TEXT NOT NULL,
        detail TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX actions_by_task ON actions (task_id, id);
    """,
)
