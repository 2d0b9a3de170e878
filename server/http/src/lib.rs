//! The HTTP API of a service.

#![forbid(unsafe_code)]
