//! What is wrong with a value.

/// What is wrong with a value, or why a project's file must not set it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

impl ValueError {
    pub(super) fn of(why: impl ToString) -> Self {
        Self(why.to_string())
    }

    /// It is not one of these words.
    pub(super) fn choice(text: &str, words: &[&str]) -> Self {
        Self(format!("'{text}' is not one of: {}", words.join(", ")))
    }
}
