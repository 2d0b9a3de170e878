-- What the writers call. Run at each `database init` and `database migrate`, after the tables.

-- Begins a transaction of a writer, unless its number is closed (writer.rs).
CREATE OR REPLACE FUNCTION begin_batch(_writer bigint, _number bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE writers SET committed = _number, used_at = clock_timestamp()
    WHERE id = _writer AND committed < _number AND closed < _number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the transaction % of the writer % is closed', _number, _writer
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END $$;

-- Adds to what a subject has used; no figure of a guest is more than can be added.
CREATE OR REPLACE FUNCTION add_usage(
    _subject text, _day bigint, _node text, _shard smallint,
    _cpu_ms bigint, _wall_ms bigint, _written_bytes bigint, _most bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO usage AS u VALUES (_subject, _day, coalesce(_node, ''), _shard, 1,
        least(_cpu_ms, _most), least(_wall_ms, _most), least(_written_bytes, _most))
    ON CONFLICT (subject, day, node, shard) DO UPDATE SET executions = u.executions + 1,
        cpu_ms = least(u.cpu_ms + excluded.cpu_ms, _most),
        wall_ms = least(u.wall_ms + excluded.wall_ms, _most),
        written_bytes = least(u.written_bytes + excluded.written_bytes, _most);
END $$;

-- Adds to the bytes that are stored of a subject, or takes some away.
CREATE OR REPLACE FUNCTION add_stored(_subject text, _node text, _shard smallint, _bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored AS s VALUES (_subject, coalesce(_node, ''), _shard, _bytes)
    ON CONFLICT (subject, node, shard) DO UPDATE SET bytes = s.bytes + excluded.bytes;
END $$;

-- Begins an execution that a session has claimed. Whether it did: none begins twice. It may be planned while the table is
-- small, as `held`.
CREATE OR REPLACE FUNCTION mark_running(
    _id text, _session bigint, _started_at bigint, _generation bigint, _is_restart boolean,
    _engine text, _limits text
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE executions SET status = 'running', request = NULL, started_at = _started_at,
        generation = _generation, is_restart = _is_restart, engine = _engine, limits = _limits
    WHERE id = _id AND session = _session AND status = 'queued' AND ended_at IS NULL;
    RETURN FOUND;
END $$;

-- Ends an execution that a session holds, or with none one that waits. Whether it has this end now: the same end
-- again is no other one.
CREATE OR REPLACE FUNCTION finish(
    _id text, _session bigint, _status text, _document text, _stored_bytes bigint, _ended_at bigint,
    _numbers bigint[], _events text[],
    _cpu_ms bigint, _wall_ms bigint, _written_bytes bigint, _cpus double precision, _most bigint,
    _day bigint, _shard smallint
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    _ended record;
BEGIN
    IF _session IS NULL AND NOT unqueue(_id) THEN
        _ended := NULL;
    ELSE
        UPDATE executions SET status = _status, document = _document, stored_bytes = _stored_bytes,
            ended_at = _ended_at, request = NULL,
            last_event = greatest(last_event, _numbers[cardinality(_numbers)])
        WHERE id = _id AND session IS NOT DISTINCT FROM _session AND ended_at IS NULL
        RETURNING seq, subject, node, limits INTO _ended;
    END IF;
    IF _ended IS NULL THEN
        RETURN EXISTS (SELECT FROM executions WHERE id = _id AND session IS NOT DISTINCT FROM _session
            AND ended_at = _ended_at AND status = _status AND document = _document);
    END IF;
    INSERT INTO events SELECT _ended.seq, number, json FROM unnest(_numbers, _events) AS event (number, json)
    ON CONFLICT DO NOTHING;
    -- An unknown processor time is charged as that of all its processors.
    _cpu_ms := coalesce(_cpu_ms, least(ceil(_wall_ms *
        coalesce((_ended.limits::json ->> 'cpus')::double precision, _cpus)), _most)::bigint);
    PERFORM add_usage(_ended.subject, _day, _ended.node, _shard, _cpu_ms, _wall_ms, _written_bytes, _most);
    PERFORM add_stored(_ended.subject, _ended.node, _shard, _stored_bytes);
    RETURN true;
END $$;
