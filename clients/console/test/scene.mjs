/** A service as a small team has it, and every page of it: for the tests of their shape and for the pictures of the guide. */
import { deflateSync } from "node:zlib";
import { ALL_SCOPES, openTerminal, until } from "./harness.mjs";

const REPORT = `-- Sums up the orders of a quarter, and leaves a report.
local orders = {
  north = { 1280, 990, 1405 },
  south = { 760, 1120, 845 },
  west = { 1530, 1610, 1498 },
}
local regions, total = {}, 0
local out = io.open("/io/report.csv", "w")
for name, months in pairs(orders) do
  local sum = 0
  for _, value in ipairs(months) do sum += value end
  local best = math.max(table.unpack(months))
  regions[name] = { sum = sum, best = best }
  total += sum
  print(string.format("%-6s %6d EUR", name, sum))
  out:write(name .. "," .. sum .. "\\n")
end
out:close()
return { quarter = "Q3", total = total, regions = regions }
`;

const BUILD = `green='\\033[32m' bold='\\033[1m' dim='\\033[2m' yellow='\\033[33m' off='\\033[0m'
printf "$bold== building 14 modules$off\\n"
for name in lexer parser resolver checker emitter linker; do
  printf "  $green+$off %-10s $dim%s$off\\n" $name "0.$(( \${#name} * 13 )) s"
done
printf "$yellow  warning:$off parser: 2 unused rules\\n" >&2
printf "$green$bold== 14 modules, 128 tests passed$off\\n"
mkdir -p out && cp /in/chart.png out/chart.png && echo '{"modules": 14, "tests": 128}' > out/summary.json
head -c 300000 /dev/zero > out/program.bin
`;

const TESTS = `printf '  \\033[32mok\\033[0m    orders are summed\\n  \\033[31mFAIL\\033[0m  months without orders count as 0\\n'
printf '\\033[31m        expected 0, got nil (orders.luau:12)\\033[0m\\n' >&2
exit 1`;

