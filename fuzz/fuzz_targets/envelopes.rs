//! What a client of E2B streams.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_e2b::fuzz::envelopes(data));
