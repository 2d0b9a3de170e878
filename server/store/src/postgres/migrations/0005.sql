-- What a session is to cancel: each beat looks for it, and would look at all that the session holds. Nodes of version 4
-- go on.
CREATE INDEX executions_to_cancel ON executions (session) WHERE cancel_asked AND ended_at IS NULL;
