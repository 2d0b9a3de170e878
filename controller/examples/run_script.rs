//! A program that embeds the controller: runs a script, prints its log as it arrives, then its result.

use sandbox_api::{ExecutionEvent, Lifespan, Outcome, SandboxSpec, Script};
use sandbox_controller::{CancelHandle, Controller};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Docker where it runs, otherwise the embedded engine, as on the command line.
    let controller = Controller::connect(sandbox_env::config()?).await?;
    let spec = SandboxSpec::new().io_dir("out").lifespan(Lifespan::OneRun);
    let sandbox = controller.launch(spec).await?;

    let source = "print('working') io.open('answer.txt', 'w'):write(42):close() return 6 * 7";
    let mut run = sandbox.start(Script::new(source), CancelHandle::new()).await?;
    while let Some(event) = run.next().await {
        if let ExecutionEvent::Log(entry) = event {
            println!("log: {}", entry.text);
        }
    }
    let run = run.wait().await?;

    // What the script did is data; an `Err` above means that sandboxctl or the engine failed.
    match &run.outcome {
        Outcome::Ok { result } => println!("result: {result}"),
        other => println!("{:?}, exit code {}", other.status(), run.exit_code()),
    }
    for file in &run.files_touched.files {
        println!("{:?} {} ({} bytes)", file.op, file.name, file.bytes);
    }

    sandbox.close().await?;
    controller.close().await;
    Ok(())
}
