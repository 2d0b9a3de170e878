/** Dark or light: what the system prefers, unless the reader has chosen. Beside the proof of a session, it is all that the console stores. */
import { store } from "./store";

export type Theme = "system" | "light" | "dark";

const KEY = "sandboxctl.theme";
const stored = localStorage.getItem(KEY);

export const theme = store<Theme>(stored === "light" || stored === "dark" ? stored : "system");

function apply(): void {
  const chosen = theme.get();
  if (chosen === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, chosen);
  document.documentElement.dataset.theme = chosen;
}

apply();
theme.subscribe(apply);
