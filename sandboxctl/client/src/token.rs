//! The token that a service is shown.

use hyper::header::HeaderValue;
use sandbox_api::SecretValue;

/// The longest token: more than any service accepts.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// A token. Its `Debug` does not show it.
#[derive(Debug, Clone)]
pub struct Token {
    /// `Bearer …`, which is valid in a header.
    value: SecretValue,
}

impl Token {
    /// The token that a text is.
    ///
    /// # Errors
    ///
    /// Why it is invalid. The reason does not contain the text.
    pub fn parse(text: &[u8]) -> Result<Self, &'static str> {
        match text.trim_ascii() {
            [] => Err("there is no token in it"),
            token if token.len() > MAX_TOKEN_BYTES => Err("it is longer than any token"),
            token if !token.iter().all(u8::is_ascii_graphic) => {
                Err("it has more than a token, which is one word of ASCII")
            }
            token => Ok(Self { value: SecretValue::new([b"Bearer ", token].concat()) }),
        }
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
        let token = Token::parse(b"  abc.def\n").unwrap();
        assert_eq!(token.header(), HeaderValue::from_static("Bearer abc.def"));
        assert!(!format!("{token:?} {:?}", token.header()).contains("abc"));
        for text in ["", " \n", "hunter2 hunter2", "hunter2\nhunter2", "h\u{fc}nter2"] {
            let error = Token::parse(text.as_bytes()).unwrap_err();
            assert!(!error.contains("nter2"), "{error}");
        }
        assert!(Token::parse(&[b'a'; MAX_TOKEN_BYTES + 1]).is_err());
    }
}
