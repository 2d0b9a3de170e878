//! Paths and texts that are not what they were taken for: how models write paths, and what is there in
//! their place.

use sandbox_api::files::{ExistsReply, ListData};
use sandbox_api::operation::{Exists, List, Read};
use sandbox_api::{Base64, Encoding, WireString};
use serde_json::{Map, Value, json};
use unicode_normalization::UnicodeNormalization as _;

use crate::uris;
use crate::workspace::Workspace;

/// The members of arguments that are paths; the last one need not exist.
const PATHS: [&str; 3] = ["path", "from", "to"];
/// How much of a file is read to determine its encoding.
const SAMPLE_BYTES: u64 = 4 << 10;

/// Replaces paths among arguments as [`understand`] does.
pub(crate) async fn understand_all(workspace: &Workspace, arguments: &mut Map<String, Value>) {
    for name in PATHS {
        let Some(Value::String(written)) = arguments.get(name) else { continue };
        let mut path = written.clone().into_bytes();
        understand(workspace, &mut path).await;
        arguments.insert(name.to_owned(), json!(WireString::from(path)));
    }
}

/// Replaces a path that is written as another one: a URI of a resource, and `io/a` for `/io/a` where the io
/// dir has nothing that is called `io`.
pub(crate) async fn understand(workspace: &Workspace, path: &mut Vec<u8>) {
    if let Some(of_uri) = std::str::from_utf8(path).ok().and_then(uris::path) {
        *path = of_uri;
        return;
    }
    let mount = workspace.settings().sandbox.mount_path.trim_matches('/').to_owned();
    let below = path.strip_prefix(mount.as_bytes());
    let is_below = below.is_some_and(|below| below.is_empty() || below.starts_with(b"/"));
    if mount.is_empty() || !is_below || !workspace.has_files() {
        return;
    }
    let first = mount.split('/').next().unwrap_or_default();
    let found = workspace.result_of(Exists::new(first)).await;
    if found.is_ok_and(|found: ExistsReply| !found.exists) {
        path.insert(0, b'/');
    }
}

/// The path of what has the name in another Unicode normalisation, where nothing has the name itself.
pub(crate) async fn respelt(workspace: &Workspace, path: &[u8]) -> Option<Vec<u8>> {
    let written = std::str::from_utf8(path).ok().filter(|path| !path.is_ascii())?;
    let mut found = if written.starts_with('/') { b"/".to_vec() } else { Vec::new() };
    let mut is_respelt = false;
    for name in written.split('/').filter(|name| !matches!(*name, "" | ".")) {
        let directory = if found.is_empty() { b".".to_vec() } else { found.clone() };
        let mut entry = name.as_bytes().to_vec();
        if !name.is_ascii() {
            let listed: ListData = workspace.result_of(List::new(&*directory)).await.ok()?;
            let names = || {
                let names = listed.entries.iter().map(|entry| entry.name.as_bytes());
                names.filter_map(|name| std::str::from_utf8(name).ok())
            };
            if !names().any(|it| it == name) {
                let is_same = |it: &&str| it.nfc().eq(name.nfc());
                entry = names().find(is_same)?.as_bytes().to_vec();
                is_respelt = true;
            }
        }
        if !found.is_empty() && !found.ends_with(b"/") {
            found.push(b'/');
        }
        found.append(&mut entry);
    }
    is_respelt.then_some(found)
}

/// The paths among arguments: their names, and what they are.
pub(crate) fn named(arguments: &Map<String, Value>) -> Vec<(&'static str, String)> {
    let text = |name| Some((name, arguments.get(name)?.as_str()?.to_owned()));
    PATHS.into_iter().filter_map(text).collect()
}

/// The hint for paths of which one is not there, if it is there in another normalisation.
pub(crate) async fn respelt_hint(
    workspace: &Workspace,
    paths: &[(&'static str, String)],
) -> Option<String> {
    for (name, path) in paths {
        if let Some(found) = respelt(workspace, path.as_bytes()).await {
            let bytes = json!({ "b64": Base64(found) });
            return Some(format!(
                "it is there in another Unicode normalisation: `{name}: {bytes}` names it"
            ));
        }
    }
    None
}

/// What a file that is not UTF-8 is, by its beginning.
pub(crate) async fn encoding_of(workspace: &Workspace, path: &[u8]) -> Option<Encoding> {
    let read = Read { limit: Some(SAMPLE_BYTES), ..Read::new(path) };
    let sample = workspace.read(read, Encoding::Base64).await.ok()?;
    Encoding::Base64.encode(&sample.content).ok().map(|sample| encoding_of_bytes(&sample))
}

/// The encoding for these bytes: that of a text, or base64.
fn encoding_of_bytes(bytes: &[u8]) -> Encoding {
    let nuls = |odd: usize| bytes.iter().skip(odd).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd) = (nuls(0), nuls(1));
    // Text of most languages has many characters below 256, such as spaces and line ends.
    let is_utf16 = |nuls: usize, others: usize| nuls > 8 * others && 4 * nuls >= bytes.len();
    let encoding = match bytes {
        [0xff, 0xfe, ..] => Encoding::Utf16Le,
        [0xfe, 0xff, ..] => Encoding::Utf16Be,
        _ if is_utf16(odd, even) => Encoding::Utf16Le,
        _ if is_utf16(even, odd) => Encoding::Utf16Be,
        _ if bytes
            .iter()
            .all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b | 0x20..)) =>
        {
            Encoding::Latin1
        }
        _ => Encoding::Base64,
    };
    match encoding.decode(bytes.to_vec()) {
        Ok(_) => encoding,
        Err(_) => Encoding::Base64,
    }
}

/// The name of an encoding for people.
pub(crate) const fn name_of(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Utf16Le | Encoding::Utf16Be => "it is UTF-16",
        Encoding::Latin1 => "it is in an encoding of one byte a character, such as Latin-1",
        _ => "it is not text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_is_chosen_by_the_bytes() {
        let utf16 = |text: &str, unit: fn(u16) -> [u8; 2]| -> Vec<u8> {
            text.encode_utf16().flat_map(unit).collect()
        };
        let text = "name;Größe\r\nÄpfel;3\r\n";
        for (bytes, expected) in [
            (utf16(text, u16::to_le_bytes), Encoding::Utf16Le),
            (utf16(text, u16::to_be_bytes), Encoding::Utf16Be),
            (utf16("\u{feff}日本", u16::to_le_bytes), Encoding::Utf16Le),
            (utf16("\u{feff}日本", u16::to_be_bytes), Encoding::Utf16Be),
            (text.chars().map(|it| it as u8).collect(), Encoding::Latin1),
            (b"\xff\xfe\0".to_vec(), Encoding::Base64),
            (b"\x7fELF\x02\x01\x01\0\0\0\0\xff".to_vec(), Encoding::Base64),
            (b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01".to_vec(), Encoding::Base64),
        ] {
            assert_eq!(encoding_of_bytes(&bytes), expected, "{bytes:?}");
        }
    }
}
