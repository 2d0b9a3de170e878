//! A stream of the wire, cut into frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_protocol::fuzz::frames(data));
