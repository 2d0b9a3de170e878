//! Unpredictable names.

/// Lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of a text in hexadecimal, if it is one.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

/// Whether a text has the form of [`random_hex`].
#[must_use]
pub fn is_random_hex<const N: usize>(text: &str) -> bool {
    text.len() == 2 * N && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// `N` random bytes, in hexadecimal.
///
/// # Panics
///
/// If the kernel has no `getrandom`.
#[must_use]
pub fn random_hex<const N: usize>() -> String {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // It only fails if it is interrupted, or if the kernel does not have it.
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
    hex(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_of_a_random_name_is_recognised() {
        assert!(is_random_hex::<8>(&random_hex::<8>()));
        for text in ["", "web-1", "0123456789ABCDEF", "0123456789abcde", "0123456789abcdef0"] {
            assert!(!is_random_hex::<8>(text), "{text:?}");
        }
    }
}
