//! Rules files: what `--rules` adds to the settings of a run, and what `--learn` writes.
//!
//! ```toml
//! allow = ["example.org:443"]
//! tools = ["github.list_*"]
//!
//! [[learnt]] # 2026-11-29T20:40:00Z, exec: wget https://other.example/
//! allow = [
//!     # asked for once by a program; refused
//!     # "other.example:443",
//! ]
//! ```
//!
//! What is learnt comes from guests. It is [added](merge) below what a person wrote, which stays as it is.

use std::iter;
use std::path::Path;

use sandbox_api::ToolRule;
use sandbox_dirfd::Links;
use serde::Deserialize;
use toml::Spanned;

use super::error::Error;
use super::file::{line_of, read_text};
use super::network::Allow;
use super::origin::Origin;

/// The longest text of a comment, in characters.
const MAX_COMMENT: usize = 300;
/// What a file has.
const FORM: &str =
    "a rules file has allow = [\"HOST:PORT\"] and tools = [\"SERVER.TOOL\"], as --learn writes it";
/// The beginning of a new file.
const HEAD: &str =
    "# Rules for --rules FILE of sandboxctl. What stands after a # is not in force: review it.";

/// What a rules file gives to a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// The hosts that its programs may reach.
    pub allow: Vec<Allow>,
    /// The calls that its scripts may make.
    pub tools: Vec<ToolRule>,
}

/// The text of a rules file, and of a part of it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Lists {
    allow: Vec<Spanned<String>>,
    tools: Vec<Spanned<String>>,
    learnt: Vec<Self>,
}

/// A rule that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learnt {
    /// What it is for.
    pub list: List,
    /// Its text.
    pub rule: String,
    /// How often it was asked for.
    pub times: usize,
    /// What came of that.
    pub verdict: Verdict,
    /// Whether it is for a tool that needs `--allow-destructive` too.
    pub is_destructive: bool,
}

/// A list of a rules file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// `allow`, of what programs ask for.
    Hosts,
    /// `tools`, of what scripts ask for.
    Tools,
}

/// The strongest answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No question could be asked.
    Unasked,
    /// None came.
    Unanswered,
    /// No.
    Refused,
    /// Yes, to a question that did not name the file.
    AllowedThatTime,
    /// Yes, and to be in force in the file: the only rules there that are no comments.
    Listed,
}

impl Rules {
    /// Reads a rules file, and gives its text too; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error`] if it cannot be read, or as [`parse`](Self::parse).
    pub fn read(file: &Path) -> Result<Option<(Self, String)>, Error> {
        match read_text(file, Links::Follow) {
            Ok(text) => Ok(Some((Self::parse(file, &text)?, text))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Unreadable { file: file.to_owned(), source }),
        }
    }

    /// Parses the text of a rules file.
    ///
    /// # Errors
    ///
    /// [`Error`], naming the line.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Error> {
        let origin = |at: usize| Origin::File { file: file.to_owned(), line: line_of(text, at) };
        let lists = toml::from_str::<Lists>(text).map_err(|error| {
            let origin = origin(error.span().map_or(0, |span| span.start));
            Error::at(origin, error.message()).with_hint(FORM)
        })?;
        let refused = |key: &str, text: &Spanned<String>, why: String| {
            Error::at(origin(text.span().start), format!("{key}: {why}"))
        };
        let mut rules = Self::default();
        for Lists { allow, tools, .. } in iter::once(&lists).chain(&lists.learnt) {
            for text in allow {
                let rule = text.get_ref().parse::<Allow>();
                rules.allow.push(rule.map_err(|error| refused("allow", text, error.to_string()))?);
            }
            for text in tools {
                let rule = text.get_ref().parse::<ToolRule>();
                rules.tools.push(rule.map_err(|error| refused("tools", text, error.to_string()))?);
            }
        }
        Ok(rules)
    }

    fn texts(&self) -> Vec<String> {
        let hosts = self.allow.iter().map(ToString::to_string);
        hosts.chain(self.tools.iter().map(ToString::to_string)).collect()
    }
}

impl Learnt {
    /// A comment and the rule, which is a comment too unless it is to be in force.
    fn lines(&self) -> String {
        let by = if self.list == List::Hosts { "a program" } else { "a script" };
        let times =
            if self.times == 1 { "once".to_owned() } else { format!("{} times", self.times) };
        let (verdict, hash) = match self.verdict {
            Verdict::Unasked => ("no question was asked", "# "),
            Verdict::Unanswered => ("not answered", "# "),
            Verdict::Refused => ("refused", "# "),
            Verdict::AllowedThatTime => ("allowed that time", "# "),
            Verdict::Listed => ("allowed", ""),
        };
        let needs = if self.is_destructive { "    # needs --allow-destructive too\n" } else { "" };
        let rule = quoted(&self.rule);
        format!("    # asked for {times} by {by}; {verdict}\n{needs}    {hash}{rule},\n")
    }
}

