//! A line of the wire, read by either side.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_protocol::fuzz::messages(data));
