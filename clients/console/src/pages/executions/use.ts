/** An execution that is followed until its end. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { OutputBuffer, writer } from "../../lib/ansi";
import { follow, get, type StreamEvent } from "../../lib/api";
import { useLoad } from "../../lib/load";
import type { Execution } from "../../lib/wire";
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
      write(record);
      // An execution that has ended sends its events from the first on, and its document is there.
      const isNews = !latest.current || !hasEnded(latest.current);
      if (isNews && (event === "start" || event === "end")) reload();
      if (event === "end") setConnection("ended");
    };
    follow(`${path}/events`, on, { signal: abort.signal, onState: setConnection }).catch(setStreamError);
    return () => abort.abort();
  }, [id, output]);
  return { data, error: error ?? streamError, output, connection, reload };
}
