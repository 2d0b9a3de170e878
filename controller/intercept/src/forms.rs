//! The forms in which servers repeat a secret, found whole or not at all. Pure.
//!
//! A part of a secret is nothing that is looked for: a program could guess it, have a host repeat the guess, and
//! see whether it is replaced, or how long that takes. So what is passed on, and when, depends on whole secrets
//! alone, and the search does the same for each byte, however much of a secret is before it: it has a bit for each
//! character of each form, set where the text ends with the form up to there, and moves them all at once. Of a
//! form longer than 64 characters those are its last 64; what is before them is compared when they are found.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sandbox_api::Injection;
use sandbox_api::injection::Place;

/// The longest escape of a character: `&#x002F;`.
const MAX_ESCAPE: usize = 8;
/// The most bytes for each character of an occurrence: an escape, and as many between two.
const MAX_SPREAD: usize = 2 * MAX_ESCAPE;
/// Any character of base64, or none: the first and last one have bits of what is beside the secret too.
const EDGE: u8 = b'*';
/// How many forms one secret has at most.
const LANES: usize = 8;
/// More positions than an escape has bytes.
const RING: usize = 2 * MAX_ESCAPE;

/// Of each of some forms, a bit for each of the last 64 characters.
type Lanes = [u64; LANES];

/// What is looked for in answers.
#[derive(Default)]
pub struct Forms {
    all: Vec<Form>,
    /// Each for as many of them as it has lanes.
    automata: Vec<Automaton>,
}

/// How much of a text was searched, and the states of each automaton at the last positions.
pub struct Progress {
    read: usize,
    states: Vec<[Lanes; RING]>,
}

/// Characters, each as it is in either case, or escaped for a URL, JSON, JavaScript or HTML.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Form {
    text: Vec<u8>,
    /// Base64 or hexadecimal: with line breaks, spaces or colons between them, and in both alphabets.
    is_encoded: bool,
}

/// What a byte may be beside a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nothing,
    /// What UTF-16 and UTF-32 have between characters.
    Nul,
    /// What may be between those of an encoded form.
    Gap,
    /// The beginning of an escape.
    Escape,
}

impl From<u8> for Kind {
    fn from(byte: u8) -> Self {
        match byte {
            0 => Self::Nul,
            b' ' | b'\t' | b'\r' | b'\n' | b':' | b'-' => Self::Gap,
            b'%' | b'\\' | b'&' => Self::Escape,
            _ => Self::Nothing,
        }
    }
}

impl Form {
    fn is_same(&self, own: u8, found: u8) -> bool {
        match (own, found) {
            (b' ', b'+') => true,
            (b'+', b'-') | (b'/', b'_') if self.is_encoded => true,
            (EDGE, b'+' | b'/' | b'-' | b'_') if self.is_encoded => true,
            (EDGE, _) if self.is_encoded => found.is_ascii_alphanumeric(),
            _ => own.eq_ignore_ascii_case(&found),
        }
    }

    fn is_gap(&self, byte: u8) -> bool {
        match Kind::from(byte) {
            Kind::Nul => true,
            Kind::Gap => self.is_encoded,
            Kind::Nothing | Kind::Escape => false,
        }
    }

    fn is_edge(&self, at: usize) -> bool {
        self.is_encoded && self.text[at] == EDGE
    }

    /// Where the longest occurrence begins with which a text ends.
    fn start(&self, text: &[u8]) -> Option<usize> {
        let begins = |ends: &BTreeSet<usize>, is_it: &dyn Fn(u8) -> bool| {
            let mut begins = BTreeSet::new();
            for end in ends {
                let found = readings(&text[..*end]).filter(|(byte, _)| is_it(*byte));
                begins.extend(found.map(|(_, length)| end - length));
            }
            begins
        };
        let (mut ends, mut start) = (BTreeSet::from([text.len()]), None);
        for (at, own) in self.text.iter().enumerate().rev() {
            let mut found = begins(&ends, &|byte| self.is_same(*own, byte));
            if at == 0 || (at == 1 && self.is_edge(0)) {
                start = found.first().copied().or(start);
            }
            if at + 1 == self.text.len() && self.is_edge(at) {
                found.insert(text.len());
            }
            ends = found.clone();
            while !found.is_empty() {
                found = begins(&found, &|byte| self.is_gap(byte));
                ends.extend(&found);
            }
        }
        start
    }
}

