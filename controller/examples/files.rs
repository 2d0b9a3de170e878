//! File operations beside scripts: write, transform in the sandbox, read, all on one container.

use sandbox_api::operation::{List, Read, Stat, Write};
use sandbox_api::{SandboxSpec, Script};
use sandbox_controller::Controller;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Docker where it runs, otherwise the embedded engine, as on the command line.
    let controller = Controller::connect(sandbox_env::config()?).await?;
    let sandbox = controller.launch(SandboxSpec::new().io_dir("files")).await?;

    // Whole files. Missing directories are created; a reader sees the old file or the new one.
    sandbox.write(Write::new("in/names.txt"), "ada\ngrace\n").await?;
    let source = r#"
        local out = io.open("out.txt", "w")
        for name in io.lines("in/names.txt") do out:write(name:upper(), "\n") end
        out:close()
    "#;
    sandbox.run(Script::new(source)).await?;
    let out = sandbox.read(Read::new("out.txt"), None).await?;
    print!("{}", out.content);

    // Any size in bounded memory. Nothing changes before `finish`.
    let mut writer = sandbox.writer(Write::new("numbers.txt")).await?;
    for number in 0..100_000 {
        writer.write_all(format!("{number}\n").as_bytes()).await?;
    }
    let written = writer.finish().await?;
    let mut first = [0; 4];
    let beginning = Read { limit: Some(4), ..Read::new("numbers.txt") };
    sandbox.reader(beginning).await?.read_exact(&mut first).await?;
    println!("{}: {} bytes, beginning with {first:?}", written.path, written.bytes_written);

    // Any number at once.
    let (stat, list) =
        tokio::join!(sandbox.stat(Stat::new("out.txt")), sandbox.list(List::new(".")));
    println!("{} {}", stat?.permissions, list?.entries.len());

    // An error has a kind, and often a hint.
    let error = sandbox.read(Read::new("../secret"), None).await.unwrap_err();
    println!("{}: {error}", error.kind());

    sandbox.close().await?;
    controller.close().await;
    Ok(())
}
