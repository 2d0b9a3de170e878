//! Requests that one node of a cluster forwards to another. A header says who sent the request and what they
//! may do, and has a MAC with the cluster's key: it is good for one request, at one node, for a short time.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sandbox_api::service::{Subject, Time};
use sandbox_dirfd::{hex, random_hex};
use sha2::Sha256;

use crate::caller::{Caller, Scope};

/// The name of the header.
pub const FORWARDED: &str = "x-sandboxctl-forwarded";
/// The version of its form.
const VERSION: &str = "v1";
/// What the MAC is for: the key may have other uses some day.
const PURPOSE: &str = "sandboxctl forwarded request";
/// How long a header is valid.
const VALIDITY: Duration = Duration::from_secs(30);
/// How far the clocks of two nodes may be apart.
const LEEWAY: Duration = Duration::from_secs(30);
/// The most headers that are remembered; beyond them all are refused until some have expired.
const MAX_SEEN: usize = 1 << 20;

/// The digest of the certificate of the node that a request is for.
pub type Receiver = [u8; 32];
type Tag = [u8; 32];

/// The key that all nodes of a cluster have.
#[derive(Clone)]
pub struct ForwardKey(Hmac<Sha256>);

/// Why a forwarded request is refused. It is for the audit: the sender learns nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForwardRefusal {
    /// It has no header, or more than one.
    #[error("the request does not have one header of a node")]
    Missing,
    /// The header has another form.
    #[error("the header of the node has an unknown form")]
    Malformed,
    /// The sender of the header does not have the key, or made it for another request or node.
    #[error("the header of the node is forged, or of another request")]
    Forged,
    /// Its time is over.
    #[error("the header of the node has expired")]
    Expired,
    /// It is of a time that has not come yet.
    #[error("the header of the node is from the future: the clocks of the nodes differ")]
    TooEarly,
    /// It came before.
    #[error("the header of the node is used a second time")]
    Replayed,
    /// Too many came in a short time.
    #[error("too many forwarded requests in a short time")]
    TooMany,
}

impl ForwardKey {
    /// The key of a cluster.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Hmac::new_from_slice(key).expect("a MAC takes a key of any length"))
    }

    /// The header of a request of this caller to a node.
    #[must_use]
    pub fn sign(
        &self,
        receiver: &Receiver,
        method: &str,
        target: &str,
        caller: &Caller,
        now: Time,
    ) -> String {
        let subject = BASE64.encode(caller.subject.as_str());
        let scopes: Vec<_> = caller.scopes.iter().map(|scope| scope.as_str()).collect();
        let (scopes, expiry) = (scopes.join(","), now.after(VALIDITY).unix_millis());
        let claims = format!("{VERSION} {subject} {scopes} {expiry} {}", random_hex::<16>());
        let tag = self.mac(receiver, method, target, &claims).finalize().into_bytes();
        format!("{claims} {}", BASE64.encode(tag))
    }

    /// Each part ends with a line break, which none of them can have.
    fn mac(&self, receiver: &Receiver, method: &str, target: &str, claims: &str) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [PURPOSE, &hex(receiver), method, target, claims] {
            mac.update(part.as_bytes());
            mac.update(b"\n");
        }
        mac
    }
}

/// What a node checks the requests with that others forward to it.
pub struct ForwardVerifier {
    key: ForwardKey,
    receiver: Receiver,
    seen: HashSet<Tag>,
    /// The same, the first that came first.
    seen_in_order: VecDeque<(Time, Tag)>,
}

impl ForwardVerifier {
    /// Of the node with this certificate.
    #[must_use]
    pub fn new(key: ForwardKey, receiver: Receiver) -> Self {
        Self { key, receiver, seen: HashSet::new(), seen_in_order: VecDeque::new() }
    }

    /// Who sent a request, by its header.
    ///
    /// # Errors
    ///
    /// [`ForwardRefusal`].
    pub fn verify(
        &mut self,
        header: &str,
        method: &str,
        target: &str,
        now: Time,
    ) -> Result<Caller, ForwardRefusal> {
        use ForwardRefusal::{Expired, Forged, Malformed, Replayed, TooEarly, TooMany};
        let (claims, tag) = header.rsplit_once(' ').ok_or(Malformed)?;
        let tag = BASE64.decode(tag).map_err(|_| Malformed)?;
        let tag = Tag::try_from(tag).map_err(|_| Malformed)?;
        // Before anything of it is read.
        let mac = self.key.mac(&self.receiver, method, target, claims);
        mac.verify_slice(&tag).map_err(|_| Forged)?;

        let mut parts = claims.split(' ');
        let mut part = || parts.next().ok_or(Malformed);
        let (version, subject, scopes) = (part()?, part()?, part()?);
        let expiry = part()?.parse().map(Time::from_unix_millis).map_err(|_| Malformed)?;
        if version != VERSION {
            return Err(Malformed);
        }
        if expiry <= now {
            return Err(Expired);
        }
        if expiry > now.after(VALIDITY + LEEWAY) {
            return Err(TooEarly);
        }
        let subject = BASE64.decode(subject).ok().and_then(|name| String::from_utf8(name).ok());
        let subject = subject.and_then(|name| Subject::new(name).ok()).ok_or(Malformed)?;
        // A scope that this version does not know gives nothing.
        let scopes = scopes.split(',').filter_map(Scope::from_word).collect();

        self.forget_expired(now);
        if self.seen.len() >= MAX_SEEN {
            return Err(TooMany);
        }
        if !self.seen.insert(tag) {
            return Err(Replayed);
        }
        self.seen_in_order.push_back((expiry, tag));
        Ok(Caller { subject, scopes })
    }

