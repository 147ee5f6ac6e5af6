-- Coordination truth. Times are microseconds: `*_at_us` wall clock UTC, `*_boot_us` since boot (leases, expiry).

CREATE TABLE generation (
    number          INTEGER PRIMARY KEY,
    config_hash     TEXT    NOT NULL,
    snapshot        TEXT    NOT NULL,      -- redacted, normalized; the bytes are in private/generations/
    published_at_us INTEGER NOT NULL,
    published_by    TEXT    NOT NULL
) STRICT;

CREATE TABLE scope (
    id            TEXT    PRIMARY KEY,
    enabled       INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    generation    INTEGER NOT NULL REFERENCES generation (number),
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
    seq             INTEGER PRIMARY KEY,   -- the acceptance sequence; rows are never deleted
    id              TEXT    NOT NULL UNIQUE,
    scope_id        TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    source          TEXT    NOT NULL,
    delivery_id     TEXT    NOT NULL,      -- unique in its source
    request_digest  BLOB    NOT NULL,      -- what the deliverer asked for: the same delivery with another body is a conflict
    correlation_key TEXT,
    work_id         TEXT,                  -- the Work that emitted it, or that it is about
    execution_id    TEXT,
    cause_id        TEXT,
    root_id         TEXT    NOT NULL,
    depth           INTEGER NOT NULL CHECK (depth >= 0),
    actor           TEXT,
    schema          TEXT,
    data            TEXT    NOT NULL,
    accepted_at_us  INTEGER NOT NULL,
    route           TEXT CHECK (route IN ('start', 'queue', 'inject', 'interrupt', 'wake', 'drop', 'unmatched'))
) STRICT;
CREATE UNIQUE INDEX event_delivery ON event (source, delivery_id);
CREATE INDEX event_root ON event (root_id, seq);
CREATE INDEX event_scope ON event (scope_id, seq);
CREATE INDEX event_work ON event (work_id, seq) WHERE work_id IS NOT NULL;
CREATE INDEX event_key ON event (scope_id, type, correlation_key, seq) WHERE correlation_key IS NOT NULL;
-- What an execution emits is found by its Work.
CREATE INDEX event_source ON event (scope_id, type, source, seq) WHERE execution_id IS NULL;
CREATE INDEX event_unrouted ON event (seq) WHERE route IS NULL;

