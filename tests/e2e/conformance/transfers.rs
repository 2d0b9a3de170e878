//! Content on its way, and what becomes of it when somebody stops it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use sandbox_api::files::WriteMode;
use sandbox_api::operation::{Edit, Exists, List, Mkdir, Read, Remove, Rename, Stat, Write};
use sandbox_api::{ByteSize, Limits, SandboxSpec, Script};
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::limits::{INITIAL_CREDIT, MAX_IN_FLIGHT};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::mounts::HostMount;
use crate::engine::engine;
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, TIMEOUT, eventually};
use crate::library::{Guest, Library, give_up_after, kind_of};

const MIB: usize = 1 << 20;

/// Limits for large files, and time for a slow machine.
fn ample() -> Limits {
    Limits {
        max_file_size: ByteSize::b(1 << 30),
        max_write: ByteSize::b(1 << 30),
        operation_timeout: Duration::from_secs(300),
        ..Limits::default()
    }
}

/// Bytes of which no two blocks are the same, `number` of their piece.
fn piece(number: usize) -> Vec<u8> {
    let mut piece = vec![b'.'; MIB];
    for (block, start) in (0..MIB).step_by(512).enumerate() {
        let stamp = (number as u64) << 32 | block as u64;
        piece[start..start + 8].copy_from_slice(&stamp.to_ne_bytes());
    }
    piece
}

