//! Receipts: the inputs and outputs of a run. Signed, opened again, and compared with what is there.
//!
//! A receipt is a [`Receipt`](sandbox_api::receipt::Receipt): an in-toto statement with SLSA provenance. Signed, it is a DSSE
//! [`Envelope`](sandbox_api::receipt::Envelope), as Sigstore's and in-toto's own tools read it. Nothing here trusts a receipt: it may
//! have passed through other hands.

#![forbid(unsafe_code)]

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod key;
mod materials;
mod outcome;
mod sealed;
mod subject;

pub use key::{KeyError, PublicKey, SigningKey};
pub use materials::{materials, script};
pub use outcome::{outcome, request, tool_calls, traffic};
pub use sealed::{Opened, ReceiptError, open, sign, tests_digest};
pub use subject::{FoundFile, changed_files, differences, digests, files, material_differences};

use sandbox_dirfd::hex;
use sha2::{Digest as _, Sha256};

/// The SHA-256 of some bytes, in lower-case hexadecimal.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(bytes))
}
