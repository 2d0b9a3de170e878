//! A receipt.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_receipts::fuzz::receipts(data));
