//! The key that signs what a service gives out, so that it can check it later without storing it.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::error::StoreError;
use crate::{Backend, Store};

/// What a MAC begins with: the key of a cluster has other uses too.
const DOMAIN: &[u8] = b"sandboxctl signature\n";
/// The bytes of a MAC that are enough.
const MIN_MAC: usize = 12;

/// The key of a service or a cluster. What it signed stays valid as long as the store.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

/// The key is not shown.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SigningKey")
    }
}

impl SigningKey {
    /// With these bytes, which are random.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Hmac::new_from_slice(key).expect("a MAC takes a key of any length"))
    }

    /// The MAC of these parts, for this purpose alone.
    #[must_use]
    pub fn sign(&self, purpose: &str, parts: &[&str]) -> [u8; 32] {
        self.mac(purpose, parts).finalize().into_bytes().into()
    }

    /// Whether it is their MAC, or the first 12 bytes of it at least. It takes the same time for any other.
    #[must_use]
    pub fn verify(&self, purpose: &str, parts: &[&str], mac: &[u8]) -> bool {
        mac.len() >= MIN_MAC && self.mac(purpose, parts).verify_truncated_left(mac).is_ok()
    }

    /// Each part has its length before it.
    fn mac(&self, purpose: &str, parts: &[&str]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(DOMAIN);
        for part in std::iter::once(&purpose).chain(parts) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac
    }
}

impl Store {
    /// The key that signs what the service of this store gives out. It is made once.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn signing_key(&self) -> Result<SigningKey, StoreError> {
        match &self.0 {
            Backend::Sqlite(store) => store.signing_key(),
            // A cluster has a key from its beginning.
            Backend::Postgres(store) => Ok(SigningKey::new(&store.cluster().identity().key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_is_good_for_its_purpose_and_parts_alone() {
        let key = SigningKey::new(&[7; 32]);
        let mac = key.sign("preview", &["ab", "8080"]);
        assert!(key.verify("preview", &["ab", "8080"], &mac));
        assert!(key.verify("preview", &["ab", "8080"], &mac[..12]));
        for short in [0, 1, 11] {
            assert!(!key.verify("preview", &["ab", "8080"], &mac[..short]));
        }
        let others: [(&str, &[&str]); 4] = [
            ("token", &["ab", "8080"]),
            ("preview", &["ab8080"]),
            ("preview", &["a", "b8080"]),
            ("preview", &["ab", "8080", ""]),
        ];
        for (purpose, parts) in others {
            assert!(!key.verify(purpose, parts, &mac), "{purpose} {parts:?}");
        }
        assert!(!SigningKey::new(&[8; 32]).verify("preview", &["ab", "8080"], &mac));
    }
}
