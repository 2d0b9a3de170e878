//! The tokens of a sandbox, which are derived from its id and stored nowhere, and what is signed with them.

use axum::http::{HeaderMap, HeaderName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sandbox_api::service::Time;
use sandbox_auth::is_equal;
use sandbox_dirfd::hex;
use sandbox_service::Service;
use sha2::{Digest as _, Sha256};

/// What each is for.
const ENVD: &str = "e2b-envd";
const TRAFFIC: &str = "e2b-traffic";

/// The token for all that envd does in a sandbox.
pub(crate) fn envd_token(service: &Service, id: &str) -> String {
    hex(&service.signing_key().sign(ENVD, &[id]))
}

/// The token for the ports of a sandbox that are not public.
pub(crate) fn traffic_token(service: &Service, id: &str) -> String {
    hex(&service.signing_key().sign(TRAFFIC, &[id]))
}

/// Whether this header has this token.
pub(crate) fn has(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers.get(name).is_some_and(|given| is_equal(given.as_bytes(), token.as_bytes()))
}

/// What a signed URL of a file says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SignedFile {
    path: String,
    username: String,
    signature: Option<String>,
    expiration: Option<String>,
}

/// Why a signed URL is refused, in E2B's words: tests of its SDKs compare them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureRefusal {
    #[error("missing signature query parameter")]
    Missing,
    #[error("invalid signature")]
    Invalid,
    #[error("signature is already expired")]
    Expired,
}

impl SignedFile {
    pub fn of_query(query: &str) -> Self {
        let mut file = Self::default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "path" => file.path = value.into_owned(),
                "username" => file.username = value.into_owned(),
                // Of base64, which some do not encode.
                "signature" => file.signature = Some(value.replace(' ', "+")),
                "signature_expiration" => file.expiration = Some(value.into_owned()),
                _ => {}
            }
        }
        file
    }

    /// Whether it has a signature at all.
    pub fn is_signed(&self) -> bool {
        self.signature.is_some()
    }

    /// Whether this token signed it, for reading or writing.
    pub fn check(&self, operation: &str, token: &str, now: Time) -> Result<(), SignatureRefusal> {
        let signature = self.signature.as_deref().ok_or(SignatureRefusal::Missing)?;
        let Self { path, username, expiration, .. } = self;
        let until = expiration.iter().map(|until| format!(":{until}")).collect::<String>();
        let text = format!("{path}:{operation}:{username}:{token}{until}");
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)));
        if !is_equal(expected.as_bytes(), signature.as_bytes()) {
            return Err(SignatureRefusal::Invalid);
        }
        match expiration.as_deref().map(str::parse::<i64>) {
            None => Ok(()),
            Some(Ok(until)) if now.unix_millis() <= until.saturating_mul(1000) => Ok(()),
            Some(Ok(_)) => Err(SignatureRefusal::Expired),
            Some(Err(_)) => Err(SignatureRefusal::Invalid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by the published SDK: `get_signature("hello.txt", "read", "user", "0a1b")`.
    const BY_SDK: &str = "v1_F1B5lKsJbZaZaq5lR5mr8qLmM9zzSfZPVKfAkwbDmDM";

    #[test]
    fn signature_is_that_of_the_sdk_and_of_this_file_and_operation() {
        let query = format!("path=hello.txt&username=user&signature={BY_SDK}");
        let file = SignedFile::of_query(&query);
        let now = Time::from_unix_millis(0);
        assert_eq!(file.check("read", "0a1b", now), Ok(()));
        for (operation, token) in [("write", "0a1b"), ("read", "0a1c"), ("read", "")] {
            let refused = file.check(operation, token, now);
            assert_eq!(refused, Err(SignatureRefusal::Invalid), "{operation} {token}");
        }
        let other = SignedFile { path: "hello.txt2".to_owned(), ..file.clone() };
        assert_eq!(other.check("read", "0a1b", now), Err(SignatureRefusal::Invalid));
        let later = SignedFile { expiration: Some("1".to_owned()), ..file };
        assert_eq!(later.check("read", "0a1b", now), Err(SignatureRefusal::Invalid));
        let none = SignedFile::of_query("path=a");
        assert_eq!(none.check("read", "0a1b", now), Err(SignatureRefusal::Missing));
    }

    #[test]
    fn signature_ends_with_its_second() {
        let text = "a%3A:read::t:100".replace("%3A", ":");
        let signature = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)));
        let signature: String =
            url::form_urlencoded::byte_serialize(signature.as_bytes()).collect();
        let query = format!("path=a%3A&signature_expiration=100&signature={signature}");
        let file = SignedFile::of_query(&query);
        let at = Time::from_unix_millis;
        assert_eq!(file.check("read", "t", at(100_000)), Ok(()));
        assert_eq!(file.check("read", "t", at(100_001)), Err(SignatureRefusal::Expired));
    }
}
