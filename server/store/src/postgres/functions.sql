-- What is decided in the database, because several nodes decide it at one time. All run at READ COMMITTED: each
-- statement of a function sees what was committed before it, and so what others did before a lock was taken.
--
-- Locks are taken in one order: the share of a subject, then its keys, its rows of the queue and executions. A claim
-- passes over shares that are locked, and so waits for nobody.
--
-- A lane says who may take a row of the queue: '' any node, else the node of this id, or the session '#1'.
--
-- All are in PL/pgSQL, which plans a statement once for a connection. A function in SQL that cannot be inlined is parsed
-- and planned at each call, which takes longer than what it does.
--
-- Run at each `database init` and `database migrate`, after the tables.

-- How many executions of a subject are claimed or run, at any node. It may be planned while the table is small, and used
-- when it is large: never by a scan of all of it.
CREATE OR REPLACE FUNCTION held(_subject text) RETURNS bigint LANGUAGE plpgsql STABLE COST 1000
SET enable_seqscan = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM executions
        WHERE subject = _subject AND session IS NOT NULL AND ended_at IS NULL);
END $$;

-- The first execution of a subject in up to three lanes, if there is one. Each lane is looked into by the key of the
-- queue. An array in place of them would be planned at each call, for as many lanes as it has then.
CREATE OR REPLACE FUNCTION first_of(_subject text, _lanes text[]) RETURNS bigint LANGUAGE plpgsql STABLE COST 1000
SET enable_seqscan = off AS $$
BEGIN
    RETURN (SELECT min(first.execution)
        FROM (VALUES (_lanes[1]), (_lanes[2]), (_lanes[3])) AS lanes (lane) CROSS JOIN LATERAL (
            SELECT execution FROM queue WHERE subject = _subject AND queue.lane = lanes.lane
            ORDER BY execution LIMIT 1) AS first);
END $$;

