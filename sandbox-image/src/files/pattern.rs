//! Patterns of paths, as shells have them, by way of regular expressions.

use std::borrow::Cow;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// How deep the groups of a regular expression may nest. Its compiler is recursive.
pub(super) const MAX_NESTING: u32 = 64;
/// The size of a compiled regular expression. A search takes time in proportion to it.
pub(super) const MAX_COMPILED_BYTES: usize = 1 << 20;
/// What stands before a dot that begins a name while a path is matched. No name contains it, no
/// wildcard matches it, and no pattern may have it: only a dot of the pattern leads over it.
const MARK: char = '\0';
/// Any character of a name.
const ANY: &str = r"[^/\x00]";

/// A compiled pattern: `*` and `?` match within a name, `**` any directories, and there are `[a-z]`,
/// `{a,b}` and `\`. Characters are Unicode's. A name that is not UTF-8 is matched as its lossy text.
pub(super) struct Pattern {
    regex: Regex,
    hidden: bool,
    /// Whether one of its names may begin with a dot of its own.
    pub names_hidden: bool,
}

impl Pattern {
    /// Compiles a pattern. Unless `hidden`, a dot that begins a name matches only a dot that begins a
    /// name of the pattern.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(pattern: &str, hidden: bool) -> Result<Self, String> {
        let (regex, names_hidden) = translated(pattern)?;
        let mut builder = RegexBuilder::new(&regex);
        builder.nest_limit(MAX_NESTING).size_limit(MAX_COMPILED_BYTES);
        let regex = builder.build().map_err(|error| cause(&error))?;
        Ok(Self { regex, hidden, names_hidden })
    }

    /// Whether the whole of a path matches.
    pub fn matches(&self, path: &[u8]) -> bool {
        let mut text = String::from_utf8_lossy(path);
        if !self.hidden && (text.starts_with('.') || text.contains("/.")) {
            let marked = format!("/{text}").replace("/.", &format!("/{MARK}."));
            text = Cow::Owned(marked[1..].to_owned());
        }
        self.regex.is_match(&text)
    }
}

/// A regular expression for a pattern, and whether a name of the pattern may begin with a dot.
fn translated(pattern: &str) -> Result<(String, bool), String> {
    if pattern.contains(MARK) {
        return Err("it contains a NUL".to_owned());
    }
    let (mut regex, mut names_hidden) = ("^".to_owned(), false);
    // Whether a name may begin here.
    let mut begins = true;
    // The same before each open brace, and behind one of its alternatives so far.
    let mut braces: Vec<(bool, bool)> = Vec::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => {
                let stars = rest.as_str();
                rest = stars.trim_start_matches('*').chars();
                let is_double = stars.len() - rest.as_str().len() == 1;
                let ends = match rest.clone().next() {
                    None | Some('/') => true,
                    next => !braces.is_empty() && matches!(next, Some(',' | '}')),
                };
                match is_double && begins && ends {
                    true if rest.as_str().starts_with('/') => {
                        rest.next();
                        regex.push_str(&format!("(?:{ANY}+/)*"));
                        continue;
                    }
                    true => regex.push_str(&format!("{ANY}+(?:/{ANY}+)*")),
                    false => regex.push_str(&format!("{ANY}*")),
                }
                begins = false;
            }
            '?' => {
                regex.push_str(ANY);
                begins = false;
            }
            '[' => {
                regex.push_str(&class(&mut rest)?);
                begins = false;
            }
            '{' => {
                regex.push_str("(?:");
                braces.push((begins, false));
            }
            ',' | '}' if !braces.is_empty() => {
                let (before, behind) = braces.pop().unwrap_or_default();
                let behind = behind || begins;
                if c == ',' {
                    regex.push('|');
                    begins = before;
                    braces.push((before, behind));
                } else {
                    regex.push(')');
                    begins = behind;
                }
            }
            c => {
                let c = match c {
                    '\\' => rest.next().ok_or("a backslash at its end")?,
                    c => c,
                };
                if c == '.' && begins {
                    regex.push_str(r"\x00?");
                    names_hidden = true;
                }
                regex.push_str(&escaped(c));
                begins = c == '/';
            }
        }
    }
    if !braces.is_empty() {
        return Err("a brace is not closed (a backslash before it takes it as it is)".to_owned());
    }
    regex.push('$');
    Ok((regex, names_hidden))
}

