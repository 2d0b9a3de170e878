-- The W3C trace context of the request.
ALTER TABLE executions ADD COLUMN trace_parent TEXT;
