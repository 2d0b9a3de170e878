//! JSON Web Tokens of an issuer that the operator trusts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use sandbox_api::service::{Subject, Time};
use sandbox_api::without_bom;
use serde::Deserialize;

use crate::LOCAL_SUBJECT;
use crate::caller::{Caller, Scope};
use crate::key_file::{KeyFileError, MIN_SECRET_BYTES, Readers, read};

/// The longest token.
pub const MAX_JWT_BYTES: usize = 8 << 10;
/// How far clocks may be apart, in seconds.
const LEEWAY_SECONDS: u64 = 30;
/// The claims that every token has.
const REQUIRED: [&str; 4] = ["exp", "iss", "aud", "sub"];
/// The most keys of a set.
const MAX_KEYS: usize = 100;

/// Where tokens come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfig {
    /// The issuer: `iss` of every token.
    pub issuer: String,
    /// The audience: one of `aud` of every token.
    pub audience: String,
    /// The file of the issuer's public keys, a JSON Web Key Set.
    pub jwks_file: Option<PathBuf>,
    /// The file of a secret that is shared with the issuer, for HS256.
    pub secret_file: Option<PathBuf>,
}

/// Why a token is refused. For the audit: the caller learns no reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwtRefusal {
    /// It is too long.
    #[error("the token is longer than {MAX_JWT_BYTES} bytes")]
    TooLong,
    /// It is no token, or its header asks for what is not supported.
    #[error("the token is malformed or of an unsupported type")]
    Unreadable,
    /// Its key is not known, or not the one of its algorithm.
    #[error("no key fits the token's `kid` and `alg`")]
    UnknownKey,
    /// Its signature is wrong.
    #[error("the token's signature is wrong")]
    Signature,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// It is for later.
    #[error("the token is not valid yet")]
    NotYet,
    /// Issued by a different issuer.
    #[error("the token is from a different issuer")]
    Issuer,
    /// It is for another audience.
    #[error("the token is for another audience")]
    Audience,
    /// A claim is missing or is not what it must be.
    #[error("a claim of the token is missing or has the wrong type")]
    Claims,
    /// Its subject cannot be used.
    #[error("the token's subject cannot be used")]
    Subject,
}

/// The keys that tokens are checked with. To reload them, read them again.
#[derive(Clone)]
pub struct JwtKeys(Arc<Keys>);

struct Keys {
    keys: Vec<Key>,
    issuer: String,
    audience: String,
}

struct Key {
    id: Option<String>,
    /// The one algorithm that it is for.
    algorithm: Algorithm,
    key: DecodingKey,
}

impl std::fmt::Debug for JwtKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<_> = self.0.keys.iter().map(|key| (&key.id, key.algorithm)).collect();
        formatter.debug_tuple("JwtKeys").field(&ids).finish()
    }
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// One issuer: the library takes a list of several for it too.
    #[serde(rename = "iss")]
    _iss: String,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    scopes: Option<Vec<String>>,
    exp: serde_json::Number,
}

impl JwtKeys {
    /// Reads the key files.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] if a file cannot be used, or if there is no key.
    pub fn read(config: &JwtConfig) -> Result<Self, KeyFileError> {
        let mut keys = Vec::new();
        if let Some(path) = &config.jwks_file {
            keys = key_set(path)?;
        }
        if let Some(path) = &config.secret_file {
            let secret = read(path, Readers::OwnerAlone)?;
            let secret = secret.strip_suffix(b"\n").unwrap_or(&secret);
            if secret.len() < MIN_SECRET_BYTES {
                return Err(KeyFileError::ShortSecret { path: path.clone() });
            }
            let key = DecodingKey::from_secret(secret);
            keys.push(Key { id: None, algorithm: Algorithm::HS256, key });
        }
        if keys.is_empty() {
            return Err(KeyFileError::NoKey { issuer: config.issuer.clone() });
        }
        let (issuer, audience) = (config.issuer.clone(), config.audience.clone());
        Ok(Self(Arc::new(Keys { keys, issuer, audience })))
    }

    /// Checks a token.
    ///
    /// # Errors
    ///
    /// [`JwtRefusal`].
    pub fn check(&self, token: &str) -> Result<Caller, JwtRefusal> {
        let Claims { sub, scope, scopes, .. } = self.claims(token)?;
        let subject = Subject::new(sub).map_err(|_| JwtRefusal::Subject)?;
        // An issuer names its own users, and not the server's.
        if subject.as_str() == LOCAL_SUBJECT {
            return Err(JwtRefusal::Subject);
        }
        let one = scope.iter().flat_map(|scope| scope.split_whitespace());
        let named = one.chain(scopes.iter().flatten().map(String::as_str));
        // The issuer's tokens have scopes of other services too.
        let mut scopes: Vec<Scope> = named.filter_map(Scope::from_word).collect();
        scopes.sort_unstable();
        scopes.dedup();
        Ok(Caller { subject, scopes })
    }

