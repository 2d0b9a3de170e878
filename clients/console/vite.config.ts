import { defineConfig } from "vite";

/** In development: the service behind the page, and its token. A built page is served by the service itself. */
const service = process.env.SANDBOXCTL_SERVER ?? "http://127.0.0.1:8470";
const token = process.env.SANDBOXCTL_TOKEN;

export default defineConfig({
  build: {
    assetsDir: "assets",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            { name: "editor", test: /node_modules\/(@codemirror|@lezer|@marijn|style-mod|w3c-keyname|crelt)\// },
            { name: "terminal", test: /node_modules\/@xterm\// },
            { name: "preact", test: /node_modules\/preact\// },
          ],
        },
      },
    },
  },
  server: {
    proxy: {
      "/v1": {
        target: service,
        ws: true,
        headers: token ? { Authorization: `Bearer ${token}` } : {},
      },
    },
  },
});