/// What the end of a text may be read as, and the length of that: its last byte, an escape, a line break.
fn readings(text: &[u8]) -> impl Iterator<Item = (u8, usize)> {
    let itself = text.last().map(|byte| (*byte, 1));
    let line = matches!(text, [.., b'\\', b'n' | b'r']).then_some((b'\n', 2));
    [itself, escape(text), line].into_iter().flatten()
}

/// The character whose escape a text ends with, and the length of the escape.
fn escape(text: &[u8]) -> Option<(u8, usize)> {
    let number = |digits: &[u8], radix| {
        let is_number = digits.iter().all(u8::is_ascii_hexdigit);
        u8::from_str_radix(str::from_utf8(digits).ok().filter(|_| is_number)?, radix).ok()
    };
    if let [.., b'\\', byte] = text {
        return Some((*byte, 2));
    }
    for (begin, count) in [(&b"%"[..], 2), (b"\\x", 2), (b"\\u", 4)] {
        let (rest, digits) = text.split_at(text.len().saturating_sub(count));
        if rest.ends_with(begin) {
            return Some((number(digits, 16)?, begin.len() + count));
        }
    }
    let length = text.iter().rev().take(MAX_ESCAPE).position(|byte| *byte == b'&')?;
    let name = &text[text.len() - length..];
    let byte = match name.strip_suffix(b";").unwrap_or(name) {
        b"amp" => b'&',
        b"lt" => b'<',
        b"gt" => b'>',
        b"quot" => b'"',
        b"apos" => b'\'',
        [b'#', b'x' | b'X', digits @ ..] => number(digits, 16)?,
        [b'#', digits @ ..] => number(digits, 10)?,
        _ => return None,
    };
    Some((byte, length + 1))
}

/// Looks for some forms at once.
struct Automaton {
    /// The characters that a byte may be, and what else.
    rows: Vec<(Lanes, Kind)>,
    /// Those after which one of a kind may be.
    gaps: [Lanes; 4],
    /// Those that a form begins and ends with.
    first: Lanes,
    last: Lanes,
}

impl Automaton {
    fn new(forms: &[Form]) -> Self {
        let kinds = (0..=u8::MAX).map(|byte| ([0; LANES], Kind::from(byte)));
        let (mut rows, mut gaps) = (Vec::from_iter(kinds), [[0; LANES]; 4]);
        let [mut first, mut last] = [[0; LANES]; 2];
        for (lane, form) in forms.iter().enumerate() {
            let (end, begin) = (form.text.len(), form.text.len().saturating_sub(64));
            let bit = |at: usize| 1 << (at - begin);
            first[lane] = bit(begin) | if begin == 0 && form.is_edge(0) { bit(1) } else { 0 };
            last[lane] = bit(end - 1) | if form.is_edge(end - 1) { bit(end - 2) } else { 0 };
            for (byte, (characters, kind)) in (0..=u8::MAX).zip(&mut rows) {
                let same = (begin..end).filter(|at| form.is_same(form.text[*at], byte));
                characters[lane] = same.map(bit).sum();
                gaps[*kind as usize][lane] = if form.is_gap(byte) { u64::MAX } else { 0 };
            }
        }
        Self { rows, gaps, first, last }
    }

    /// The states after a byte, and the forms that end with it. No state decides what is done.
    fn step(&self, byte: u8, before: &Lanes) -> [Lanes; 2] {
        let (characters, kind) = &self.rows[usize::from(byte)];
        let gaps = &self.gaps[*kind as usize];
        let [mut after, mut ended] = [[0; LANES]; 2];
        for lane in 0..LANES {
            let found = ((before[lane] << 1) | self.first[lane]) & characters[lane];
            ended[lane] = found & self.last[lane];
            after[lane] = found | (before[lane] & gaps[lane]);
        }
        [after, ended]
    }

    /// Steps up to where an escape begins or a form ends. How many bytes that are.
    fn pass(&self, text: &[u8], states: &mut Lanes) -> usize {
        let mut now = *states;
        let next = text.iter().position(|byte| {
            let [after, ended] = self.step(*byte, &now);
            let is_escape = self.rows[usize::from(*byte)].1 == Kind::Escape;
            let is_next = is_escape || ended.iter().fold(0, |all, one| all | one) != 0;
            if !is_next {
                now = after;
            }
            is_next
        });
        *states = now;
        next.unwrap_or(text.len())
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
        Self { automata: all.chunks(LANES).map(Automaton::new).collect(), all }
    }

