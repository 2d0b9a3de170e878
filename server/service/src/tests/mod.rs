//! Tests of the whole, on a runner without containers.
