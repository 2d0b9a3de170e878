/** Every page in both themes, from a telephone to a large screen: readable by anyone, and without a horizontal scroll. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { before, describe, test } from "node:test";
import { Service, Visitor } from "./harness.mjs";
import { PAGES, showPage, stage } from "./scene.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

describe("the shape of pages", () => {
  let service;
  let scene;
  before(async () => {
    service = await Service.start();
    scene = await stage(service);
  });

  for (const theme of ["light", "dark"]) {
    test(`axe finds no violation: ${theme}`, async () => {
      const visitor = await Visitor.come(service.url, { theme });
      const found = [];
      for (const [name, page] of Object.entries(PAGES)) {
        await showPage(visitor, scene, page);
        await visitor.page.evaluate(axe);
        const { violations } = await visitor.page.evaluate(
          (tags) => window.axe.run(document, { runOnly: tags }),
          RULES,
        );
        for (const { id, help, nodes } of violations) {
          const where = nodes
            .slice(0, 3)
            .map(
              ({ html, failureSummary }) =>
                `    ${html.slice(0, 200)}\n      ${failureSummary?.split("\n")[1]?.trim()}`,
            );
          found.push(`${name}: ${id}: ${help}\n${where.join("\n")}`);
        }
      }
      assert.equal(found.length, 0, `\n${found.join("\n")}`);
      visitor.assertInnocent();
      await visitor.leave();
    });
  }

  for (const width of [360, 3840]) {
    test(`no page is wider than a window of ${width} px`, async () => {
      const visitor = await Visitor.come(service.url, { width, height: 720 });
      const found = [];
      for (const [name, page] of Object.entries(PAGES)) {
        await showPage(visitor, scene, page);
        const wide = await visitor.page.evaluate(() => {
          const root = document.documentElement;
          if (root.scrollWidth <= root.clientWidth) return [];
          const outside = [...document.querySelectorAll("body *")].filter(
            (it) => it.getBoundingClientRect().right > root.clientWidth + 1,
          );
          return [`${root.scrollWidth} px`, ...outside.slice(0, 5).map((it) => `${it.localName}.${it.className}`)];
        });
        if (wide.length) found.push(`${name}: ${wide.join(", ")}`);
      }
      assert.equal(found.length, 0, `\n${found.join("\n")}`);
      await visitor.leave();
    });
  }

  test("everything is reached by the keyboard, the focus is seen, and nothing keeps it", async () => {
    const visitor = await Visitor.come(service.url);
    for (const [name, shown] of Object.entries(PAGES)) {
      await showPage(visitor, scene, shown);
      const { page } = visitor;
      // From the top; an open dialog has the focus, and keeps it.
      await page.evaluate(() => {
        if (document.querySelector("dialog[open]")) {
          document.activeElement.dataset.reached = "yes";
          return;
        }
        const top = document.createElement("span");
        top.tabIndex = -1;
        document.body.prepend(top);
        top.focus();
      });
      for (let index = 0; index < 150; index += 1) {
        await page.keyboard.press("Tab");
        const focus = await page.evaluate(() => {
          const it = document.activeElement;
          if (!it || it === document.body) return "end";
          const isTyped = it.closest(".cm-editor, .xterm");
          if (it.dataset.reached) return isTyped ? "kept" : "end";
          it.dataset.reached = "yes";
          const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(it);
          const isSeen = (outlineStyle !== "none" && outlineWidth !== "0px") || boxShadow !== "none";
          return isTyped || isSeen ? "" : it.outerHTML.slice(0, 120);
        });
        if (focus === "end") break;
        // Tab is typed there; these leave it, as the page says.
        if (focus === "kept") await page.keyboard.press(name === "sandbox-terminal" ? "Shift+F6" : "Escape");
        else assert.equal(focus, "", `${name}: the focus is not seen`);
      }
      const missed = await page.evaluate(() => {
        const shown = document.querySelector("dialog[open]") ?? document;
        const all = [...shown.querySelectorAll("a[href], button, input, select, textarea, [tabindex='0']")];
        const open = all.filter((it) => it.tabIndex >= 0 && !it.disabled && it.checkVisibility());
        return open.filter((it) => !it.dataset.reached && it.type !== "radio").map((it) => it.outerHTML.slice(0, 120));
      });
      assert.deepEqual(missed, [], `${name}: not reached`);
    }
    await visitor.leave();
  });
});
