//! Numbers in a text, as Lua's `read("n")` finds them.

use std::ffi::CString;

/// Longest numeral, in bytes; a longer one is invalid.
const MAX_BYTES: usize = 200;

/// How many bytes [`scan`] needs: a numeral and the byte after it.
pub const LOOK_AHEAD: usize = MAX_BYTES + 1;

/// The space characters of C.
pub const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Scans `text` as long as it can be the beginning of a numeral, decimal or hexadecimal. Returns
/// how many bytes were scanned, and the number if all of them are a valid numeral. So `0xg`
/// consumes two bytes and is invalid, as in Lua, which looks ahead only one byte.
pub fn scan(text: &[u8]) -> (usize, Option<f64>) {
    let mut scan = Scan { text, at: 0, too_long: false };
    scan.accept(b"-+");
    let has_zero = scan.accept(b"0");
    let is_hexadecimal = has_zero && scan.accept(b"xX");
    let mut digits = usize::from(has_zero && !is_hexadecimal);
    let is_digit = if is_hexadecimal { u8::is_ascii_hexdigit } else { u8::is_ascii_digit };
    digits += scan.digits(is_digit);
    if scan.accept(b".") {
        digits += scan.digits(is_digit);
    }
    if digits > 0 && scan.accept(if is_hexadecimal { b"pP" } else { b"eE" }) {
        scan.accept(b"-+");
        if scan.digits(u8::is_ascii_digit) == 0 {
            digits = 0;
        }
    }
    if digits == 0 || scan.too_long {
        return (scan.at, None);
    }
    let numeral = &text[..scan.at];
    let number = if is_hexadecimal {
        hexadecimal(numeral)
    } else {
        // std rounds correctly, and accepts `5.`, `.3` and `+1` as C does.
        std::str::from_utf8(numeral).ok().and_then(|text| text.parse().ok())
    };
    (scan.at, number)
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    too_long: bool,
}

impl Scan<'_> {
    /// Consumes the next byte if it is in `set`.
    fn accept(&mut self, set: &[u8]) -> bool {
        self.text.get(self.at).is_some_and(|byte| set.contains(byte)) && self.step()
    }

    fn digits(&mut self, is_digit: fn(&u8) -> bool) -> usize {
        let start = self.at;
        while self.text.get(self.at).is_some_and(is_digit) && self.step() {}
        self.at - start
    }

    fn step(&mut self) -> bool {
        self.too_long |= self.at == MAX_BYTES;
        self.at += usize::from(!self.too_long);
        !self.too_long
    }
}

/// The value of a valid hexadecimal numeral, which the C library rounds once; std reads none.
#[expect(unsafe_code, reason = "nothing safe reads hexadecimal numerals")]
fn hexadecimal(numeral: &[u8]) -> Option<f64> {
    let numeral = CString::new(numeral).ok()?;
    // SAFETY: the string is only read.
    Some(unsafe { libc::strtod(numeral.as_ptr(), std::ptr::null_mut()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numerals_are_read_as_lua_reads_them() {
        for (text, length, number) in [
            ("-12.3-", 5, Some(-12.3)),
            ("-0xffff+", 7, Some(-65535.0)),
            (".3|", 2, Some(0.3)),
            ("5.E-3X", 5, Some(0.005)),
            ("+234e+13E", 8, Some(234e13)),
            ("0xDEADBEEFDEADBEEFx", 18, Some(0xDEAD_BEEF_DEAD_BEEF_u64 as f64)),
            ("0x1.13Ap+3e", 10, Some(8.61328125)),
            ("0x1p4", 5, Some(16.0)),
            ("0x.8", 4, Some(0.5)),
            ("0x1p-1074", 9, Some(f64::from_bits(1))),
            ("0x1p1024", 8, Some(f64::INFINITY)),
            ("0x0p99999", 9, Some(0.0)),
            ("007", 3, Some(7.0)),
            ("0", 1, Some(0.0)),
            ("0x", 2, None),
            ("0xg", 2, None),
            ("1e", 2, None),
            ("1e+", 3, None),
            (".e+", 1, None),
            ("0.e;", 3, None),
            ("--;", 1, None),
            ("", 0, None),
            ("nan", 0, None),
            ("inf", 0, None),
            ("1 2", 1, Some(1.0)),
            ("1,5", 1, Some(1.0)),
        ] {
            assert_eq!(scan(text.as_bytes()), (length, number), "{text}");
        }
    }

    #[test]
    fn a_numeral_over_200_bytes_is_none_and_its_rest_stays() {
        let fits = "1".repeat(200);
        assert_eq!(scan(fits.as_bytes()), (200, fits.parse().ok()));
        assert_eq!(scan("1".repeat(201).as_bytes()), (200, None));
        assert_eq!(scan(format!("{fits}.5").as_bytes()), (200, None));
        assert_eq!(scan(format!("{fits} ").as_bytes()), (200, fits.parse().ok()));
    }

    #[test]
    fn long_hexadecimal_mantissas_round_once() {
        let text = format!("0x1.{}1p0", "0".repeat(60));
        assert_eq!(scan(text.as_bytes()).1, Some(1.0));
        assert_eq!(scan(b"0x1.00000000000008p0").1, Some(1.0));
        assert_eq!(scan(b"0x1.000000000000081p0").1, Some(1.0 + f64::EPSILON));
        assert_eq!(scan(b"0x1.fffffffffffff8p1023").1, Some(f64::INFINITY));
    }

    #[test]
    fn hexadecimal_subnormals_round_once() {
        for (text, number) in [
            ("0x250f521ba9acb51.b807c3ef70f162c0p-1080", 1.2884514986470554e-308),
            ("0x1.8p-1074", f64::from_bits(2)),
            ("0x2.8p-1074", f64::from_bits(2)),
            ("0x2.8000000000000000000000000001p-1074", f64::from_bits(3)),
            ("0x.8p-1074", 0.0),
            ("0x.80000000000000000000000000001p-1074", f64::from_bits(1)),
            ("0x1.fffffffffffff8p-1023", f64::MIN_POSITIVE),
            ("0x1p-2000", 0.0),
        ] {
            assert_eq!(scan(text.as_bytes()), (text.len(), Some(number)), "{text}");
        }
    }
}