-- Bounds of one causal chain, pinned by the first Event that follows from its root (T08).
CREATE TABLE causal_root (
    root_id       TEXT    PRIMARY KEY,
    depth_max     INTEGER NOT NULL,
    per_minute    INTEGER NOT NULL,
    minute        INTEGER NOT NULL,        -- whole minutes of boot time
    minute_count  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE work (
    id               TEXT    PRIMARY KEY,
    scope_id         TEXT    NOT NULL,
    binding          TEXT    NOT NULL,
    title            TEXT,
    state            TEXT    NOT NULL CHECK (state IN ('ready', 'running', 'waiting', 'blocked', 'succeeded', 'failed', 'cancelled')),
    blocked_reason   TEXT CHECK ((state = 'blocked') = (blocked_reason IS NOT NULL)),
    parent_work_id   TEXT,
    created_event_id TEXT    NOT NULL,
    epoch            INTEGER NOT NULL DEFAULT 0,
    attempts         INTEGER NOT NULL DEFAULT 0,
    failures         INTEGER NOT NULL DEFAULT 0,
    ready_at_us      INTEGER NOT NULL,     -- not before
    created_at_us    INTEGER NOT NULL,
    updated_at_us    INTEGER NOT NULL,
    finished_at_us   INTEGER CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = (finished_at_us IS NOT NULL)),
    outcome          TEXT,
    revision         INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX work_ready ON work (scope_id, ready_at_us, id) WHERE state = 'ready';
CREATE INDEX work_due ON work (ready_at_us) WHERE state = 'ready';
CREATE INDEX work_created ON work (created_at_us, id);
CREATE INDEX work_scope ON work (scope_id, created_at_us, id);
CREATE INDEX work_state ON work (state, created_at_us, id);
CREATE INDEX work_scope_state ON work (scope_id, state, created_at_us, id);
CREATE INDEX work_parent ON work (parent_work_id, created_at_us, id) WHERE parent_work_id IS NOT NULL;

-- How many Works each state holds, so that health costs the same at any size.
CREATE TABLE work_count (
    scope_id TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    n        INTEGER NOT NULL,
    PRIMARY KEY (scope_id, state)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER work_count_insert AFTER INSERT ON work BEGIN
    INSERT INTO work_count (scope_id, state, n) VALUES (new.scope_id, new.state, 1)
        ON CONFLICT (scope_id, state) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER work_count_update AFTER UPDATE OF state ON work WHEN old.state <> new.state BEGIN
    UPDATE work_count SET n = n - 1 WHERE scope_id = old.scope_id AND state = old.state;
    INSERT INTO work_count (scope_id, state, n) VALUES (new.scope_id, new.state, 1)
        ON CONFLICT (scope_id, state) DO UPDATE SET n = n + 1;
END;

-- A correlation key belongs to at most one Work that has not ended.
CREATE TABLE work_key (
    scope_id TEXT    NOT NULL,
    key      TEXT    NOT NULL,
    work_id  TEXT    NOT NULL REFERENCES work (id),
    active   INTEGER NOT NULL CHECK (active IN (0, 1)),
    PRIMARY KEY (work_id, key)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX work_key_owner ON work_key (scope_id, key) WHERE active = 1;

-- Events that are input of a Work. `queued`: for the next segment. `delivered`: a segment may see it. `acknowledged`: a segment that was told of it has ended.
CREATE TABLE work_input (
    work_id      TEXT    NOT NULL REFERENCES work (id),
    seq          INTEGER NOT NULL REFERENCES event (seq),
    state        TEXT    NOT NULL CHECK (state IN ('queued', 'delivered', 'acknowledged')),
    execution_id TEXT,
    effect       TEXT CHECK (effect IN ('queue', 'inject', 'interrupt', 'wake')), -- what routing gave it to this Work for; none when it was waited for or made with the Work
    PRIMARY KEY (work_id, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX work_input_state ON work_input (work_id, state, seq);

CREATE TABLE execution (
    id               TEXT    PRIMARY KEY,
    work_id          TEXT    NOT NULL REFERENCES work (id),
    scope_id         TEXT    NOT NULL,
    binding          TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,     -- ordinal in its Work, from 1
    epoch            INTEGER NOT NULL,     -- lease epoch; grows at every claim, recovery and resume
    segment          INTEGER NOT NULL,     -- ordinal of the running segment, from 1
    state            TEXT    NOT NULL CHECK (state IN ('claimed', 'running', 'parked', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost', 'orphaned')),
    owner            TEXT,                 -- the scheduler instance that holds the lease
    lease_boot_id    TEXT,
    lease_boot_us    INTEGER,              -- exclusive end of the lease
    deadline_boot_us INTEGER,              -- of the running segment, in the boot of the lease
    deadline_at_us   INTEGER,              -- the same for people
    acknowledged     INTEGER NOT NULL DEFAULT 0, -- sequence of the newest input the segment was told of
    cause_event_id   TEXT    NOT NULL,     -- what its emissions follow from
    attempt_id       TEXT CHECK (state <> 'running' OR attempt_id IS NOT NULL), -- kernel attempt of the segment
    stop_reason      TEXT CHECK (stop_reason IN ('operator_cancelled', 'work_cancelled', 'budget_exceeded', 'interrupted')), -- what the scheduler still has to do about it
    code             TEXT,
    message          TEXT,
    usage            TEXT,
    created_at_us    INTEGER NOT NULL,
    bypassed_at_us   INTEGER,              -- when it passed start gates that were not asked, by an administrator's word
    started_at_us    INTEGER,
    finished_at_us   INTEGER CHECK ((state IN ('claimed', 'running', 'parked', 'orphaned')) = (finished_at_us IS NULL)),
    revision         INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX execution_live ON execution (scope_id, id) WHERE state IN ('claimed', 'running', 'parked', 'orphaned');
CREATE INDEX execution_work ON execution (work_id, created_at_us, id);
CREATE INDEX execution_created ON execution (created_at_us, id);
CREATE INDEX execution_scope ON execution (scope_id, created_at_us, id);
CREATE INDEX execution_state ON execution (state, created_at_us, id);
CREATE INDEX execution_scope_state ON execution (scope_id, state, created_at_us, id);
CREATE INDEX execution_stop ON execution (id) WHERE stop_reason IS NOT NULL;
-- At most one live execution of a Work: nothing physical happens twice.
CREATE UNIQUE INDEX execution_single ON execution (work_id) WHERE state IN ('claimed', 'running', 'parked', 'orphaned');

CREATE TABLE token (
    digest          BLOB    PRIMARY KEY CHECK (length(digest) = 32), -- the plaintext is not kept: T01
    id              TEXT    NOT NULL UNIQUE,
    execution_id    TEXT    NOT NULL REFERENCES execution (id),
    work_id         TEXT    NOT NULL,
    scope_id        TEXT    NOT NULL,
    epoch           INTEGER NOT NULL,
    owner           TEXT    NOT NULL,
    binding         TEXT    NOT NULL,
    generation      INTEGER NOT NULL,
    grants          TEXT    NOT NULL,
    boot_id         TEXT    NOT NULL,
    expires_boot_us INTEGER NOT NULL,      -- exclusive
    issued_at_us    INTEGER NOT NULL,
    expires_at_us   INTEGER NOT NULL,
    revoked_at_us   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX token_execution ON token (execution_id, epoch);
CREATE INDEX token_ended ON token (coalesce(revoked_at_us, expires_at_us));

-- What a segment declared; written once per epoch, applied by the scheduler when the segment has ended (T11).
CREATE TABLE declaration (
    execution_id   TEXT    NOT NULL REFERENCES execution (id),
    epoch          INTEGER NOT NULL,
    kind           TEXT    NOT NULL CHECK (kind IN ('wait', 'outcome')),
    body           TEXT    NOT NULL,
    declared_at_us INTEGER NOT NULL,
    applied_at_us  INTEGER,
    PRIMARY KEY (execution_id, epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE wait (
    id             TEXT    PRIMARY KEY,
    work_id        TEXT    NOT NULL REFERENCES work (id),
    execution_id   TEXT    NOT NULL REFERENCES execution (id),
    scope_id       TEXT    NOT NULL,
    mode           TEXT    NOT NULL CHECK (mode IN ('any', 'all')),
    state          TEXT    NOT NULL CHECK (state IN ('pending', 'matched', 'timed_out', 'woken', 'cancelled')),
    watermark      INTEGER NOT NULL,
    timeout_at_us  INTEGER,
    unmatched      INTEGER NOT NULL,
    created_at_us  INTEGER NOT NULL,
    finished_at_us INTEGER CHECK ((state = 'pending') = (finished_at_us IS NULL))
) STRICT;
CREATE INDEX wait_work ON wait (work_id, created_at_us, id);
CREATE INDEX wait_created ON wait (created_at_us, id);
CREATE INDEX wait_scope ON wait (scope_id, created_at_us, id);
CREATE INDEX wait_state ON wait (state, created_at_us, id);
CREATE INDEX wait_scope_state ON wait (scope_id, state, created_at_us, id);
CREATE INDEX wait_due ON wait (timeout_at_us) WHERE state = 'pending' AND timeout_at_us IS NOT NULL;

CREATE TABLE wait_predicate (
    wait_id         TEXT    NOT NULL REFERENCES wait (id),
    position        INTEGER NOT NULL,
    scope_id        TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    subject         TEXT    NOT NULL,      -- what an Event is looked up by: work:…, key:…, own:… (the Work's keys), source:…
    correlation_key TEXT,
    work_id         TEXT,
    source          TEXT,
    data            TEXT    NOT NULL,
    open            INTEGER NOT NULL CHECK (open IN (0, 1)),
    matched_seq     INTEGER REFERENCES event (seq),
    PRIMARY KEY (wait_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX wait_predicate_open ON wait_predicate (scope_id, type, subject) WHERE open = 1;

CREATE TABLE replay (
    execution_id   TEXT    NOT NULL,
    operation      TEXT    NOT NULL,
    request_id     TEXT    NOT NULL,
    request_digest BLOB    NOT NULL,
    output         TEXT    NOT NULL,
    created_at_us  INTEGER NOT NULL,
    PRIMARY KEY (execution_id, operation, request_id)
) STRICT, WITHOUT ROWID;

-- Executions that have ended and whose replay records are still kept: what a sweep looks at.
CREATE TABLE replay_ended (
    execution_id TEXT    PRIMARY KEY,
    oldest_us    INTEGER NOT NULL          -- when its oldest record was written
) STRICT, WITHOUT ROWID;
CREATE INDEX replay_ended_oldest ON replay_ended (oldest_us);
CREATE TRIGGER replay_ended_insert AFTER UPDATE OF finished_at_us ON execution
    WHEN new.finished_at_us IS NOT NULL AND EXISTS (SELECT 1 FROM replay WHERE execution_id = new.id) BEGIN
    INSERT INTO replay_ended (execution_id, oldest_us)
        VALUES (new.id, (SELECT min(created_at_us) FROM replay WHERE execution_id = new.id))
        ON CONFLICT (execution_id) DO UPDATE SET oldest_us = excluded.oldest_us;
END;

-- What an execution has used of its binding's budget; a row only where there is one.
CREATE TABLE spent (
    execution_id TEXT    PRIMARY KEY REFERENCES execution (id),
    emissions    INTEGER NOT NULL DEFAULT 0,
    children     INTEGER NOT NULL DEFAULT 0,
    bytes        INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Requests of extensions' operations whose handler may run, or may have run, and whose result is not in `replay` (T14).
-- `in_doubt`: the operation is not idempotent, and an operator has to say what happened.
CREATE TABLE intent (
    execution_id   TEXT    NOT NULL REFERENCES execution (id),
    operation      TEXT    NOT NULL,
    request_id     TEXT    NOT NULL,
    request_digest BLOB    NOT NULL CHECK (length(request_digest) = 32),
    host           TEXT    NOT NULL,       -- the instance of the daemon that runs it
    idempotent     INTEGER NOT NULL CHECK (idempotent IN (0, 1)), -- whether the handler may run again
    state          TEXT    NOT NULL CHECK (state IN ('running', 'in_doubt')),
    began_at_us    INTEGER NOT NULL,
    ended_at_us    INTEGER,                -- when its execution ended
    PRIMARY KEY (execution_id, operation, request_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX intent_in_doubt ON intent (began_at_us, execution_id || ' ' || operation || ' ' || request_id) WHERE state = 'in_doubt';
CREATE INDEX intent_ended ON intent (state, ended_at_us) WHERE ended_at_us IS NOT NULL;
CREATE TRIGGER intent_execution_ended AFTER UPDATE OF finished_at_us ON execution BEGIN
    UPDATE intent SET ended_at_us = new.finished_at_us WHERE execution_id = new.id;
END;

-- What the extension `human` asks operators for (G07). While it is open, the same call of the Work meets it.
CREATE TABLE approval (
    id                TEXT    PRIMARY KEY,
    call_digest       BLOB    NOT NULL CHECK (length(call_digest) = 32), -- the exact call of a Work, or the start of one
    work_id           TEXT    NOT NULL REFERENCES work (id),
    scope_id          TEXT    NOT NULL,
    binding           TEXT    NOT NULL,
    execution_id      TEXT CHECK ((execution_id IS NULL) = (operation IS NULL)), -- that asked; none for a start
    operation         TEXT,
    input             TEXT    NOT NULL,    -- JSON for people: shortened, and without what looks like a secret
    state             TEXT    NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'expired', 'consumed')),
    open              INTEGER NOT NULL CHECK (open IN (0, 1) AND (state NOT IN ('expired', 'consumed') OR open = 0)),
    reach             TEXT CHECK (reach IN ('once', 'execution', 'work', 'until')), -- how far the approval goes
    until_us          INTEGER CHECK (coalesce(reach = 'until', 0) = (until_us IS NOT NULL)),
    note              TEXT,
    actor             TEXT CHECK (state NOT IN ('approved', 'denied', 'consumed') OR actor IS NOT NULL),
    used_execution_id TEXT,                -- whom it let through first
    used_request_id   TEXT CHECK ((state = 'consumed') = (used_request_id IS NOT NULL)),
    created_at_us     INTEGER NOT NULL,
    expires_at_us     INTEGER,             -- exclusive, for a decision
    decided_at_us     INTEGER,
    closed_at_us      INTEGER CHECK ((open = 0) = (closed_at_us IS NOT NULL)), -- since when no call meets it
    lapses_at_us      INTEGER AS (CASE WHEN open = 0 THEN NULL WHEN state = 'pending' THEN expires_at_us ELSE until_us END),
    revision          INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE UNIQUE INDEX approval_open ON approval (work_id, call_digest) WHERE open = 1;
CREATE INDEX approval_used ON approval (used_execution_id, call_digest) WHERE state = 'consumed';
CREATE INDEX approval_created ON approval (created_at_us, id);
CREATE INDEX approval_scope ON approval (scope_id, created_at_us, id);
CREATE INDEX approval_work ON approval (work_id, created_at_us, id);
CREATE INDEX approval_state ON approval (state, created_at_us, id);
CREATE INDEX approval_scope_state ON approval (scope_id, state, created_at_us, id);
CREATE INDEX approval_lapses ON approval (lapses_at_us) WHERE lapses_at_us IS NOT NULL;
CREATE INDEX approval_closed ON approval (closed_at_us) WHERE closed_at_us IS NOT NULL;

-- A Work that has ended asks for nothing; one that is retried asks anew.
CREATE TRIGGER approval_work_ended AFTER UPDATE OF finished_at_us ON work WHEN new.finished_at_us IS NOT NULL BEGIN
    UPDATE approval SET open = 0, state = CASE state WHEN 'pending' THEN 'expired' ELSE state END, revision = revision + 1,
                        closed_at_us = new.finished_at_us
     WHERE work_id = new.id AND open = 1;
END;

-- Times in which gates are not asked, by an administrator's word (design 9.7). The boot clock ends them; a boot does too.
CREATE TABLE gate_bypass (
    id             TEXT    PRIMARY KEY,
    scope_id       TEXT,                   -- every scope, when there is none
    actor          TEXT    NOT NULL,
    reason         TEXT    NOT NULL,
    boot_id        TEXT    NOT NULL,
    until_boot_us  INTEGER NOT NULL,       -- exclusive
    until_us       INTEGER NOT NULL,       -- the same for people
    created_at_us  INTEGER NOT NULL,
    restored_at_us INTEGER,
    restored_by    TEXT CHECK ((restored_at_us IS NULL) = (restored_by IS NULL))
) STRICT;
CREATE INDEX gate_bypass_standing ON gate_bypass (until_boot_us) WHERE restored_at_us IS NULL;
CREATE INDEX gate_bypass_created ON gate_bypass (created_at_us, id);

-- Installed packages (X01); their bytes lie in packages/<name>.
CREATE TABLE package (
    name             TEXT    PRIMARY KEY,
    version          TEXT    NOT NULL,
    manifest         TEXT    NOT NULL,     -- JSON, as it was installed
    registration     TEXT    NOT NULL,     -- JSON: what the manifest registers
    digest           BLOB    NOT NULL CHECK (length(digest) = 32), -- of every file
    installed_at_us  INTEGER NOT NULL,
    installed_by     TEXT    NOT NULL,
    failing_since_us INTEGER,
    failure          TEXT CHECK ((failure IS NULL) = (failing_since_us IS NULL)) -- why it cannot be used
) STRICT, WITHOUT ROWID;

CREATE TABLE artifact (
    id            TEXT    PRIMARY KEY,
    execution_id  TEXT    NOT NULL REFERENCES execution (id),
    work_id       TEXT    NOT NULL,
    scope_id      TEXT    NOT NULL,
    segment       INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    media_type    TEXT    NOT NULL,
    digest        TEXT    NOT NULL,
    bytes         INTEGER NOT NULL,
    dropped_bytes INTEGER NOT NULL,
    created_at_us INTEGER NOT NULL,
    UNIQUE (execution_id, segment, name)
) STRICT;
CREATE INDEX artifact_created ON artifact (created_at_us, id);
CREATE INDEX artifact_scope ON artifact (scope_id, created_at_us, id);
CREATE INDEX artifact_work ON artifact (work_id, created_at_us, id);

CREATE TABLE operator (
    id              TEXT    PRIMARY KEY,
    name            TEXT    NOT NULL,
    role            TEXT    NOT NULL CHECK (role IN ('view', 'operate', 'admin')),
    digest          BLOB    NOT NULL UNIQUE CHECK (length(digest) = 32),
    created_at_us   INTEGER NOT NULL,
    revoked_at_us   INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX operator_active ON operator (name) WHERE revoked_at_us IS NULL;
