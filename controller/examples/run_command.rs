//! A program that embeds the controller: a command in an image, collected; and one that it talks with.

use std::path::PathBuf;

use sandbox_api::{Limits, Pull, RootFs, SandboxSpec};
use sandbox_controller::{Command, Config, Controller, ExecStream, Stdin};
use tokio::io::AsyncWriteExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let state = std::env::var_os("XDG_RUNTIME_DIR").map_or(std::env::temp_dir(), PathBuf::from);
    let mut config = Config::new(state.join("sandboxctl"));
    config.engine.docker.sockets = vec!["/var/run/docker.sock".into()];
    let controller = Controller::connect(config).await?;

    let reference = std::env::args().nth(1).unwrap_or("python:3.13-slim".to_owned());
    let image = RootFs::Image { reference, pull: Pull::Missing };
    let spec = SandboxSpec::new().root(image).io_dir("out").limits(Limits::default());
    let sandbox = controller.launch(spec).await?;

    // Collected: the first 1,000,000 bytes of each output.
    let command = Command::shell("echo $((6 * 7)) | tee answer.txt; exit 3");
    let result = sandbox.exec(command).await?;
    let text = String::from_utf8_lossy(&result.stdout);
    println!("{}, {:?}: {text}", result.outcome.status(), result.exit_code);
    for file in &result.files_touched.files {
        println!("{:?} {} ({} bytes)", file.op, file.name, file.bytes);
    }

    // Streamed: `cat` says what it hears. What is not taken makes it wait.
    let mut execution = sandbox.start_exec(Command::new("cat").stdin(Stdin::Stream)).await?;
    let mut stdin = execution.stdin().expect("the command has it, and nobody took it");
    stdin.write_all(b"hello\n").await?;
    // Its end of file.
    drop(stdin);
    while let Some((stream, piece)) = execution.next_output().await {
        match stream {
            ExecStream::Stdout => print!("{}", String::from_utf8_lossy(&piece)),
            ExecStream::Stderr => eprint!("{}", String::from_utf8_lossy(&piece)),
        }
    }
    let result = execution.wait().await?;
    println!("{}", result.outcome.status());

    sandbox.close().await?;
    controller.close().await;
    Ok(())
}
