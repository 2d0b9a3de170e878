//! A script's result as JSON.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_agent::fuzz::result(data));
