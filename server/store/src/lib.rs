//! What a service must not forget: executions, tokens and usage, in SQLite.

#![forbid(unsafe_code)]