    /// When a token expires that is valid now, if it says so in whole seconds.
    #[must_use]
    pub fn expiry(&self, token: &str) -> Option<Time> {
        let seconds = self.claims(token).ok()?.exp.as_i64()?;
        Some(Time::from_unix_millis(seconds.saturating_mul(1000)))
    }

    fn claims(&self, token: &str) -> Result<Claims, JwtRefusal> {
        if token.len() > MAX_JWT_BYTES {
            return Err(JwtRefusal::TooLong);
        }
        let header = decode_header(token).map_err(|_| JwtRefusal::Unreadable)?;
        // A header that must be understood and is not.
        if header.crit.is_some() || header.zip.is_some() || header.enc.is_some() {
            return Err(JwtRefusal::Unreadable);
        }
        let Keys { keys, issuer, audience } = &*self.0;
        let mut fitting = keys.iter().filter(|key| {
            key.algorithm == header.alg
                && header.kid.as_ref().is_none_or(|id| key.id.as_ref().is_none_or(|it| it == id))
        });
        // Without an id there must be one key of its algorithm alone.
        let (Some(key), None) = (fitting.next(), fitting.next()) else {
            return Err(JwtRefusal::UnknownKey);
        };
        let mut validation = Validation::new(key.algorithm);
        validation.set_issuer(&[issuer]);
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&REQUIRED);
        validation.validate_exp = true;
        validation.validate_nbf = true;
        validation.validate_aud = true;
        validation.leeway = LEEWAY_SECONDS;
        let decoded = decode::<Claims>(token, &key.key, &validation);
        Ok(decoded.map_err(|error| refusal(&error))?.claims)
    }
}

fn refusal(error: &jsonwebtoken::errors::Error) -> JwtRefusal {
    match error.kind() {
        ErrorKind::InvalidSignature => JwtRefusal::Signature,
        ErrorKind::ExpiredSignature => JwtRefusal::Expired,
        ErrorKind::ImmatureSignature => JwtRefusal::NotYet,
        ErrorKind::InvalidIssuer => JwtRefusal::Issuer,
        ErrorKind::InvalidAudience => JwtRefusal::Audience,
        ErrorKind::MissingRequiredClaim(_) | ErrorKind::Json(_) => JwtRefusal::Claims,
        _ => JwtRefusal::Unreadable,
    }
}

fn key_set(path: &Path) -> Result<Vec<Key>, KeyFileError> {
    let wrong = |detail: String| KeyFileError::KeySet { path: path.to_owned(), detail };
    let bytes = read(path, Readers::Anybody)?;
    let set: Result<JwkSet, _> = serde_json::from_slice(without_bom(&bytes));
    let set = set.map_err(|error| wrong(error.to_string()))?;
    if set.keys.is_empty() || set.keys.len() > MAX_KEYS {
        return Err(wrong(format!(
            "it has {} keys, and 1 to {MAX_KEYS} are usual",
            set.keys.len()
        )));
    }
    let mut keys: Vec<Key> = Vec::new();
    for jwk in &set.keys {
        // A key to encrypt with signs nothing.
        if jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
            continue;
        }
        let id = jwk.common.key_id.clone();
        let name = id.as_deref().unwrap_or("without `kid`");
        let algorithm = algorithm(jwk).map_err(|why| wrong(format!("the key {name} {why}")))?;
        let key = DecodingKey::from_jwk(jwk)
            .map_err(|error| wrong(format!("the key {name} cannot be used: {error}")))?;
        if id.is_none() && set.keys.len() > 1 {
            return Err(wrong("a key has no `kid`, and there are several".to_owned()));
        }
        if keys.iter().any(|before| before.id == id) {
            return Err(wrong(format!("two keys are {name}")));
        }
        keys.push(Key { id, algorithm, key });
    }
    Ok(keys)
}

/// The algorithm of a key, which it names, and which must be one of its kind.
fn algorithm(jwk: &Jwk) -> Result<Algorithm, &'static str> {
    let named = jwk.common.key_algorithm.ok_or("has no `alg`")?;
    match (named, &jwk.algorithm) {
        (KeyAlgorithm::RS256, AlgorithmParameters::RSA(_)) => Ok(Algorithm::RS256),
        (KeyAlgorithm::ES256, AlgorithmParameters::EllipticCurve(key))
            if key.curve == EllipticCurve::P256 =>
        {
            Ok(Algorithm::ES256)
        }
        (KeyAlgorithm::EdDSA, AlgorithmParameters::OctetKeyPair(key))
            if key.curve == EllipticCurve::Ed25519 =>
        {
            Ok(Algorithm::EdDSA)
        }
        (_, AlgorithmParameters::OctetKey(_)) => Err("is a secret: a secret has a file of its own"),
        (KeyAlgorithm::RS256 | KeyAlgorithm::ES256 | KeyAlgorithm::EdDSA, _) => {
            Err("is not of the kind that its `alg` needs")
        }
        _ => Err("has an `alg` other than RS256, ES256 and EdDSA"),
    }
}

#[cfg(test)]
mod tests;
