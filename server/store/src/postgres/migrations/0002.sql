-- Lists of all subjects, by image, and what subjects used on a day. Nodes of version 1 go on: their executions have no
-- image.
ALTER TABLE executions ADD COLUMN image text;
CREATE INDEX executions_by_time ON executions (created_at, id);
CREATE INDEX usage_by_day ON usage (day);
