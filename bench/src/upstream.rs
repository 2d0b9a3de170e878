//! An MCP server with one tool, which answers at once: what scripts call in P16.

use std::io::{BufRead as _, Write as _};

use serde_json::{Value, json};

/// The lines of each answer.
const LINES: usize = 500;

/// Serves stdin and stdout until stdin ends, in the revision that a client of any age speaks.
pub fn serve() -> std::io::Result<()> {
    let rows: String = (0..LINES).map(|line| format!("item {line:04},{line}\n")).collect();
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        let Some(id) = message.get("id") else { continue };
        let answer = match message["method"].as_str() {
            Some("initialize") => json!({ "result": {
                "protocolVersion": "2025-11-25",
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "sandbox-bench", "version": "1" },
            } }),
            Some("tools/list") => json!({ "result": { "tools": [{
                "name": "read",
                "description": "The rows of a table.",
                "inputSchema": { "type": "object", "properties": { "number": { "type": "integer" } } },
                "annotations": { "readOnlyHint": true },
            }] } }),
            Some("tools/call") => json!({ "result": {
                "content": [{ "type": "text", "text": rows }],
                "isError": false,
            } }),
            _ => json!({ "error": { "code": -32601, "message": "method not found" } }),
        };
        let mut answer = answer;
        answer["jsonrpc"] = "2.0".into();
        answer["id"] = id.clone();
        writeln!(stdout, "{answer}")?;
        stdout.flush()?;
    }
    Ok(())
}
