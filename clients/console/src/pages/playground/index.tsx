import { s } from "../../strings";
import { Empty, Page } from "../../ui";

export default function Playground() {
  return (
    <Page title={s.app.playground}>
      <Empty title={s.ui.loading} />
    </Page>
  );
}
