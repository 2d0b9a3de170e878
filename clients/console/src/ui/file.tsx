/** A preview of a file of a guest: pictures by their first bytes, everything else as text. HTML and SVG are text. */
import { useEffect, useState } from "preact/hooks";
import { OutputBuffer } from "../lib/ansi";
import { blob as load } from "../lib/api";
import { safe, safeText, bytes as size } from "../lib/format";
import { useLoad } from "../lib/load";
import { s } from "../strings";
import { Button, Empty, Loaded, useAction } from "./basic";
import { Output } from "./output";

const MAX_PICTURE = 16 * 1024 * 1024;
const MAX_PIXELS = 16_000_000;
const MAX_TEXT = 1024 * 1024;

type Preview = { picture: Blob } | { text: OutputBuffer; cut: boolean } | "binary" | "large";

/** `load` is called again when `name` or `version` changes. A file over 16 MiB is not loaded. */
export function FileView(props: {
  name: string;
  bytes: number;
  version?: string;
  load: (signal: AbortSignal) => Promise<Blob>;
}) {
  const { bytes, name } = props;
  const preview = useLoad(
    async (signal) => (bytes > MAX_PICTURE ? "large" : read(await props.load(signal))),
    [name, props.version, bytes],
  );
  return (
    <Loaded of={preview}>
      {(data) => {
        if (data === "large") return <Empty title={s.file.large(size(bytes))}>{s.file.download}</Empty>;
        if (data === "binary") return <Empty title={s.file.binary(size(bytes))}>{s.file.download}</Empty>;
        if ("picture" in data) return <Picture picture={data.picture} name={name} />;
        return (
          <>
            {data.cut && <p class="muted">{s.file.cut(size(MAX_TEXT), size(bytes))}</p>}
            <Output buffer={data.text} label={s.file.content(safe(name))} empty={s.file.empty} from="start" />
          </>
        );
      }}
    </Loaded>
  );
}

/** Saves what the service has at a path, under this name. It is fetched, since a link sends no proof of the session. */
export function Download({ path, name, text, inRow }: { path: string; name: string; text: string; inRow?: boolean }) {
  const { busy, run, failure } = useAction();
  const save = async () => {
    const address = URL.createObjectURL(await load(path));
    Object.assign(document.createElement("a"), { href: address, download: safe(name) }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  };
  const row = inRow && ({ kind: "quiet", "aria-label": s.left.downloadOf(safe(name)) } as const);
  return (
    <>
      <Button {...row} busy={busy} onClick={() => void run(save)} label={text} />
      {failure}
    </>
  );
}

async function read(blob: Blob): Promise<Preview> {
  const bytes = new Uint8Array(await blob.slice(0, MAX_TEXT).arrayBuffer());
  const type = pictureType(bytes.subarray(0, 16));
  if (type) return { picture: blob.slice(0, blob.size, type) };
  const content = decoded(bytes);
  if (content === undefined) return "binary";
  const text = new OutputBuffer();
  text.push(safeText(content.replaceAll("\r\n", "\n")));
  return { text, cut: blob.size > MAX_TEXT };
}

/** The type of a picture, by its first bytes: never by its name, or what the guest says. */
function pictureType(head: Uint8Array): string | undefined {
  const begins = (...expected: number[]) => expected.every((byte, index) => head[index] === byte);
  const text = String.fromCharCode(...head);
  if (begins(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)) return "image/png";
  if (begins(0xff, 0xd8, 0xff)) return "image/jpeg";
  if (text.startsWith("GIF87a") || text.startsWith("GIF89a")) return "image/gif";
  if (text.startsWith("RIFF") && text.slice(8, 12) === "WEBP") return "image/webp";
  return undefined;
}

function Picture({ picture, name }: { picture: Blob; name: string }) {
  const [{ address, text }, show] = useState<{ address?: string; text: string }>({ text: "" });
  useEffect(() => {
    const address = URL.createObjectURL(picture);
    // Its size is known before it is decoded, which takes gigabytes for some of few bytes.
    const probe = new Image();
    probe.onload = () => {
      const { naturalWidth: width, naturalHeight: height } = probe;
      const text = s.file.dimensions(`${width} × ${height}`, size(picture.size));
      show(width * height > MAX_PIXELS ? { text: s.file.pixels(text) } : { address, text });
    };
    probe.onerror = () => show({ text: s.file.broken });
    probe.src = address;
    return () => URL.revokeObjectURL(address);
  }, [picture]);
  return (
    <figure class="picture">
      {address && <img src={address} alt={safe(name)} />}
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
