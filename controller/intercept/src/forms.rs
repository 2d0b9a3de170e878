//! The forms in which servers repeat a secret, found whole or not at all. Pure.
//!
//! A part of a secret is nothing that is looked for: a program could guess it, have a host repeat the guess, and
//! see whether it is replaced. So what is passed on, and when, depends on whole secrets alone.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sandbox_api::Injection;
use sandbox_api::injection::Place;

/// The longest escape of a character: `&#x002F;`.
const MAX_ESCAPE: usize = 8;
/// The most bytes between two characters, such as a line break.
const MAX_GAP: usize = 8;
/// What an escape begins with.
const ESCAPES: &[u8] = b"%\\&";

/// What is looked for in answers.
#[derive(Default)]
pub struct Forms {
    all: Vec<Form>,
    /// Those that begin with a byte.
    by_first: Vec<Vec<usize>>,
}

/// Characters, each as it is in either case, or escaped for a URL, JSON, JavaScript or HTML.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Form {
    text: Vec<u8>,
    /// Base64 or hexadecimal: with line breaks, spaces or colons between them, and in both alphabets.
    is_encoded: bool,
}

impl Form {
    fn is_same(&self, own: u8, found: u8) -> bool {
        match (own, found) {
            (b' ', b'+') => true,
            (b'+', b'-') | (b'/', b'_') if self.is_encoded => true,
            _ => own.eq_ignore_ascii_case(&found),
        }
    }

    /// The lengths of what this character of it can be at the beginning of a text.
    fn lengths(&self, own: u8, text: &[u8]) -> impl Iterator<Item = usize> {
        let itself = text.first().map(|byte| (*byte, 1));
        let found = [itself, escape(text)].into_iter().flatten();
        found.filter(move |(byte, _)| self.is_same(own, *byte)).map(|(_, length)| length)
    }

    /// Where the next character can begin.
    fn gaps(&self, text: &[u8]) -> impl Iterator<Item = usize> {
        // NUL for UTF-16 and UTF-32.
        let is_gap = |byte: u8| byte == 0 || (self.is_encoded && b" \t\r\n:-".contains(&byte));
        let step = move |at: &usize| {
            let rest = &text[*at..];
            let length = match rest {
                [first, ..] if is_gap(*first) => 1,
                [b'\\', b'r' | b'n', ..] if self.is_encoded => 2,
                _ => escape(rest).filter(|(byte, _)| is_gap(*byte))?.1,
            };
            Some(at + length).filter(|at| *at <= MAX_GAP)
        };
        std::iter::successors(Some(0), step)
    }

    /// The end of the longest occurrence with which the text begins.
    fn end(&self, text: &[u8]) -> Option<usize> {
        let (first, rest) = self.text.split_first()?;
        let mut ends: Vec<usize> = self.lengths(*first, text).collect();
        let mut next = Vec::new();
        for own in rest {
            for end in ends.drain(..) {
                for from in self.gaps(&text[end..]).map(|gap| end + gap) {
                    let lengths = self.lengths(*own, &text[from..]);
                    next.extend(lengths.map(|length| from + length));
                }
            }
            next.sort_unstable();
            next.dedup();
            std::mem::swap(&mut ends, &mut next);
            if ends.is_empty() {
                return None;
            }
        }
        ends.pop()
    }
}

/// The character that is escaped at the beginning of a text, and the length of the escape.
fn escape(text: &[u8]) -> Option<(u8, usize)> {
    let digits = |from: usize, to: usize| {
        let text = text.get(from..to).filter(|it| it.iter().all(u8::is_ascii_hexdigit))?;
        let code = u32::from_str_radix(str::from_utf8(text).ok()?, 16).ok()?;
        Some((u8::try_from(code).ok()?, to))
    };
    match text {
        [b'%', ..] => digits(1, 3),
        [b'\\', b'u', ..] => digits(2, 6),
        [b'\\', b'x', ..] => digits(2, 4),
        [b'\\', other, ..] => Some((*other, 2)),
        [b'&', ..] => {
            let end = text.iter().take(MAX_ESCAPE).position(|byte| *byte == b';')?;
            let byte = match str::from_utf8(&text[1..end]).ok()? {
                "amp" => b'&',
                "lt" => b'<',
                "gt" => b'>',
                "quot" => b'"',
                "apos" => b'\'',
                number => {
                    let number = number.strip_prefix('#')?;
                    match number.strip_prefix(['x', 'X']) {
                        Some(digits) => u8::from_str_radix(digits, 16).ok()?,
                        None => number.parse().ok()?,
                    }
                }
            };
            Some((byte, end + 1))
        }
        _ => None,
    }
}

