use super::*;

#[test]
fn inputs_are_regular_files_or_directories_with_one_plain_name_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "x").unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
    let open = |inputs: &[(&Path, &str)]| {
        let inputs = inputs.iter().map(|&(path, name)| Input::path(path, name)).collect();
        open_inputs(inputs, Links::Follow, &dir.path().join("spool"))
            .map_err(|error| error.to_string())
    };
    assert_eq!(open(&[(&file, "a"), (dir.path(), "b")]).unwrap().len(), 2);
    for (inputs, words) in [
        (vec![(file.as_path(), "a"), (file.as_path(), "a")], "two of this name"),
        (vec![(fifo.as_path(), "a")], "FIFO"),
        (vec![(Path::new("/dev/null"), "a")], "device"),
        (vec![(Path::new("/nowhere"), "a")], "No such file"),
        (vec![(file.as_path(), "..")], "not a file name"),
        (vec![(file.as_path(), "a/b")], "contains a '/'"),
        (vec![(file.as_path(), "")], "empty"),
    ] {
        let error = open(&inputs).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn bytes_are_spooled_for_as_long_as_the_input_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = vec![Input::bytes("stdin", b"hello".to_vec())];
    let inputs = open_inputs(inputs, Links::Follow, &dir.path().join("spool")).unwrap();
    let source = PathBuf::from(&inputs[0].source.path);
    assert_eq!(fs::read(&source).unwrap(), b"hello");
    drop(inputs);
    assert!(!source.exists());
}
