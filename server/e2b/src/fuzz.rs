//! The property that holds for any bytes: the body of the fuzz target `envelopes`. It panics if the
//! property is violated.
//!
//! Compiled for `fuzz/`, and for this crate's tests, which replay the corpus.

use crate::connect::envelope::{Decoder, MAX_MESSAGE, message};

/// However a client's stream is cut into pieces, it has the same messages, and none that is too long.
pub fn envelopes(data: &[u8]) {
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut decoder, mut messages) = (Decoder::default(), Vec::new());
        for piece in pieces {
            decoder.push(piece);
            loop {
                match decoder.next() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, Err(error)),
                }
            }
        }
        (messages, decoder.finish())
    };
    let (whole, ended) = read(&mut std::iter::once(data));
    assert_eq!((whole.clone(), ended), read(&mut data.chunks(1)));
    assert_eq!((whole.clone(), ended), read(&mut data.chunks(7)));
    assert!(whole.iter().all(|message| message.len() <= MAX_MESSAGE));
    if ended.is_ok() {
        let again: Vec<u8> = whole.iter().flat_map(|json| message(json)).collect();
        assert_eq!(again, data);
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::corpus;

    #[test]
    fn envelope_properties_hold_for_the_corpus() {
        corpus::replay("envelopes", super::envelopes);
    }
}
