//! `sandboxctl`: runs untrusted Luau scripts, each in a fresh container.

fn main() -> std::process::ExitCode {
    sandboxctl::main()
}