/// The class of characters behind an opening bracket. It never has a slash.
fn class(rest: &mut Chars<'_>) -> Result<String, String> {
    const UNCLOSED: &str = "a bracket is not closed (a backslash before it takes it as it is)";
    let member = |rest: &mut Chars<'_>, c| match c {
        '\\' => rest.next().ok_or(UNCLOSED),
        c => Ok(c),
    };
    let mut class = "[[".to_owned();
    if rest.as_str().starts_with(['!', '^']) {
        rest.next();
        class.push('^');
    }
    let mut is_first = true;
    loop {
        let c = rest.next().ok_or(UNCLOSED)?;
        // It is a member where it comes first.
        if c == ']' && !is_first {
            break;
        }
        is_first = false;
        let low = member(rest, c)?;
        class.push_str(&escaped(low));
        let mut ahead = rest.clone();
        // A hyphen is a member where it comes first or last.
        if ahead.next() == Some('-')
            && let Some(c) = ahead.next().filter(|c| *c != ']')
        {
            let high = member(&mut ahead, c)?;
            if high < low {
                return Err(format!("the range {low}-{high} ends before it begins"));
            }
            class.push('-');
            class.push_str(&escaped(high));
            *rest = ahead;
        }
    }
    class.push_str(&format!("]&&{ANY}]"));
    Ok(class)
}

fn escaped(c: char) -> String {
    regex::escape(c.encode_utf8(&mut [0; 4]))
}