-- Puts an execution into the queue, under the share of its subject.
CREATE OR REPLACE FUNCTION enqueue(_execution bigint, _lane text, _subject text, _bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queue (execution, lane, subject, bytes) VALUES (_execution, _lane, _subject, _bytes);
    -- A subject of which nothing waited is behind all others.
    UPDATE shares SET turn = nextval('turns') WHERE subject = _subject AND turn IS NULL;
END $$;

-- Takes an execution out of the queue, under the share of its subject.
CREATE OR REPLACE FUNCTION dequeue(_execution bigint, _subject text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM queue WHERE execution = _execution;
    UPDATE shares SET turn = NULL
    WHERE subject = _subject AND NOT EXISTS (SELECT FROM queue WHERE subject = _subject);
END $$;

-- Accepts an execution: 'begun' if it offers a slot (_started_at) and has its turn now, else 'queued'; 'full' and
-- how many wait; 'same' or 'other' for a key that was used before, and its execution.
CREATE OR REPLACE FUNCTION accept(
    _id text, _subject text, _kind text, _request text, _has_secrets boolean, _metadata text,
    _sandbox text, _generation bigint, _trace_parent text, _created_at bigint,
    _key text, _digest text,
    _started_at bigint, _engine text, _limits text,
    _numbers bigint[], _events text[],
    _session bigint, _lane text, _subject_limit bigint, _max_queued bigint, _max_queued_bytes bigint,
    _image text,
    OUT verdict text, OUT accepted text, OUT waiting bigint
) LANGUAGE plpgsql AS $$
DECLARE
    _seq bigint := nextval('executions_seq_seq');
    _known record;
    _node text;
    _bytes bigint := octet_length(_request);
    _waiting_bytes bigint;
    _counted text;
BEGIN
    PERFORM FROM shares WHERE subject = _subject FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO shares (subject) VALUES (_subject) ON CONFLICT DO NOTHING;
        PERFORM FROM shares WHERE subject = _subject FOR UPDATE;
    END IF;
    IF _key IS NOT NULL THEN
        -- The key of an execution that is about to be forgotten is free.
        INSERT INTO idempotency_keys AS k (subject, key, digest, execution)
        VALUES (_subject, _key, _digest, _seq)
        ON CONFLICT (subject, key) DO UPDATE SET (digest, execution) = (
            SELECT CASE WHEN is_free THEN excluded.digest ELSE k.digest END,
                CASE WHEN is_free THEN excluded.execution ELSE k.execution END
            FROM (SELECT EXISTS (SELECT FROM executions WHERE seq = k.execution AND is_expired)) f (is_free))
        RETURNING k.digest, k.execution INTO _known;
        IF _known.execution <> _seq THEN
            verdict := CASE WHEN _known.digest = _digest THEN 'same' ELSE 'other' END;
            SELECT id INTO accepted FROM executions WHERE seq = _known.execution;
            RETURN;
        END IF;
    END IF;
    verdict := 'queued';
    IF _started_at IS NOT NULL THEN
        -- If the session is ended meanwhile, it is ended with what it holds then: nothing is locked against that.
        SELECT s.node INTO _node FROM sessions s JOIN nodes n ON n.id = s.node
        WHERE s.id = _session AND n.draining = 0;
        IF FOUND AND held(_subject) < _subject_limit
            AND NOT EXISTS (SELECT FROM queue WHERE lane IN ('', _node, '#' || _session))
        THEN
            verdict := 'begun';
        END IF;
    END IF;
    IF verdict = 'begun' THEN
        _request := NULL;
    ELSE
        -- Its first event is that it waits; that it starts is not true.
        SELECT NULL, NULL, NULL, NULL, NULL, _numbers[1:1], _events[1:1]
        INTO _started_at, _engine, _limits, _node, _session, _numbers, _events;
        -- What waits is counted once in a transaction, which may accept many, and with what it adds.
        _counted := current_setting('sandboxctl.waiting', true);
        IF coalesce(_counted, '') = '' THEN
            SELECT count(*), coalesce(sum(bytes), 0) INTO waiting, _waiting_bytes FROM queue;
        ELSE
            waiting := split_part(_counted, ' ', 1)::bigint;
            _waiting_bytes := split_part(_counted, ' ', 2)::bigint;
        END IF;
        -- A tenth more is for subjects of which nothing waits.
        IF NOT EXISTS (SELECT FROM queue WHERE subject = _subject) THEN
            _max_queued := _max_queued + (_max_queued + 9) / 10;
            _max_queued_bytes := _max_queued_bytes + _max_queued_bytes / 10;
        END IF;
        IF waiting >= _max_queued OR _waiting_bytes + _bytes > _max_queued_bytes THEN
            verdict := 'full';
            DELETE FROM idempotency_keys WHERE subject = _subject AND key = _key;
            RETURN;
        END IF;
    END IF;
    INSERT INTO executions (seq, id, subject, kind, status, request, has_secrets, metadata, sandbox, generation,
        trace_parent, created_at, started_at, engine, limits, last_event, node, session, image)
    VALUES (_seq, _id, _subject, _kind, CASE verdict WHEN 'begun' THEN 'running' ELSE 'queued' END, _request,
        _has_secrets, _metadata, _sandbox, _generation, _trace_parent, _created_at, _started_at, _engine, _limits,
        coalesce(_numbers[cardinality(_numbers)], 0), _node, _session, _image);
    INSERT INTO events SELECT _seq, number, json FROM unnest(_numbers, _events) AS event (number, json);
    IF verdict = 'queued' THEN
        PERFORM enqueue(_seq, _lane, _subject, _bytes);
        -- Until the end of the transaction.
        PERFORM set_config('sandboxctl.waiting', (waiting + 1) || ' ' || (_waiting_bytes + _bytes), true);
    END IF;
END $$;

-- Takes up to so many executions for a session: each time the first one of the subject whose turn it is, of those
-- that may run more. None if the session has ended; if its node drains, those that no other node can run.
CREATE OR REPLACE FUNCTION claim(_session bigint, _slots integer, _subject_limit bigint) RETURNS SETOF executions
LANGUAGE plpgsql AS $$
DECLARE
    _node text;
    _lanes text[];
    _subject text;
    _execution bigint;
BEGIN
    SELECT s.node, CASE WHEN n.draining = 0 THEN ARRAY['', n.id, '#' || s.id] ELSE ARRAY[n.id, '#' || s.id] END
    INTO _node, _lanes FROM sessions s JOIN nodes n ON n.id = s.node
    WHERE s.id = _session;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WHILE _slots > 0 LOOP
        SELECT s.subject INTO _subject FROM shares s
        WHERE s.turn IS NOT NULL AND held(s.subject) < _subject_limit
            AND first_of(s.subject, _lanes) IS NOT NULL
        ORDER BY s.turn LIMIT 1 FOR UPDATE OF s SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        -- Once more, as it is now that nobody else can take one of it. If not, the next look sees that too.
        CONTINUE WHEN held(_subject) >= _subject_limit;
        _execution := first_of(_subject, _lanes);
        CONTINUE WHEN _execution IS NULL;
        DELETE FROM queue WHERE execution = _execution;
        -- If more of it waits, it is behind all others.
        UPDATE shares SET turn = CASE WHEN EXISTS (SELECT FROM queue WHERE subject = _subject)
            THEN nextval('turns') END WHERE subject = _subject;
        RETURN QUERY UPDATE executions e SET session = _session, node = _node, claims = e.claims + 1
            WHERE e.seq = _execution RETURNING e.*;
        _slots := _slots - 1;
    END LOOP;
END $$;

-- Puts what a session had claimed and not begun back to its place in the queue, in the lane of its kept sandbox if
-- it has one. Whether it did.
CREATE OR REPLACE FUNCTION requeue(_id text, _session bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _subject text;
    _requeued record;
BEGIN
    SELECT subject INTO _subject FROM executions WHERE id = _id;
    PERFORM FROM shares WHERE subject = _subject FOR UPDATE;
    UPDATE executions SET session = NULL, node = NULL
    WHERE id = _id AND session = _session AND status = 'queued' AND ended_at IS NULL
    RETURNING seq, sandbox, octet_length(request) AS bytes INTO _requeued;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM enqueue(_requeued.seq, coalesce((SELECT node FROM sandboxes WHERE id = _requeued.sandbox), ''),
        _subject, coalesce(_requeued.bytes, 0));
    RETURN true;
END $$;

-- Takes an execution that waits out of the queue, so that its end can be stored. Whether it waited.
CREATE OR REPLACE FUNCTION unqueue(_id text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _subject text;
    _seq bigint;
BEGIN
    SELECT subject INTO _subject FROM executions WHERE id = _id;
    PERFORM FROM shares WHERE subject = _subject FOR UPDATE;
    SELECT seq INTO _seq FROM executions WHERE id = _id AND session IS NULL AND ended_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM dequeue(_seq, _subject);
    RETURN true;
END $$;

-- Renews a session. No row if it has ended. The times and counts are those of now.
CREATE OR REPLACE FUNCTION beat(_session bigint, _running integer, _sandboxes integer) RETURNS TABLE (
    clock bigint, draining smallint, cancel_asked text[], others bigint[], beats bigint[],
    waiting bigint, oldest bigint
) LANGUAGE plpgsql AS $$
DECLARE
    _node text;
BEGIN
    UPDATE sessions s SET beat = s.beat + 1, beat_at = clock_timestamp(), running = _running, sandboxes = _sandboxes
    WHERE s.id = _session RETURNING s.node INTO _node;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- The sessions are looked through once, and so is what waits.
    RETURN QUERY SELECT
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
        (SELECT n.draining FROM nodes n WHERE n.id = _node),
        ARRAY(SELECT e.id FROM executions e
            WHERE e.session = _session AND e.ended_at IS NULL AND e.cancel_asked),
        coalesce(o.ids, '{}'), coalesce(o.all_beats, '{}'), w.count, w.first
    FROM (SELECT array_agg(s.id) AS ids, array_agg(s.beat) AS all_beats
            FROM sessions s WHERE s.id <> _session) AS o,
        (SELECT count(*), min(e.created_at) AS first
            FROM queue q LEFT JOIN executions e ON e.seq = q.execution) AS w;
END $$;

-- Counts a request of a subject that may make so many in a minute, evenly or in a burst. 0, or the seconds until the
-- next one may come.
CREATE OR REPLACE FUNCTION take_rate(_subject text, _per_minute double precision) RETURNS double precision
LANGUAGE plpgsql AS $$
DECLARE
    _now timestamptz := clock_timestamp();
    _tokens double precision;
BEGIN
    INSERT INTO shares (subject) VALUES (_subject) ON CONFLICT DO NOTHING;
    SELECT coalesce(tokens + extract(epoch FROM _now - tokens_at) * _per_minute / 60, _per_minute)
    INTO _tokens FROM shares WHERE subject = _subject FOR UPDATE;
    _tokens := least(_tokens, _per_minute);
    IF _tokens < 1 THEN
        RETURN (1 - _tokens) * 60 / _per_minute;
    END IF;
    UPDATE shares SET tokens = _tokens - 1, tokens_at = _now WHERE subject = _subject;
    RETURN 0;
END $$;

-- Begins a session of a node, and with the first one of a process ends those of earlier processes of it: a data
-- directory has one process. One that this process began, without an answer, is left to end by itself. NULL if the
-- node has a session of another process that began later: a copy of its data directory.
CREATE OR REPLACE FUNCTION begin_session(
    _node text, _name text, _process bigint, _address text, _certificate bytea, _version text, _slots integer,
    _config_digest text, _is_first boolean
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    _now bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    _session bigint;
BEGIN
    IF NOT _is_first AND EXISTS (SELECT FROM sessions WHERE node = _node AND process <> _process) THEN
        RETURN NULL;
    END IF;
    INSERT INTO nodes (id, name, last_seen) VALUES (_node, _name, _now)
    ON CONFLICT (id) DO UPDATE SET name = _name, last_seen = _now;
    DELETE FROM sessions WHERE node = _node AND process <> _process;
    UPDATE sandboxes SET is_ready = false WHERE node = _node AND is_ready;
    INSERT INTO sessions (node, process, address, certificate, version, slots, config_digest)
    VALUES (_node, _process, _address, _certificate, _version, _slots, _config_digest) RETURNING id INTO _session;
    RETURN _session;
END $$;

-- Ends a session, if its beat is still this one, where one is given. Whether it did.
CREATE OR REPLACE FUNCTION end_session(_session bigint, _beat bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _node text;
BEGIN
    DELETE FROM sessions WHERE id = _session AND (_beat IS NULL OR beat = _beat) RETURNING node INTO _node;
    UPDATE nodes SET last_seen = (extract(epoch FROM clock_timestamp()) * 1000)::bigint WHERE id = _node;
    RETURN _node IS NOT NULL;
END $$;

-- Forgets a node that has no session, with its kept sandboxes: their executions find out when they are begun, at any
-- node. Whether there was one.
CREATE OR REPLACE FUNCTION forget(_node text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM nodes WHERE id = _node AND NOT EXISTS (SELECT FROM sessions WHERE node = _node);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM sandboxes WHERE node = _node;
    DELETE FROM workspaces WHERE node = _node;
    UPDATE queue SET lane = '' WHERE lane = _node;
    RETURN true;
END $$;
