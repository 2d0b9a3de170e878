/** An execution that is followed until its end. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { OutputBuffer } from "../../lib/ansi";
import { follow, get, type StreamEvent } from "../../lib/api";
import { useLoad } from "../../lib/load";
import type { Execution, ExecutionEvent } from "../../lib/wire";
import { s } from "../../strings";
import { hasEnded } from "./verdict";

export type Followed = {
  data?: Execution;
  error?: Error;
  output: OutputBuffer;
  connection: "live" | "lost" | "ended";
  reload: () => void;
};

export function useExecution(id: string): Followed {
  const path = `/executions/${encodeURIComponent(id)}`;
  const { data, error, reload } = useLoad((signal) => get<Execution>(path, {}, signal), [id]);
  const [connection, setConnection] = useState<Followed["connection"]>("live");
  const [streamError, setStreamError] = useState<Error>();
  const output = useMemo(() => new OutputBuffer(), [id]);
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const abort = new AbortController();
    const write = writer(output);
    setConnection("live");
    setStreamError(undefined);
    const on = ({ event, data: record }: StreamEvent) => {
      write(record as ExecutionEvent);
      // The events of what has ended are told from its begin, and its document is there.
      const isNews = !latest.current || !hasEnded(latest.current);
      if (isNews && (event === "start" || event === "end")) reload();
      if (event === "end") setConnection("ended");
    };
    follow(`${path}/events`, on, { signal: abort.signal, onState: setConnection }).catch(setStreamError);
    return () => abort.abort();
  }, [id, output]);
  return { data, error: error ?? streamError, output, connection, reload };
}

/** Writes events into a buffer. Output that is not UTF-8 is decoded, a stream each. */
function writer(output: OutputBuffer): (event: ExecutionEvent) => void {
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  return ({ event, text, stream, encoding, level }) => {
    if (event === "omitted") output.line(s.execution.omitted, "note");
    if (typeof text !== "string") return;
    if (event === "log") output.line(text, level === "warn" ? "warn" : level === "truncated" ? "note" : "log");
    if (event === "output") {
      const source = stream ?? "stdout";
      const bytes = encoding === "base64" ? Uint8Array.from(atob(text), (c) => c.charCodeAt(0)) : undefined;
      output.push(bytes ? decoders[source].decode(bytes, { stream: true }) : text, source);
    }
  };
}
