//! Who calls a service, and what they may do.

#![forbid(unsafe_code)]