/// All names below the io dir.
fn names(io_dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(io_dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The most memory that the one agent of a place used, in KiB.
fn agents_peak_kib(place: &Fixture) -> u64 {
    let containers = place.containers();
    assert_eq!(containers.len(), 1);
    engine().peak_memory_kib(&containers[0])
}

/// What an error of a reader or writer has inside.
fn kind_inside(error: &std::io::Error) -> &'static str {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    error.unwrap_or_else(|| panic!("no error of the library in {error:?}")).kind().as_str()
}

#[test]
fn ten_mebibytes_go_both_ways_byte_by_byte() {
    let guest = Guest::new();
    let content: Vec<u8> = (0..10).flat_map(piece).collect();
    guest.wait(async {
        let sandbox = &guest.sandbox;
        let written = sandbox.write(Write::new("whole"), &content).await.unwrap();
        assert_eq!(written.bytes_written, content.len() as u64);
        let mut writer = sandbox.writer(Write::new("pieces")).await.unwrap();
        // Pieces of any size.
        for part in content.chunks(77_777) {
            writer.write_all(part).await.unwrap();
        }
        assert!(!guest.place.path("sandbox-files/pieces").exists(), "nothing before its end");
        writer.finish().await.unwrap();
        for name in ["whole", "pieces"] {
            assert!(fs::read(guest.place.path("sandbox-files").join(name)).unwrap() == content);
            assert!(sandbox.read_bytes(Read::new(name)).await.unwrap() == content);
            let mut read = Vec::new();
            let mut reader =
                sandbox.reader(Read { offset: 5, limit: None, ..Read::new(name) }).await.unwrap();
            reader.read_to_end(&mut read).await.unwrap();
            assert!(read == content[5..]);
            assert_eq!(reader.read(&mut [0]).await.unwrap(), 0, "asked again after its end");
        }
        let one_more = sandbox.write(Write::new("whole"), [&content[..], b"x"].concat());
        assert_eq!(kind_of(one_more.await), "too_large");
        assert!(
            sandbox.read_bytes(Read::new("whole")).await.unwrap() == content,
            "the old one, whole"
        );
    });
}

#[test]
fn large_file_goes_both_ways_and_the_agent_holds_none_of_it() {
    // Thirty times what the agent may grow by.
    let size: u64 = 1 << 28;
    // Where the io dir is in memory, its files count too.
    let limits = Limits { memory: ByteSize::b(4 * size), ..ample() };
    let guest = Guest::with(|spec| spec.limits(limits));
    let (sent, received) = guest.wait(async {
        let sandbox = &guest.sandbox;
        // What it takes for a megabyte, it may take.
        guest.place.write("sandbox-files/small", piece(0));
        sandbox.read_bytes(Read::new("small")).await.unwrap();
        let before = agents_peak_kib(&guest.place);
        let mut writer = sandbox.writer(Write::new("large")).await.unwrap();
        let mut sent = Sha256::new();
        for number in 0..usize::try_from(size).unwrap() / MIB {
            let piece = piece(number);
            sent.update(&piece);
            if writer.write_all(&piece).await.is_err() {
                // Its end says why.
                break;
            }
        }
        let written = writer.finish().await.unwrap();
        assert_eq!(written.bytes_written, size);
        let mut reader = sandbox.reader(Read::new("large")).await.unwrap();
        let (mut received, mut buffer) = (Sha256::new(), vec![0; MIB]);
        loop {
            match reader.read(&mut buffer).await.unwrap() {
                0 => break,
                length => received.update(&buffer[..length]),
            }
        }
        // Another kernel's memory is not seen from here.
        if has(Feature::SharedKernel) {
            let grown = agents_peak_kib(&guest.place) - before;
            assert!(grown < 8 << 10, "{grown} KiB");
        }
        (sent.finalize(), received.finalize())
    });
    assert_eq!(sent, received);
    assert_eq!(fs::metadata(guest.place.path("sandbox-files/large")).unwrap().len(), size);
}

#[test]
fn sixty_four_operations_at_once_beside_a_run_each_get_their_own_answer() {
    // The script runs for as long as the operations take, on any machine.
    let limits = Limits { timeout: Duration::from_secs(600), ..ample() };
    let guest = Guest::with(|spec| spec.limits(limits));
    let source = "while not fs.exists('stop') do fs.write('beat', 'x') end return 'stopped'";
    std::thread::scope(|scope| {
        let run = scope.spawn(|| guest.wait(guest.sandbox.run(Script::new(source))).unwrap());
        eventually("the script runs", || {
            guest.place.path("sandbox-files/beat").exists().then_some(())
        });
        let operate = |number: usize| {
            let (guest, name) = (&guest, format!("d{}/f{number}", number % 4));
            let content: Vec<u8> = piece(number)[..number * 1000].to_vec();
            guest.wait(async {
                let sandbox = &guest.sandbox;
                sandbox.write(Write::new(&name), &content).await.unwrap();
                assert!(sandbox.read_bytes(Read::new(&name)).await.unwrap() == content);
                let stat = sandbox.stat(Stat::new(&name)).await.unwrap();
                assert_eq!(
                    (stat.path, stat.size),
                    (format!("/io/{name}").into(), content.len() as u64)
                );
                sandbox.call(Rename::new(&name, format!("{name}-done"))).await.unwrap();
            });
        };
        let all: Vec<_> = (0..64).map(|number| scope.spawn(move || operate(number))).collect();
        for one in all {
            one.join().unwrap();
        }
        guest.wait(guest.sandbox.write(Write::new("stop"), "")).unwrap();
        let run = run.join().unwrap();
        assert_eq!(run.outcome.status().as_str(), "ok", "{run:?}");
    });
    let list = List { recursive: true, ..List::new(".") };
    let listed = guest.wait(guest.sandbox.list(list)).unwrap();
    let names = listed.entries.iter().map(|entry| entry.name.as_bytes());
    let done = names.filter(|name| name.ends_with(b"-done")).count();
    assert_eq!(done, 64);
}

#[test]
fn abandoned_transfer_changes_nothing_and_frees_its_slot() {
    let (old, new) = ("old".repeat(1000), vec![b'n'; 8 * MIB]);
    // More of each than the limit of concurrent operations, each cancelled at another point, none
    // near its end.
    let polls = 1..=20;
    assert!(*polls.end() > MAX_IN_FLIGHT);
    assert!(*polls.end() as u64 * INITIAL_CREDIT < new.len() as u64);
    // The point at which an operation is cancelled must not depend on time. With one thread the
    // agent's messages are processed between two polls, so that in one poll no more content moves
    // than there is initial credit. With two threads a poll may see a whole write through: there
    // only operations that cannot end by themselves are cancelled, and the library goes on
    // meanwhile.
    for has_one_thread in [true, false] {
        let guest = match has_one_thread {
            true => Guest::in_one_thread(|spec| spec.limits(ample())),
            false => Guest::with(|spec| spec.limits(ample())),
        };
        guest.place.write("sandbox-files/f", &old);
        guest.place.write("sandbox-files/large", vec![7; 8 * MIB]);
        for polls in polls.clone() {
            let begin = async {
                let sandbox = &guest.sandbox;
                if has_one_thread {
                    give_up_after(polls, sandbox.write(Write::new("f"), &new)).await;
                    give_up_after(polls, sandbox.read(Read::new("large"), None)).await;
                }
                let mut writer = sandbox.writer(Write::new("f")).await.unwrap();
                writer.write_all(&new[..MIB]).await.unwrap();
                let append = Write { mode: WriteMode::Append, ..Write::new("f") };
                let mut appending = sandbox.writer(append).await.unwrap();
                appending.write_all(b"more").await.unwrap();
                (sandbox.reader(Read::new("large")).await.unwrap(), writer, appending)
            };
            let begun = guest.wait(async { timeout(TIMEOUT, begin).await });
            let (reader, writer, appending) = begun.expect("no place is free");
            // Outside of the runtime, as a program may drop them.
            drop(reader);
            drop(writer);
            drop(appending);
        }
        // All places are free again: as many as there are can be had at once.
        guest.wait(async {
            let all = async {
                let mut readers = Vec::new();
                for _ in 0..MAX_IN_FLIGHT {
                    // Each with more than there is credit for: none is at its end before it is read.
                    let part = guest
                        .sandbox
                        .reader(Read { offset: 0, limit: Some(MIB as u64), ..Read::new("large") })
                        .await;
                    readers.push(part.unwrap());
                }
                readers
            };
            for mut reader in timeout(TIMEOUT, all).await.expect("a place is kept") {
                let mut content = Vec::new();
                reader.read_to_end(&mut content).await.unwrap();
                assert_eq!(content.len(), MIB);
            }
        });
        // So all are answered, and this is what they left.
        let left = guest.place.read("sandbox-files/f");
        assert!(left == old, "{} bytes from an abandoned write", left.len());
        assert_eq!(names(&guest.place.path("sandbox-files")), ["f", "large"]);
    }
}

#[test]
fn a_container_killed_in_the_middle_is_agent_lost_with_the_old_file_whole() {
    for mode in [WriteMode::Overwrite, WriteMode::Append, WriteMode::CreateNew] {
        let guest = Guest::with(|spec| spec.limits(ample()));
        let io_dir = guest.place.path("sandbox-files");
        if mode != WriteMode::CreateNew {
            guest.place.write("sandbox-files/f", "old");
        }
        guest.place.write("sandbox-files/large", vec![7; 8 * MIB]);
        let before = names(&io_dir);
        guest.wait(async {
            let write = Write { mode, ..Write::new("f") };
            let mut writer = guest.sandbox.writer(write).await.unwrap();
            let mut reader = guest.sandbox.reader(Read::new("large")).await.unwrap();
            writer.write_all(&vec![b'n'; 2 * MIB]).await.unwrap();
            reader.read_exact(&mut [0; 1000]).await.unwrap();
            engine().kill(&guest.place.containers()[0]);
            // However much was accepted, its end reports the truth.
            while writer.write_all(&[b'n'; 1000]).await.is_ok() {}
            let error = writer.finish().await.unwrap_err();
            assert_eq!(error.kind().as_str(), "agent_lost");
            assert!(!error.to_string().contains("broke the protocol"), "{error}");
            let error = reader.read_to_end(&mut Vec::new()).await.unwrap_err();
            assert_eq!(kind_inside(&error), "agent_lost");
            let write = guest.sandbox.write(Write::new("f"), "new");
            assert_eq!(kind_of(write.await), "agent_lost");
        });
        let mut left = names(&io_dir);
        if !has(Feature::SharedKernel) {
            // Another kernel has no files without a name: what was received of the content stays.
            left.retain(|name| !name.starts_with(".sandboxctl-"));
        }
        assert_eq!(left, before, "{mode:?}");
        if mode != WriteMode::CreateNew {
            assert_eq!(guest.place.read("sandbox-files/f"), "old");
        }
    }
}

#[test]
fn of_a_hundred_thousand_entries_the_first_are_given_in_bounded_memory() {
    let guest = Guest::with(|spec| spec.limits(ample()));
    let io_dir = guest.place.path("sandbox-files/d");
    fs::create_dir(&io_dir).unwrap();
    let directory = fs::File::open(&io_dir).unwrap();
    for number in 0..100_000 {
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let name = format!("{:05}", (number * 7919) % 100_000);
        rustix::fs::openat(&directory, name, flags, 0o644.into()).unwrap();
    }
    guest.wait(async {
        let sandbox = &guest.sandbox;
        let before = agents_peak_kib(&guest.place);
        let listed = sandbox.list(List::new("d")).await.unwrap();
        assert_eq!((listed.entries.len(), listed.truncated), (10_000, true));
        assert!((0..10_000).all(|at| listed.entries[at].name == *format!("{at:05}")));
        if has(Feature::SharedKernel) {
            let grown = agents_peak_kib(&guest.place) - before;
            assert!(grown < 16 << 10, "{grown} KiB");
        }
        let remove = Remove { recursive: true, ..Remove::new("d") };
        assert_eq!(sandbox.call(remove).await.unwrap().entries, 100_001);
    });
}

#[test]
fn an_operation_out_of_its_time_says_so_and_the_sandbox_goes_on() {
    let limits = Limits { operation_timeout: Duration::from_millis(1), ..Limits::default() };
    let guest = Guest::with(|spec| spec.limits(limits));
    for number in 0..5000 {
        guest.place.write(&format!("sandbox-files/d{}/{number}", number % 7), "");
    }
    guest.wait(async {
        let sandbox = &guest.sandbox;
        let list = List { recursive: true, ..List::new(".") };
        let error = sandbox.list(list).await.unwrap_err();
        assert_eq!(error.kind().as_str(), "timeout");
        assert_eq!((error.exit_code(), error.to_string().contains("1 ms")), (124, true), "{error}");
        assert!(error.hint().unwrap().contains("filesystem.timeout"));
        let remove = Remove { recursive: true, ..Remove::new("d1") };
        assert_eq!(kind_of(sandbox.call(remove).await), "timeout");
        // One that is quick enough may come first, or second.
        while let Err(error) = sandbox.call(Exists::new("d0")).await {
            assert_eq!(error.kind().as_str(), "timeout", "{error}");
        }
    });
}

async fn write(sandbox: &Sandbox, mode: WriteMode, atomic: bool) -> Result<(), Error> {
    let write = Write { mode, atomic, ..Write::new("f") };
    sandbox.write(write, vec![b'n'; 3 * MIB]).await.map(drop)
}

#[test]
fn a_full_disk_leaves_the_old_file_whole_and_nothing_beside_it() {
    let place = Fixture::new();
    let io_dir = place.path("sandbox-files");
    let _disk = HostMount::memory(io_dir.clone(), c"size=4m,nr_inodes=100,mode=0755");
    let library = Library::new(&place);
    let old = vec![b'o'; 2 * MIB];
    fs::write(io_dir.join("f"), &old).unwrap();
    let sandbox = library.launch(SandboxSpec::new().io_dir(&io_dir));
    library.wait(async {
        use WriteMode::{Append, Overwrite};
        for (mode, atomic) in [(Overwrite, true), (Overwrite, false), (Append, true)] {
            assert_eq!(kind_of(write(&sandbox, mode, atomic).await), "disk_full", "{mode:?}");
            assert_eq!(names(&io_dir), ["f"]);
            assert!(fs::read(io_dir.join("f")).unwrap() == old, "{mode:?}");
        }
        let mut writer = sandbox.writer(Write::new("g")).await.unwrap();
        while writer.write_all(&[0; 4096]).await.is_ok() {}
        assert_eq!(kind_of(writer.finish().await), "disk_full");
        // What was reserved is given back.
        sandbox.write(Write::new("g"), vec![0; MIB]).await.unwrap();
        sandbox.call(Remove::new("g")).await.unwrap();
        // Names can run out too.
        let mut made = 0;
        let full = loop {
            match sandbox.write(Write::new(format!("n{made}")), "").await {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind().as_str(), "disk_full");
        assert_eq!(names(&io_dir).len(), 1 + made);
        assert_eq!(kind_of(sandbox.call(Mkdir::new("d/e")).await), "disk_full");
        let edited = sandbox.call(Edit::new("f", "o", "n")).await;
        assert!(edited.is_err());
        assert!(fs::read(io_dir.join("f")).unwrap() == old);
    });
}
