//! Finding a tool by words, and the nearest to a name that none has.

use sandbox_api::HostTool;

/// Most tools that a search gives.
const MAX_FOUND: usize = 20;
/// Most names that a refusal suggests.
const MAX_NEAREST: usize = 3;
/// The smallest likeness at which a name is suggested.
const LIKENESS: f64 = 0.5;

/// The tools that have these words, the best first. Without a word: the first by name.
pub(super) fn search<'a>(
    tools: impl Iterator<Item = &'a HostTool>,
    words: &str,
) -> Vec<&'a HostTool> {
    let wanted = words_of(words);
    let scored = tools.map(|tool| (score(tool, &wanted), tool));
    let mut found: Vec<_> = scored.filter(|(score, _)| wanted.is_empty() || *score > 0).collect();
    found.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.name.cmp(&other.1.name)));
    found.into_iter().map(|(_, tool)| tool).take(MAX_FOUND).collect()
}

/// A word of the name counts more than one of the description, and a whole word more than a part.
fn score(tool: &HostTool, wanted: &[String]) -> usize {
    let (name, description) = (words_of(&tool.name), tool.description.to_lowercase());
    let score = |word: &String| {
        let in_name = match () {
            () if name.contains(word) => 8,
            () if name.iter().any(|own| own.starts_with(word.as_str())) => 4,
            () if name.iter().any(|own| word.starts_with(own.as_str())) => 2,
            () => 0,
        };
        in_name + usize::from(description.contains(word.as_str()))
    };
    wanted.iter().map(score).sum()
}

fn words_of(text: &str) -> Vec<String> {
    let words = text.split(|char: char| !char.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// The names that are most like this one.
pub(super) fn nearest<'a>(tools: impl Iterator<Item = &'a HostTool>, name: &str) -> Vec<&'a str> {
    let likeness = |tool: &'a HostTool| {
        (strsim::normalized_damerau_levenshtein(name, &tool.name), tool.name.as_str())
    };
    let mut all: Vec<_> =
        tools.map(likeness).filter(|(likeness, _)| *likeness >= LIKENESS).collect();
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    all.into_iter().map(|(_, name)| name).take(MAX_NEAREST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::ToolEffect;

    fn tools() -> Vec<HostTool> {
        let tool = |(name, description): (&str, &str)| HostTool {
            name: name.to_owned(),
            description: description.to_owned(),
            effect: ToolEffect::ReadOnly,
            ..HostTool::default()
        };
        let all = [
            ("github.list_issues", "The issues of a repository"),
            ("github.get_issue", "One issue"),
            ("mail.send", "Sends a message about an issue"),
            ("time.now", ""),
        ];
        all.map(tool).into()
    }

    fn names(words: &str) -> Vec<String> {
        let tools = tools();
        search(tools.iter(), words).into_iter().map(|tool| tool.name.clone()).collect()
    }

    #[test]
    fn the_best_is_first_and_what_has_no_word_is_left_out() {
        assert_eq!(names("list issue"), ["github.list_issues", "github.get_issue", "mail.send"]);
        assert_eq!(names("Send, mail!"), ["mail.send"]);
        assert_eq!(names("weather"), [""; 0]);
        assert_eq!(names(" ").len(), 4);
    }

    #[test]
    fn the_nearest_names_are_suggested() {
        let tools = tools();
        assert_eq!(nearest(tools.iter(), "github.list_isues")[0], "github.list_issues");
        assert_eq!(nearest(tools.iter(), "xyz"), [""; 0]);
    }
}
