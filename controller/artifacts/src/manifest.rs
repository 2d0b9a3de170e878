//! `manifest.json`: written, and read back without trust.

use std::path::Path;

use sandbox_api::artifacts::{Artifact, ArtifactManifest, ArtifactSchema, OmittedEntry};
use sandbox_dirfd::is_random_hex;
use sandbox_protocol::media::image_type;
use sandbox_protocol::without_bom;

use crate::error::Error;
use crate::{MAX_DEPTH, is_reserved};

/// How many bytes of a file its MIME type is known by, if not by its name.
pub const HEAD_BYTES: usize = 512;
/// The maximum size of a manifest that is read.
pub const MAX_BYTES: u64 = 256 << 20;

/// The manifest and its file's content.
pub fn encode(files: Vec<Artifact>, omitted: Vec<OmittedEntry>) -> (ArtifactManifest, Vec<u8>) {
    let manifest = ArtifactManifest { schema: ArtifactSchema::V1, files, omitted };
    let mut json =
        serde_json::to_vec_pretty(&manifest).expect("it has no maps and no numbers that fail");
    json.push(b'\n');
    (manifest, json)
}

/// The manifest of a directory, whose paths are all below it.
pub fn decode(dir: &Path, json: &[u8]) -> Result<ArtifactManifest, Error> {
    let refuse = |reason: String| Error::manifest(dir, reason);
    let manifest: ArtifactManifest = serde_json::from_slice(without_bom(json))
        .map_err(|error| refuse(format!("its manifest.json is not usable: {error}")))?;
    let mut last: &[u8] = b"";
    for file in &manifest.files {
        let path = file.path();
        let is_digest = is_random_hex::<32>(&file.sha256);
        let reason = match path {
            path if !is_below(path) => "is not a path below the directory",
            path if is_reserved(path) => "is the manifest's or the checksums' own name",
            path if path <= last => "is out of order",
            path if sandbox_api::artifacts::text_and_bytes(path)
                != (file.path.clone(), file.path_b64.clone()) =>
            {
                "is not how its path is written"
            }
            _ if !is_digest => "has no SHA-256",
            _ => {
                last = path;
                continue;
            }
        };
        return Err(refuse(format!("in its manifest.json, '{}' {reason}", file.path)));
    }
    Ok(manifest)
}

/// Whether a path leads to something below the directory that it starts in.
fn is_below(path: &[u8]) -> bool {
    let mut names = path.split(|&byte| byte == b'/');
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
    names.clone().count() <= MAX_DEPTH + 1 && names.all(is_name)
}

/// The MIME type by the name, or else by the first bytes.
pub fn mime(path: &[u8], head: &[u8]) -> String {
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(path);
    if let Some(known) = mime_guess::from_path(Path::new(name)).first_raw() {
        return known.to_owned();
    }
    let is_text = match std::str::from_utf8(head) {
        Ok(_) => true,
        // Cut within a character.
        Err(error) => error.error_len().is_none() && head.len() == HEAD_BYTES,
    } && !head.contains(&0);
    let by_content = image_type(head).or(is_text.then_some("text/plain"));
    by_content.unwrap_or("application/octet-stream").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::artifacts::ArtifactMode;

    fn file(path: &str) -> Artifact {
        let sha256 = "0".repeat(64);
        let mime = "text/plain".to_owned();
        let (path, path_b64) = (path.to_owned(), None);
        Artifact { path, path_b64, bytes: 1, sha256, mode: ArtifactMode::Plain, mime }
    }

    #[test]
    fn manifest_with_paths_outside_its_directory_is_refused() {
        let decoded = |files: Vec<Artifact>| {
            let json = encode(files, Vec::new()).1;
            decode(Path::new("d"), &json).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(decoded(vec![file("a"), file("a-b"), file("a/b")]), Ok(()));
        let deep = vec!["d"; MAX_DEPTH + 2].join("/");
        for path in ["", "/etc/passwd", "..", "a/../b", "a//b", "a/", "./a", "a\0b", &deep] {
            let error = decoded(vec![file(path)]).unwrap_err();
            assert!(error.contains("not a path below"), "{path}: {error}");
        }
        assert!(decoded(vec![file("SHA256SUMS")]).unwrap_err().contains("own name"));
        assert!(decoded(vec![file("manifest.json/x")]).unwrap_err().contains("own name"));
        assert!(decoded(vec![file("b"), file("a")]).unwrap_err().contains("out of order"));
        assert!(decoded(vec![file("b"), file("b")]).unwrap_err().contains("out of order"));
        let digest = Artifact { sha256: "0/../x".to_owned(), ..file("a") };
        assert!(decoded(vec![digest]).unwrap_err().contains("no SHA-256"));
    }

    #[test]
    fn mime_type_is_known_by_name_or_content() {
        for (path, head, expected) in [
            (&b"a/report.json"[..], &b""[..], "application/json"),
            (b"page.html", b"\x89PNG\r\n\x1a\n", "text/html"),
            (b"\xff.png", b"", "image/png"),
            (b"picture", b"\x89PNG\r\n\x1a\n", "image/png"),
            (b"LICENSE", "caf\u{e9}".as_bytes(), "text/plain"),
            (b"program", b"\x7fELF\0", "application/octet-stream"),
            (b"odd", b"\xff", "application/octet-stream"),
        ] {
            assert_eq!(mime(path, head), expected, "{}", String::from_utf8_lossy(path));
        }
        let cut = "\u{e9}".repeat(HEAD_BYTES).into_bytes();
        assert_eq!(mime(b"x", &[b"a", &cut[..HEAD_BYTES - 1]].concat()), "text/plain");
    }
}