    fn forget_expired(&mut self, now: Time) {
        while let Some((expiry, tag)) = self.seen_in_order.front()
            && *expiry <= now
        {
            self.seen.remove(tag);
            self.seen_in_order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVER: Receiver = [7; 32];
    const NOW: Time = Time::from_unix_millis(1_000_000);
    const TARGET: &str = "/v1/sandboxes/0f7c/files/a%20b?generation=2";

    fn key() -> ForwardKey {
        ForwardKey::new(&[1; 32])
    }

    fn verifier() -> ForwardVerifier {
        ForwardVerifier::new(key(), RECEIVER)
    }

    fn caller() -> Caller {
        let subject = Subject::new("équipe of two").unwrap();
        Caller { subject, scopes: vec![Scope::Sandboxes, Scope::ExecutionsRead] }
    }

    fn header() -> String {
        key().sign(&RECEIVER, "PUT", TARGET, &caller(), NOW)
    }

    #[test]
    fn caller_arrives_as_it_was() {
        assert_eq!(verifier().verify(&header(), "PUT", TARGET, NOW), Ok(caller()));
        let none = Caller { scopes: Vec::new(), ..caller() };
        let header = key().sign(&RECEIVER, "GET", "/", &none, NOW);
        assert_eq!(verifier().verify(&header, "GET", "/", NOW), Ok(none));
    }

    #[test]
    fn header_of_another_request_node_or_key_is_forged() {
        let forged = Err(ForwardRefusal::Forged);
        let header = header();
        for (method, target) in
            [("GET", TARGET), ("PUT", "/v1/sandboxes/0f7c"), ("PUT", ""), ("PUT /v1", "")]
        {
            assert_eq!(
                verifier().verify(&header, method, target, NOW),
                forged,
                "{method} {target}"
            );
        }
        let mut elsewhere = ForwardVerifier::new(key(), [8; 32]);
        assert_eq!(elsewhere.verify(&header, "PUT", TARGET, NOW), forged);
        let mut other = ForwardVerifier::new(ForwardKey::new(&[2; 32]), RECEIVER);
        assert_eq!(other.verify(&header, "PUT", TARGET, NOW), forged);
    }

    #[test]
    fn no_part_of_a_header_can_be_changed() {
        let header = header();
        for at in 0..header.len() {
            for byte in [b'A', b'0', b' ', b','] {
                let mut changed = header.clone().into_bytes();
                changed[at] = byte;
                let changed = String::from_utf8(changed).unwrap();
                let verified = verifier().verify(&changed, "PUT", TARGET, NOW);
                assert_eq!(verified.is_ok(), changed == header, "{changed}");
            }
        }
        for cut in ["", " ", "v1", &header[1..], &header[..header.len() - 1]] {
            assert!(verifier().verify(cut, "PUT", TARGET, NOW).is_err(), "{cut}");
        }
    }

    #[test]
    fn header_is_good_for_one_request() {
        let (mut verifier, header) = (verifier(), header());
        assert_eq!(verifier.verify(&header, "PUT", TARGET, NOW), Ok(caller()));
        let just_before = NOW.after(VALIDITY - Duration::from_millis(1));
        for now in [NOW, just_before] {
            let again = verifier.verify(&header, "PUT", TARGET, now);
            assert_eq!(again, Err(ForwardRefusal::Replayed));
        }
        // The same request of the same caller, sent again.
        let next = key().sign(&RECEIVER, "PUT", TARGET, &caller(), NOW);
        assert_eq!(verifier.verify(&next, "PUT", TARGET, NOW), Ok(caller()));
    }

    #[test]
    fn header_is_valid_for_a_short_time() {
        let of = |now| verifier().verify(&header(), "PUT", TARGET, now);
        assert_eq!(of(NOW.after(VALIDITY)), Err(ForwardRefusal::Expired));
        assert_eq!(of(NOW.before(LEEWAY)), Ok(caller()));
        let earlier = NOW.before(LEEWAY + Duration::from_millis(1));
        assert_eq!(of(earlier), Err(ForwardRefusal::TooEarly));
    }

    #[test]
    fn expired_headers_are_forgotten() {
        let mut verifier = verifier();
        for second in 0..90 {
            let now = NOW.after(Duration::from_secs(second));
            let header = key().sign(&RECEIVER, "PUT", TARGET, &caller(), now);
            verifier.verify(&header, "PUT", TARGET, now).unwrap();
            assert!(verifier.seen.len() as u64 <= VALIDITY.as_secs());
            assert_eq!(verifier.seen.len(), verifier.seen_in_order.len());
        }
    }
}
