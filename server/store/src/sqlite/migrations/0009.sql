-- The image of an execution, lists of all subjects, and what they used on a day.
ALTER TABLE executions ADD COLUMN image TEXT;
CREATE INDEX executions_by_time ON executions (created_at, id);
CREATE INDEX usage_by_day ON usage (day);
