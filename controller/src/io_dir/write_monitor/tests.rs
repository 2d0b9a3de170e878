use sandbox_dirfd::Links;
use tokio::runtime::Handle;

use super::*;
use crate::io_dir::IoDir;

#[tokio::test]
async fn nothing_is_started_in_an_io_dir_that_was_not_measured() {
    let dir = tempfile::tempdir().unwrap();
    let io_dir = Arc::new(IoDir::open(dir.path(), Links::Follow).unwrap());
    let scanner = Scanner { io_dir, is_prompt: Arc::default(), runtime: Handle::current() };
    let monitor = WriteMonitor { scanner, limits: Limits::default(), before: None };
    assert_eq!(monitor.refusal().unwrap().kind, ErrorKind::WriteLimit);
}
