//! Configuration files and variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxctl::fuzz::config(data));
