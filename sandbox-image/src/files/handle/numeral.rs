//! Numbers in a text, as Lua's `read("n")` finds them.

/// Longest numeral, in bytes; a longer one is invalid.
const MAX_BYTES: usize = 200;

/// Bits of a double's mantissa, including the hidden one.
const MANTISSA_BITS: i32 = 53;
/// The exponent of the last bit of the smallest doubles.
const SMALLEST_POWER: i32 = -1074;

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
    let negative = scan.accept(b"-+") == Some(b'-');
    let mut hexadecimal = false;
    let mut digits = 0;
    if scan.accept(b"0").is_some() {
        if scan.accept(b"xX").is_some() {
            hexadecimal = true;
        } else {
            digits = 1;
        }
    }
    let is_digit = if hexadecimal { u8::is_ascii_hexdigit } else { u8::is_ascii_digit };
    let whole = scan.at;
    digits += scan.digits(is_digit);
    let whole = &text[whole..scan.at];
    let mut fraction: &[u8] = &[];
    if scan.accept(b".").is_some() {
        let start = scan.at;
        digits += scan.digits(is_digit);
        fraction = &text[start..scan.at];
    }
    let mut exponent = None;
    if digits > 0 && scan.accept(if hexadecimal { b"pP" } else { b"eE" }).is_some() {
        let start = scan.at;
        scan.accept(b"-+");
        if scan.digits(u8::is_ascii_digit) == 0 {
            digits = 0;
        }
        exponent = Some(&text[start..scan.at]);
    }
    if digits == 0 || scan.too_long {
        return (scan.at, None);
    }
    let number = if hexadecimal {
        let magnitude = hexadecimal_value(whole, fraction, exponent);
        Some(if negative { -magnitude } else { magnitude })
    } else {
        // std rounds correctly, and accepts `5.`, `.3` and `+1` as C does.
        std::str::from_utf8(&text[..scan.at]).ok().and_then(|text| text.parse().ok())
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
    fn accept(&mut self, set: &[u8]) -> Option<u8> {
        let byte = *self.text.get(self.at).filter(|byte| set.contains(byte))?;
        self.step().then_some(byte)
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

/// `whole.fraction × 2^exponent`, rounded once.
fn hexadecimal_value(whole: &[u8], fraction: &[u8], exponent: Option<&[u8]>) -> f64 {
    let mut mantissa = 0_u128;
    let mut scale = 0_i32;
    for (digit, after_point) in
        whole.iter().map(|digit| (digit, 0)).chain(fraction.iter().map(|digit| (digit, 4)))
    {
        let digit = char::from(*digit).to_digit(16).unwrap_or(0);
        if mantissa >> 120 == 0 {
            mantissa = mantissa << 4 | u128::from(digit);
            scale -= after_point;
        } else {
            // Far above the range of a double: it only matters whether any digit is not zero.
            mantissa |= u128::from(digit != 0);
            scale += 4 - after_point;
        }
    }
    let exponent: i32 = match exponent.map(std::str::from_utf8) {
        Some(Ok(text)) => {
            text.parse().unwrap_or(if text.starts_with('-') { -99_999 } else { 99_999 })
        }
        _ => 0,
    };
    // The exponent of the last bit of a double of this size.
    let power = scale.saturating_add(exponent).clamp(-2300, 2300);
    let length = i32::try_from(u128::BITS - mantissa.leading_zeros()).unwrap_or(0);
    let last_bit = (power + length - MANTISSA_BITS).max(SMALLEST_POWER);
    let mut power_left = last_bit.max(power);
    let mut value = halve(mantissa, power_left.abs_diff(power)) as f64;
    // In steps that do not overflow; powers of two are exact.
    while power_left != 0 && value != 0.0 && value.is_finite() {
        let step = power_left.clamp(-1000, 1000);
        value *= 2.0_f64.powi(step);
        power_left -= step;
    }
    value
}

/// Halves this many times, and rounds once, ties to even.
const fn halve(number: u128, times: u32) -> u128 {
    if times == 0 {
        return number;
    }
    let Some(middle) = 1_u128.checked_shl(times - 1) else { return 0 };
    let rest = number & (middle | (middle - 1));
    let half = number >> (times - 1) >> 1;
    half + (rest > middle || rest == middle && half & 1 == 1) as u128
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
