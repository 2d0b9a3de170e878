//! Keys for receipts: ed25519, in PEM, as OpenSSL reads and writes them.

use std::io;

use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{
    DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _,
    KeypairBytes,
};
use ed25519_dalek::{Signature, Signer as _};

use crate::sha256;

/// A private key, which signs receipts.
pub struct SigningKey(ed25519_dalek::SigningKey);

/// A public key, which verifies them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(ed25519_dalek::VerifyingKey);

/// A file is no usable key.
#[derive(Debug, thiserror::Error)]
#[error("it is not an ed25519 {expected} key in PEM")]
pub struct KeyError {
    expected: &'static str,
}

impl SigningKey {
    /// A new one.
    ///
    /// # Errors
    ///
    /// If the kernel has no random bytes.
    pub fn generate() -> io::Result<Self> {
        let mut secret = [0; 32];
        let mut filled = 0;
        while filled < secret.len() {
            filled += rustix::rand::getrandom(
                &mut secret[filled..],
                rustix::rand::GetRandomFlags::empty(),
            )?;
        }
        Ok(Self(ed25519_dalek::SigningKey::from_bytes(&secret)))
    }

    /// Reads PKCS #8, as `openssl genpkey -algorithm ed25519` writes it: version 1, or version 2 with the
    /// public key.
    ///
    /// # Errors
    ///
    /// [`KeyError`].
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let key = ed25519_dalek::SigningKey::from_pkcs8_pem(text);
        key.map(Self).map_err(|_| KeyError { expected: "private" })
    }

    /// PKCS #8, version 1: OpenSSL before 3.2, Node and Python's `cryptography` read no other.
    pub fn to_pem(&self) -> String {
        let alone = KeypairBytes { secret_key: self.0.to_bytes(), public_key: None };
        let pem = alone.to_pkcs8_pem(LineEnding::LF);
        pem.map_or_else(|_| unreachable!("its length is fixed"), |pem| (*pem).clone())
    }

    /// Its public key.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).to_bytes().to_vec()
    }
}

impl PublicKey {
    /// Reads SPKI, as `openssl pkey -pubout` writes it.
    ///
    /// # Errors
    ///
    /// [`KeyError`].
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let key = ed25519_dalek::VerifyingKey::from_public_key_pem(text);
        key.map(Self).map_err(|_| KeyError { expected: "public" })
    }

    /// SPKI.
    pub fn to_pem(&self) -> String {
        let pem = self.0.to_public_key_pem(LineEnding::LF);
        pem.unwrap_or_else(|_| unreachable!("its length is fixed"))
    }

    /// The SHA-256 of its DER form.
    pub fn id(&self) -> String {
        let der = self.0.to_public_key_der();
        der.map_or_else(|_| unreachable!("its length is fixed"), sha256)
    }

    /// Whether this key made the signature. Keys and signatures that are valid for more than one message
    /// are not.
    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let signature = Signature::from_slice(signature);
        signature.is_ok_and(|signature| self.0.verify_strict(message, &signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_pem_and_sign_for_each_other_alone() {
        let [one, other] = [SigningKey::generate().unwrap(), SigningKey::generate().unwrap()];
        let again = SigningKey::from_pem(&one.to_pem()).unwrap();
        let public = PublicKey::from_pem(&one.public().to_pem()).unwrap();
        assert_eq!(public, again.public());
        let signature = again.sign(b"message");
        assert!(public.has_signed(b"message", &signature));
        assert!(!public.has_signed(b"messagf", &signature));
        assert!(!other.public().has_signed(b"message", &signature));
        assert!(!public.has_signed(b"message", &signature[..63]));
        assert_ne!(public.id(), other.public().id());
    }

    #[test]
    fn key_is_written_as_version_1_and_version_2_is_read() {
        let key = SigningKey::generate().unwrap();
        let version_2 = key.0.to_pkcs8_pem(LineEnding::LF).unwrap();
        assert_eq!(SigningKey::from_pem(&version_2).unwrap().public(), key.public());
        // The same length and content as OpenSSL's, whose version is the third byte of three.
        let pem = key.to_pem();
        let first = pem.lines().nth(1).unwrap();
        assert!(first.starts_with("MC4CAQAwBQYDK2VwBCIEI") && first.len() == 64, "{pem}");
        assert_eq!(pem.lines().count(), 3, "{pem}");
    }

    #[test]
    fn keys_of_openssl_are_read() {
        let private = "-----BEGIN PRIVATE KEY-----\n\
            MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
            -----END PRIVATE KEY-----\n";
        let public = "-----BEGIN PUBLIC KEY-----\n\
            MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
            -----END PUBLIC KEY-----\n";
        // RFC 8410 and RFC 8032, test 1.
        let key = SigningKey::from_pem(private).unwrap();
        assert_eq!(key.public(), PublicKey::from_pem(public).unwrap());
        for text in ["", "no key", public] {
            assert!(SigningKey::from_pem(text).is_err(), "{text}");
        }
        let error = PublicKey::from_pem(private).unwrap_err();
        assert_eq!(error.to_string(), "it is not an ed25519 public key in PEM");
    }
}
