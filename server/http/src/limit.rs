//! How large the bodies of routes may be.

/// How large a body may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A few members.
    Small,
    /// A request with its inputs.
    Request,
    /// A file.
    Upload,
    /// So many bytes.
    Bytes(u64),
    /// So many bytes, encoded in any way and at any pace: they are passed on as they come.
    Stream(u64),
}
