//! Output for a model: as much as it reads, with its beginning and its end; and all of it for a
//! limited time, as a resource of its workspace.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sandbox_api::service::has_room;

use crate::lock;

/// How the URIs of outputs begin.
const OUTPUTS: &str = "sandbox://output/";
/// How many bytes of output a model is given by default.
pub const DEFAULT_OUTPUT_BYTES: usize = 50 << 10;
/// The most that it may be given: a result has it twice, and some clients take 1 MiB.
pub const MAX_OUTPUT_BYTES: usize = 128 << 10;
/// How many bytes of one output are kept, from its beginning: as many as a resource may have.
pub(crate) const MAX_KEPT_BYTES: usize = 4 << 20;
/// How many bytes of outputs one workspace keeps. The oldest make room.
const MAX_BYTES: usize = 8 << 20;
/// How many all workspaces of a server keep.
const MAX_SHARED_BYTES: u64 = 64 << 20;

/// The last bytes of an output, and how many it had.
#[derive(Debug, Default)]
pub(crate) struct OutputEnd {
    bytes: Vec<u8>,
    total: u64,
}

impl OutputEnd {
    /// Adds a piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.total += piece.len() as u64;
        self.bytes.extend_from_slice(piece);
        if self.bytes.len() > 2 * MAX_OUTPUT_BYTES {
            self.bytes.drain(..self.bytes.len() - MAX_OUTPUT_BYTES);
        }
    }
}

/// An output: its beginning, as much of it as is kept, and its end.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub beginning: Vec<u8>,
    pub end: OutputEnd,
}

impl From<Vec<u8>> for Output {
    fn from(mut beginning: Vec<u8>) -> Self {
        let mut end = OutputEnd::default();
        end.push(&beginning);
        beginning.truncate(MAX_KEPT_BYTES);
        Self { beginning, end }
    }
}

impl Output {
    /// How much room it takes of what a model is given; more than `most` if it does not fit.
    pub fn room(&self, most: usize) -> usize {
        // Each byte takes at least one.
        match self.whole() {
            Some(bytes) if bytes.len() <= most => {
                String::from_utf8_lossy(bytes).chars().map(room_of).sum()
            }
            _ => most + 1,
        }
    }

    /// The bytes, if they are all there.
    pub fn whole(&self) -> Option<&[u8]> {
        (self.end.total == self.beginning.len() as u64).then_some(&*self.beginning)
    }

    /// Gives a model at most `most` bytes of it. What does not fit is kept under `name`.
    pub fn show(self, most: usize, outputs: &Outputs, name: &str) -> Shown {
        let is_text = !self.beginning.contains(&0);
        if is_text && self.room(most) <= most {
            let text = String::from_utf8_lossy(&self.beginning).into_owned();
            return Shown { text, is_whole: true, kept: None };
        }
        let Self { beginning: content, end: OutputEnd { bytes, total } } = self;
        let ends = is_text.then(|| (beginning(&content, most / 2), end(&bytes, most / 2)));
        let mime_type = if is_text { "text/plain" } else { "application/octet-stream" };
        let kept = outputs.keep(name, content, mime_type);
        let whole = match &kept {
            Some(kept) if kept.bytes == total => format!("the resource {} has all", kept.uri),
            Some(kept) => format!("the resource {} has the first {}", kept.uri, kept.bytes),
            None => "too many to keep".to_owned(),
        };
        let text = match ends {
            Some((beginning, end)) => {
                format!("{beginning}[... cut: {total} bytes, {whole} ...]\n{end}")
            }
            None => format!("[{total} bytes that are not text: {whole}]\n"),
        };
        Shown { text, is_whole: false, kept }
    }
}

/// The end of some bytes, with at most so much room, from a line's beginning if one is near.
fn end(bytes: &[u8], most: usize) -> String {
    let some = &bytes[bytes.len() - bytes.len().min(most)..];
    let split = some.iter().take(3).take_while(|byte| is_inside(**byte)).count();
    let text = String::from_utf8_lossy(&some[split..]);
    let (mut room, mut begin) = (0, text.len());
    for (at, character) in text.char_indices().rev() {
        room += room_of(character);
        if room > most {
            break;
        }
        begin = at;
    }
    let text = &text[begin..];
    let line = text.find('\n').filter(|at| *at < text.len() / 2);
    text[line.map_or(0, |at| at + 1)..].to_owned()
}

