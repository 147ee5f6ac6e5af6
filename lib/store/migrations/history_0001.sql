-- What was asked of toolbelts, and what came of it. Observing only: nothing here decides anything.
CREATE TABLE toolbelt_record (
    id           INTEGER PRIMARY KEY,
    at_us        INTEGER NOT NULL,
    kind         TEXT    NOT NULL CHECK (kind IN ('toolbelt.called', 'toolbelt.rejected')),
    execution_id TEXT,
    work_id      TEXT,
    scope_id     TEXT,
    operation    TEXT    NOT NULL,
    request_id   TEXT,
    result       TEXT    NOT NULL,
    rule         TEXT,
    generation   INTEGER
) STRICT;
CREATE INDEX toolbelt_record_execution ON toolbelt_record (execution_id, id);
