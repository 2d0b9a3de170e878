/** Sign-in with a token, or with the code of the link that `serve --dev` prints. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { PageProps } from "../app";
import icon from "../icon.svg";
import { ApiError } from "../lib/api";
import { safe } from "../lib/format";
import { href } from "../lib/route";
import { returnPath, signIn, useSession } from "../lib/session";
import { s } from "../strings";
import { Button, Field, Page, useAction } from "../ui";

export default function SignIn({ route }: PageProps) {
  const [token, setToken] = useState("");
  const { busy, run, failure } = useAction();
  const target = returnPath(route.query);
  const tried = useRef<string | undefined>(undefined);
  const { subject } = useSession();

  const attempt = (credential: { token: string } | { code: string }, refused: string) =>
    run(() =>
      signIn(credential, target).catch((error) => {
        throw error instanceof ApiError && error.status === 401 ? new Error(refused) : error;
      }),
    );

  useEffect(() => {
    const code = route.query.get("code");
    if (!code || tried.current === code) return;
    tried.current = code;
    // The address is in the history, in bookmarks and on the screen: the code does not stay there. The route keeps it.
    history.replaceState(null, "", href(["sign-in"], { return: route.query.get("return") ?? undefined }));
    void attempt({ code }, s.signIn.used);
  }, [route]);

  return (
    <main class="sign-in">
      <p class="brand">
        <img src={icon} alt="" />
        {s.app.name}
      </p>
      <div class="card">
        <Page title={s.signIn.title}>
          <form
            class="form"
            onSubmit={(event) => {
              event.preventDefault();
              if (token.trim() !== "") void attempt({ token: token.trim() }, s.signIn.refused);
            }}
          >
            {route.query.has("expired") && <p role="status">{s.signIn.expired}</p>}
            <p class="muted">{s.signIn.text}</p>
            <Field
              label={s.signIn.token}
              type="password"
              value={token}
              onInput={setToken}
              hint={s.signIn.hint}
              required
            />
            {failure}
            {failure && subject && <a href={target}>{s.signIn.goOn(safe(subject))}</a>}
            <Button label={busy ? s.signIn.busy : s.signIn.submit} kind="primary" submit busy={busy} />
          </form>
        </Page>
      </div>
    </main>
  );
}
