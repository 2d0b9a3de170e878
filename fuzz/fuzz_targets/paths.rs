//! A path that a script wrote.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_agent::fuzz::paths(data));
