-- Of an execution in a kept sandbox, the generation that it is for, or ran in, and whether it started it.
ALTER TABLE executions ADD COLUMN generation INTEGER;
ALTER TABLE executions ADD COLUMN is_restart INTEGER;
