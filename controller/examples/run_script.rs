//! A program that embeds the controller: runs a script, shows its log live, and looks at the end.

use std::path::PathBuf;

use sandbox_api::{Lifespan, Outcome, SandboxSpec, Script};
use sandbox_controller::{Config, Controller};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The library reads no environment: what the program knows, it says.
    let state = std::env::var_os("XDG_RUNTIME_DIR").map_or(std::env::temp_dir(), PathBuf::from);
    let mut config = Config::new(state.join("sandboxctl"));
    config.engine.docker.env_host = std::env::var("DOCKER_HOST").ok();
    config.engine.docker.sockets = vec!["/var/run/docker.sock".into()];

    let controller = Controller::connect(config).await?;
    let spec = SandboxSpec::new().io_dir("out").lifespan(Lifespan::OneRun);
    let sandbox = controller.launch(spec).await?;

    let source = "print('working') io.open('answer.txt', 'w'):write(42):close() return 6 * 7";
    let mut run = sandbox.start(Script::new(source)).await?;
    while let Some(entry) = run.next_log().await {
        println!("log: {}", entry.text);
    }
    let run = run.wait().await?;

    // What the script did is data; an `Err` above would have meant that our side failed.
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
