/** What a hostile guest puts wherever it may choose a text. */
import assert from "node:assert/strict";

/** The page that a script of a guest would call; nothing listens there. */
const ELSEWHERE = "http://127.0.0.1:9/stolen";

/** Markup. Whatever of it becomes an element, or runs, is seen by `harmOf` or as an offence of the page. */
export const MARKUP = [
  `<img src=x data-harm onerror="window.harmed=1;alert(1)">`,
  `<script data-harm>window.harmed=1;alert(2)</script>`,
  `"><svg data-harm onload=alert(3)><style>body{display:none}</style>`,
  `<iframe data-harm srcdoc="<script>parent.harmed=1</script>"></iframe>`,
  `<a data-harm href="javascript:alert(4)">click</a>`,
  `<meta data-harm http-equiv=refresh content="0;url=${ELSEWHERE}">`,
  `<form data-harm action=${ELSEWHERE}><input name=token></form>`,
  `<base data-harm href=${ELSEWHERE}><link data-harm rel=stylesheet href=${ELSEWHERE}>`,
  `</title></textarea></style></script><b data-harm>`,
  `\${alert(5)} {{constructor.constructor('alert(6)')()}} javascript:alert(7)`,
];

/** Texts that are read in another order, hide, or are no characters to see. */
export const SPELLS = [
  "invoice\u202egnp.exe",
  "zero\u200bwidth\u200d\ufeff\u2060",
  "\u2066\u2067isolate\u2069 \u202aembed\u202b \u202d\u200f\u200e",
  "bell\u0007 back\u0008 tab\u0009 vt\u000b esc\u001b[31m del\u007f nel\u0085 csi\u009b31m",
  "line\nfeed\r\nreturn\rover",
  "\u05d0\u05d1\u05d2 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 123",
  `Z\u0351\u036b\u0343a${"\u0300".repeat(200)}lgo`,
  "surrogate \ud83d\ude00 tag\u{e0041}\u{e007f} private\ue000 nonchar\uffff",
  "x".repeat(3000),
];

export const TEXTS = [...MARKUP, ...SPELLS];

/** Names of files: any bytes but `/` and NUL, up to 255 of them. */
export const NAMES = TEXTS.map((text) => text.replaceAll("/", "\u2215").slice(0, 80));

/** Escape sequences that a terminal obeys: titles, links, the clipboard, questions, another screen, modes, resets. */
export const ESCAPES = [
  "\u001b]0;<script>alert(8)</script>\u0007",
  `\u001b]8;;javascript:alert(9)\u0007link\u001b]8;;\u0007 \u001b]8;;${ELSEWHERE}\u001b\\other\u001b]8;;\u001b\\`,
  "\u001b]52;c;c3RvbGVu\u0007",
  "\u001b[6n\u001b[c\u001b[>c\u001b]10;?\u0007\u001bP+q544e\u001b\\",
  "\u001b[?1049h\u001b[2J\u001b[H\u001b[?25l\u001b[?1000h\u001b[?2004h",
  "\u001b[31;1;4;5;7mred\u001b[38;2;1;2;3m\u001b[48;5;300m\u001b[999999999;5m\u001b[;;;;;m",
  "\u001bc\u001b[!p\u001b(0lqqk\u001b(B",
  `\u001b[${"1;".repeat(5000)}m`,
  // A count of two thousand million for everything that counts.
  ...[..."@ABCDEFGILMPSTXZabde", " @", " A", "'}", "'~"].map((final) => `a\u001b[2147483647${final}`),
  "\u001b]unfinished",
];

/** A line for the shell that prints bytes of it, however they must be quoted. */
export function printing(text) {
  const octal = [...new TextEncoder().encode(text)].map((byte) => `\\0${byte.toString(8).padStart(3, "0")}`);
  return `printf '%b' '${octal.join("")}'`;
}

/** What of a guest's text has become more than text. Runs in the page. */
export function harmOf() {
  const found = [];
  if (window.harmed) found.push("a script ran");
  for (const element of document.querySelectorAll("*")) {
    if (element.hasAttribute("data-harm")) found.push(`an element: ${element.outerHTML.slice(0, 80)}`);
    for (const { name, value } of element.attributes) {
      if (name.startsWith("on")) found.push(`a handler: ${element.outerHTML.slice(0, 80)}`);
      if (/^\s*javascript:/i.test(value) && /^(href|src|action|formaction|data|xlink:href)$/.test(name)) {
        found.push(`an address: ${element.outerHTML.slice(0, 80)}`);
      }
    }
  }
  for (const name of [
    "script:not([src^='/assets/'])",
    "iframe",
    "object",
    "embed",
    "base",
    "form[action]",
    "meta[http-equiv]",
  ]) {
    for (const element of document.querySelectorAll(name)) found.push(`${name}: ${element.outerHTML.slice(0, 80)}`);
  }
  // Characters that change how others are read, or cannot be seen, are shown by a sign for them. The terminal draws.
  const unseen = /(?![\n\r\t])[\p{Cc}\p{Bidi_Control}\u200b-\u200d\u2060-\u2064\ufeff\u{e0000}-\u{e007f}]/u;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { data, parentElement } = walker.currentNode;
    if (parentElement?.closest(".xterm, .cm-editor, style, script")) continue;
    const at = data.search(unseen);
    if (at >= 0)
      found.push(
        `unseen U+${data.codePointAt(at).toString(16)} in <${parentElement?.localName}>: ${JSON.stringify(data.slice(Math.max(0, at - 20), at + 20))}`,
      );
  }
  for (const element of document.querySelectorAll("[title], [aria-label], [alt], [placeholder]")) {
    for (const name of ["title", "aria-label", "alt", "placeholder"]) {
      if (unseen.test(element.getAttribute(name) ?? "")) found.push(`unseen in ${name} of <${element.localName}>`);
    }
  }
  return [...new Set(found)];
}

/** Visits every tab of a page; on each nothing of the guest is more than text, and of `shown`, by tabs, it is text. */
export async function assertHarmless(page, shown = {}) {
  const tabs = page.getByRole("main").getByRole("tab");
  if (Object.keys(shown).length > 0) await tabs.first().waitFor();
  const count = await tabs.count();
  const missing = new Set(Object.keys(shown));
  for (let index = 0; index < Math.max(count, 1); index += 1) {
    if (count) await tabs.nth(index).click();
    const name = count ? await tabs.nth(index).textContent() : "the page";
    const key = [...missing].find((it) => name.toLowerCase().includes(it));
    if (key) {
      await page.getByRole("main").getByText(shown[key]).first().waitFor();
      missing.delete(key);
    }
    await settled(page);
    assert.deepEqual(await page.evaluate(harmOf), [], name);
    // Long texts are shown from their end on, and only what of them is in view.
    for (const part of [0, 0.3, 0.6]) {
      await page.evaluate((part) => {
        for (const it of document.querySelectorAll("main *")) {
          if (it.scrollHeight > it.clientHeight + 50) it.scrollTop = it.scrollHeight * part;
        }
      }, part);
      await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
      assert.deepEqual(await page.evaluate(harmOf), [], name);
    }
  }
  assert.deepEqual([...missing], [], "no such tabs");
  assert.match(await page.title(), /sandboxctl$/);
}

/** Waits until nothing has changed on the page for a moment, or for two seconds if something always does. */
export function settled(page) {
  return page.evaluate(
    () =>
      new Promise((resolve) => {
        let quiet = setTimeout(resolve, 300);
        new MutationObserver(() => {
          clearTimeout(quiet);
          quiet = setTimeout(resolve, 300);
        }).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
        setTimeout(resolve, 2000);
      }),
  );
}
