//! Executions that are queued, run, kept and reported, and sandboxes that are kept.

#![forbid(unsafe_code)]
