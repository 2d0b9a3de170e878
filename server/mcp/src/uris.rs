//! URIs of files: `sandbox:///io/a.csv` is the file `/io/a.csv`.

use sandbox_api::{decode_percent, encode_percent};

/// The scheme of the files' URIs, and the empty authority.
const SCHEME: &str = "sandbox://";

/// The URI of a file by its guest path.
pub(crate) fn uri(path: &[u8]) -> String {
    format!("{SCHEME}{}", encode_percent(path, b"/-._~"))
}

/// The URI of a file by its path below the io dir.
pub(crate) fn uri_below(mount_path: &str, name: &[u8]) -> String {
    uri(&path_below(mount_path, name))
}

/// The guest path of a file by its path below the io dir.
pub(crate) fn path_below(mount_path: &str, name: &[u8]) -> Vec<u8> {
    match name {
        // It lies under another mount.
        [b'/', ..] => name.to_vec(),
        _ => [mount_path.trim_end_matches('/').as_bytes(), b"/", name].concat(),
    }
}

/// The guest path of a URI; none if it is not a file's.
pub(crate) fn path(uri: &str) -> Option<Vec<u8>> {
    let path = uri.strip_prefix(SCHEME).filter(|path| path.starts_with('/'))?;
    decode_percent(path).filter(|_| !path.contains(['?', '#']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_any_path_and_nothing_else() {
        for name in [&b"/io/a.csv"[..], b"/io/a b/\xc3\xa9?#%.txt", b"/io/\xff", b"/"] {
            let uri = uri(name);
            assert!(uri.is_ascii() && uri.starts_with("sandbox:///"), "{uri}");
            assert_eq!(path(&uri).as_deref(), Some(name), "{uri}");
        }
        assert_eq!(uri_below("/io", b"a/b"), "sandbox:///io/a/b");
        assert_eq!(uri_below("/work", b"/in/x"), "sandbox:///in/x");
        for wrong in
            ["file:///io/a", "sandbox://host/a", "sandbox:///a%4", "sandbox:///a?b", "x", ""]
        {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }
}
