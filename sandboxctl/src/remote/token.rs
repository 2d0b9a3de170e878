//! The token that a service is shown.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use hyper::header::HeaderValue;
use sandbox_api::SecretValue;
use sandbox_env::Environment;

use crate::config::TOKEN_VARIABLE;
use crate::error::Error;
use crate::input::reason;

/// The longest token: more than any service accepts.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// A token. Its `Debug` does not show it.
#[derive(Debug, Clone)]
pub struct Token {
    /// `Bearer …`, which is valid in a header.
    value: SecretValue,
}

impl Token {
    /// The token of this file, or else of the environment; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or the token is none. No message has it.
    pub fn read(file: Option<&Path>, environment: &Environment) -> Result<Option<Self>, Error> {
        if let Some(file) = file {
            let mut text = Vec::with_capacity(MAX_TOKEN_BYTES + 2);
            let opened = File::open(file);
            let read =
                opened.and_then(|it| it.take(MAX_TOKEN_BYTES as u64 + 2).read_to_end(&mut text));
            let what = format!("--token-file {}", file.display());
            read.map_err(|error| Error::usage(&*what, reason(&error)))?;
            return Self::parse(&what, &text).map(Some);
        }
        match environment.variable(TOKEN_VARIABLE) {
            Some(token) => {
                use std::os::unix::ffi::OsStrExt as _;
                Self::parse(TOKEN_VARIABLE, token.as_bytes()).map(Some)
            }
            None => Ok(None),
        }
    }

    fn parse(what: &str, text: &[u8]) -> Result<Self, Error> {
        let token = text.trim_ascii();
        let why = match token {
            [] => "there is no token in it",
            token if token.len() > MAX_TOKEN_BYTES => "it is longer than any token",
            token if !token.iter().all(u8::is_ascii_graphic) => {
                "it has more than a token, which is one word of ASCII"
            }
            token => return Ok(Self { value: SecretValue::new([b"Bearer ", token].concat()) }),
        };
        Err(Error::usage(what, why))
    }

    /// The value of the header `Authorization`.
    pub fn header(&self) -> HeaderValue {
        let header = HeaderValue::from_bytes(self.value.as_bytes());
        let mut header = header.unwrap_or_else(|_| HeaderValue::from_static(""));
        header.set_sensitive(true);
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_one_word_and_is_never_shown() {
        let token = Token::parse("x", b"  abc.def\n").unwrap();
        assert_eq!(token.header(), HeaderValue::from_static("Bearer abc.def"));
        assert!(!format!("{token:?} {:?}", token.header()).contains("abc"));
        for text in ["", " \n", "hunter2 hunter2", "hunter2\nhunter2", "h\u{fc}nter2"] {
            let error = Token::parse("x", text.as_bytes()).unwrap_err().to_text();
            assert!(!error.contains("nter2"), "{error}");
        }
        assert!(Token::parse("x", &[b'a'; MAX_TOKEN_BYTES + 1]).is_err());
    }

    #[test]
    fn file_comes_before_the_variable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "from-file\n").unwrap();
        let environment =
            Environment::new(folder.path(), 1000, &[(TOKEN_VARIABLE, "from-variable")]);
        let header = |file| Token::read(file, &environment).unwrap().unwrap().header();
        assert_eq!(header(Some(&*file)), HeaderValue::from_static("Bearer from-file"));
        assert_eq!(header(None), HeaderValue::from_static("Bearer from-variable"));
        let none = Environment::new(folder.path(), 1000, &[]);
        assert!(Token::read(None, &none).unwrap().is_none());
        assert!(Token::read(Some(folder.path()), &none).is_err());
    }
}
