/** A preview of a file of a guest: pictures by their first bytes, everything else as text. HTML and SVG are text. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { OutputBuffer } from "../lib/ansi";
import { safe, safeText, bytes as size } from "../lib/format";
import { useLoad } from "../lib/load";
import { s } from "../strings";
import { Empty, ErrorBox, Spinner } from "./basic";
import { Output } from "./output";

const MAX_PICTURE = 16 * 1024 * 1024;
const MAX_TEXT = 1024 * 1024;

type Preview = { picture: string } | { text: OutputBuffer; cut: boolean } | { binary: true };

/** `load` is called again when `name` or `version` changes. A file over 16 MiB is not loaded. */
export function FileView(props: {
  name: string;
  bytes: number;
  version?: string;
  load: (signal: AbortSignal) => Promise<Blob>;
}) {
  const large = props.bytes > MAX_PICTURE;
  const { data, error, reload } = useLoad(
    async (signal) => (large ? undefined : read(await props.load(signal))),
    [props.name, props.version, large],
  );
  if (large) return <Empty title={s.file.large(size(props.bytes))}>{s.file.download}</Empty>;
  if (error) return <ErrorBox error={error} onRetry={reload} />;
  if (!data) return <Spinner />;
  return <Shown name={props.name} bytes={data.bytes} type={data.type} total={data.total} />;
}

async function read(blob: Blob): Promise<{ bytes: Uint8Array<ArrayBuffer>; type?: string; total: number }> {
  const head = new Uint8Array(await blob.slice(0, 16).arrayBuffer());
  const type = pictureType(head);
  const bytes = new Uint8Array(await (type ? blob : blob.slice(0, MAX_TEXT)).arrayBuffer());
  return { bytes, type, total: blob.size };
}

/** The type of a picture, by its first bytes: never by its name, or what the guest says. */
export function pictureType(head: Uint8Array): string | undefined {
  const begins = (...expected: number[]) => expected.every((byte, index) => head[index] === byte);
  const text = String.fromCharCode(...head);
  if (begins(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)) return "image/png";
  if (begins(0xff, 0xd8, 0xff)) return "image/jpeg";
  if (text.startsWith("GIF87a") || text.startsWith("GIF89a")) return "image/gif";
  if (text.startsWith("RIFF") && text.slice(8, 12) === "WEBP") return "image/webp";
  return undefined;
}

type ShownProps = { name: string; bytes: Uint8Array<ArrayBuffer>; type?: string; total: number };

function Shown({ name, bytes, type, total }: ShownProps) {
  const preview = useMemo((): Preview => {
    if (type) return { picture: URL.createObjectURL(new Blob([bytes], { type })) };
    const text = decoded(bytes);
    if (text === undefined) return { binary: true };
    const buffer = new OutputBuffer();
    buffer.push(safeText(text.replaceAll("\r\n", "\n")));
    return { text: buffer, cut: total > bytes.length };
  }, [bytes, type, total]);
  useEffect(
    () => () => {
      if ("picture" in preview) URL.revokeObjectURL(preview.picture);
    },
    [preview],
  );
  if ("picture" in preview) return <Picture key={preview.picture} src={preview.picture} name={name} total={total} />;
  if ("binary" in preview) return <Empty title={s.file.binary(size(total))}>{s.file.download}</Empty>;
  return (
    <>
      {preview.cut && <p class="muted">{s.file.cut(size(MAX_TEXT), size(total))}</p>}
      <Output buffer={preview.text} label={s.file.content(safe(name))} empty={s.file.empty} from="start" />
    </>
  );
}

function Picture({ src, name, total }: { src: string; name: string; total: number }) {
  const [text, setText] = useState("");
  return (
    <figure class="picture">
      <img
        src={src}
        alt={safe(name)}
        onLoad={({ currentTarget: { naturalWidth, naturalHeight } }) =>
          setText(s.file.dimensions(`${naturalWidth} × ${naturalHeight}`, size(total)))
        }
        onError={() => setText(s.file.broken)}
      />
      <figcaption class="muted small">{text}</figcaption>
    </figure>
  );
}

/** The text, or nothing if these bytes are no text. */
function decoded(bytes: Uint8Array): string | undefined {
  if (bytes.subarray(0, 8192).includes(0)) return undefined;
  const text = new TextDecoder().decode(bytes);
  const head = text.slice(0, 8192);
  const bad = head.split("\ufffd").length - 1;
  return bad > head.length / 20 ? undefined : text;
}
