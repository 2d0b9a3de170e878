/** The editor of scripts: CodeMirror, in a chunk of its own. */
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import {
  bracketMatching,
  HighlightStyle,
  indentOnInput,
  StreamLanguage,
  syntaxHighlighting,
} from "@codemirror/language";
import { lua } from "@codemirror/legacy-modes/mode/lua";
import { type Diagnostic, lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightSpecialChars,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "preact/hooks";
import { safe } from "../../lib/format";
import type { ScriptProblem } from "../../lib/wire";
import { s } from "../../strings";

type EditorProps = {
  label: string;
  value: string;
  problems: ScriptProblem[];
  onChange: (value: string) => void;
};

const COLOURS = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--magenta)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--green)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--yellow)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
  { tag: [tags.standard(tags.variableName), tags.function(tags.variableName)], color: "var(--blue)" },
]);

const THEME = EditorView.theme({
  "&": { backgroundColor: "var(--surface)", color: "var(--text)", fontSize: "13px" },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
  ".cm-content": { fontFamily: "var(--mono)", caretColor: "var(--text)", minHeight: "220px" },
  ".cm-scroller": { maxHeight: "55vh" },
  ".cm-gutters": { minHeight: "220px", backgroundColor: "var(--raised)", color: "var(--muted)", border: "none" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent-soft) 45%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { background: "var(--accent-soft) !important" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", color: "var(--text)", border: "1px solid var(--line)" },
});

/** Escape lets the next Tab leave the editor: CodeMirror's own way out for those without a mouse. */
export function Editor({ label, value, problems, onChange }: EditorProps) {
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | undefined>(undefined);
  const changed = useRef(onChange);
  changed.current = onChange;
  useEffect(() => {
    if (!place.current) return;
    const editor = new EditorView({
      parent: place.current,
      state: EditorState.create({
        doc: value,
        extensions: [
          lineNumbers(),
          lintGutter(),
          history(),
          drawSelection(),
          highlightSpecialChars(),
          highlightActiveLine(),
          indentOnInput(),
          bracketMatching(),
          StreamLanguage.define(lua),
          syntaxHighlighting(COLOURS),
          THEME,
          // Control or Command and Enter run it: that is the page's.
          keymap.of([...defaultKeymap.filter(({ key }) => key !== "Mod-Enter"), ...historyKeymap, indentWithTab]),
          EditorView.contentAttributes.of({ "aria-label": label, "aria-description": s.playground.leave }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) changed.current(update.state.doc.toString());
          }),
        ],
      }),
    });
    view.current = editor;
    return () => editor.destroy();
  }, []);
  useEffect(() => {
    const editor = view.current;
    if (!editor) return;
    const { doc } = editor.state;
    const found = problems
      .filter((problem) => problem.line >= 1 && problem.line <= doc.lines)
      .map((problem): Diagnostic => {
        const line = doc.line(problem.line);
        const start = line.from + (line.text.length - line.text.trimStart().length);
        return { from: start, to: line.to, severity: problem.severity, message: safe(problem.message) };
      });
    editor.dispatch(setDiagnostics(editor.state, found));
  }, [problems]);
  return <div class="editor" ref={place} />;
}
