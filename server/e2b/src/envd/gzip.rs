//! Bodies that are compressed, and such that are to be, a piece at a time.

use std::fmt::Display;
use std::io::{self, Write as _};

use bytes::{Buf as _, Bytes};
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};
use futures_util::stream::{self, Stream, StreamExt as _};

/// How much is taken apart at a time. A thousand times as much may come of it.
const SLICE: usize = 1 << 10;

/// What a compressed body contains.
pub(super) fn gunzipped<E: Display + Send + 'static>(
    body: impl Stream<Item = Result<Bytes, E>> + Send + Unpin + 'static,
) -> impl Stream<Item = Result<Bytes, io::Error>> + Send + 'static {
    let state = (body, Bytes::new(), Some(MultiGzDecoder::new(Vec::new())));
    stream::try_unfold(state, |(mut body, mut waiting, decoder)| async move {
        let Some(mut decoder) = decoder else { return Ok(None) };
        loop {
            let made = std::mem::take(decoder.get_mut());
            if !made.is_empty() {
                return Ok(Some((Bytes::from(made), (body, waiting, Some(decoder)))));
            }
            if waiting.is_empty() {
                match body.next().await {
                    Some(Ok(piece)) => waiting = piece,
                    Some(Err(error)) => return Err(io::Error::other(error.to_string())),
                    None => {
                        let made = Some(decoder.finish()?).filter(|made| !made.is_empty());
                        return Ok(made.map(|made| (Bytes::from(made), (body, waiting, None))));
                    }
                }
                continue;
            }
            let taken = decoder.write(&waiting[..waiting.len().min(SLICE)])?;
            if taken == 0 {
                return Err(io::Error::other("there is more after the end of gzip"));
            }
            waiting.advance(taken);
        }
    })
}

/// A body that is compressed.
pub(super) fn gzipped(
    body: impl Stream<Item = Result<Bytes, io::Error>> + Send + Unpin + 'static,
) -> impl Stream<Item = Result<Bytes, io::Error>> + Send + 'static {
    let encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    stream::try_unfold((body, encoder), |(mut body, encoder)| async move {
        let Some(mut encoder) = encoder else { return Ok(None) };
        loop {
            match body.next().await {
                Some(piece) => {
                    encoder.write_all(&piece?)?;
                    let made = std::mem::take(encoder.get_mut());
                    if !made.is_empty() {
                        return Ok(Some((Bytes::from(made), (body, Some(encoder)))));
                    }
                }
                None => {
                    let made = encoder.finish()?;
                    return Ok(Some((Bytes::from(made), (body, None))));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(content: &[u8], size: usize) -> Vec<Result<Bytes, io::Error>> {
        content.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect()
    }

    async fn whole(
        stream: impl Stream<Item = Result<Bytes, io::Error>>,
    ) -> Result<Vec<u8>, io::Error> {
        let mut stream = std::pin::pin!(stream);
        let mut whole = Vec::new();
        while let Some(piece) = stream.next().await {
            whole.extend_from_slice(&piece?);
        }
        Ok(whole)
    }

    #[tokio::test]
    async fn what_was_compressed_is_read_back_a_piece_at_a_time() {
        let content: Vec<u8> = (0..300_000_u32).flat_map(|it| (it / 7).to_le_bytes()).collect();
        let made = whole(gzipped(stream::iter(pieces(&content, 64 << 10)))).await.unwrap();
        assert!(made.len() < content.len());
        for size in [1, 1000, 1 << 20] {
            let read = whole(gunzipped(stream::iter(pieces(&made, size)))).await.unwrap();
            assert!(read == content, "{size}");
        }
        // Two members are one content.
        let twice = [&made[..], &made[..]].concat();
        let read = whole(gunzipped(stream::iter(pieces(&twice, 4096)))).await.unwrap();
        assert_eq!(read.len(), 2 * content.len());
        let cut = &made[..made.len() - 1];
        assert!(whole(gunzipped(stream::iter(pieces(cut, 4096)))).await.is_err());
        let none = stream::iter(pieces(b"plain text", 4096));
        assert!(whole(gunzipped(none)).await.is_err());
    }

    #[tokio::test]
    async fn a_piece_never_becomes_too_large() {
        let zeros = vec![0; 64 << 20];
        let made = whole(gzipped(stream::iter(pieces(&zeros, 1 << 20)))).await.unwrap();
        let mut read = std::pin::pin!(gunzipped(stream::iter(pieces(&made, 1 << 20))));
        let mut length = 0;
        while let Some(piece) = read.next().await {
            let piece = piece.unwrap();
            assert!(piece.len() <= 2 << 20);
            length += piece.len();
        }
        assert_eq!(length, zeros.len());
    }
}
