-- Events go with their execution by a trigger. By a reference, the database looked for the execution and locked it for
-- each event that was stored, although the same statement has just made it or changed it. Nodes of version 3 go on: what
-- they forget has the trigger too.
--
-- Writers lock executions first, and readers of events those: whoever reads them is waited for with nothing held.
DO $$
BEGIN
    LOOP
        BEGIN
            LOCK TABLE executions;
            LOCK TABLE events NOWAIT;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.02);
        END;
    END LOOP;
END $$;
CREATE FUNCTION forget_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM sandboxctl.events WHERE execution = OLD.seq;
    RETURN NULL;
END $$;
CREATE TRIGGER forget_events AFTER DELETE ON executions FOR EACH ROW EXECUTE FUNCTION forget_events();
ALTER TABLE events DROP CONSTRAINT events_execution_fkey;