impl Forms {
    /// Those of the secrets, each one line of ASCII.
    pub fn new(injections: &[Injection]) -> Self {
        let mut all = BTreeSet::new();
        for injection in injections {
            let secret = injection.value.as_bytes();
            all.insert(Form { text: secret.to_vec(), is_encoded: false });
            let hex = secret.iter().flat_map(|byte| format!("{byte:02x}").into_bytes());
            all.insert(Form { text: hex.collect(), is_encoded: true });
            all.extend(base64(secret));
            if let Place::Basic { user } = &injection.rule.place {
                all.extend(base64(&[user.as_bytes(), b":", secret].concat()));
            }
        }
        let all = Vec::from_iter(all);
        let begins = |form: &Form, byte| {
            let own = form.text.first();
            own.is_some_and(|own| form.is_same(*own, byte) || ESCAPES.contains(&byte))
        };
        let of = |byte| (0..all.len()).filter(|at| begins(&all[*at], byte)).collect();
        Self { by_first: (0..=u8::MAX).map(of).collect(), all }
    }

    /// No occurrence is longer.
    pub fn longest(&self) -> usize {
        let longest = self.all.iter().map(|form| form.text.len()).max();
        longest.unwrap_or(0) * (MAX_ESCAPE + MAX_GAP)
    }

    /// Looks for occurrences that begin before `until`, and appends what follows `from` to the output, up to there,
    /// with a star for each byte of one. `masked` is the end of those before, and becomes that of these.
    pub fn pass(
        &self,
        text: &[u8],
        [from, until]: [usize; 2],
        masked: &mut usize,
        output: &mut Vec<u8>,
    ) {
        for (at, byte) in text.iter().enumerate().take(until) {
            let forms = self.by_first.get(usize::from(*byte)).into_iter().flatten();
            let ends = forms.filter_map(|form| self.all[*form].end(&text[at..]));
            *masked = ends.fold(*masked, |masked, end| masked.max(at + end));
            if at >= from {
                output.push(if at < *masked { b'*' } else { *byte });
            }
        }
    }

    /// A whole text with a star for each byte of a secret; `None` if there is none.
    pub fn replaced(&self, text: &[u8]) -> Option<Vec<u8>> {
        let (mut masked, mut output) = (0, Vec::with_capacity(text.len()));
        self.pass(text, [0, text.len()], &mut masked, &mut output);
        (masked > 0).then_some(output)
    }

    /// The same, in place.
    pub fn text(&self, text: &mut String) {
        if let Some(replaced) = self.replaced(text.as_bytes()) {
            // Only ASCII was replaced.
            *text = String::from_utf8_lossy(&replaced).into_owned();
        }
    }
}

