-- The stored bytes of each subject, and indexes of what is looked for among all that has ended.
CREATE TABLE stored (
    subject TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO stored SELECT subject, sum(stored_bytes) FROM executions GROUP BY subject;
CREATE TRIGGER stored_more AFTER UPDATE OF stored_bytes ON executions BEGIN
    INSERT INTO stored VALUES (new.subject, new.stored_bytes - old.stored_bytes)
        ON CONFLICT (subject) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER stored_less AFTER DELETE ON executions BEGIN
    UPDATE stored SET bytes = bytes - old.stored_bytes WHERE subject = old.subject;
END;
DROP INDEX executions_under_way;
DROP INDEX executions_by_end;
CREATE INDEX executions_under_way ON executions (subject, seq) WHERE ended_at IS NULL;
CREATE INDEX executions_by_end ON executions (ended_at)
    WHERE ended_at IS NOT NULL AND NOT is_expired;
CREATE INDEX executions_hidden ON executions (seq) WHERE is_expired;
CREATE INDEX executions_by_sandbox ON executions (subject, sandbox, seq)
    WHERE sandbox IS NOT NULL;
