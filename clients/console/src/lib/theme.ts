/** Dark or light: what the system prefers, unless the reader has chosen. It is all that the console stores. */
import { store } from "./store";

export type Theme = "system" | "light" | "dark";

const KEY = "sandboxctl.theme";

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

export const theme = store<Theme>(stored());

function apply(): void {
  if (theme.get() === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.get();
}

export function chooseTheme(value: Theme): void {
  theme.set(value);
  try {
    if (value === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, value);
  } catch {
    // Storage may be off; then the choice lasts as long as the page.
  }
}

apply();
theme.subscribe(apply);
