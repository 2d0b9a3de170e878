//! The last lines of what a command prints, in which it says why it fails.

/// How much is kept.
const TAIL_BYTES: usize = 16 << 10;
/// How much of it is shown with an error.
const LAST_LINES: usize = 10;
const LAST_LINES_BYTES: usize = 3 << 10;

/// The end of a command's output.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    pub fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
        self.0.drain(..self.0.len().saturating_sub(TAIL_BYTES));
    }

    /// Its last lines, as plain text.
    pub fn last_lines(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let text = anstream::adapter::strip_str(&text).to_string();
        let mut bytes = 0;
        let mut lines: Vec<_> = text
            .trim_end()
            .lines()
            .rev()
            .take(LAST_LINES)
            .take_while(|line| {
                bytes += line.len();
                bytes <= LAST_LINES_BYTES
            })
            .collect();
        lines.reverse();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_are_few_and_plain() {
        let mut tail = Tail::default();
        assert_eq!(tail.last_lines(), "");
        for number in 0..5000 {
            tail.push(format!("line {number}\r\n").as_bytes());
        }
        tail.push(b"\x1b[31mError\x1b[0m: \xff\n\n");
        let text = tail.last_lines();
        assert_eq!(text.lines().count(), LAST_LINES);
        assert!(text.starts_with("line 4991\n") && text.ends_with("\nError: \u{fffd}"), "{text}");
        tail.push(&[b'x'; TAIL_BYTES]);
        assert_eq!(tail.last_lines(), "", "no line is that long");
    }
}
