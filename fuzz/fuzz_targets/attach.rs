//! What a client of a process says over its WebSocket.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_api::fuzz::attach(data));
