-- Executions, their events, idempotency keys, usage.
CREATE TABLE executions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    request TEXT,
    has_secrets INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    sandbox TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    document TEXT,
    stored_bytes INTEGER NOT NULL DEFAULT 0,
    last_event INTEGER NOT NULL DEFAULT 0,
    is_expired INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX executions_by_subject ON executions (subject, seq);
CREATE INDEX executions_under_way ON executions (status) WHERE ended_at IS NULL;
CREATE INDEX executions_by_end ON executions (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE events (
    execution INTEGER NOT NULL REFERENCES executions (seq) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    json TEXT NOT NULL,
    PRIMARY KEY (execution, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE idempotency_keys (
    subject TEXT NOT NULL,
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    execution INTEGER NOT NULL REFERENCES executions (seq) ON DELETE CASCADE,
    PRIMARY KEY (subject, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_execution ON idempotency_keys (execution);
CREATE TABLE usage (
    subject TEXT NOT NULL,
    day INTEGER NOT NULL,
    executions INTEGER NOT NULL,
    cpu_ms INTEGER NOT NULL,
    wall_ms INTEGER NOT NULL,
    written_bytes INTEGER NOT NULL,
    PRIMARY KEY (subject, day)
) STRICT, WITHOUT ROWID;
