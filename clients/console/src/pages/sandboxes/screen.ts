/** The screen of a terminal: xterm.js on an `Attachment`. A chunk of its own, which is loaded with the first terminal. */
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { theme } from "../../lib/theme";
import { s } from "../../strings";
import { Attachment, type AttachState } from "./attach";
import type { ProcessView } from "./calls";

const SCROLLBACK = 5_000;
const RESIZE_DELAY = 100;
/** Titles, links and the clipboard: what a program prints changes nothing but the screen. */
const IGNORED_OSC = [0, 1, 2, 8, 52];
/** Tabs, inserted, deleted and scrolled lines, and repeated characters: xterm.js does them one by one, however many. */
const COUNTED = { I: "cols", L: "rows", M: "rows", S: "rows", T: "rows", Z: "cols", b: "cols" } as const;
/** More accents on a character than a script has: a browser takes seconds to draw a heap of them. */
const HEAP = /([\p{M}\p{Cf}\u1160-\u11ff]{16})[\p{M}\p{Cf}\u1160-\u11ff]+/gu;

interface ScreenEvents {
  state(state: AttachState, why?: unknown): void;
  notice(text: string): void;
  /** The user has asked for a way out: Tab is a key of the terminal. */
  leave(): void;
}

export type Screen = ReturnType<typeof openScreen>;

export function openScreen(host: HTMLElement, sandbox: string, process: ProcessView, events: ScreenEvents) {
  const { fontFamily } = getComputedStyle(host);
  const terminal = new Terminal({ scrollback: SCROLLBACK, fontFamily, fontSize: 13, minimumContrastRatio: 4.5 });
  for (const code of IGNORED_OSC) terminal.parser.registerOscHandler(code, () => true);
  // What is more than the screen is not done at all.
  for (const [final, most] of Object.entries(COUNTED)) {
    terminal.parser.registerCsiHandler({ final }, ([count]) => Number(count) > terminal[most]);
  }
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(host);
  fit.fit();

  let replaying = 0;
  const decoder = new TextDecoder();
  const attachment = new Attachment(sandbox, process, {
    output(bytes, done) {
      const isReplay = attachment.isReplay;
      if (isReplay) replaying += 1;
      terminal.write(decoder.decode(bytes, { stream: true }).replace(HEAP, "$1"), () => {
        if (isReplay) replaying -= 1;
        done();
      });
    },
    event(event) {
      if (event.event === "exit") events.notice(s.terminal.exited(event.exit_code, event.signal));
      if (event.event === "omitted") events.notice(s.terminal.omitted);
    },
    problem: (problem) => events.notice(problem.detail),
    state(state, why) {
      if (state === "ended" || state === "gone") terminal.options.disableStdin = true;
      events.state(state, why);
    },
  });
  attachment.resize(terminal.cols, terminal.rows);

  // The terminal's answers to questions of long ago are input too: a shell would take them for what was typed.
  const send = (bytes: Uint8Array) => replaying === 0 && attachment.input(bytes);
  const encoder = new TextEncoder();
  terminal.onData((text) => send(encoder.encode(text)));
  terminal.onBinary((text) => send(Uint8Array.from(text, (character) => character.charCodeAt(0))));
  terminal.onResize(({ cols, rows }) => attachment.resize(cols, rows));
  terminal.attachCustomKeyEventHandler((event) => {
    if (event.key !== "F6" || !event.shiftKey) return true;
    event.preventDefault();
    if (event.type === "keydown") events.leave();
    return false;
  });

  let timer: ReturnType<typeof setTimeout> | undefined;
  const resizes = new ResizeObserver(() => {
    clearTimeout(timer);
    timer = setTimeout(() => fit.fit(), RESIZE_DELAY);
  });
  resizes.observe(host);
  const recolour = () => {
    const { backgroundColor: background, color } = getComputedStyle(host);
    terminal.options.theme = { background, foreground: color, cursor: color, selectionBackground: "#7aa2f755" };
  };
  recolour();
  const stopTheme = theme.subscribe(recolour);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", recolour);

  return {
    focus: () => terminal.focus(),
    readAloud(on: boolean) {
      terminal.options.screenReaderMode = on;
    },
    dispose() {
      clearTimeout(timer);
      resizes.disconnect();
      stopTheme();
      scheme.removeEventListener("change", recolour);
      attachment.close();
      terminal.dispose();
    },
  };
}