/// The beginning of some bytes, with at most so much room, up to a line's end if one is near.
fn beginning(bytes: &[u8], most: usize) -> String {
    let mut end = bytes.len().min(most);
    for _ in 0..3 {
        if end > 0 && bytes.get(end).is_some_and(|byte| is_inside(*byte)) {
            end -= 1;
        }
    }
    let (mut text, mut room) = (String::new(), 0);
    for character in String::from_utf8_lossy(&bytes[..end]).chars() {
        room += room_of(character);
        if room > most {
            break;
        }
        text.push(character);
    }
    match text.rfind('\n').filter(|at| *at >= text.len() / 2) {
        Some(at) => text.truncate(at + 1),
        None => text.push('\n'),
    }
    text
}

/// Whether a byte is not the first of its character.
const fn is_inside(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// What a model is given of an output.
#[derive(Debug)]
pub(crate) struct Shown {
    pub text: String,
    /// The text is all of it.
    pub is_whole: bool,
    /// What has more than the text.
    pub kept: Option<Kept>,
}

/// How many bytes a character takes in a JSON string.
const fn room_of(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        character => character.len_utf8(),
    }
}

/// Outputs of a workspace that are kept.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    kept: Mutex<KeptOutputs>,
    /// Bytes of all workspaces of the server.
    shared: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct KeptOutputs {
    /// How many there were.
    count: u64,
    bytes: usize,
    outputs: VecDeque<(Kept, Arc<[u8]>)>,
}

/// An output that is kept, as a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub uri: String,
    pub name: String,
    pub bytes: u64,
    pub mime_type: &'static str,
}

impl Outputs {
    /// None yet, of one of the workspaces that share a count.
    pub fn new(shared: Arc<AtomicU64>) -> Self {
        Self { kept: Mutex::default(), shared }
    }

    /// Keeps an output; none if there is no room for it.
    pub fn keep(&self, name: &str, content: Vec<u8>, mime_type: &'static str) -> Option<Kept> {
        let mut kept = lock(&self.kept);
        let bytes = content.len();
        let fits = |kept: &KeptOutputs| {
            let (own, all) = (kept.bytes as u64, self.shared.load(Ordering::Relaxed));
            let new = bytes as u64;
            kept.bytes + bytes <= MAX_BYTES && has_room(own + new, all + new, MAX_SHARED_BYTES)
        };
        while !fits(&kept) {
            let (_, oldest) = kept.outputs.pop_front()?;
            kept.bytes -= oldest.len();
            self.shared.fetch_sub(oldest.len() as u64, Ordering::Relaxed);
        }
        kept.count += 1;
        kept.bytes += bytes;
        self.shared.fetch_add(bytes as u64, Ordering::Relaxed);
        let uri = format!("{OUTPUTS}{}/{name}", kept.count);
        let name = name.to_owned();
        let output = Kept { uri, name, bytes: bytes as u64, mime_type };
        kept.outputs.push_back((output.clone(), content.into()));
        Some(output)
    }