    /// No occurrence is longer.
    pub fn longest(&self) -> usize {
        let longest = self.all.iter().map(|form| form.text.len()).max();
        longest.unwrap_or(0) * MAX_SPREAD
    }

    /// Nothing is searched.
    pub fn progress(&self) -> Progress {
        Progress { read: 0, states: vec![[[0; LANES]; RING]; self.automata.len()] }
    }

    /// Searches the rest of a text, `from` where it was searched, and puts a star in `shown` for each byte of an
    /// occurrence that ends there. Whether there is one.
    pub fn mask(
        &self,
        progress: &mut Progress,
        text: &[u8],
        from: usize,
        shown: &mut [u8],
    ) -> bool {
        let (mut is_found, position) = (false, |at| progress.read + at - from);
        let automata = self.automata.iter().zip(self.all.chunks(LANES));
        for ((automaton, forms), states) in automata.zip(&mut progress.states) {
            let mut now = states[position(from) % RING];
            // How many of the next bytes an escape may have: one may have begun before.
            let (mut at, mut near) = (from, MAX_ESCAPE);
            loop {
                if near == 0 {
                    at += automaton.pass(&text[at..], &mut now);
                }
                states[position(at) % RING] = now;
                let Some(byte) = text.get(at) else { break };
                let is_escape = Kind::from(*byte) == Kind::Escape;
                near = if is_escape { MAX_ESCAPE } else { near.saturating_sub(1) };
                at += 1;
                let mut ended = [0; LANES];
                now = ended;
                for (byte, length) in readings(&text[..at]) {
                    let [after, also] =
                        automaton.step(byte, &states[(position(at) - length) % RING]);
                    for lane in 0..LANES {
                        now[lane] |= after[lane];
                        ended[lane] |= also[lane];
                    }
                }
                for (form, _) in forms.iter().zip(ended).filter(|(_, ended)| *ended != 0) {
                    if let Some(start) = form.start(&text[..at]) {
                        shown[start..at].fill(b'*');
                        is_found = true;
                    }
                }
            }
        }
        progress.read += text.len() - from;
        is_found
    }

    /// A whole text with a star for each byte of a secret; `None` if there is none.
    pub fn replaced(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut shown = text.to_vec();
        self.mask(&mut self.progress(), text, 0, &mut shown).then_some(shown)
    }

    /// The same, in place.
    pub fn text(&self, text: &mut String) {
        if let Some(replaced) = self.replaced(text.as_bytes()) {
            // Only ASCII was replaced.
            *text = String::from_utf8_lossy(&replaced).into_owned();
        }
    }
}

/// Base64 of what has these bytes in it, wherever they begin.
fn base64(bytes: &[u8]) -> impl Iterator<Item = Form> {
    (0..3).map(move |shift| {
        let shifted = [&[0; 2][..shift], bytes].concat();
        let mut text = STANDARD_NO_PAD.encode(&shifted).into_bytes().split_off(shift);
        let end = text.len() - 1;
        if shift > 0 {
            text[0] = EDGE;
        }
        if shifted.len() % 3 > 0 {
            text[end] = EDGE;
        }
        Form { text, is_encoded: true }
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
            "p&#x2F+w &quot&lt1&gt&amp~&apos;x&#61&#61".to_owned(),
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
            // All characters that have a bit of it.
            let (from, to) = (before.len() * 8, (before.len() + secret.len()) * 8);
            let longest = encoded.len() - (to.div_ceil(6) - from / 6);
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
                (broken("\n                        "), "\n                        "),
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

    #[test]
    fn search_does_the_same_however_much_of_a_secret_a_text_has() {
        let long = (100..150).map(|number| number.to_string()).collect::<String>();
        for secret in ["s3cr3t/Value+1", &long] {
            let found = forms("a.example: basic me:env:A", secret);
            for form in [secret.to_owned(), STANDARD_NO_PAD.encode(secret)] {
                let passed = |text: &str| found.automata[0].pass(text.as_bytes(), &mut [0; LANES]);
                // It stops for the last character of a whole one alone.
                let last = form.len() - 1;
                assert!((last - 1..=last).contains(&passed(&form)), "{form}");
                for cut in 0..last {
                    assert_eq!(passed(&form[..cut]), cut, "{form}");
                }
            }
        }
    }
}