/// The characters of base64 that the bytes alone decide, wherever they begin.
fn base64(bytes: &[u8]) -> impl Iterator<Item = Form> {
    (0..3).map(move |shift| {
        let shifted = [&[0; 2][..shift], bytes].concat();
        let (first, end) = ((shift * 8).div_ceil(6), shifted.len() * 8 / 6);
        let encoded = STANDARD_NO_PAD.encode(&shifted);
        Form { text: encoded.as_bytes()[first..end].to_vec(), is_encoded: true }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms(rule: &str, value: &str) -> Forms {
        let rule: sandbox_api::InjectRule = rule.parse().unwrap();
        Forms::new(&[rule.with(sandbox_api::SecretValue::new(value)).unwrap()])
    }

    fn each(secret: &str, of: impl Fn(u8) -> String) -> String {
        secret.bytes().map(of).collect()
    }

    #[test]
    fn a_secret_is_found_in_the_forms_in_which_servers_repeat_it() {
        let secret = "p/+w \"<1>&~'x==";
        let found = forms("a.example: basic me:env:A", secret);
        for text in [
            secret.to_owned(),
            secret.to_ascii_lowercase(),
            secret.to_ascii_uppercase(),
            "p%2F%2Bw%20%22%3C1%3E%26~%27x%3D%3D".to_owned(),
            "p%2f%2bw%20%22%3c1%3e%26~%27x%3d%3d".to_owned(),
            "p/%2Bw%20%22%3C1%3E%26~%27x%3D%3D".to_owned(),
            "p%2F%2Bw+%22%3C1%3E%26%7E%27x%3D%3D".to_owned(),
            "p/+w \\\"<1>&~'x==".to_owned(),
            "p\\/+w \\\"<1>&~'x==".to_owned(),
            "p/+w \\\"\\u003c1\\u003e\\u0026~'x==".to_owned(),
            "p/+w \\\"\\u003c1\\u003e\\u0026~\\u0027x\\u003d\\u003d".to_owned(),
            "p/+w &quot;&lt;1&gt;&amp;~&#39;x==".to_owned(),
            "p/+w &#34;&lt;1&gt;&amp;~&#039;x==".to_owned(),
            "p/&#43;w &#34;&lt;1&gt;&amp;~&#39;x==".to_owned(),
            "p&#x2F;+w &quot;&lt;1&gt;&amp;~&apos;x&#x3D;&#x3D;".to_owned(),
            "702f2b7720223c313e267e27783d3d".to_owned(),
            "70:2F:2b:77:20:22:3c:31:3e:26:7e:27:78:3d:3d".to_owned(),
            "70 2f 2b 77 20 22 3c 31\n3e 26 7e 27 78 3d 3d".to_owned(),
            each(secret, |byte| format!("%{byte:02X}")),
            each(secret, |byte| format!("\\x{byte:02x}")),
            each(secret, |byte| format!("\\u{byte:04X}")),
            each(secret, |byte| format!("&#{byte};")),
            each(secret, |byte| format!("&#x{byte:04x};")),
            each(secret, |byte| format!("\0{}", byte as char))[1..].to_owned(),
            each(secret, |byte| format!("\0\0\0{}", byte as char))[3..].to_owned(),
        ] {
            let replaced = found.replaced(format!("<{text}>").as_bytes()).expect(&text);
            assert_eq!(replaced, format!("<{}>", "*".repeat(text.len())).as_bytes(), "{text}");
            assert!(text.len() <= found.longest());
        }
        let encode = |text: String| STANDARD_NO_PAD.encode(text);
        for before in ["", "a", "ab", "me:"] {
            let encoded = encode(format!("{before}{secret}yz"));
            let longest = encoded.len() - secret.len() * 8 / 6 + 2;
            let broken = |by: &str| {
                let lines = encoded.as_bytes().chunks(7).map(|line| str::from_utf8(line).unwrap());
                Vec::from_iter(lines).join(by)
            };
            for (text, by) in [
                (encoded.replace('+', "-").replace('/', "_"), ""),
                (encoded.replace('+', "%2B").replace('/', "\\/"), ""),
                (broken("\n"), "\n"),
                (broken("\r\n"), "\r\n"),
                (broken("\\r\\n"), "\\r\\n"),
                (broken("%0D%0A"), "%0D%0A"),
                (encoded.clone(), ""),
            ] {
                let replaced = found.replaced(text.as_bytes()).expect(&text);
                let shown = String::from_utf8(replaced).unwrap().replace('*', "");
                let shown = if by.is_empty() { shown } else { shown.replace(by, "") };
                assert!(shown.len() <= longest, "{text:?}: {shown}");
            }
        }
        // Letters of one case beside digits of the other.
        let mixed = forms("a.example: A: env:A", "aB/+Cd");
        for text in ["aB%2f%2bCd", "aB%2F%2BCd", "aB/\\u002BCd"] {
            let replaced = mixed.replaced(text.as_bytes()).expect(text);
            assert_eq!(replaced, "*".repeat(text.len()).as_bytes(), "{text}");
        }
        assert_eq!(found.replaced(b"nothing of it"), None);
    }

    #[test]
    fn a_part_of_a_secret_is_text_as_any_other() {
        let secret = "s3cr3t/Value+1";
        let found = forms("a.example: basic me:env:A", secret);
        for form in [
            secret.to_owned(),
            STANDARD_NO_PAD.encode(secret)[..18].to_owned(),
            each(secret, |byte| format!("{byte:02x}")),
            each(secret, |byte| format!("&#{byte};")),
        ] {
            assert!(found.replaced(form.as_bytes()).is_some(), "{form}");
            for cut in 0..form.len() - 1 {
                for text in [&form[..cut], &form[cut + 1..]] {
                    assert_eq!(found.replaced(text.as_bytes()), None, "{text}");
                }
            }
        }
        assert!(Forms::default().replaced(secret.as_bytes()).is_none());
    }
}