/// The last line of a syntax error is its cause; those above point at it.
pub(super) fn cause(error: &regex::Error) -> String {
    let text = error.to_string();
    let cause = text.lines().last().unwrap_or_default();
    cause.strip_prefix("error: ").unwrap_or(cause).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, hidden: bool, matching: &[&str], others: &[&str]) {
        let compiled = Pattern::new(pattern, hidden).unwrap();
        for (paths, expected) in [(matching, true), (others, false)] {
            for path in paths {
                assert_eq!(compiled.matches(path.as_bytes()), expected, "{pattern} {path}");
            }
        }
    }

    #[test]
    fn a_pattern_matches_characters_not_bytes() {
        check("?.txt", false, &["é.txt", "日.txt", "a.txt"], &["éé.txt", ".txt"]);
        check("??", false, &["éa", "日本"], &["é", "日"]);
        check("[é].txt", false, &["é.txt"], &["e.txt", "\u{c3}.txt"]);
        check("[日]本.md", false, &["日本.md"], &["月本.md"]);
        check("[à-ö]", false, &["é"], &["z", "ø"]);
        check("[!é]", false, &["e", "日"], &["é", "/"]);
        check("{é,日*}", false, &["é", "日本"], &["e"]);
    }

    #[test]
    fn what_is_not_utf8_is_matched_as_its_lossy_text() {
        let is_match =
            |pattern: &str, path: &[u8]| Pattern::new(pattern, false).unwrap().matches(path);
        assert!(is_match("*", b"\xff\xfe") && is_match("??", b"\xff\xfe"));
        assert!(is_match("a?.txt", b"a\xff.txt") && is_match("[!b]*", b"\xc3"));
        assert!(is_match("**/*.txt", b"\xff/\xff.txt") && is_match("\u{fffd}", b"\xff"));
        assert!(!is_match("?", b"\xff\xfe") && !is_match("\u{ff}", b"\xff"));
        assert!(!is_match("*", b".\xff") && is_match(".*", b".\xff"));
    }

    #[test]
    fn a_leading_dot_is_matched_by_a_dot_that_leads_a_name_of_the_pattern() {
        for pattern in
            ["*", "?env", "[.]env", "[!a]env", "*env", "*.env", "{a,*}.env", "**", "**/.x"]
        {
            check(pattern, false, &[], &[".env", "a/.env", ".a/.x/b"]);
        }
        check("{.env,.envrc}", false, &[".env", ".envrc"], &["env"]);
        check("{,a}.env", false, &[".env", "a.env"], &["b.env"]);
        check("{{,x},y}{.env,env}", false, &[".env", "env", "x.env"], &["z.env"]);
        check(r"\.env", false, &[".env"], &["env"]);
        check("**/.env", false, &[".env", "a/b/.env"], &[".a/.env", "a/.b/.env"]);
        check("a/{.b,c}/*", false, &["a/.b/c", "a/c/c"], &["a/.b/.c", "a/.c/c"]);
        check(".*/*", false, &[".a/b"], &["a/b", ".a/.b"]);
        check("a.*", false, &["a.b", "a..b"], &["a/.b"]);
        check("*", true, &[".env", "a"], &["a/.env"]);
        check("**", true, &[".env", "a/.b/c"], &[]);
        check("{*,a}.env", true, &[".env", "a.env"], &["a/.env"]);
        for (pattern, names_hidden) in
            [("{.a,b}", true), ("{a,}.b", true), ("[.]a", false), ("*.b", false), ("a/.b", true)]
        {
            assert_eq!(
                Pattern::new(pattern, false).unwrap().names_hidden,
                names_hidden,
                "{pattern}"
            );
        }
    }

    #[test]
    fn an_alternative_may_be_empty_and_a_brace_that_closes_none_is_itself() {
        check("foo{,.txt}", false, &["foo", "foo.txt"], &["foo.", "fo"]);
        check("{}a", false, &["a"], &["{}a"]);
        check("a}.txt", false, &["a}.txt"], &["a.txt"]);
        check("a,b", false, &["a,b"], &["a"]);
        check("{a,b}}", false, &["a}", "b}"], &["a"]);
        check(r"\{a,b\}", false, &["{a,b}"], &["a"]);
    }

    #[test]
    fn a_class_never_matches_a_slash() {
        check("**/[!a]b", false, &["xb", "x/yb"], &["ab", "x/ab", "x//b"]);
        check("x[!a]b", false, &["xxb"], &["x/b"]);
        check("x[,-9]b", false, &["x.b", "x0b"], &["x/b"]);
        check("[]a]", false, &["]", "a"], &["b"]);
        check("[!]a]", false, &["b"], &["]", "a"]);
        check("[a-]", false, &["a", "-"], &["b"]);
        check("[-a]", false, &["a", "-"], &["b"]);
        check("[a&&b]", false, &["a", "&", "b"], &["c"]);
        check(r"[\]-_]", false, &["]", "^", "_"], &["\\"]);
        check("[[:x]", false, &["[", ":", "x"], &["a"]);
    }

    #[test]
    fn stars_match_within_a_name_and_two_of_them_any_directories() {
        check("*", false, &["a"], &["a/b"]);
        check("**", false, &["a", "a/b"], &["a/.b"]);
        check("**/b", false, &["b", "a/b", "a/a/b"], &["ab", "a/b/c"]);
        check("a/**", false, &["a/b", "a/b/c"], &["a", "ab"]);
        check("a/**/b", false, &["a/b", "a/x/b", "a/x/y/b"], &["ab", "a/xb"]);
        check("a**/b", false, &["a/b", "ax/b"], &["a/x/b"]);
        check("{a/**,**/b}", false, &["a/x", "b", "x/b"], &["x"]);
        check("a\nb*", false, &["a\nb", "a\nb\n"], &["a"]);
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        for pattern in ["[", "[]", "[!", "[a-", "[z-a]", r"[\", "{a", "{a,{b}", r"a\", "a\0b"] {
            assert!(Pattern::new(pattern, false).is_err(), "{pattern}");
        }
        let deep = format!("{}{}", "{a,".repeat(100), "}".repeat(100));
        assert!(Pattern::new(&deep, false).is_err());
        Pattern::new(&"?".repeat(255), false).unwrap();
        Pattern::new(&"{é,[a-z]*}".repeat(100), false).unwrap();
    }
}
