//! Configuration files and variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_config::fuzz::config(data));
