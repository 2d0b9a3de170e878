-- The key that signs what the service gives out: one row.
CREATE TABLE signing_key (
    number INTEGER PRIMARY KEY CHECK (number = 1),
    hex TEXT NOT NULL
) STRICT;
