-- The engine that an execution runs on, and the limits in force, as JSON.
ALTER TABLE executions ADD COLUMN engine TEXT;
ALTER TABLE executions ADD COLUMN limits TEXT;
