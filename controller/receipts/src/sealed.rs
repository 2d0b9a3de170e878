//! Receipts as files: a statement, or a DSSE envelope with a signed one.

use sandbox_api::Base64;
use sandbox_api::receipt::{Envelope, PayloadType, Receipt, Signature};
use serde::Deserialize;

use crate::key::{PublicKey, SigningKey};

/// A receipt that was read. Who made it is not known before [`verify`](Self::verify).
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// What it says.
    pub receipt: Receipt,
    envelope: Option<Envelope>,
}

/// Why a file is no receipt, or not the one that it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// It is something else.
    #[error("it is not a receipt: {reason}")]
    Malformed {
        /// Why.
        reason: String,
    },
    /// It is a statement about something else.
    #[error("it is not a receipt: its {what} is '{found}'")]
    OtherType {
        /// Which type.
        what: &'static str,
        /// The type.
        found: String,
    },
    /// A key is given, and it has no signature.
    #[error("the receipt is not signed")]
    Unsigned,
    /// It was changed, or signed with another key.
    #[error("no signature of the receipt is by this key: it was changed, or another key signed it")]
    Signature,
}

/// Signs a receipt.
///
/// # Errors
///
/// If it cannot be written as JSON.
pub fn sign(receipt: &Receipt, key: &SigningKey) -> serde_json::Result<Envelope> {
    let payload = serde_json::to_vec(receipt)?;
    let payload_type = PayloadType::InToto;
    let sig = Base64(key.sign(&encoded(payload_type, &payload)));
    let signatures = vec![Signature { keyid: Some(key.public().id()), sig }];
    Ok(Envelope { payload_type, payload: Base64(payload), signatures })
}

/// Reads a receipt: a statement, or an envelope.
///
/// # Errors
///
/// [`ReceiptError`] if it is anything else, or contains what no receipt has.
pub fn open(text: &[u8]) -> Result<Opened, ReceiptError> {
    let malformed =
        |error: serde_json::Error| ReceiptError::Malformed { reason: error.to_string() };
    let head: Head = serde_json::from_slice(text).map_err(malformed)?;
    let Some(payload_type) = head.payload_type else {
        return Ok(Opened { receipt: statement(text)?, envelope: None });
    };
    if payload_type != PayloadType::InToto.as_str() {
        return Err(ReceiptError::OtherType { what: "payload type", found: payload_type });
    }
    let envelope: Envelope = serde_json::from_slice(text).map_err(malformed)?;
    Ok(Opened { receipt: statement(&envelope.payload.0)?, envelope: Some(envelope) })
}

impl Opened {
    /// Whether it has a signature. It can be anybody's.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        self.envelope.as_ref().is_some_and(|envelope| !envelope.signatures.is_empty())
    }

    /// Checks that this key signed it.
    ///
    /// # Errors
    ///
    /// [`ReceiptError`] if it did not.
    pub fn verify(&self, key: &PublicKey) -> Result<(), ReceiptError> {
        let envelope = self.envelope.as_ref().filter(|it| !it.signatures.is_empty());
        let Envelope { payload_type, payload, signatures } =
            envelope.ok_or(ReceiptError::Unsigned)?;
        let message = encoded(*payload_type, &payload.0);
        match signatures.iter().any(|it| key.has_signed(&message, &it.sig.0)) {
            true => Ok(()),
            false => Err(ReceiptError::Signature),
        }
    }
}

/// What tells the kinds of documents apart.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "payloadType")]
    payload_type: Option<String>,
    #[serde(rename = "_type")]
    statement: Option<String>,
    #[serde(rename = "predicateType")]
    predicate: Option<String>,
}

fn statement(text: &[u8]) -> Result<Receipt, ReceiptError> {
    let malformed =
        |error: serde_json::Error| ReceiptError::Malformed { reason: error.to_string() };
    let head: Head = serde_json::from_slice(text).map_err(malformed)?;
    let types = [
        ("statement type", head.statement, "https://in-toto.io/Statement/v1"),
        ("predicate type", head.predicate, "https://slsa.dev/provenance/v1"),
    ];
    for (what, found, expected) in types {
        if let Some(found) = found.filter(|found| found != expected) {
            return Err(ReceiptError::OtherType { what, found });
        }
    }
    serde_json::from_slice(text).map_err(malformed)
}

/// What is signed: DSSE's pre-authentication encoding.
fn encoded(payload_type: PayloadType, payload: &[u8]) -> Vec<u8> {
    let name = payload_type.as_str();
    let mut message = format!("DSSEv1 {} {name} {} ", name.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}