    /// The output with this URI.
    pub fn find(&self, uri: &str) -> Option<(Kept, Arc<[u8]>)> {
        lock(&self.kept).outputs.iter().find(|(kept, _)| kept.uri == uri).cloned()
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        let bytes = lock(&self.kept).bytes as u64;
        self.shared.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(output: &[u8], most: usize) -> (Shown, Outputs) {
        let (mut end, outputs) = (OutputEnd::default(), Outputs::default());
        output.chunks(9_999).for_each(|piece| end.push(piece));
        let beginning = output[..output.len().min(MAX_KEPT_BYTES)].to_vec();
        (Output { beginning, end }.show(most, &outputs, "stdout"), outputs)
    }

    #[test]
    fn what_fits_is_given_as_it_is() {
        for text in ["", "a\nb", "é\u{1}\"\n"] {
            let (shown, _) = shown(text.as_bytes(), 16);
            assert_eq!((&*shown.text, shown.kept), (text, None));
        }
        let (shown, _) = shown(b"latin \xe9", 16);
        assert_eq!((&*shown.text, shown.kept), ("latin \u{fffd}", None));
    }

    #[test]
    fn what_does_not_fit_has_its_beginning_and_its_end_and_is_kept() {
        let all: String = (0..100_000).map(|number| format!("line {number} é\n")).collect();
        let (shown, outputs) = shown(all.as_bytes(), 1000);
        let kept = shown.kept.unwrap();
        assert_eq!((&*kept.uri, &*kept.name), ("sandbox://output/1/stdout", "stdout"));
        let marker = format!(
            "\n[... cut: {} bytes, the resource sandbox://output/1/stdout has all ...]\nline 99",
            all.len()
        );
        assert!(shown.text.starts_with("line 0 é\n") && shown.text.contains(&marker));
        assert!(shown.text.ends_with("\nline 99999 é\n"), "{}", shown.text);
        assert!((800..1200).contains(&shown.text.len()), "{}", shown.text.len());
        let (_, content) = outputs.find(&kept.uri).unwrap();
        assert_eq!(*content, *all.as_bytes());
        assert!(outputs.find("sandbox://output/2/stdout").is_none());
    }

    #[test]
    fn end_of_what_is_not_kept_is_the_end_and_no_character_is_split() {
        for cut in 0..4 {
            let mut all = vec![b'x'; MAX_KEPT_BYTES - 50 - cut];
            all.extend("é€😀".repeat(100).bytes());
            let (shown, outputs) = shown(&all, 400);
            let kept = shown.kept.unwrap();
            assert_eq!(kept.bytes, MAX_KEPT_BYTES as u64);
            assert!(shown.text.contains(&format!(
                "cut: {} bytes, the resource {} has the first {MAX_KEPT_BYTES} ",
                all.len(),
                kept.uri
            )));
            assert!(shown.text.ends_with("é€😀") && !shown.text.contains('\u{fffd}'));
            assert_eq!(outputs.find(&kept.uri).unwrap().1.len(), MAX_KEPT_BYTES);
        }
        // All of the end came after what is kept.
        let mut all = vec![b'x'; MAX_KEPT_BYTES + 3 * MAX_OUTPUT_BYTES];
        all.extend(b"last");
        let (shown, _) = shown(&all, MAX_OUTPUT_BYTES);
        assert!(shown.text.ends_with("xlast"));
    }

    #[test]
    fn what_is_no_text_is_kept_and_named() {
        let (shown, outputs) = shown(b"\x7fELF\0", 1000);
        let kept = shown.kept.unwrap();
        assert_eq!(
            shown.text,
            format!("[5 bytes that are not text: the resource {} has all]\n", kept.uri)
        );
        assert_eq!(kept.mime_type, "application/octet-stream");
        assert_eq!(*outputs.find(&kept.uri).unwrap().1, *b"\x7fELF\0");
    }

    #[test]
    fn room_is_that_of_json() {
        for character in ['a', '"', '\\', '\n', '\u{1}', '\u{8}', '\u{7f}', 'é', '😀'] {
            let json = serde_json::to_string(&character).unwrap();
            assert_eq!(room_of(character), json.len() - 2, "{character:?}");
        }
    }

    #[test]
    fn oldest_outputs_of_a_workspace_make_room_and_those_of_others_do_not() {
        let shared = Arc::new(AtomicU64::new(0));
        let [one, other] = [(); 2].map(|()| Outputs::new(shared.clone()));
        let keep =
            |outputs: &Outputs| outputs.keep("stdout", vec![b'x'; MAX_KEPT_BYTES], "text/plain");
        let first = keep(&one).unwrap();
        let [second, third] = [(); 2].map(|()| keep(&one).unwrap());
        assert!(one.find(&first.uri).is_none(), "it made room");
        assert!(one.find(&second.uri).is_some() && one.find(&third.uri).is_some());
        let of_other = keep(&other).unwrap();
        assert!(other.find(&of_other.uri).is_some() && other.find(&third.uri).is_none());
        // Others have much: there is less for each.
        let many: Vec<_> = (0..20).map(|_| Outputs::new(shared.clone())).collect();
        let kept = many.iter().filter_map(keep).count();
        assert!((1..20).contains(&kept), "{kept}");
        assert!(shared.load(Ordering::Relaxed) <= MAX_SHARED_BYTES);
        drop((one, other, many));
        assert_eq!(shared.load(Ordering::Relaxed), 0);
    }
}
