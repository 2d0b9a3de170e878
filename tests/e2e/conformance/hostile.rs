//! Scripts and io dirs that mean harm: nothing outside the io dir is read, written or named.

use std::os::unix::fs::symlink;

use serde_json::json;

use crate::place::Place;

/// A file outside the io dir, and an io dir full of ways to it.
fn planted(place: &Place) {
    place.write("outside/secret", "secret");
    let io_dir = place.path("sandbox-files");
    std::fs::create_dir_all(io_dir.join("real")).unwrap();
    std::fs::write(io_dir.join("real/file"), "inside").unwrap();
    symlink(place.path("outside/secret"), io_dir.join("link")).unwrap();
    symlink(place.path("outside"), io_dir.join("dir")).unwrap();
    symlink("../outside", io_dir.join("relative")).unwrap();
    symlink("real/file", io_dir.join("within")).unwrap();
    symlink("/proc/self/root", io_dir.join("magic")).unwrap();
    let fifo = io_dir.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o666.into(), 0)
        .unwrap();
}

#[test]
fn planted_links_and_fifos_are_refused_at_once() {
    let place = Place::new();
    planted(&place);
    let document = place.run_json(
        r#"
            local seen = {}
            local function try(name, f, ...)
                local ok, e = pcall(f, ...)
                seen[name] = if ok then "done" else "refused"
            end
            for _, name in { "link", "dir/secret", "relative/secret", "within", "magic/etc/passwd", "fifo",
                "../outside/secret", "/etc/passwd", "/proc/self/environ", "~/../x", "real/../../outside/secret",
                "/io/../etc/passwd", "./link", "dir/./secret" } do
                for _, mode in { "r", "w", "a", "r+", "w+", "a+" } do
                    try(`{mode} {name}`, io.open, name, mode)
                end
                try(`lines {name}`, io.lines, name)
            end
            try("list dir", io.list, "dir")
            try("list relative", io.list, "relative")
            try("remove through", os.remove, "dir/secret")
            try("rename through", os.rename, "dir/secret", "stolen")
            try("rename out", os.rename, "real/file", "dir/planted")
            try("new through", io.open, "dir/new", "w")
            try("new below", io.open, "link/new/deep", "w")
            return seen
        "#,
        &[],
    );
    assert_eq!(document["status"], "ok", "{document:#}");
    for (name, answer) in document["result"].as_object().unwrap() {
        assert_eq!(answer, "refused", "{name}");
    }
    assert_eq!(document["files_touched"], json!([]), "{document:#}");
    assert_eq!(place.read("outside/secret"), "secret");
    assert_eq!(std::fs::read_dir(place.path("outside")).unwrap().count(), 1);
}

#[test]
fn removing_and_renaming_a_link_moves_the_link_itself() {
    let place = Place::new();
    planted(&place);
    let document =
        place.run_json("os.rename('link', 'moved') os.remove('dir') return io.list()", &[]);
    assert_eq!(document["status"], "ok", "{document:#}");
    assert_eq!(place.read("outside/secret"), "secret");
    assert!(place.path("sandbox-files/moved").symlink_metadata().unwrap().is_symlink());
    assert!(place.path("sandbox-files/dir").symlink_metadata().is_err());
}

#[test]
fn what_a_script_is_told_names_no_host_path() {
    let place = Place::new();
    planted(&place);
    place.write("given.txt", "x");
    let host = place.work();
    let host = host.to_str().unwrap();
    // The one mount whose source and name differ, a link that names the host, and failures.
    let document = place.run_json(
        r#"
            local told = { debug.traceback(), tostring(io.open("/in/given.txt")) }
            local function try(f, ...) table.insert(told, (select(2, pcall(f, ...)))) end
            try(io.open, "link") try(io.open, "dir/secret") try(io.open, "none/x")
            try(io.open, "/in/other") try(os.rename, "real/file", "/in/given.txt")
            try(os.remove, "/in/given.txt") try(io.list, "relative") try(io.open, "/in/given.txt", "w")
            return told
        "#,
        &["--in", "given.txt"],
    );
    assert_eq!(document["status"], "ok", "{document:#}");
    let told = document["result"].to_string();
    assert!(!told.contains(host) && !told.contains("outside/"), "{told}");
}
