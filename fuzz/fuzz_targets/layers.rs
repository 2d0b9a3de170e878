//! A layer of an image, compressed or not.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_rootfs::fuzz::layers(data));
