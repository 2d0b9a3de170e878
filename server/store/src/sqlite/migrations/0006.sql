-- Lists by time and id; a cursor contains both, so deletions do not affect it.
DROP INDEX executions_by_subject;
DROP INDEX executions_under_way;
DROP INDEX executions_by_sandbox;
CREATE INDEX executions_by_subject ON executions (subject, created_at, id);
CREATE INDEX executions_under_way ON executions (subject, created_at, id)
    WHERE ended_at IS NULL;
CREATE INDEX executions_by_sandbox ON executions (subject, sandbox, created_at, id)
    WHERE sandbox IS NOT NULL;
