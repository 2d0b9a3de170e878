//! What a program says to the proxy.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_agent::fuzz::requests(data));
