//! The certificates that commands trust: the image's, and the one of the sandbox's own authority.
//!
//! The root is read-only, so both are files in `/tmp`, and the variables of common libraries and programs name
//! them. A command may change or ignore them: it then trusts less than it could.

use std::ffi::OsStr;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use sandbox_protocol::message::CA_FILES;

use super::command::beginning_of;

const FOLDER: &str = "/tmp/.sandboxctl";
/// The most that is read of a file of certificates.
const MAX_BYTES: u64 = 4 << 20;
/// The variables that name all certificates, of OpenSSL and others.
const OF_ALL: [&str; 5] = [
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO",
];
/// That of what is trusted beside Node's own.
const OF_MORE: &str = "NODE_EXTRA_CA_CERTS";
/// Those that name a file of configuration, of wget and apt with GnuTLS, which read no other: the file, and what
/// it has before the path of all certificates and after it. apt reads it before its own, wget in place of
/// `~/.wgetrc`.
const OF_CONFIGURATIONS: [(&str, &str, &str, &str); 2] = [
    ("WGETRC", "wgetrc", "ca_certificate = ", "\n"),
    ("APT_CONFIG", "apt.conf", "Acquire::https::CAInfo \"", "\";\n"),
];

/// Writes the certificate, alone and after the image's own, and returns the variables that name the files.
/// `of_image` are those of the image, which may name what it trusts, or a configuration that stays.
pub fn install<'a>(
    certificate: &str,
    of_image: impl Fn(&str) -> Option<&'a [u8]>,
) -> io::Result<Vec<(&'static str, String)>> {
    let folder = Path::new(FOLDER);
    DirBuilder::new().mode(0o755).create(folder)?;
    let named = of_image("SSL_CERT_FILE").map(|path| Path::new(OsStr::from_bytes(path)));
    let mut all = own(named.into_iter().chain(CA_FILES.iter().map(Path::new)));
    if !all.is_empty() && !all.ends_with(b"\n") {
        all.push(b'\n');
    }
    all.extend_from_slice(certificate.as_bytes());
    let write = |name: &str, content: &[u8]| {
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o644).open(folder.join(name));
        opened.and_then(|mut file| file.write_all(content)).map(|()| format!("{FOLDER}/{name}"))
    };
    let more = write("ca.pem", certificate.as_bytes())?;
    let all = write("bundle.pem", &all)?;
    let mut variables = vec![(OF_MORE, more)];
    for (name, file, before, after) in OF_CONFIGURATIONS {
        if of_image(name).is_none() {
            variables.push((name, write(file, format!("{before}{all}{after}").as_bytes())?));
        }
    }
    variables.extend(OF_ALL.into_iter().map(|name| (name, all.clone())));
    Ok(variables)
}

/// The content of the first of these files that has any.
fn own<'a>(places: impl Iterator<Item = &'a Path>) -> Vec<u8> {
    let mut contents = places.filter_map(|path| beginning_of(path, MAX_BYTES).ok());
    contents.find(|content| !content.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_that_has_certificates_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("empty"), "").unwrap();
        std::fs::write(path("full"), "certificates").unwrap();
        std::fs::write(path("other"), "others").unwrap();
        let places =
            [path("none"), folder.path().to_owned(), path("empty"), path("full"), path("other")];
        assert_eq!(own(places.iter().map(|place| place.as_path())), b"certificates");
        assert_eq!(own([].into_iter()), b"");
    }
}
