-- Events go with their execution by a trigger. By a reference, the database looked for the execution and locked it for
-- each event that was stored, although the same statement has just made it or changed it. Nodes of version 3 go on: what
-- they forget has the trigger too.
--
-- In the order in which writers take them.
LOCK TABLE executions, events;
CREATE FUNCTION forget_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM sandboxctl.events WHERE execution = OLD.seq;
    RETURN NULL;
END $$;
CREATE TRIGGER forget_events AFTER DELETE ON executions FOR EACH ROW EXECUTE FUNCTION forget_events();
ALTER TABLE events DROP CONSTRAINT events_execution_fkey;