/// Adds what was learnt to the text of a rules file. All that is there stays.
///
/// # Errors
///
/// If the file would have other rules than its own and [listed](Verdict::Listed) ones.
pub fn merge(text: &str, heading: &str, learnt: &[Learnt]) -> Result<String, Error> {
    let rules =
        |text: &str| Ok::<_, Error>(Rules::parse(Path::new("the rules file"), text)?.texts());
    let mut known = rules(text)?;
    let is_mentioned = |rule: &str| {
        text.lines().any(|line| line.trim_start_matches(['#', ' ']).starts_with(&quoted(rule)))
    };
    let is_new = |it: &&Learnt| match it.verdict {
        Verdict::Listed => !known.contains(&it.rule),
        _ => !is_mentioned(&it.rule),
    };
    let mut lists = String::new();
    for (list, key) in [(List::Hosts, "allow"), (List::Tools, "tools")] {
        let new = learnt.iter().filter(|it| it.list == list).filter(is_new);
        let lines: String = new.map(Learnt::lines).collect();
        if !lines.is_empty() {
            lists += &format!("{key} = [\n{lines}]\n");
        }
    }
    if lists.is_empty() && !text.is_empty() {
        return Ok(text.to_owned());
    }
    let head = if text.is_empty() { HEAD } else { text.trim_end_matches('\n') };
    let merged = format!("{head}\n\n[[learnt]] # {}\n{lists}", escaped(heading));
    // Whatever a guest has made of its names.
    let listed = learnt.iter().filter(|it| it.verdict == Verdict::Listed);
    known.extend(listed.map(|it| it.rule.clone()));
    match rules(&merged)?.iter().all(|rule| known.contains(rule)) {
        true => Ok(merged),
        false => {
            Err(Error::at(Origin::Flag("--learn"), "what was asked for cannot be written as rules"))
        }
    }
}

/// A rule of a guest as TOML. What is escaped is no rule as it stands.
fn quoted(rule: &str) -> String {
    format!("\"{}\"", rule.escape_debug())
}

