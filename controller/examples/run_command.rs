//! A program that embeds the controller: runs a command in an image, then one with live input and output.

use sandbox_api::{ExecutionEvent, Limits, OutputStream, Pull, RootFs, SandboxSpec};
use sandbox_controller::{CancelHandle, Command, Controller, Stdin};
use tokio::io::AsyncWriteExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Docker where it runs, otherwise the embedded engine, as on the command line.
    let controller = Controller::connect(sandbox_env::config()?).await?;

    let reference = std::env::args().nth(1).unwrap_or("python:3.13-slim".to_owned());
    let image = RootFs::Image { reference, pull: Pull::Missing };
    let spec = SandboxSpec::new().root(image).io_dir("out").limits(Limits::default());
    let sandbox = controller.launch(spec).await?;

    // Collected: the first 1,000,000 bytes of each output.
    let command = Command::shell("echo $((6 * 7)) | tee answer.txt; exit 3");
    let result = sandbox.run(command).await?;
    let text = String::from_utf8_lossy(&result.stdout().bytes);
    println!("{}, {:?}: {text}", result.outcome.status(), result.command_exit_code());
    for file in &result.files_touched.files {
        println!("{:?} {} ({} bytes)", file.op, file.name, file.bytes);
    }

    // Streamed: `cat` repeats its input. It waits while its output is not read.
    let cat = Command::new("cat").stdin(Stdin::Stream);
    let mut execution = sandbox.start(cat, CancelHandle::new()).await?;
    let mut stdin =
        execution.stdin().expect("the command was given a stream, which was not taken yet");
    stdin.write_all(b"hello\n").await?;
    // EOF.
    drop(stdin);
    while let Some(event) = execution.next().await {
        if let ExecutionEvent::Output { stream, data } = event {
            let text = String::from_utf8_lossy(&data);
            match stream {
                OutputStream::Stdout => print!("{text}"),
                OutputStream::Stderr => eprint!("{text}"),
            }
        }
    }
    let result = execution.wait().await?;
    println!("{}", result.outcome.status());

    sandbox.close().await?;
    controller.close().await;
    Ok(())
}
