-- Kept sandboxes and tokens.
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    subject TEXT NOT NULL,
    name TEXT,
    generation INTEGER NOT NULL,
    spec TEXT NOT NULL,
    metadata TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    max_expires_at INTEGER NOT NULL,
    idle_ms INTEGER
) STRICT;
CREATE UNIQUE INDEX sandboxes_by_name ON sandboxes (subject, name) WHERE name IS NOT NULL;
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL,
    subject TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER
) STRICT;
