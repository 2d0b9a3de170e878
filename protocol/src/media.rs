//! Detects a file's type by its first bytes.

/// How many bytes [`image_type`] needs.
pub const HEAD_BYTES: usize = 12;

/// The MIME type of an image that models accept (PNG, JPEG, GIF, WebP), by its first bytes.
pub fn image_type(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_first_bytes_and_not_by_fewer() {
        let images: [(&[u8], &str); 5] = [
            (b"\x89PNG\r\n\x1a\n", "image/png"),
            (b"\xff\xd8\xff", "image/jpeg"),
            (b"GIF87a", "image/gif"),
            (b"GIF89a", "image/gif"),
            (b"RIFF\0\0\0\0WEBP", "image/webp"),
        ];
        for (head, mime_type) in images {
            assert!(head.len() <= HEAD_BYTES);
            assert_eq!(image_type(head), Some(mime_type));
            assert_eq!(image_type(&[head, b"more"].concat()), Some(mime_type));
            assert_eq!(image_type(&head[..head.len() - 1]), None);
        }
        assert_eq!(image_type(b"RIFF\0\0\0\0WAVE"), None);
        assert_eq!(image_type(b"GIF88a"), None);
    }
}
