-- Whether a sandbox is paused, for lists at other nodes. Nodes of version 2 go on: theirs are shown as ready.
ALTER TABLE sandboxes ADD COLUMN is_paused boolean NOT NULL DEFAULT false;
