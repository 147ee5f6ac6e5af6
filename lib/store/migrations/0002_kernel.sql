-- The commitment kernel's registry. An operation is what was asked for; an attempt is its one physical dispatch.

CREATE TABLE operation (
    job_id            TEXT    PRIMARY KEY,
    principal         TEXT    NOT NULL,
    client_request_id TEXT    NOT NULL,
    request_digest    BLOB    NOT NULL CHECK (length(request_digest) = 32),
    plan_digest       BLOB    NOT NULL CHECK (length(plan_digest) = 32),
    request           TEXT    NOT NULL,    -- canonical JSON: what was asked for; empty once the attempt has ended
    plan              TEXT    NOT NULL,    -- canonical JSON: what the world was at first admission; empty once the attempt has ended
    admitted_at_us    INTEGER NOT NULL,
    UNIQUE (principal, client_request_id)
) STRICT;

CREATE TABLE attempt (
    id                TEXT    PRIMARY KEY,
    job_id            TEXT    NOT NULL UNIQUE REFERENCES operation (job_id),
    token_digest      BLOB    NOT NULL CHECK (length(token_digest) = 32), -- of the launch token, which is not kept
    state             TEXT    NOT NULL CHECK (state IN ('admitted', 'dispatching', 'running', 'stopping', 'orphaned',
                                                        'succeeded', 'failed', 'timed_out', 'cancelled', 'lost')),
    reason            TEXT    NOT NULL,    -- why it is in this state
    dispatch_boot_id  TEXT CHECK (state IN ('admitted', 'cancelled') OR dispatch_boot_id IS NOT NULL),
    dispatched_at_us  INTEGER,
    pid               INTEGER,             -- of the runner, with its start time: a pid alone names nobody
    start_ticks       INTEGER,
    stop_intent       TEXT CHECK (stop_intent IN ('cancel', 'deadline')),
    terminal          TEXT,                -- JSON: how it ended
    outputs           TEXT,                -- JSON: what it left behind
    finished_at_us    INTEGER CHECK ((state IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'lost')) = (finished_at_us IS NOT NULL)),
    revision          INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX attempt_unresolved ON attempt (id) WHERE finished_at_us IS NULL;

-- The slot that an attempt holds. `held_orphaned`: a process of it may still live.
CREATE TABLE reservation (
    attempt_id TEXT    PRIMARY KEY REFERENCES attempt (id),
    state      TEXT    NOT NULL CHECK (state IN ('active', 'held_orphaned', 'released')),
    since_us   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX reservation_held ON reservation (attempt_id) WHERE state <> 'released';

-- Every transition, in order; rows are only added.
CREATE TABLE attempt_event (
    attempt_id TEXT    NOT NULL REFERENCES attempt (id),
    revision   INTEGER NOT NULL,
    state      TEXT    NOT NULL,           -- the state that it led to
    reason     TEXT    NOT NULL,
    at_us      INTEGER NOT NULL,
    PRIMARY KEY (attempt_id, revision)
) STRICT, WITHOUT ROWID;