/// A text on one line of a comment.
fn escaped(text: &str) -> String {
    let escape = |it: char| {
        if "\"'\\".contains(it) { it.to_string() } else { it.escape_debug().to_string() }
    };
    text.chars().take(MAX_COMMENT).map(escape).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(text: &str) -> (Vec<String>, Vec<String>) {
        let rules = Rules::parse(Path::new("r.toml"), text).unwrap();
        let shown = rules.allow.iter().map(ToString::to_string).collect();
        (shown, rules.tools.iter().map(ToString::to_string).collect())
    }

    fn learnt(list: List, rule: &str, verdict: Verdict) -> Learnt {
        Learnt { list, rule: rule.to_owned(), times: 1, verdict, is_destructive: false }
    }

    fn some() -> Vec<Learnt> {
        vec![
            learnt(List::Hosts, "yes.example:443", Verdict::Listed),
            Learnt { times: 3, ..learnt(List::Hosts, "no.example:80", Verdict::Refused) },
            learnt(List::Tools, "github.create_issue", Verdict::Unasked),
            Learnt {
                is_destructive: true,
                ..learnt(List::Tools, "github.delete", Verdict::Unanswered)
            },
        ]
    }

    #[test]
    fn errors_of_a_rules_file_name_the_line() {
        let refused = |text: &str| {
            let error = Rules::parse(Path::new("r.toml"), text).unwrap_err();
            let source = std::error::Error::source(&error).map(|s| format!(": {s}"));
            format!("{error}{}", source.unwrap_or_default())
        };
        for (text, words) in [
            (
                "allow = [\n  'a.example',\n  'b.example:x',\n]",
                "r.toml:3: allow: 'x' is not a port",
            ),
            ("allow = [\n  'policy.sandbox.internal',\n]", "r.toml:2: allow: "),
            (
                "\ntools = [\n  'a.b',\n  '/x=1',\n]",
                "r.toml:4: tools: '/x=1' is not a rule for tools",
            ),
            ("[[learnt]]\n\nallow = ['']", "r.toml:3: allow: "),
            ("allow = 'a.example'", "r.toml:1: "),
            ("\nallow = [1]", "r.toml:2: "),
            ("allow = []\nallows = []", "r.toml:2: unknown field `allows`"),
            ("[network]\nallow = []", "r.toml:1: unknown field `network`"),
            ("allow = []\n\nallow = []", "r.toml:3: "),
            ("allow = [", "r.toml:1: "),
        ] {
            let error = refused(text);
            assert!(error.starts_with(words), "{text:?}: {error}");
        }
        let broken = Rules::parse(Path::new("r.toml"), "allow = [").unwrap_err();
        assert!(broken.hint().is_some_and(|hint| hint.contains("allow = [")), "{broken}");
        assert_eq!(rules(""), (vec![], vec![]));
        let both =
            rules("allow = ['@a']\n[[learnt]]\nallow = ['*.b.example:1']\ntools = ['c.list_*']");
        assert_eq!(both, (vec!["@a".into(), "*.b.example:1".into()], vec!["c.list_*".into()]));
    }

    #[test]
    fn what_is_learnt_is_a_file_in_which_only_a_persons_yes_is_in_force() {
        let text = merge("", "2026-11-29T20:40:00Z, exec: wget", &some()).unwrap();
        let expected = "\
# Rules for --rules FILE of sandboxctl. What stands after a # is not in force: review it.

[[learnt]] # 2026-11-29T20:40:00Z, exec: wget
allow = [
    # asked for once by a program; allowed
    \"yes.example:443\",
    # asked for 3 times by a program; refused
    # \"no.example:80\",
]
tools = [
    # asked for once by a script; no question was asked
    # \"github.create_issue\",
    # asked for once by a script; not answered
    # needs --allow-destructive too
    # \"github.delete\",
]
";
        assert_eq!(text, expected);
        assert_eq!(rules(&text), (vec!["yes.example:443".into()], vec![]));
        // The same again adds nothing: no reader reviews it twice.
        assert_eq!(merge(&text, "again", &some()).unwrap(), text);
        let nothing = merge("", "now, exec: true", &[]).unwrap();
        assert!(nothing.ends_with("\n\n[[learnt]] # now, exec: true\n"), "{nothing}");
        assert_eq!(merge(&nothing, "again", &[]).unwrap(), nothing);
    }

    #[test]
    fn what_a_person_wrote_stays_as_it_is() {
        for before in [
            "# mine\nallow = ['a.example'] # here\n",
            "allow = ['a.example' # why, because\n  , # and\n]",
            "tools = ['x.y']\n\nallow = []\n\n\n",
            "[[learnt]]\r\nallow = ['a.example',\r\n\t# b\r\n]\r\n",
            "# only a comment",
        ] {
            let text = merge(before, "now", &some()).unwrap();
            assert!(text.starts_with(before.trim_end_matches('\n')), "{text}");
            let (mut hosts, tools) = rules(before);
            hosts.push("yes.example:443".to_owned());
            assert_eq!(rules(&text), (hosts, tools), "{text}");
            assert!(text.contains("# \"no.example:80\","), "{text}");
            assert_eq!(merge(&text, "again", &some()).unwrap(), text);
        }
        // A person took it out of force; only another yes puts it back.
        let out = "allow = [\n    #\"yes.example:443\",\n]\n";
        let refused = [learnt(List::Hosts, "yes.example:443", Verdict::AllowedThatTime)];
        assert_eq!(merge(out, "now", &refused).unwrap(), out);
        assert_eq!(rules(&merge(out, "now", &some()).unwrap()).0, ["yes.example:443"]);
        assert!(merge("allow = [", "now", &some()).is_err());
        // A yes to what is not exactly a rule is none.
        let odd = [learnt(List::Tools, " a.* ", Verdict::Listed)];
        assert!(merge("", "now", &odd).is_err());
    }

    proptest! {
        #[test]
        fn no_text_of_a_guest_becomes_a_rule(
            hosts in proptest::collection::vec(".{0,40}", 0..4),
            tools in proptest::collection::vec(any::<String>(), 0..4),
            heading in any::<String>(), before in 0..3_usize,
        ) {
            let before = ["", "allow = ['a.example']", "tools = ['a.b'\n] # x"][before];
            let hosts = hosts.iter().map(|rule| (List::Hosts, rule));
            let all = hosts.chain(tools.iter().map(|rule| (List::Tools, rule)));
            let all: Vec<_> = all.map(|(list, rule)| learnt(list, rule, Verdict::Refused)).collect();
            let text = merge(before, &heading, &all).unwrap();
            prop_assert_eq!(rules(&text), rules(before));
            prop_assert!(!text.contains(|it: char| it.is_control() && it != '\n'), "{:?}", text);
            for line in text.lines().skip(before.lines().count()).map(str::trim) {
                let ours = ["", "]", "allow = [", "tools = ["];
                let is_comment = line.starts_with(['#']) || line.starts_with("[[learnt]] #");
                prop_assert!(is_comment || ours.contains(&line), "{:?}", line);
            }
        }
    }
}