/** A chart as a PNG of bars. */
function chart() {
  const [width, height] = [360, 180];
  const bars = [0.5, 0.72, 0.38, 0.85, 0.66, 0.94];
  const rows = Buffer.alloc(height * (1 + width * 3), 0xff);
  for (let y = 0; y < height; y += 1) {
    rows[y * (1 + width * 3)] = 0;
    for (const [index, bar] of bars.entries()) {
      if (y < height * (1 - bar)) continue;
      for (let x = 20 + index * 55; x < 60 + index * 55; x += 1) {
        rows.set([37, 99 + index * 12, 200], y * (1 + width * 3) + 1 + x * 3);
      }
    }
  }
  const crcs = Array.from({ length: 256 }, (_, n) => {
    let c = n;
    for (let bit = 0; bit < 8; bit += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
    return c >>> 0;
  });
  const chunk = (type, data) => {
    const body = Buffer.concat([Buffer.from(type, "latin1"), data]);
    const head = Buffer.alloc(4);
    head.writeUInt32BE(data.length);
    const tail = Buffer.alloc(4);
    tail.writeUInt32BE(
      (body.reduce((crc, byte) => crcs[(crc ^ byte) & 0xff] ^ (crc >>> 8), 0xffffffff) ^ 0xffffffff) >>> 0,
    );
    return Buffer.concat([head, body, tail]);
  };
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 2, 0, 0, 0], 8);
  const signature = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);
  return Buffer.concat([
    signature,
    chunk("IHDR", header),
    chunk("IDAT", deflateSync(rows)),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/** Fills a service, and returns what its pages are about. */
export async function stage(service) {
  const token = await service.token("ada", ALL_SCOPES);
  const [grace, robot] = [await service.token("grace"), await service.token("ci")];
  const of = (who, request) => service.execute(who, request);
  const command = (shell, more = {}) => ({ command: { shell }, ...more });
  const late = { limits: { timeout_ms: 400 } };
  const image = { "chart.png": { b64: chart().toString("base64") } };
  await of(robot, command("echo nightly; exit 0", { metadata: { job: "nightly", attempt: 1 } }));
  await of(grace, { script: "return 1 + 1" });
  await of(token, { script: 'error("no rows for 2026-02")', metadata: { step: "import" } });
  await of(token, command("sleep 60", { ...late, metadata: { step: "wait for a lock" } }));
  await of(token, command("yes", { limits: { output_bytes: 65_536 }, metadata: { step: "export" } }));
  await of(token, {
    script: "local t = {} while true do t[#t + 1] = string.rep('x', 100000 + #t) end",
    metadata: { step: "sort" },
  });
  const refused = command(
    "printf 'GET http://telemetry.example.net/ HTTP/1.0\\r\\n\\r\\n' | nc 127.0.0.1 3128 | head -n 1; echo done",
    {
      network: { allow: ["example.org"] },
    },
  );
  const network = await of(token, { ...refused, metadata: { step: "fetch" } });
  const tests = await of(token, command(TESTS, { metadata: { branch: "main", commit: "4f1c9e2" } }));
  const build = await of(token, command(BUILD, { inputs: image, metadata: { branch: "main", commit: "4f1c9e2" } }));
  const report = await of(token, { script: REPORT, metadata: { report: "Q3" } });
  const { id: running } = await service.call(
    token,
    "POST",
    "/v1/executions",
    command("while sleep 1; do date; done", { metadata: { watch: "orders" } }),
  );
  const spec = { processes: "kept", ports: "any" };
  const dev = await service.call(token, "POST", "/v1/sandboxes", { name: "dev", spec, metadata: { owner: "ada" } });
  const idle = await service.call(token, "POST", "/v1/sandboxes", { name: "review-42", spec, metadata: { pull: 42 } });
  await service.call(token, "POST", `/v1/sandboxes/${idle.id}/pause`);
  const at = `/v1/sandboxes/${dev.id}`;
  for (const [path, text] of Object.entries({
    "README.md": "# Orders\n\nSums up the orders of a quarter.\n",
    "src/orders.luau": REPORT,
    "www/index.html": "<h1>Orders</h1>\n",
    "data/orders.csv": "month,region,sum\n2026-07,north,1280\n",
  })) {
    await service.call(token, "PUT", `${at}/files/${path}`, text);
  }
  const serve = { command: { shell: "httpd -f -p 8000 -h www" }, tag: "web" };
  await service.call(token, "POST", `${at}/processes`, serve);
  await service.call(token, "POST", `${at}/processes`, {
    command: { shell: "n=0; while sleep 2; do n=$((n+1)); echo synchronised $n; done" },
  });
  await service.call(token, "POST", `${at}/processes`, { command: { shell: "echo migrated 3 tables" } });
  return { token, tests: tests.id, build: build.id, report: report.id, network: network.id, running, dev: dev.id };
}

const tab = (name) => (page) => page.getByRole("main").getByRole("tab", { name }).click();

/**
 * The pages, by the names of their pictures: their hash, and what is done and waited for before they are looked at. A
 * plain one has no picture in the guide.
 */
export const PAGES = {
  "sign-in": { hash: () => "sign-in", isPublic: true },
  executions: { hash: () => "executions" },
  execution: {
    hash: ({ build }) => `executions/${build}`,
    act: (page) => page.getByText("128 tests passed").first().waitFor(),
  },
  "execution-result": { hash: ({ report }) => `executions/${report}`, act: tab(/result/i) },
  "execution-files": {
    hash: ({ build }) => `executions/${build}`,
    act: async (page) => {
      await tab(/files/i)(page);
      await page.getByText("chart.png").first().click();
      await page.waitForFunction(() =>
        [...document.images].some((it) => it.src.startsWith("blob:") && it.naturalWidth > 0),
      );
    },
  },
  "execution-network": { hash: ({ network }) => `executions/${network}`, act: tab(/network/i) },
  "execution-running": { hash: ({ running }) => `executions/${running}`, isPlain: true },
  sandboxes: { hash: () => "sandboxes", act: (page) => page.getByText("review-42").first().waitFor() },
  "sandbox-new": { hash: () => "sandboxes/new" },
  "sandbox-terminal": {
    hash: ({ dev }) => `sandboxes/${dev}`,
    act: async (page) => {
      await openTerminal(page);
      await page.keyboard.type("ls -l && head -n 3 README.md\n");
      await until("the files", async () => (await page.locator(".xterm-rows").textContent()).includes("# Orders"));
    },
  },
  "sandbox-processes": { hash: ({ dev }) => `sandboxes/${dev}`, act: tab(/processes/i) },
  "sandbox-files": { hash: ({ dev }) => `sandboxes/${dev}`, act: tab(/files/i) },
  "sandbox-ports": { hash: ({ dev }) => `sandboxes/${dev}`, act: tab(/ports/i) },
  playground: {
    hash: () => "playground",
    act: async (page) => {
      await page.locator(".cm-content").fill(REPORT);
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await page.getByText("4638 EUR").first().waitFor();
      await page.evaluate(() => document.activeElement?.blur());
    },
  },
  service: { hash: () => "service", act: (page) => page.getByText("grace").first().waitFor() },
  reference: { hash: () => "reference" },
  "not-found": { hash: () => "nowhere", isPlain: true },
};

/** Shows a page as it is when it has loaded. */
export async function showPage(visitor, scene, { hash, act, isPublic }) {
  const { page, context } = visitor;
  if (isPublic) await context.clearCookies();
  // Another hash alone would not load the page anew.
  await page.goto("about:blank");
  if (!isPublic && (await context.cookies()).length === 0) await visitor.signIn(scene.token);
  await visitor.open(hash(scene));
  await page.getByRole("heading", { level: 1 }).first().waitFor();
  await act?.(page);
  await page.waitForFunction(() => !document.querySelector(".spinner, [aria-busy=true]"));
}
