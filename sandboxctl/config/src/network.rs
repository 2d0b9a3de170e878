//! Hosts that commands may reach, in settings: rules, and names of presets.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use sandbox_api::hosts::{AllowRule, Allowlist};

use super::value::ValueError;

/// Presets: named lists of rules.
pub type Presets = BTreeMap<String, Vec<AllowRule>>;

/// Longest name of a preset.
const MAX_NAME: usize = 64;

/// An entry of `network.allow`, or of `--allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allow {
    /// `HOST` or `HOST:PORT`.
    Rule(AllowRule),
    /// `@NAME`: the rules of a preset.
    Preset(String),
}

impl FromStr for Allow {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.strip_prefix('@') {
            Some(name) => Ok(Self::Preset(preset_name(name)?)),
            None => Ok(Self::Rule(text.parse::<AllowRule>().map_err(ValueError::of)?)),
        }
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(formatter),
            Self::Preset(name) => write!(formatter, "@{name}"),
        }
    }
}

/// Checks the name of a preset: it must be a bare TOML key.
///
/// # Errors
///
/// If it is not.
pub fn preset_name(text: &str) -> Result<String, ValueError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(is_plain) {
        let shown: String = text.chars().take(MAX_NAME + 2).collect();
        return Err(ValueError::of(format!(
            "'{}' is not the name of a preset: letters, digits, '-' and '_'",
            shown.escape_debug()
        )));
    }
    Ok(text.to_owned())
}

/// Expands these entries to rules.
///
/// # Errors
///
/// The name of the first unknown preset.
pub fn resolve<'a>(entries: &'a [Allow], presets: &Presets) -> Result<Allowlist, &'a str> {
    let mut rules: Vec<AllowRule> = Vec::new();
    for entry in entries {
        match entry {
            Allow::Rule(rule) => rules.push(rule.clone()),
            Allow::Preset(name) => {
                rules.extend(presets.get(name).ok_or(name.as_str())?.iter().cloned());
            }
        }
    }
    Ok(rules.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_rule_or_the_name_of_some() {
        for text in ["example.org", "*.example.org:8443", "[fd00::1]:80", "@pypi", "@a-b_9"] {
            assert_eq!(text.parse::<Allow>().unwrap().to_string(), text);
        }
        for (text, words) in [
            ("@", "not the name of a preset"),
            ("@a b", "not the name of a preset"),
            ("@a.b", "not the name of a preset"),
            ("@@a", "not the name of a preset"),
            ("@a\n", "'a\\n'"),
            ("a@b", "a URL"),
            ("", "neither a host name"),
        ] {
            let error = text.parse::<Allow>().unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        assert!(format!("@{}", "a".repeat(64)).parse::<Allow>().is_ok());
        assert!(format!("@{}", "a".repeat(65)).parse::<Allow>().is_err());
    }

    #[test]
    fn a_preset_stands_for_its_rules() {
        let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let presets = Presets::from([("p".to_owned(), rules(&["a.example", "b.example:22"]))]);
        let entries =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Allow>>();
        let list = resolve(&entries(&["c.example", "@p"]), &presets).unwrap();
        let shown: Vec<_> = list.rules().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["c.example", "a.example", "b.example:22"]);
        assert_eq!(resolve(&entries(&["@p", "@q"]), &presets), Err("q"));
    }
}
