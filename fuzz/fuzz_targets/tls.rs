//! What a program and a server say to one another, past the guard of its name.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_tls::fuzz::tls(data));
