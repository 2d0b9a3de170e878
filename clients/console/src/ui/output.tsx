/** Text of a guest in rows of one height, of which only those that are seen are rendered. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { FLAGS, type OutputBuffer, type Row, type Span, spans } from "../lib/ansi";
import { s } from "../strings";
import { Button, Copy } from "./basic";

/** The height of a row in pixels, as `.output-row` has it. */
const ROW = 20;
const MARGIN_ROWS = 8;
const ANNOUNCE_MS = 5000;

type OutputProps = {
  buffer: OutputBuffer;
  label: string;
  empty?: string;
  /** Where it begins: what grows is followed at its end. */
  from?: "start" | "end";
};

export function Output({ buffer, label, empty, from = "end" }: OutputProps) {
  const [, render] = useState(0);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const [following, setFollowing] = useState(from === "end");
  const [announced, setAnnounced] = useState("");
  const view = useRef<HTMLElement>(null);

  useEffect(() => {
    let timer = 0;
    const announce = () => {
      timer = 0;
      setAnnounced(s.output.lines(buffer.rows.length + buffer.dropped));
    };
    render((n) => n + 1);
    const stop = buffer.subscribe(() => {
      render((n) => n + 1);
      if (timer === 0) timer = window.setTimeout(announce, ANNOUNCE_MS);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [buffer]);

  useEffect(() => {
    const element = view.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const count = buffer.rows.length;
  useLayoutEffect(() => {
    if (following && view.current) view.current.scrollTop = view.current.scrollHeight;
  }, [count, following, height]);

  const onScroll = (event: { currentTarget: HTMLElement }) => {
    const element = event.currentTarget;
    setTop(element.scrollTop);
    setFollowing(element.scrollHeight - element.scrollTop - element.clientHeight < ROW * 2);
  };

  const first = Math.max(0, Math.min(Math.floor(top / ROW), count) - MARGIN_ROWS);
  const last = Math.min(count, Math.ceil((top + height) / ROW) + MARGIN_ROWS);
  return (
    <div class="output">
      <div class="output-bar">
        <span class="muted small">{buffer.dropped > 0 ? s.output.dropped(buffer.dropped) : s.output.lines(count)}</span>
        {!following && <Button label={s.output.toEnd} kind="quiet" onClick={() => setFollowing(true)} />}
        {count > 0 && <Copy text={() => buffer.text()} />}
      </div>
      <section
        ref={view}
        class="output-view"
        aria-label={label}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by keyboard.
        tabIndex={0}
        onScroll={onScroll}
        style={{ height: `min(55vh, ${Math.max(count, 3) * ROW + 16}px)` }}
      >
        {count === 0 && <p class="muted output-empty">{empty ?? s.output.empty}</p>}
        <div class="output-rows" style={{ height: `${count * ROW}px` }}>
          {buffer.rows.slice(first, last).map((row, index) => (
            <OutputRow key={first + index + buffer.dropped} row={row} at={(first + index) * ROW} />
          ))}
        </div>
      </section>
      <p class="offscreen" aria-live="polite">
        {announced}
      </p>
    </div>
  );
}

function OutputRow({ row, at }: { row: Row; at: number }) {
  return (
    <div class={`output-row ${row.source}`} style={{ transform: `translateY(${at}px)` }}>
      {spans(row.text, row.style).map((span, index) => (
        <span key={index} class={className(span)} style={colours(span)}>
          {span.text}
        </span>
      ))}
    </div>
  );
}

function className({ style: { fg, bg, ...style } }: Span): string {
  const names: string[] = FLAGS.filter((flag) => style[flag]);
  if (typeof fg === "number" && fg < 16) names.push(`fg${fg}`);
  if (typeof bg === "number" && bg < 16) names.push(`bg${bg}`);
  return names.join(" ");
}

/** The colours beyond the 16 of the theme: the cube and the greys of 256, and those given in full. */
function colours({ style }: Span): { color?: string; backgroundColor?: string } | undefined {
  const color = colour(style.fg);
  const backgroundColor = colour(style.bg);
  return color || backgroundColor ? { color, backgroundColor } : undefined;
}

function colour(value: number | string | undefined): string | undefined {
  if (typeof value === "string") return value;
  if (value === undefined || value < 16) return undefined;
  if (value >= 232) {
    const grey = (value - 232) * 10 + 8;
    return `rgb(${grey},${grey},${grey})`;
  }
  const level = (n: number) => (n === 0 ? 0 : 55 + n * 40);
  const cube = value - 16;
  return `rgb(${level(Math.floor(cube / 36))},${level(Math.floor(cube / 6) % 6)},${level(cube % 6)})`;
}
