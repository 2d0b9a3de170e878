//! Secrets: values that a script or one command is given, and that nothing shows.

use std::fmt;

use sandbox_protocol::limits::{
    MAX_SECRET_BYTES, MAX_SECRET_NAME_BYTES, MAX_SECRETS, MAX_SECRETS_BYTES, MIN_SECRET_BYTES,
    size_text,
};
use sandbox_protocol::{Base64, message};
use zeroize::Zeroizing;

/// The value of a secret. Its `Debug` does not show it, it cannot be serialized, and its memory is
/// wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl SecretValue {
    /// Takes the value over.
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(value.into()))
    }

    /// The value itself.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

/// The secrets of a script or a command, by name, in order. All of them are valid.
///
/// A document never has them: [`Script`](crate::Script) skips them when it is serialized, so a
/// sender must deliver its secrets another way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Secrets(Vec<(String, SecretValue)>);

/// Why a secret is refused. No message has its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Its name is not an identifier.
    #[error("'{name}' is not a name for a secret")]
    Name {
        /// The name.
        name: String,
    },
    /// Two have this name.
    #[error("the secret {name} is given twice")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// It has no value.
    #[error("the secret {name} is empty")]
    Empty {
        /// Its name.
        name: String,
    },
    /// It is too short to be replaced in output.
    #[error("the secret {name} has fewer than {MIN_SECRET_BYTES} bytes")]
    TooShort {
        /// Its name.
        name: String,
    },
    /// It is too long.
    #[error("the secret {name} is longer than {}", size_text(MAX_SECRET_BYTES as u64))]
    TooLong {
        /// Its name.
        name: String,
    },
    /// It has a NUL byte, which no variable can have.
    #[error("the secret {name} has a NUL byte")]
    Nul {
        /// Its name.
        name: String,
    },
    /// There are too many, or they are too long together.
    #[error("there are more than {MAX_SECRETS} secrets, or more than {} of them", size_text(MAX_SECRETS_BYTES as u64))]
    TooMany,
}

impl SecretError {
    /// What to do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Name { .. } => "a name has letters, digits and '_', and begins with no digit",
            Self::Duplicate { .. } => "a name is given once: rename one of them",
            Self::Empty { .. } => "set the variable, or write the value into the file",
            Self::TooShort { .. } => {
                "a shorter one cannot be replaced in output without harm to ordinary text; a value \
                 that is not a secret is given by --arg or --env"
            }
            Self::TooLong { .. } | Self::TooMany => {
                "a secret is a key or a token; larger data is an input: --in FILE"
            }
            Self::Nul { .. } => "encode it as base64",
        }
    }
}

impl Secrets {
    /// None.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one. Its name is an ASCII identifier; its value has at least
    /// [`MIN_SECRET_BYTES`], at most [`MAX_SECRET_BYTES`], and may have several lines.
    ///
    /// # Errors
    ///
    /// [`SecretError`].
    pub fn add(&mut self, name: impl Into<String>, value: SecretValue) -> Result<(), SecretError> {
        let name = name.into();
        let is_first = |char: char| char.is_ascii_alphabetic() || char == '_';
        let is_identifier = name.starts_with(is_first)
            && name.chars().all(|char| is_first(char) || char.is_ascii_digit());
        if !is_identifier || name.len() > MAX_SECRET_NAME_BYTES {
            return Err(SecretError::Name { name });
        }
        if self.iter().any(|(known, _)| known == name) {
            return Err(SecretError::Duplicate { name });
        }
        match value.as_bytes() {
            [] => return Err(SecretError::Empty { name }),
            bytes if bytes.len() < MIN_SECRET_BYTES => return Err(SecretError::TooShort { name }),
            bytes if bytes.len() > MAX_SECRET_BYTES => return Err(SecretError::TooLong { name }),
            bytes if bytes.contains(&0) => return Err(SecretError::Nul { name }),
            _ => {}
        }
        let bytes: usize = self.iter().map(|(_, value)| value.as_bytes().len()).sum();
        if self.0.len() == MAX_SECRETS || bytes + value.as_bytes().len() > MAX_SECRETS_BYTES {
            return Err(SecretError::TooMany);
        }
        self.0.push((name, value));
        Ok(())
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SecretValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// As the agent receives them.
    pub fn to_wire(&self) -> Vec<message::Secret> {
        let wire = |(name, value): (&str, &SecretValue)| message::Secret {
            name: name.to_owned(),
            value: Base64(value.as_bytes().to_vec()),
        };
        self.iter().map(wire).collect()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: impl Into<Vec<u8>>) -> Result<Secrets, SecretError> {
        let mut secrets = Secrets::new();
        secrets.add(name, SecretValue::new(value)).map(|()| secrets)
    }

    #[test]
    fn secret_is_shown_by_nothing() {
        let secrets = one("TOKEN", "hunter2!").unwrap();
        let script = crate::Script::new("return 1").secrets(secrets.clone());
        let command = crate::Command::new("true").secrets(secrets);
        let json = serde_json::to_string(&script).unwrap();
        for text in [format!("{script:?}{script:#?}"), format!("{command:?}"), json.clone()] {
            assert!(!text.contains("hunter2") && !text.contains("[104, 117"), "{text}");
        }
        assert!(!json.contains("TOKEN"), "{json}");
    }

    #[test]
    fn invalid_secret_is_refused_with_a_hint_and_without_its_value() {
        for name in ["", "1A", "A-B", "A B", "Ä", "A=B", &"A".repeat(129)] {
            let error = one(name, "value").unwrap_err();
            assert_eq!(error, SecretError::Name { name: name.to_owned() });
        }
        let name = || "A".to_owned();
        for (value, error) in [
            (Vec::new(), SecretError::Empty { name: name() }),
            (b"abc".to_vec(), SecretError::TooShort { name: name() }),
            (vec![b'x'; MAX_SECRET_BYTES + 1], SecretError::TooLong { name: name() }),
            (b"ab\0cd".to_vec(), SecretError::Nul { name: name() }),
        ] {
            assert_eq!(one("A", value).unwrap_err(), error);
            assert!(!error.hint().is_empty());
        }
        assert!(one("_a1", vec![b'x'; MAX_SECRET_BYTES]).is_ok());
        assert!(one("A", "two\nlines\n").is_ok());
    }

    #[test]
    fn number_and_size_of_secrets_are_bounded() {
        let mut secrets = one("A", "value").unwrap();
        let error = secrets.add("A", SecretValue::new("other")).unwrap_err();
        assert_eq!(error.to_string(), "the secret A is given twice");
        for number in 1..MAX_SECRETS {
            secrets.add(format!("A{number}"), SecretValue::new("value")).unwrap();
        }
        assert_eq!(secrets.add("B", SecretValue::new("value")), Err(SecretError::TooMany));
        let mut large = Secrets::new();
        let value = || SecretValue::new(vec![b'x'; MAX_SECRET_BYTES]);
        for number in 0..MAX_SECRETS_BYTES / MAX_SECRET_BYTES {
            large.add(format!("A{number}"), value()).unwrap();
        }
        assert_eq!(large.add("B", value()), Err(SecretError::TooMany));
    }
}
