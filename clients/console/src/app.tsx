/** The frame of every page: who is signed in, where to go, and what to do when a page fails. */
import { Component, type ComponentChildren, type ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import icon from "./icon.svg";
import { safe } from "./lib/format";
import { useLoad } from "./lib/load";
import { href, type Route, replace, useRoute } from "./lib/route";
import { loadSession, returnPath, signOut, useSession, useSignedIn } from "./lib/session";
import { useStore } from "./lib/store";
import { type Theme, theme } from "./lib/theme";
import SignIn from "./pages/sign-in";
import { s } from "./strings";
import { Button, Empty, ErrorBox, Loaded, Page, Safe, Spinner } from "./ui";

export type PageProps = { route: Route };
type PageModule = { default: ComponentType<PageProps> };

/** The pages, by the first part of the path; each is loaded when it is first shown. */
const PAGES: Record<string, () => Promise<PageModule>> = {
  executions: () => import("./pages/executions"),
  sandboxes: () => import("./pages/sandboxes"),
  playground: () => import("./pages/playground"),
  service: () => import("./pages/service"),
  reference: () => import("./pages/reference"),
};

/** The scopes without which a page has nothing to show. */
const SCOPES: Record<string, string> = { sandboxes: "sandboxes", playground: "executions:write", service: "admin" };

export function App() {
  const signedIn = useSignedIn();
  const { error, reload } = useLoad(loadSession, []);
  const route = useRoute();
  const name = route.path[0] ?? "";
  // What came of a code is said, also to who is signed in.
  const hasCode = route.query.has("code");
  useEffect(() => {
    if (signedIn === "yes" && (name === "" || (name === "sign-in" && !hasCode))) {
      replace(returnPath(route.query));
    }
    if (signedIn === "no" && name !== "sign-in") {
      replace(href(["sign-in"], { return: name === "" ? undefined : location.hash }));
    }
  }, [signedIn, route]);
  if (error) {
    return (
      <main>
        <ErrorBox error={error} onRetry={reload} />
      </main>
    );
  }
  if (name === "sign-in") return signedIn === "unknown" && !hasCode ? <Spinner /> : <SignIn route={route} />;
  if (signedIn !== "yes") return <Spinner />;
  return (
    <>
      <TopBar current={name} />
      <main id="main" tabIndex={-1}>
        <Boundary key={name}>
          <Shown name={name} route={route} />
        </Boundary>
      </main>
    </>
  );
}

function TopBar({ current }: { current: string }) {
  const session = useSession();
  // The page of the service is for those who run it.
  const places = Object.keys(PAGES).filter((name) => name !== "service" || session.can("admin"));
  return (
    <header class="topbar">
      <button type="button" class="skip button" onClick={() => document.getElementById("main")?.focus()}>
        {s.app.skip}
      </button>
      <a class="brand" href={href(["executions"])}>
        <img src={icon} alt="" />
        {s.app.name}
      </a>
      <nav aria-label={s.app.navigation}>
        <ul>
          {places.map((name) => (
            <li key={name}>
              <a href={href([name])} aria-current={name === current ? "page" : undefined}>
                {s.app.pages[name as keyof typeof s.app.pages]}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="who">
        <span class="subject muted small" title={s.app.signedInAs(safe(session.subject))}>
          <Safe text={session.subject} />
        </span>
        <ThemeChoice />
        <Button label={s.app.signOut} kind="quiet" onClick={() => void signOut()} />
      </div>
    </header>
  );
}

function ThemeChoice() {
  const chosen = useStore(theme);
  return (
    <select aria-label={s.app.theme} value={chosen} onChange={(event) => theme.set(event.currentTarget.value as Theme)}>
      {Object.entries(s.app.themes).map(([value, label]) => (
        <option key={value} value={value}>
          {label}
        </option>
      ))}
    </select>
  );
}

/** A page by its name, once it is loaded, or why it is not shown. */
function Shown({ name, route }: { name: string; route: Route }) {
  const session = useSession();
  const load = Object.hasOwn(PAGES, name) ? PAGES[name] : undefined;
  const module = useLoad(async () => load?.(), [name]);
  const scope = load && SCOPES[name];
  const title = load ? s.app.pages[name as keyof typeof s.app.pages] : s.app.notFound;
  const why = load ? scope && !session.can(scope) && s.app.scope(scope) : s.app.notFoundText;
  if (!why) return <Loaded of={module}>{(page) => page && <page.default route={route} />}</Loaded>;
  return (
    <Page title={title}>
      <Empty title={why} />
    </Page>
  );
}

/** An error of a page ends that page alone. */
class Boundary extends Component<{ children: ComponentChildren }, { error?: Error }> {
  static override getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render({ children }: { children: ComponentChildren }, { error }: { error?: Error }) {
    if (!error) return children;
    return (
      <Page title={s.app.crashed} actions={<Button label={s.app.reload} onClick={() => location.reload()} />}>
        <p>{s.app.crashedText}</p>
        <ErrorBox error={error} />
      </Page>
    );
  }
}
